"""People in on-policy training: what they do to a rollout, and what is imitated.

T steps of a rollout, N environments, A agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harl.algorithms.actors.on_policy import Lesson
from harl.buffers.demonstrations import Demonstration
from harl.buffers.human_steps import HumanSteps
from harl.buffers.overrides import Overrides
from harl.config import ConfigError, MinibatchConfig
from harl.envs.api import EnvStep, FloatArray
from harl.experiment.seeding import Purpose
from harl.hitl.bridge import Credit, Source
from harl.hitl.learning import Learning
from harl.runners.people import People

if TYPE_CHECKING:
    from harl.runners.on_policy_base_runner import Collected, OnPolicyBaseRunner


class OnPolicyPeople(People):
    """See `People`. Human steps get a policy mask of 0; where they are imitated they go into a buffer of their own."""

    runner: OnPolicyBaseRunner

    def __init__(self, runner: OnPolicyBaseRunner, learning: Learning) -> None:
        super().__init__(runner, learning, runner.tracker)
        buffer, device = runner.buffer, runner.device
        self.overrides = Overrides(self.layout, buffer.episode_length, buffer.num_envs, device)
        self.human_steps: HumanSteps | None = None
        if learning.mode.imitated:
            generator = torch.Generator().manual_seed(runner.seeds.integer(Purpose.DEMONSTRATIONS))
            memory = runner.team.memory_shape
            self.human_steps = HumanSteps(self.layout, learning.options.buffer_size, generator, memory, device)

    # A step.

    def drive(self, collected: Collected, proposed: FloatArray) -> FloatArray:
        """Let people act in the step under way; returns what the environments are given (N, A, action_dim)."""
        runner, t = self.runner, self.runner.t
        buffer = runner.buffer
        masks = None if buffer.available_actions is None else buffer.array("available_actions", t)
        override = self.ask(runner.env_steps, buffer.array("obs", t), masks, proposed)
        if not self.note(override, lambda: buffer.array("active", t)[..., 0] > 0):
            return override.actions
        executed = self.executable(override.actions)
        envs = np.flatnonzero(self.source.any(1))
        driven = torch.from_numpy(executed).to(runner.device)
        log_probs = self._log_probs_of(t, torch.from_numpy(envs).to(runner.device), driven)
        human = self.source[envs] == Source.HUMAN
        totals = log_probs.sum(-1).cpu().numpy()
        self.counts.agreed(totals[human], np.broadcast_to(self.discrete, human.shape)[human])
        if self.learning.mode.stores == "executed":
            self._store(collected, driven, envs, log_probs)
        return executed

    def _store(self, collected: Collected, driven: Tensor, envs: Any, log_probs: Tensor) -> None:
        """Put what was done, and its log-probabilities under the policy of now, in place of what was proposed."""
        buffer, t = self.runner.buffer, self.runner.t
        others = torch.from_numpy(self.source > 0).unsqueeze(-1).to(driven.device)
        self.overrides.any = True
        self.overrides.source[t] = self.source
        if self.unseen is not None:
            self.overrides.unseen[t] = self.unseen
        self.overrides.proposals[t] = torch.where(others, collected.actions, 0.0)
        collected.actions.copy_(torch.where(others, driven, collected.actions))
        index = torch.from_numpy(envs).to(driven.device)
        own = collected.action_log_probs[index]
        collected.action_log_probs[index] = torch.where(others[index], log_probs, own)
        # What nobody decided is nobody's to learn from; a person's action is in the one mode that treats it as drawn.
        masked = self.source > (0 if self.learning.mode.masked else Source.HUMAN)
        buffer.policy_mask[t] = torch.from_numpy(~masked).unsqueeze(-1).to(buffer.policy_mask)

    def _log_probs_of(self, t: int, envs: Tensor, actions: Tensor) -> Tensor:
        """(len(envs), A, action_dim) log-probabilities of actions (N, A, action_dim) in some environments of slot t."""
        buffer = self.runner.buffer
        masks = None if buffer.available_actions is None else buffer.available_actions[t][envs]
        return self.runner.team.log_probs(buffer.obs[t][envs], masks, actions[envs], self._memory(t, envs))

    def _memory(self, t: int, envs: Tensor | slice) -> Tensor | None:
        """What recurrent policies remember before step t."""
        buffer = self.runner.buffer
        if buffer.hidden is None or buffer.masks is None:
            return None
        return buffer.hidden[t][envs] * buffer.masks[t][envs][..., None, None]

    def learn_of(self, outcome: EnvStep) -> None:
        """Hear what people say of the step that was just written into the buffer, and show it to them."""
        runner, buffer, t = self.runner, self.runner.buffer, self.runner.t
        rewards, credits = self.bridge.override_rewards(runner.env_steps, outcome.rewards)
        if rewards is not outcome.rewards:
            buffer.rewards[t].copy_(torch.from_numpy(np.ascontiguousarray(rewards)))
        self._credit(credits)
        if self.learning.options.takeover_penalty and self.learning.mode.stores == "executed" and t > 0:
            for env, agent in self.takeovers():
                buffer.rewards[t - 1, env, agent] -= self.learning.options.takeover_penalty
        if np.count_nonzero(self.discarding):
            self._discard(t, self.discarding)
        self.finish(outcome)

    def late_feedback(self) -> None:
        """Hear what people still say of the rollout, which is complete; as long as it is waited for.

        An episode that they discard now is out of the rollout, and over with the next step.
        """
        self._credit(self.bridge.late_feedback())
        self.hear_discards()

    def _credit(self, credits: Iterable[Credit]) -> None:
        """Amend rewards of the rollout under way, and count what is about none of its steps."""
        buffer, t = self.runner.buffer, self.runner.t
        for credit in credits:
            back = self.steps_back(credit)
            slot = -1 if back is None else t - back
            if 0 <= slot < buffer.episode_length:
                buffer.rewards[slot, credit.env, credit.agent] += credit.delta
            else:
                self.counts.late += 1

    def forget(self, env: int) -> None:
        t, back = self.runner.t, int(self.tracker.lengths[env])
        self._discard(slice(max(0, t - back), t + 1), env)
        if self.human_steps is not None:
            self.human_steps.forget(env, self.started(env))

    def _discard(self, steps: Any, envs: Any) -> None:
        self.overrides.any = True
        self.overrides.discarded[steps, envs] = True
        self.runner.buffer.policy_mask[steps, torch.from_numpy(envs) if isinstance(envs, np.ndarray) else envs] = 0.0

    def earliest(self) -> int:
        return self.runner.env_steps - self.runner.t * self.num_envs

    @torch.no_grad()
    def log_probs(self, obs: FloatArray, masks: FloatArray | None, actions: FloatArray) -> FloatArray | None:
        runner = self.runner
        rows = [None if array is None else torch.from_numpy(array).to(runner.device) for array in (obs, masks, actions)]
        assert rows[0] is not None
        assert rows[2] is not None
        found = runner.team.log_probs(rows[0], rows[1], rows[2], self._memory(runner.t, slice(None)))
        result: FloatArray = found.sum(-1).cpu().numpy()
        return result

    # An update.

    def trace(self) -> Tensor | None:
        """Where advantages may be traced on, see `Overrides.trace`; None where that is everywhere."""
        if not self.learning.options.cut_trace:
            return None
        trace = self.overrides.trace(self.runner.buffer.per_agent_values)
        return None if trace is None else trace.to(self.runner.device)

    def prepare(self, advantages: Tensor) -> None:
        """Make ready to learn from the rollout, whose advantages are (T, N, 1) or (T, N, A, 1), not normalised."""
        if not self.overrides.any:
            return
        buffer = self.runner.buffer
        left_out = self.overrides.discarded[..., None] | np.zeros(self.overrides.source.shape, np.bool_)
        if self.human_steps is not None:
            left_out_of_it = left_out | self.overrides.unseen
            self._keep(self.human_steps, advantages, (self.overrides.source == Source.HUMAN) & ~left_out_of_it)
        if self.learning.options.value_mask:
            left_out |= self.overrides.source > 0
        if left_out.any():
            rows = left_out if buffer.per_agent_values else left_out.any(2)
            buffer.value_weights = torch.from_numpy(~rows).unsqueeze(-1).to(buffer.returns)
        active = buffer.active[:-1]
        share = 1.0 - float(buffer.weights().sum() / active.sum().clamp(min=1.0))
        self.counts.mean({"people/masked_fraction": share})

    def _keep(self, human_steps: HumanSteps, advantages: Tensor, human: Any) -> None:
        """Take the human steps (T, N, A) of this rollout into the buffer that is imitated."""
        runner, buffer = self.runner, self.runner.buffer
        index = np.argwhere(human)
        t, n, a = torch.from_numpy(index).to(runner.device).unbind(1)
        if self.learning.options.bc_filter == "advantage":
            judged = advantages[t, n, a, 0] if advantages.dim() == 4 else advantages[t, n, 0]
            t, n, a = t[judged > 0], n[judged > 0], a[judged > 0]
        if not len(t):
            return
        hidden = None
        if buffer.hidden is not None and buffer.masks is not None:
            hidden = buffer.hidden[t, n, a] * buffer.masks[t, n].unsqueeze(-1)
        human_steps.add(
            buffer.obs[t, n, a],
            buffer.actions[t, n, a],
            None if buffer.available_actions is None else buffer.available_actions[t, n, a],
            hidden,
            agents=a,
            envs=n,
            steps=self.earliest() + t * self.num_envs,
        )

    def lesson(self, agent: int) -> Lesson | None:
        """What this agent, or the policy that all share, is taught in the update of now; None for nothing."""
        runner, algo = self.runner, self.runner.algo
        weight = self.learning.weight(runner.iteration / runner.iterations)
        if self.human_steps is None or weight <= 0:
            return None
        places = self.human_steps.of(list(range(self.layout.num_agents)) if algo.share_param else self.teachers(agent))
        if not len(places):
            return None
        self.counts.mean({"people/bc_coef": weight, "people/imitated_steps": float(len(self.human_steps))})
        rows = runner.iteration_steps * (self.layout.num_agents if algo.share_param else 1)
        parts = algo.actor_num_mini_batch if isinstance(algo, MinibatchConfig) else 1
        return Lesson(partial(self.human_steps.draw, places, -(-rows // parts), agent), weight)

    def teach(self, demonstrations: Iterable[Demonstration]) -> int:
        if self.human_steps is None:
            raise ConfigError([self.learning.useless_demonstrations])
        found = 0
        for episode in demonstrations:
            self.check(episode)
            unseen = self.is_unseen(episode.seen_ago)
            imitated = episode.human & episode.active
            steps, agents = np.nonzero(imitated if unseen is None else imitated & ~unseen)
            masks = episode.available_actions
            self.human_steps.add(
                torch.from_numpy(np.ascontiguousarray(episode.obs[steps, agents])).to(self.runner.buffer.obs),
                torch.from_numpy(episode.actions[steps, agents].astype(np.float32)),
                None if masks is None else torch.from_numpy(masks[steps, agents].astype(np.float32)),
                None,
                agents=torch.from_numpy(agents),
                envs=torch.full((len(agents),), -1),
                steps=torch.full((len(agents),), -1),
            )
            found += len(agents)
        return found

    def get_state(self) -> dict[str, Any]:
        kept = None if self.human_steps is None else self.human_steps.get_state()
        return {**super().get_state(), "overrides": self.overrides.get_state(self.runner.t), "human_steps": kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.overrides.set_state(state["overrides"])
        if self.human_steps is not None and state["human_steps"] is not None:
            self.human_steps.set_state(state["human_steps"])

    def restart(self) -> None:
        super().restart()
        self.overrides.clear()
