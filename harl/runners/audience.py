"""People at episodes that nothing is learned from."""

from __future__ import annotations

import numpy as np

from harl.envs.api import EnvStep, FloatArray, VectorEnv
from harl.envs.breaking_off import break_off
from harl.hitl.bridge import Bridge, Source, Stage


class Audience:
    """People who watch a team play, may drive its agents, and may discard an episode.

    Args:
        bridge: how they take part.
        stage: what they are told of it; its purpose is `evaluate`.
    """

    def __init__(self, bridge: Bridge, stage: Stage) -> None:
        if stage.purpose != "evaluate":
            raise ValueError(f"the purpose of the stage is {stage.purpose!r}; nothing is learned here: 'evaluate'")
        self.bridge, self.stage = bridge, stage
        self._env_steps = 0
        self._human_steps = np.zeros(stage.num_envs, np.int64)
        self._discarded = np.zeros(stage.num_envs, np.bool_)

    def join(self, first: EnvStep) -> None:
        """Let people see the environments, which show `first`."""
        self.bridge.attach(self.stage, first)

    def drive(self, seen: EnvStep, proposed: FloatArray) -> FloatArray:
        """What the agents do (N, A, action_dim), after people had their say."""
        override = self.bridge.override_actions(self._env_steps, seen.obs, seen.available_actions, proposed)
        if override.policy_mask is not None:
            others = (override.policy_mask[..., 0] == 0) & (seen.active[..., 0] > 0)
            human = others if override.source is None else others & (override.source == Source.HUMAN)
            self._human_steps += human.any(1)
        return override.actions

    def take_marks(self, envs: VectorEnv, outcome: EnvStep) -> EnvStep:
        """Hear which episodes were discarded, and break them off.

        Returns:
            The step with which they are over; environments that cannot be restarted play them to their end.
        """
        for env in self.bridge.discarded():
            self._discarded[env] = True
        return break_off(envs, outcome, np.flatnonzero(self._discarded).tolist())

    def show(self, outcome: EnvStep) -> None:
        """Record what people say of the step, and show it to them; after `take_marks` and before `end`."""
        self.bridge.override_rewards(self._env_steps, outcome.rewards)
        self.bridge.publish(outcome)
        self._env_steps += self.stage.num_envs

    def end(self, env: int) -> tuple[int, bool]:
        """Of an episode that ended: the steps in which people drove, and whether it was discarded."""
        found = int(self._human_steps[env]), bool(self._discarded[env])
        self._human_steps[env], self._discarded[env] = 0, False
        return found
