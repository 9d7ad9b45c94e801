"""What the networks of a team see, and how they are built for it."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from harl.buffers.sequences import Recurrence
from harl.config import ModelConfig
from harl.envs.api import Layout
from harl.models.cnn import PIXEL_SCALE, Images
from harl.models.mlp import MLPSpec

BYTE: int = np.iinfo(np.uint8).max
"""The largest value of an 8-bit pixel."""


def mlp_spec(model: ModelConfig) -> MLPSpec:
    """The layers before the heads, as the `model` section asks for."""
    return MLPSpec(
        hidden_sizes=tuple(int(width) for width in model.hidden_sizes),
        activation=model.activation_func,
        feature_normalization=model.use_feature_normalization,
        initialization=model.initialization_method,
        recurrent_layers=model.recurrent_n if model.is_recurrent else 0,
        kernel_size=model.cnn_kernel_size,
        stride=model.cnn_stride,
    )


def recurrence(model: ModelConfig, episode_length: int) -> Recurrence | None:
    """Memory of the networks, and the length of the sequences that they learn from; None for none.

    Args:
        model: the `model` section.
        episode_length: steps of a rollout.
    """
    if not model.is_recurrent:
        return None
    length = model.data_chunk_length if model.use_recurrent_policy else episode_length
    return Recurrence(model.recurrent_n, int(model.hidden_sizes[-1]), length)


def observed(layout: Layout, agent: int) -> int | Images:
    """What the policy of an agent sees: so many numbers, or images."""
    if len(layout.obs_shape) == 1:
        return layout.obs_dims[agent]
    channels, height, width = layout.obs_shape
    return Images((channels, height, width), (_scale(layout.observation_spaces[agent]),) * channels)


def central_state(layout: Layout) -> int | Images:
    """What the critic sees: so many numbers, or the channels of all agents' images; planes of an agent's id are 0 or 1
    and stay what they are."""
    if len(layout.share_obs_shape) == 1:
        return layout.share_obs_shape[0]
    channels, height, width = layout.share_obs_shape
    own = layout.obs_shape[0]
    scales = [_scale(space) for space in layout.observation_spaces for _ in range(own)]
    return Images((channels, height, width), tuple((scales + [1.0] * channels)[:channels]))


def _scale(space: spaces.Space[object]) -> float:
    return PIXEL_SCALE if isinstance(space, spaces.Box) and space.high.max() == BYTE else 1.0
