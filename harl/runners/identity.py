"""Whether saved weights are those of a team like ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from harl.config import AlgoArgs, ConfigError, ModelConfig
from harl.envs.api import Layout
from harl.registry import ALGORITHMS


def describe_team(layout: Layout, algo_args: AlgoArgs) -> dict[str, Any]:
    """What the shapes of a team's networks and the meaning of their outputs follow from, in plain data."""
    model = algo_args.model
    return {
        "agents": list(layout.agents),
        "observation_spaces": [str(space) for space in layout.observation_spaces],
        "action_spaces": [str(space) for space in layout.action_spaces],
        "share_obs_shape": list(layout.share_obs_shape),
        "model": _shapes(model),
        "share_param": algo_args.algo.share_param,
        "recurrent_n": model.recurrent_n if isinstance(model, ModelConfig) and model.is_recurrent else None,
        "convolution": _convolution(layout, model),
        "critic": ALGORITHMS[algo_args.algo.name].critic.__name__,
        "use_valuenorm": getattr(algo_args.algo, "use_valuenorm", False),
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


def _shapes(model: Any) -> dict[str, Any]:
    """Keys of the `model` section that say which parameters there are."""
    values = dataclasses.asdict(model)
    shaping = {name: list(value) for name, value in values.items() if name.endswith("hidden_sizes")}
    return shaping | {name: value for name, value in values.items() if name == "use_feature_normalization"}


def _convolution(layout: Layout, model: Any) -> list[int] | None:
    """Side and step of the convolution's kernel; None where there is no convolution."""
    if len(layout.obs_shape) == 1 or not isinstance(model, ModelConfig):
        return None
    return [model.cnn_kernel_size, model.cnn_stride]
