"""The arrays that in-process environments write and that an `EnvStep` is made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import BoolArray, EnvStep, FloatArray, Layout


@dataclass(frozen=True, slots=True)
class StepArrays:
    """What N environments give in a step; shapes as in `EnvStep`, but for EP the states are (N, *share_obs_shape).

    A `row` of it is what one environment writes: views without the leading N, but for `ended`, which keeps it, (1,), so
    that it can be written.
    """

    obs: FloatArray
    state: FloatArray
    available_actions: FloatArray | None
    active: FloatArray
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    ended: BoolArray
    final_obs: FloatArray
    final_state: FloatArray
    final_available_actions: FloatArray | None

    @staticmethod
    def allocate(layout: Layout, num_envs: int) -> StepArrays:
        """Zeroed arrays; what an agent's own width leaves free is never written and stays zero."""
        head = (num_envs, layout.num_agents)
        obs = (*head, *layout.obs_shape)
        state = (*(head if layout.state_type == "FP" else head[:1]), *layout.share_obs_shape)
        masks = (*head, layout.action_number)

        def zeros(shape: tuple[int, ...]) -> FloatArray:
            return np.zeros(shape, np.float32)

        return StepArrays(
            obs=zeros(obs),
            state=zeros(state),
            available_actions=zeros(masks) if layout.has_masks else None,
            active=zeros((*head, 1)),
            rewards=zeros((*head, 1)),
            terminated=np.zeros(head, np.bool_),
            truncated=np.zeros(head, np.bool_),
            ended=np.zeros(num_envs, np.bool_),
            final_obs=zeros(obs),
            final_state=zeros(state),
            final_available_actions=zeros(masks) if layout.has_masks else None,
        )

    def row(self, index: int) -> StepArrays:
        """Views of what one environment writes."""
        views: dict[str, Any] = {}
        for field in fields(self):
            array = getattr(self, field.name)
            views[field.name] = None if array is None else array[index]
        views["ended"] = self.ended[index : index + 1]
        return StepArrays(**views)

    def clear_outcome(self) -> None:
        """Nothing was earned and nothing has ended; what is seen stays."""
        self.rewards[...] = 0.0
        self.terminated[...] = self.truncated[...] = self.ended[...] = False

    def record(self, layout: Layout, metrics: dict[str, NDArray[np.float64]]) -> EnvStep:
        """The arrays as an `EnvStep`; nothing is copied."""
        any_ended = bool(self.ended.any())
        return EnvStep(
            obs=self.obs,
            share_obs=_per_agent(self.state, layout),
            available_actions=self.available_actions,
            active=self.active,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            ended=self.ended,
            final_obs=self.final_obs if any_ended else None,
            final_share_obs=_per_agent(self.final_state, layout) if any_ended else None,
            final_available_actions=self.final_available_actions if any_ended else None,
            metrics=metrics,
        )


def _per_agent(state: FloatArray, layout: Layout) -> FloatArray:
    if layout.state_type == "FP":
        return state
    return np.broadcast_to(state[:, None], (state.shape[0], layout.num_agents, *layout.share_obs_shape))
