"""Whether saved weights are those of a team like ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harl.config import AlgoArgs, ConfigError
from harl.envs.api import Layout


def describe_team(layout: Layout, algo_args: AlgoArgs) -> dict[str, Any]:
    """What the shapes of a team's networks follow from, in plain data."""
    model = algo_args.model
    return {
        "agents": list(layout.agents),
        "observation_spaces": [str(space) for space in layout.observation_spaces],
        "action_spaces": [str(space) for space in layout.action_spaces],
        "share_obs_shape": list(layout.share_obs_shape),
        "hidden_sizes": list(model.hidden_sizes),
        "share_param": algo_args.algo.share_param,
        "recurrent_n": model.recurrent_n if model.is_recurrent else None,
        "convolution": [model.cnn_kernel_size, model.cnn_stride] if len(layout.obs_shape) == 3 else None,
    }


def refuse_other_team(saved: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Do nothing if the descriptions are equal.

    Raises:
        ConfigError: what differs, all of it.
    """
    differences = [
        f"the weights in {where} do not fit this run: {name}: they have {saved.get(name)}, this run has {own[name]}"
        for name in own
        if saved.get(name) != own[name]
    ]
    if differences:
        raise ConfigError(differences)
