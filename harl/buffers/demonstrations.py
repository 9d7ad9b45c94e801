"""What a recording brings to a later run: one episode in arrays, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One recorded episode, or a part of one, without gaps; arrays are at the widths of `Layout`.

    T steps, A agents.
    """

    source: str
    """Where it comes from, for messages."""
    obs: NDArray[Any]
    """(T, A, *obs_shape) what each agent saw."""
    share_obs: NDArray[Any]
    """(T, A, *share_obs_shape)"""
    available_actions: NDArray[Any] | None
    """(T, A, action_number) or None."""
    active: NDArray[np.bool_]
    """(T, A) whether the agent was in the episode."""
    actions: NDArray[Any]
    """(T, A, action_dim) that the environment was given."""
    rewards: NDArray[Any]
    """(T, A) of the environment."""
    terminated: NDArray[np.bool_]
    """(T, A)"""
    truncated: NDArray[np.bool_]
    """(T, A)"""
    next_obs: NDArray[Any]
    """Like `obs`, after the step; after the last one of an episode its final observation."""
    next_share_obs: NDArray[Any]
    """Like `share_obs`, after the step."""
    next_available_actions: NDArray[Any] | None
    """Like `available_actions`, after the step."""
    human: NDArray[np.bool_]
    """(T, A) whether a person drove the agent."""
    ended: bool
    """Whether the episode was over with the last step; a part of one goes on."""

    def problems(self, layout: Layout) -> list[str]:
        """Where it does not fit these agents; empty if it does."""
        steps, agents = len(self.actions), layout.num_agents
        masks = (agents, layout.action_number)
        shapes: dict[str, tuple[int, ...]] = {
            "obs": (agents, *layout.obs_shape),
            "next_obs": (agents, *layout.obs_shape),
            "share_obs": (agents, *layout.share_obs_shape),
            "next_share_obs": (agents, *layout.share_obs_shape),
            "actions": (agents, layout.action_dim),
            **dict.fromkeys(("active", "rewards", "terminated", "truncated", "human"), (agents,)),
            **(dict.fromkeys(("available_actions", "next_available_actions"), masks) if layout.has_masks else {}),
        }
        found = []
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None:
                found.append(f"{self.source}: {name} is missing, these agents have action masks")
            elif array.shape != (steps, *shape):
                found.append(f"{self.source}: {name} has the shape {array.shape}; these agents need {(steps, *shape)}")
            elif array.dtype.kind == "f" and not np.isfinite(array).all():
                found.append(f"{self.source}: {name} has numbers that are NaN or infinite")
        return found
