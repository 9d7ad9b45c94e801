"""Rollouts made up in memory, for runners that have no environments."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from harl.envs.api import Layout
from harl.runners import OnPolicyBaseRunner
from tests.runners.bare import bare_runner, layout_of

SMALL: dict[str, Any] = {
    "train.episode_length": 6,
    "train.n_rollout_threads": 4,
    "model.hidden_sizes": [16, 16],
    # As learned policies are: with the default of 0.01 all actions are nearly equally likely.
    "model.gain": 1.0,
    "env.reward": "shared_sum",
}

ALGOS: dict[str, dict[str, Any]] = {
    "happo": {},
    "haa2c": {},
    "hatrpo": {},
    "mappo": {"algo__share_param": False},
}
"""Algorithms, with what makes them train a network of its own for each agent."""

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


def team_layout(kind: str = "discrete", agents: int = 3, state_type: str = "EP", has_masks: bool = False) -> Layout:
    """Equal agents that act in one of `SPACES`."""
    return layout_of(agents, 4, 6, SPACES[kind], state_type, has_masks)


def hetero_layout(state_type: str = "EP", has_masks: bool = True) -> Layout:
    """The case bank's F5: four agents that differ in what they see and in the kind of their actions."""
    widths = (3, 7, 11, 4)
    return Layout(
        agents=("three", "five", "parts", "point"),
        observation_spaces=tuple(spaces.Box(-np.inf, np.inf, (width,), np.float32) for width in widths),
        action_spaces=(
            spaces.Discrete(3),
            spaces.Discrete(5),
            spaces.MultiDiscrete([3, 2]),
            spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)),
        ),
        obs_shape=(max(widths),),
        share_obs_shape=(9,),
        state_type=state_type,
        has_masks=has_masks,
    )


def small_runner(layout: Layout, algo: str = "happo", **overrides: Any) -> OnPolicyBaseRunner:
    """Learners of `algo`; overrides are config keys with __ for the dot, as `algo__ppo_epoch=1`."""
    values = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    return bare_runner(layout, [f"algo={algo}", *(f"{key}={json.dumps(value)}" for key, value in values.items())])


def fill(runner: OnPolicyBaseRunner, seed: int = 0) -> None:
    """A rollout in which the team acts as it does, on made-up observations, masks, states and rewards; nothing ends.

    With memory, sequences are cut at random and begin with something remembered.
    """
    buffer, layout = runner.buffer, runner.layout
    random = torch.Generator().manual_seed(seed)
    runner.team.refresh()
    buffer.obs.normal_(generator=random)
    for i, width in enumerate(layout.obs_dims):
        buffer.obs[:, :, i, width:] = 0.0
    buffer.share_obs.normal_(generator=random)
    buffer.rewards.normal_(generator=random)
    buffer.active.fill_(1.0)
    if buffer.masks is not None and buffer.hidden is not None and buffer.critic_hidden is not None:
        buffer.masks.bernoulli_(0.7, generator=random)
        buffer.hidden[0].normal_(generator=random)
        buffer.critic_hidden[0].normal_(generator=random)
    if buffer.available_actions is not None:
        buffer.available_actions.bernoulli_(0.6, generator=random)
        for i, space in enumerate(layout.action_spaces):
            first_of_parts = np.cumsum([0, *space.nvec[:-1]]) if isinstance(space, spaces.MultiDiscrete) else [0]
            buffer.available_actions[:, :, i, list(first_of_parts)] = 1.0
            buffer.available_actions[:, :, i, layout.action_numbers[i] :] = 0.0
    for t in range(buffer.episode_length):
        runner.collect(t)


def learn(runner: OnPolicyBaseRunner) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """One update from what is in the buffer."""
    runner.compute()
    return runner.train()


def parameters(runner: OnPolicyBaseRunner) -> list[Tensor]:
    """Copies of all learned numbers: one vector for each actor, that of the critic, the normaliser's."""
    learned = [*(actor.vector for actor in runner.actors), runner.critic.optimizer.vector]
    vectors = [vector.detach().clone() for vector in learned]
    normalizer = runner.critic.value_normalizer
    return vectors + ([] if normalizer is None else [value.clone() for value in normalizer.state_dict().values()])


def all_finite(runner: OnPolicyBaseRunner) -> bool:
    """Whether every learned number is one."""
    return all(bool(vector.isfinite().all()) for vector in parameters(runner))
