"""From the arguments of the environment to its parts, or to an error that says what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.envs.api import Layout
from harl.envs.mpe.controls import Controls
from harl.envs.mpe.scenarios import SCENARIOS, Scenario

STATE_TYPES = ("EP", "FP")


def check_choice(what: str, value: str, allowed: Collection[str], hint: str = "") -> None:
    """Raise ValueError, with the nearest name, unless `value` is allowed."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), allowed, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"mpe: {what} {value!r} is not one of {', '.join(allowed)}{guess}{hint}")


def check_count(what: str, value: int) -> None:
    """Raise ValueError unless `value` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"mpe: {what} must be an integer of at least 1, not {value!r}")


def checked_seeds(seeds: list[int], num_envs: int) -> NDArray[np.int64]:
    """The seeds as an array; ValueError unless there is one in [0, 2**63) for each environment."""
    if len(seeds) != num_envs:
        raise ValueError(f"mpe: {len(seeds)} seeds were given for {num_envs} environments")
    for env, seed in enumerate(seeds):
        if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
            raise ValueError(f"mpe: seed {seed!r} of environment {env} is not an integer from 0 to 2**63 - 1")
    return np.array(seeds, np.int64)


def make_scenario(name: str, local_ratio: float | None, team_size: int | None) -> Scenario:
    """The task of this name; None leaves an argument at the task's own default.

    Raises ValueError for an unknown task, and for an argument that the task does not have or that is out of range.
    """
    hint = (
        "; other tasks of the mpe2 package run through env=pettingzoo env.entry_point=mpe2.simple_tag_v3:parallel_env"
    )
    check_choice("scenario", name, SCENARIOS, hint)
    scenario = SCENARIOS[name]
    arguments: dict[str, Any] = {}
    if local_ratio is not None:
        if not scenario.takes_local_ratio:
            raise ValueError(f"mpe: {name} has no local_ratio, both of its agents get the same reward; leave it out")
        if not 0.0 <= local_ratio <= 1.0:
            raise ValueError(f"mpe: local_ratio must be between 0 and 1, not {local_ratio!r}")
        arguments["local_ratio"] = local_ratio
    if team_size is not None:
        if not scenario.takes_team_size:
            raise ValueError(f"mpe: {name} has no N, it always has {len(scenario.agents)} agents; leave it out")
        check_count("N", team_size)
        arguments["team_size"] = team_size
    return scenario(**arguments)


def make_layout(scenario: Scenario, controls: Controls, state_type: str) -> Layout:
    """Names, spaces and widths of the task's agents."""
    widths = scenario.observation_widths
    identity = scenario.num_agents if state_type == "FP" else 0
    return Layout(
        agents=scenario.agents,
        observation_spaces=tuple(spaces.Box(-np.inf, np.inf, (width,), np.float32) for width in widths),
        action_spaces=controls.spaces,
        obs_shape=(max(widths),),
        share_obs_shape=(sum(widths) + identity,),
        state_type=state_type,
        has_masks=False,
        meanings=controls.meanings,
        state_is_observations=state_type == "EP",
    )
