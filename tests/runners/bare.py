"""A runner without environments, folder or logs: the learners and the buffer alone, for numeric tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from harl.config import Config, compose, to_config
from harl.envs.api import Layout
from harl.experiment.seeding import SeedStreams
from harl.runners import RUNNER_REGISTRY


class NoEnvs:
    """Stands in for environments whose layout is all that is asked for."""

    name, scenario, can_save_state, episode_limit = "none", "none", False, None

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


def layout_of(
    num_agents: int,
    obs_dim: int,
    share_obs_dim: int,
    action_space: spaces.Space[Any],
    state_type: str = "EP",
    has_masks: bool = False,
) -> Layout:
    """Equal agents that see vectors."""
    box = spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
    return Layout(
        agents=tuple(f"agent_{i}" for i in range(num_agents)),
        observation_spaces=(box,) * num_agents,
        action_spaces=(action_space,) * num_agents,
        obs_shape=(obs_dim,),
        share_obs_shape=(share_obs_dim,),
        state_type=state_type,
        has_masks=has_masks,
    )


def bare_runner(layout: Layout, overrides: list[str]) -> Any:
    """The learners that a command line would make for this layout, in a runner that cannot step anything."""
    return bare_runner_of(layout, to_config(compose([*overrides, "device.name=cpu"])))


def bare_runner_of(layout: Layout, config: Config) -> Any:
    """Like `bare_runner`, from a configuration."""
    cls = RUNNER_REGISTRY[config.algo.algo.name]
    runner: Any = cls.__new__(cls)
    runner.args, runner.algo_args = config.run, config.algo
    runner.env_args = dataclasses.replace(config.env, state_type=layout.state_type)
    runner.bridge, runner.device, runner.env_steps = None, torch.device("cpu"), 0
    runner.seeds = SeedStreams(1)
    runner.envs, runner.layout = NoEnvs(layout), layout  # type: ignore[assignment]
    runner.sampling = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    runner.build_learners()
    return runner
