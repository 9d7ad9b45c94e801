"""What a recording brings to a later run: one episode in arrays, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import EnvStep, Layout


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
    seen_ago: NDArray[Any] | None = None
    """(T, A) steps since the state that the person had seen, where known; see `Override.seen_ago`."""
    ended: bool
    """Whether the episode was over with the last step; a part of one goes on."""

    def before(self, t: int) -> EnvStep:
        """What the agents acted on in step t, as one environment shows it."""
        head = self.human[t].shape
        no = np.zeros((1, *head), np.bool_)
        return EnvStep(
            obs=self.obs[t][None],
            share_obs=self.share_obs[t][None],
            available_actions=_first(self.available_actions, t),
            active=self.active[t].astype(np.float32)[None, :, None],
            rewards=np.zeros((1, *head, 1), np.float32),
            terminated=no,
            truncated=no,
            ended=no[:, 0],
        )

    def after(self, t: int) -> EnvStep:
        """What came of step t, as one environment returns it; after an end the final state, not the next episode."""
        last = t == len(self.actions) - 1
        stays = self.active[t] & ~(self.terminated[t] | self.truncated[t]) if last else self.active[t + 1]
        end = last and self.ended
        obs, share_obs = self.next_obs[t][None], self.next_share_obs[t][None]
        masks = _first(self.next_available_actions, t)
        return EnvStep(
            obs=obs,
            share_obs=share_obs,
            available_actions=masks,
            active=stays.astype(np.float32)[None, :, None],
            rewards=self.rewards[t].astype(np.float32)[None, :, None],
            terminated=self.terminated[t][None],
            truncated=self.truncated[t][None],
            ended=np.array([end]),
            final_obs=obs if end else None,
            final_share_obs=share_obs if end else None,
            final_available_actions=masks if end else None,
        )

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


def _first(masks: NDArray[Any] | None, t: int) -> NDArray[Any] | None:
    return None if masks is None else masks[t][None]
