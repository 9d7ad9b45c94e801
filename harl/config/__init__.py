"""Configuration: schema, composition, validation.

The schema can be imported by any part of the package; what needs Hydra is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from harl.config.algo_schema import (
    ALGO_SCHEMAS,
    A2CConfig,
    AlgoArgs,
    AlgoSchema,
    EvalConfig,
    MinibatchConfig,
    ModelConfig,
    OnPolicyAlgoConfig,
    PPOConfig,
    TrainConfig,
    TRPOConfig,
)
from harl.config.env_schema import ENV_SCHEMAS, EnvArgs, MPEConfig, MPEKwargs, PettingZooConfig
from harl.config.fields import ConfigError
from harl.config.hitl_schema import HITL_SCHEMAS, HitlConfig, PeopleConfig, SharpieConfig, WebConfig
from harl.config.names import nearest, portable_name
from harl.config.off_policy_schema import (
    D3QNConfig,
    D3QNModelConfig,
    DDPGConfig,
    OffPolicyAlgoConfig,
    OffPolicyModelConfig,
    OffPolicyTrainConfig,
    SACConfig,
    SACModelConfig,
    TD3Config,
)
from harl.config.run_schema import (
    LARGEST_SEED,
    CheckpointConfig,
    DeviceConfig,
    LoggerConfig,
    RenderConfig,
    RenderOptions,
    RunArgs,
)
from harl.config.schema import Config

if TYPE_CHECKING:
    from harl.config.command_line import check_overrides
    from harl.config.composition import build_config, compose
    from harl.config.convert import flat, from_dict, load_yaml, save_yaml, to_config, to_dict, to_render_config
    from harl.config.overrides import expand_sweep, normalise_overrides
    from harl.config.tree import config_dir

_ON_DEMAND = {
    "build_config": "composition",
    "check_overrides": "command_line",
    "compose": "composition",
    "config_dir": "tree",
    "expand_sweep": "overrides",
    "flat": "convert",
    "from_dict": "convert",
    "load_yaml": "convert",
    "normalise_overrides": "overrides",
    "save_yaml": "convert",
    "to_config": "convert",
    "to_dict": "convert",
    "to_render_config": "convert",
}
"""Public name → the module that has it."""

__all__ = [
    "ALGO_SCHEMAS",
    "ENV_SCHEMAS",
    "HITL_SCHEMAS",
    "LARGEST_SEED",
    "A2CConfig",
    "AlgoArgs",
    "AlgoSchema",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "D3QNConfig",
    "D3QNModelConfig",
    "DDPGConfig",
    "DeviceConfig",
    "EnvArgs",
    "EvalConfig",
    "HitlConfig",
    "LoggerConfig",
    "MPEConfig",
    "MPEKwargs",
    "MinibatchConfig",
    "ModelConfig",
    "OffPolicyAlgoConfig",
    "OffPolicyModelConfig",
    "OffPolicyTrainConfig",
    "OnPolicyAlgoConfig",
    "PPOConfig",
    "PeopleConfig",
    "PettingZooConfig",
    "RenderConfig",
    "RenderOptions",
    "RunArgs",
    "SACConfig",
    "SACModelConfig",
    "SharpieConfig",
    "TD3Config",
    "TRPOConfig",
    "TrainConfig",
    "WebConfig",
    "build_config",
    "check_overrides",
    "compose",
    "config_dir",
    "expand_sweep",
    "flat",
    "from_dict",
    "load_yaml",
    "nearest",
    "normalise_overrides",
    "portable_name",
    "save_yaml",
    "to_config",
    "to_dict",
    "to_render_config",
]


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
