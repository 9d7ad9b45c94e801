"""What runners of both families share in working with people: who drives, what is discarded, what is reported.

N environments, A agents. I is 1 where a person drove; a takeover starts where I is 1 and the policy drove the agent's
step before, in the same episode. Nobody being there is the usual case, and every step asks: `np.count_nonzero` takes a
fraction of the time of `any`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.buffers.demonstrations import Demonstration
from harl.config import ConfigError
from harl.envs.api import BoolArray, EnvStep, FloatArray
from harl.envs.breaking_off import break_off
from harl.experiment.episodes import EpisodeTracker
from harl.hitl.bridge import Bridge, Credit, Override, Source, Stage, Standing
from harl.hitl.learning import Learning
from harl.runners.people_counts import PeopleCounts

if TYPE_CHECKING:
    from harl.runners.runner import Runner


class People(ABC):
    """The people of one run, as its runner sees them.

    Args:
        runner: whose environments they see and whose learners they teach.
        learning: how.
        tracker: statistics of the training episodes.
    """

    def __init__(self, runner: Runner, learning: Learning, tracker: EpisodeTracker) -> None:
        self.runner, self.learning, self.tracker = runner, learning, tracker
        self.layout, self.num_envs = runner.layout, runner.algo_args.train.n_rollout_threads
        self.counts = PeopleCounts(self.num_envs * self.layout.num_agents)
        self.low, self.high = self.layout.action_bounds()
        self.discrete = np.array([not isinstance(space, spaces.Box) for space in self.layout.action_spaces])
        shape = (self.num_envs, self.layout.num_agents)
        self._policies = np.zeros(shape, np.int8)
        """(N, A) `source` where the policies decide everything; not written to."""
        self.source = self._policies
        """(N, A) who decides the step under way, see `Source`; `POLICY` for agents that have left."""
        self.unseen: BoolArray | None = None
        """(N, A) where a person had not seen what they act on in it, see `is_unseen`."""
        self.before = self._policies
        """(N, A) the same of the step before."""
        self.fresh = np.ones(self.num_envs, np.bool_)
        """(N,) whether the running episode has no step before."""
        self.discarding = np.zeros(self.num_envs, np.bool_)
        """(N,) whether the running episode has been discarded."""

    @property
    def bridge(self) -> Bridge:
        """How people take part."""
        assert self.runner.bridge is not None
        return self.runner.bridge

    # What families fill in.

    @abstractmethod
    def earliest(self) -> int:
        """Count of environment steps of the earliest step whose reward can still be amended."""

    @abstractmethod
    def log_probs(self, obs: FloatArray, masks: FloatArray | None, actions: FloatArray) -> FloatArray | None:
        """(N, A) log-probabilities of the current policies, None for those that have none."""

    @abstractmethod
    def forget(self, env: int) -> None:
        """Let nothing be learned from the running episode of an environment."""

    @abstractmethod
    def teach(self, demonstrations: Iterable[Demonstration]) -> int:
        """Learn from recorded episodes; returns how many steps that people drove were found in them.

        Raises:
            ConfigError: one does not fit these agents, or the mode learns nothing from them.
        """

    # A step.

    def ask(self, env_steps: int, obs: FloatArray, masks: FloatArray | None, proposed: FloatArray) -> Override:
        """What people make of the proposed actions (N, A, action_dim)."""
        return self.bridge.override_actions(env_steps, obs, masks, proposed)

    def note(self, override: Override, active: Callable[[], BoolArray]) -> bool:
        """Write down who decides this step for agents that are there, which `active` gives as (N, A).

        Returns:
            Whether anybody but the policies decides for any.
        """
        if override.policy_mask is None:
            self.source = self._policies
            return False
        others = (override.policy_mask[..., 0] == 0) & active()
        source = np.int8(Source.HUMAN) if override.source is None else override.source
        self.source = np.where(others, source, np.int8(Source.POLICY)).astype(np.int8)
        self.unseen = self.is_unseen(override.seen_ago)
        if not np.count_nonzero(self.source):
            return False
        self.tracker.touch(np.any(self.source, axis=1, keepdims=False))
        self.counts.drove(self.source == Source.HUMAN, len(self.takeovers()))
        return True

    def is_unseen(self, seen_ago: NDArray[Any] | None) -> BoolArray | None:
        """Where what the driver had seen was too old for the step to be imitated; None where that is nowhere."""
        limit = self.learning.options.bc_max_age
        return None if limit is None or seen_ago is None else seen_ago > limit

    def executable(self, actions: FloatArray) -> FloatArray:
        """Actions (N, A, action_dim) within each agent's own bounds."""
        clipped: FloatArray = np.clip(actions, self.low, self.high, dtype=np.float32)
        return clipped

    def changed(self) -> BoolArray | None:
        """(N, A) where the driver is another one than in the step before; None where that is nowhere."""
        if not (np.count_nonzero(self.source) or np.count_nonzero(self.before)):
            return None
        changed: BoolArray = (np.minimum(self.source, 2) != np.minimum(self.before, 2)) & ~self.fresh[:, None]
        return changed if changed.any() else None

    def takeovers(self) -> NDArray[np.int64]:
        """(K, 2) environments and agents that a person took over in this step from the policy in the one before."""
        if not np.count_nonzero(self.source):
            return np.empty((0, 2), np.int64)
        starts = (self.source == Source.HUMAN) & (self.before == Source.POLICY) & ~self.fresh[:, None]
        return np.argwhere(starts)

    def take_marks(self, outcome: EnvStep) -> EnvStep:
        """Hear which episodes were discarded, and begin the next ones; before the step is counted.

        Returns:
            The step with which the discarded episodes are over; environments that cannot be restarted go on with them,
            unlearned and uncounted.
        """
        self.hear_discards()
        if not np.count_nonzero(self.discarding):
            return outcome
        outcome = break_off(self.runner.envs, outcome, np.flatnonzero(self.discarding).tolist())
        counted = {name: np.where(self.discarding, np.nan, values) for name, values in outcome.metrics.items()}
        return dataclasses.replace(outcome, metrics=counted)

    def hear_discards(self) -> None:
        """Leave the running episodes that people have discarded out of what is learned and counted."""
        for env in self.bridge.discarded():
            if not self.discarding[env]:
                self.discarding[env] = True
                self.tracker.discard(env)
                self.forget(env)

    def started(self, env: int) -> int:
        """Count of environment steps at which the running episode began; before the step under way is counted."""
        return self.runner.env_steps - int(self.tracker.lengths[env]) * self.num_envs

    def steps_back(self, credit: Credit) -> int | None:
        """How many steps of its environment a credit is behind the step under way; None where it names no step."""
        back, rest = divmod(self.runner.env_steps - credit.env_steps, self.num_envs)
        return None if rest or back < 0 else back

    def finish(self, outcome: EnvStep) -> None:
        """Show the step, and make ready for the next one."""
        self.bridge.publish(outcome)
        self.counts.steps += 1
        self.before, self.fresh = self.source, outcome.ended.copy()
        if np.count_nonzero(self.discarding):
            self.discarding &= ~self.fresh

    # A run.

    def join(self, first: EnvStep) -> None:
        """Let people see the environments, which show `first` now."""
        runner = self.runner
        name, envs = runner.algo_args.algo.name, runner.envs

        def log_probs(obs: FloatArray, masks: FloatArray | None, actions: FloatArray) -> FloatArray | None:
            return self.log_probs(obs, masks, actions)

        stage = Stage(
            layout=self.layout,
            num_envs=self.num_envs,
            purpose="train",
            title=f"{name} on {envs.name}/{envs.scenario}",
            env_name=envs.name,
            scenario=envs.scenario,
            algo=name,
            folder=runner.folder.path,
            sums_rewards=runner.env_args.reward == "shared_sum",
            total_steps=runner.total_steps,
            render=envs.render,
            scene=envs.scene,
            watch_ends=envs.watch_ends,
            render_end=envs.render_end,
            earliest=self.earliest,
            stopping=lambda: runner.stop_requested,
            log_probs=log_probs,
            notice=runner.logger.message,
            metrics=self.counts.mean,
            env_state=lambda: envs.get_state() if envs.can_save_state else None,
            standing=Standing(runner.env_steps, self.tracker.numbers, self.tracker.lengths, self.tracker.returns),
            seed_of=lambda env: None if runner.reset_seeds is None else runner.reset_seeds[env],
        )
        self.bridge.attach(stage, first)

    def teachers(self, agent: int) -> list[int]:
        """Agents whose human steps one with a policy of its own imitates: its own, or those of all with its spaces."""
        layout = self.layout
        everyone = range(layout.num_agents)
        if self.learning.options.bc_agents == "same":
            return [agent]
        spaces_of = [(layout.observation_spaces[i], layout.action_spaces[i]) for i in everyone]
        return [i for i in everyone if spaces_of[i] == spaces_of[agent]]

    def restart(self) -> None:
        """The environments were reset from outside."""
        self.source = self.before = self._policies
        self.fresh[:], self.discarding[:] = True, False

    def check(self, demonstration: Demonstration) -> None:
        """Raise `ConfigError` where a recording does not fit these agents."""
        problems = demonstration.problems(self.layout)
        if problems:
            raise ConfigError([f"hitl.demonstrations: {problem}" for problem in problems])

    def get_state(self) -> dict[str, Any]:
        """What the rest of the run depends on, for a checkpoint."""
        return {
            "before": self.before.copy(),
            "fresh": self.fresh.copy(),
            "discarding": self.discarding.copy(),
            "counts": self.counts.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.before, self.source = state["before"].copy(), self._policies
        self.fresh, self.discarding = state["fresh"].copy(), state["discarding"].copy()
        self.counts.set_state(state["counts"])
