"""What several tests of the batched particle environments share."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from harl.envs.api import FloatArray, Layout

SCENARIOS = ("simple_spread", "simple_reference", "simple_speaker_listener")


def random_actions(layout: Layout, num_envs: int, rng: np.random.Generator) -> FloatArray:
    """Uniform legal actions (N, A, action_dim); columns that an agent does not have hold NaN, to show if they count."""
    actions = np.full((num_envs, layout.num_agents, layout.action_dim), np.nan, np.float32)
    for agent, space in enumerate(layout.action_spaces):
        if isinstance(space, spaces.Discrete):
            actions[:, agent, 0] = rng.integers(space.n, size=num_envs)
        else:
            width = layout.action_dims[agent]
            actions[:, agent, :width] = rng.random((num_envs, width))
    return actions
