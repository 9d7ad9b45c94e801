"""Environments as the loop of an episode steps them: single ones of several kinds behind `reset, step, render`.

`reset()` returns (observations, info) and `step(actions)` (observations, rewards, terminated, truncated, info), where
everything may be by agent. That is what SHARPIE's own environments look like, and PettingZoo's `ParallelEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.envs.api import EnvStep, FloatArray, Layout, VectorEnv
from harl.hitl.sharpie_site.messages import log


class UnfitAction(ValueError):  # noqa: N818 - the input of a person, not a fault
    """A person's input is no action of the agent; the text says what would be."""


def fit_action(space: spaces.Space[Any], value: Any) -> Any:
    """A person's input as an action of a space.

    Of several keys at once, the last one counts where one choice is to be made, and their sum, cut to the bounds, where
    the action is a vector.

    Raises:
        UnfitAction: it is no action of the space.
    """
    if isinstance(value, str):
        raise UnfitAction(f"the text {value[:40]!r} is no action; allowed: {space}")
    if isinstance(space, spaces.Discrete):
        last = value[-1] if isinstance(value, list) and value else value
        whole = isinstance(last, int | float) and not isinstance(last, bool) and float(last).is_integer()
        if whole and space.contains(int(last)):
            return int(last)
    elif isinstance(space, spaces.Box | spaces.MultiDiscrete):
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            array = np.full(1, np.nan)
        if isinstance(space, spaces.Box):
            if array.ndim == len(space.shape) + 1:
                array = array.sum(axis=0)
            if array.shape == space.shape and np.isfinite(array).all():
                return np.clip(array, space.low, space.high).astype(space.dtype)
        elif array.shape == space.shape and np.isfinite(array).all() and space.contains(array.astype(space.dtype)):
            return array.astype(space.dtype)
    elif space.contains(value):
        return value
    raise UnfitAction(f"{str(value)[:80]} is no action; allowed: {space}")


def space_of(env: Any, role: str) -> spaces.Space[Any] | None:
    """The action space of an agent, None where the environment tells none."""
    by_agent = getattr(env, "action_spaces", None)
    if isinstance(by_agent, Mapping) and isinstance(by_agent.get(role), spaces.Space):
        by_role: spaces.Space[Any] = by_agent[role]
        return by_role
    space = getattr(env, "action_space", None)
    if callable(space) and role in (getattr(env, "possible_agents", None) or ()):
        space = space(role)
    return space if isinstance(space, spaces.Space) else None


def agents_of(env: Any) -> tuple[str, ...]:
    """Agents that need an action in every step, where the environment names them."""
    return tuple(str(agent) for agent in getattr(env, "possible_agents", None) or ())


class SingleEnv:
    """One environment of a `VectorEnv` with one, by the names of its agents.

    The next episode starts within the step that ends one; the picture is that of the last state until `reset`. Where an
    environment cannot draw it (see `VectorEnv.watch_ends`), it is that of the state before it.

    Args:
        envs: one environment; owned and closed by this object.
    """

    def __init__(self, envs: VectorEnv) -> None:
        self.envs = envs
        self.layout: Layout = envs.layout
        self.possible_agents = list(self.layout.agents)
        self.action_spaces = dict(zip(self.layout.agents, self.layout.action_spaces, strict=True))
        self._picture: NDArray[np.uint8] | None = None
        envs.watch_ends([0])

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; (observations by agent, {})."""
        self._picture = None
        first = self.envs.reset()
        return self._observations(first.obs[0], first.available_actions), {}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """One step; everything by agent."""
        row = np.zeros((1, self.layout.num_agents, self.layout.action_dim), np.float32)
        for i, (agent, space) in enumerate(self.action_spaces.items()):
            value = np.asarray(actions[agent], np.float32).ravel()
            start = getattr(space, "start", 0)
            row[0, i, : self.layout.action_dims[i]] = value - np.asarray(start, np.float32).ravel()
        outcome = self.envs.step(row)
        over = bool(outcome.ended[0])
        self._picture = self._end_picture() if over else None
        obs, masks = outcome.obs, outcome.available_actions
        if over and outcome.final_obs is not None:
            obs, masks = outcome.final_obs, outcome.final_available_actions
        return self._observations(obs[0], masks), *self._outcome(outcome, over), {}

    def _end_picture(self) -> NDArray[np.uint8] | None:
        try:
            picture = self.envs.render_end(0)
        except Exception as error:
            log.warning("the last state cannot be shown: %s: %s", type(error).__name__, error)
            picture = None
        return self._picture if picture is None else picture

    def _outcome(self, outcome: EnvStep, over: bool) -> tuple[dict[str, float], dict[str, bool], dict[str, bool]]:
        names = self.layout.agents
        truncated = outcome.truncated[0]
        terminated = over & ~truncated
        return (
            dict(zip(names, (float(reward) for reward in outcome.rewards[0, :, 0]), strict=True)),
            dict(zip(names, map(bool, terminated), strict=True)),
            dict(zip(names, map(bool, truncated), strict=True)),
        )

    def _observations(self, rows: FloatArray, masks: FloatArray | None) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for i, agent in enumerate(self.layout.agents):
            own = rows[i].copy() if rows.ndim > 2 else rows[i, : self.layout.obs_dims[i]].copy()
            width = self.layout.action_numbers[i]
            seen[agent] = (
                own if masks is None else {"observation": own, "action_mask": masks[0, i, :width].astype(np.int8)}
            )
        return seen

    def render(self) -> NDArray[np.uint8]:
        """Picture (H, W, 3)."""
        if self._picture is None:
            self._picture = self.envs.render(0)
        return self._picture

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()


class Renamed:
    """An environment whose agents have other names than the roles of the site.

    Args:
        env: of any kind that this module describes.
        names: role → name of the agent in the environment; others keep theirs.
    """

    def __init__(self, env: Any, names: Mapping[str, str]) -> None:
        self.env, self._agent_of = env, dict(names)
        self._role_of = {agent: role for role, agent in names.items()}
        if agents_of(env):
            self.possible_agents = [self._role_of.get(agent, agent) for agent in agents_of(env)]
        found = {role: space_of(env, self._agent_of.get(role, role)) for role in getattr(self, "possible_agents", ())}
        self.action_spaces = {role: space for role, space in found.items() if space is not None}

    @property
    def agents(self) -> list[str] | None:
        """Roles that have not left the episode, None where the environment does not say."""
        agents = getattr(self.env, "agents", None)
        return None if agents is None else [self._role_of.get(agent, agent) for agent in agents]

    def reset(self) -> tuple[Any, Any]:
        """Start an episode."""
        obs, info = self.env.reset()
        return self._by_role(obs), info

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """One step, actions and everything that comes back by role."""
        named = {self._agent_of.get(role, role): action for role, action in actions.items()}
        return tuple(self._by_role(part) for part in self.env.step(named))

    def _by_role(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {self._role_of.get(agent, agent): value for agent, value in data.items()}

    def render(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment, where it can be."""
        if hasattr(self.env, "close"):
            self.env.close()
