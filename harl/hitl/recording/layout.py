"""Agents and spaces as plain JSON, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.envs.api import Layout


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Everything of a layout, as plain JSON."""
    return {
        "agents": list(layout.agents),
        "observation_spaces": [_space_to_json(space) for space in layout.observation_spaces],
        "action_spaces": [_space_to_json(space) for space in layout.action_spaces],
        "obs_shape": list(layout.obs_shape),
        "share_obs_shape": list(layout.share_obs_shape),
        "state_type": layout.state_type,
        "has_masks": layout.has_masks,
        "meanings": layout.meanings,
        "state_is_observations": layout.state_is_observations,
    }


def layout_from_json(data: Mapping[str, Any]) -> Layout:
    """The layout that `layout_to_json` was given; raises KeyError or ValueError where `data` is none."""
    return Layout(
        agents=tuple(data["agents"]),
        observation_spaces=tuple(_space_from_json(space) for space in data["observation_spaces"]),
        action_spaces=tuple(_space_from_json(space) for space in data["action_spaces"]),
        obs_shape=tuple(data["obs_shape"]),
        share_obs_shape=tuple(data["share_obs_shape"]),
        state_type=data["state_type"],
        has_masks=data["has_masks"],
        meanings=_tuples(data["meanings"]),
        state_is_observations=data.get("state_is_observations", False),
    )


def differences(recorded: Layout, wanted: Layout) -> list[str]:
    """What a recording has otherwise than is wanted, one text for each; empty where its steps can be used."""
    if recorded.agents != wanted.agents:
        return [f"agents are {', '.join(recorded.agents)}, here {', '.join(wanted.agents)}"]
    found = []
    for kind, own, other in (
        ("observations", recorded.observation_spaces, wanted.observation_spaces),
        ("actions", recorded.action_spaces, wanted.action_spaces),
    ):
        found += [
            f"{kind} of {agent} are {mine}, here {theirs}"
            for agent, mine, theirs in zip(wanted.agents, own, other, strict=True)
            if mine != theirs
        ]
    for name in ("obs_shape", "share_obs_shape", "state_type", "has_masks"):
        mine, theirs = getattr(recorded, name), getattr(wanted, name)
        if mine != theirs:
            found.append(f"{name} is {mine}, here {theirs}")
    return found


def _tuples(value: Any) -> Any:
    """Lists as tuples, at any depth."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multidiscrete", "nvec": space.nvec.tolist()}
    if isinstance(space, spaces.Box):
        return {
            "kind": "box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound_to_json(space.low),
            "high": _bound_to_json(space.high),
        }
    raise TypeError(f"space {space} cannot be recorded; allowed: Discrete, MultiDiscrete, Box")


def _space_from_json(data: Mapping[str, Any]) -> spaces.Space[Any]:
    if data["kind"] == "discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if data["kind"] == "multidiscrete":
        return spaces.MultiDiscrete(np.array(data["nvec"]))
    if data["kind"] == "box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (_bound_from_json(data[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    raise ValueError(f"space of the unknown kind {data['kind']!r}")


def _bound_to_json(bound: NDArray[Any]) -> Any:
    """One number where all entries are equal; infinities as text, which JSON has no numbers for."""
    flat = [value if np.isfinite(value) else str(value) for value in bound.reshape(-1).tolist()]
    return flat[0] if flat and all(value == flat[0] for value in flat) else flat


def _bound_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    numbers = [float(entry) if isinstance(entry, str) else entry for entry in np.atleast_1d(np.array(value, object))]
    if len(numbers) == 1:
        return np.full(shape, numbers[0], dtype)
    return np.array(numbers, dtype).reshape(shape)
