"""People in off-policy training: what they do to the replay, and the second buffer of what they did."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harl.buffers.demonstrations import Demonstration
from harl.buffers.human_transitions import HumanTransitions
from harl.buffers.replay import ReplayBatch, ReplayBuffer
from harl.config import ConfigError
from harl.envs.api import EnvStep, FloatArray
from harl.experiment.seeding import Purpose
from harl.hitl.bridge import Source
from harl.hitl.learning import Learning
from harl.runners.people import People
from harl.runners.seen import Seen

if TYPE_CHECKING:
    from harl.runners.off_policy_base_runner import OffPolicyBaseRunner


class OffPolicyPeople(People):
    """See `People`. The replay stores what was executed; some modes draw a share of each batch from human steps."""

    runner: OffPolicyBaseRunner

    def __init__(self, runner: OffPolicyBaseRunner, learning: Learning) -> None:
        super().__init__(runner, learning, runner.tracker)
        self.proposed: FloatArray | None = None
        """What the policies proposed in the step under way, where that is what is stored."""
        self.second: HumanTransitions | None = None
        if learning.mode.sampled:
            generator = torch.Generator().manual_seed(runner.seeds.integer(Purpose.DEMONSTRATIONS))
            self.second = HumanTransitions(
                self.layout,
                learning.options.buffer_size,
                runner.algo.gamma,
                generator,
                runner.device,
                # Agents that share one policy imitate all of them anyway, each its own part of the batch.
                None if runner.algo.share_param else [self.teachers(i) for i in range(self.layout.num_agents)],
            )
        self._forget_back: dict[int, int] = {}
        """Environments whose episode was discarded in this step: how many steps it has before this one."""

    @property
    def buffer(self) -> ReplayBuffer:
        """The replay."""
        return self.runner.buffer

    # A step.

    def drive(self, before: Seen, proposed: FloatArray) -> FloatArray:
        """Let people act in the step under way; returns what the environments are given (N, A, action_dim)."""
        override = self.ask(self.runner.env_steps, before.obs, before.available_actions, proposed)
        self.proposed = None
        if not self.note(override, lambda: before.active[..., 0] > 0):
            return override.actions
        executed = self.executable(override.actions)
        envs = np.flatnonzero(self.source.any(1))
        masks = None if before.available_actions is None else before.available_actions[envs]
        found = self.log_probs(before.obs[envs], masks, executed[envs])
        if found is not None:
            human = self.source[envs] == Source.HUMAN
            self.counts.agreed(found[human], np.broadcast_to(self.discrete, human.shape)[human])
        if self.learning.mode.stores == "proposed":
            self.proposed = proposed
        return executed

    def remember(self, before: Seen, executed: FloatArray, outcome: EnvStep) -> None:
        """Write the step into the replay as the mode says, hear what people say of it, and show it to them."""
        runner, buffer, mode = self.runner, self.buffer, self.learning.mode
        rewards, credits = self.bridge.override_rewards(runner.env_steps, outcome.rewards)
        earns_rewards = mode.earns == "reward"
        if not earns_rewards:
            rewards, credits = np.zeros_like(outcome.rewards), ()
        learned = outcome if rewards is outcome.rewards else dataclasses.replace(outcome, rewards=rewards)
        stores_executed = mode.stores == "executed"
        changed = self.changed() if stores_executed else None
        if changed is not None:
            buffer.end_sums(np.any(changed, axis=1, keepdims=False))
        buffer.insert(before, executed if self.proposed is None else self.proposed, learned)
        if stores_executed:
            self._mark()
        for credit in credits:
            back = self.steps_back(credit)
            if back is None or not self._amend(back, credit.env, credit.agent, credit.delta):
                self.counts.late += 1
        if np.count_nonzero(self.discarding):
            for env in np.flatnonzero(self.discarding):
                buffer.forget(self._forget_back.get(int(env), 0), int(env))
            self._forget_back.clear()
        if self.second is not None:
            self._copy_complete(self.second)
        self.finish(outcome)

    def _mark(self) -> None:
        """Note who was driven, and what a takeover takes from the step before it."""
        people = self.buffer.people
        if people is not None and np.count_nonzero(self.source):
            slot = (self.buffer.head - 1) % self.buffer.slots
            people.driven[slot] = self.source == Source.HUMAN
            if self.unseen is not None:
                people.unseen[slot] = self.unseen
        penalty = self.learning.options.takeover_penalty if self.learning.mode.earns == "reward" else 1.0
        if penalty:
            for env, agent in self.takeovers():
                self._amend(1, int(env), int(agent), -penalty)

    def _amend(self, back: int, env: int, agent: int, delta: float) -> bool:
        """Add to the reward of an earlier step wherever it is remembered; returns whether the replay has it."""
        gains = self.buffer.amend(back, env, agent, delta)
        if gains is not None and self.second is not None:
            self.second.amend(env, self.runner.env_steps - back * self.num_envs, gains)
        return gains is not None

    def _copy_complete(self, second: HumanTransitions) -> None:
        """Take the human transitions whose sums of rewards are complete by now into the second buffer."""
        buffer, ahead = self.buffer, self.buffer.n_step - 1
        people = buffer.people
        if people is None or buffer.filled <= ahead:
            return
        slot = (buffer.head - 1 - ahead) % buffer.slots
        if not np.count_nonzero(people.driven[slot]):
            return
        rows = slot * self.num_envs + np.flatnonzero(people.driven[slot].any(1))
        rows = rows[~people.is_forgotten(rows)]
        if len(rows):
            index = torch.from_numpy(rows).to(buffer.device)
            imitated = (people.driven[slot] & ~people.unseen[slot])[rows - slot * self.num_envs]
            taken_at = torch.full_like(index, self.runner.env_steps - ahead * self.num_envs)
            second.add(
                buffer.gather(index),
                index % self.num_envs,
                taken_at,
                buffer.lengths(index),
                self.num_envs,
                torch.from_numpy(imitated).to(buffer.device),
            )

    def forget(self, env: int) -> None:
        self._forget_back[env] = int(self.tracker.lengths[env])
        if self.second is not None:
            self.second.forget(env, self.started(env))

    def earliest(self) -> int:
        return self.runner.env_steps - self.buffer.filled * self.num_envs

    def log_probs(self, obs: FloatArray, masks: FloatArray | None, actions: FloatArray) -> FloatArray | None:
        device = self.runner.device
        mask_rows = None if masks is None else torch.from_numpy(masks).to(device)
        found = self.runner.team.log_probs(
            torch.from_numpy(obs).to(device), mask_rows, torch.from_numpy(actions).to(device)
        )
        if found is None:
            return None
        result: FloatArray = found.sum(-1).cpu().numpy()
        return result

    # An update.

    def sample(self, size: int) -> ReplayBatch:
        """A batch; with a second buffer its share of human transitions, at most as many as there are."""
        human = 0
        if self.second is not None:
            human = min(round(size * self.learning.options.demo_fraction), len(self.second))
        if self.second is None or not human:
            return self.buffer.sample(size)
        return self.second.mixed(self.buffer.sample(size - human), human, self.bc_coef)

    @property
    def bc_coef(self) -> float:
        """Weight of the imitation now."""
        runner = self.runner
        progress = runner.env_steps / runner.train_config.num_env_steps
        return self.learning.weight(progress) if self.learning.mode.imitated else 0.0

    def report(self) -> None:
        """Note the size of the second buffer, and the weight of what is imitated, for the log."""
        if self.second is not None:
            self.counts.mean({"people/human_transitions": float(len(self.second))})
            if len(self.second) and self.bc_coef > 0:
                self.counts.mean({"people/bc_coef": self.bc_coef})

    def teach(self, demonstrations: Iterable[Demonstration]) -> int:
        if self.second is None:
            raise ConfigError([self.learning.useless_demonstrations])
        found = 0
        for episode in demonstrations:
            self.check(episode)
            found += self._replay(self.second, episode)
        return found

    def _replay(self, second: HumanTransitions, episode: Demonstration) -> int:
        """Let a recorded episode happen again in a replay buffer of its own, which does the sums; keep human steps."""
        runner, steps = self.runner, len(episode.actions)
        buffer = runner.new_buffer(steps, num_envs=1)
        for t in range(steps):
            if t and (episode.human[t] != episode.human[t - 1]).any():
                buffer.end_sums(np.ones(1, np.bool_))
            buffer.insert(episode.before(t), episode.actions[t].astype(np.float32)[None], episode.after(t))
        driven = episode.human & episode.active
        human = torch.from_numpy(np.flatnonzero(driven.any(1))).to(buffer.device)
        if len(human):
            nowhere = torch.full_like(human, -1)
            unseen = self.is_unseen(episode.seen_ago)
            imitated = torch.from_numpy(driven if unseen is None else driven & ~unseen).to(buffer.device)
            second.add(buffer.gather(human), nowhere, nowhere, buffer.lengths(human), 1, imitated[human])
        return len(human)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "second": None if self.second is None else self.second.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        if self.second is not None and state["second"] is not None:
            self.second.set_state(state["second"])
