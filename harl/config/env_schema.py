"""Keys that concern the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from harl.config.fields import COUNT, FRACTION, limits

REWARD_CHOICES = ("shared_sum", "shared_mean", "individual")
STATE_TYPES = ("EP", "FP")

_ENTRY_POINT = limits(pattern=r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", allowed="a text like package.module:function")


@dataclass(frozen=True, kw_only=True)
class MPEKwargs:
    """Options of an MPE scenario."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("curriculum", "terminate_on_success", "num_agent_neighbors", "num_landmark_neighbors"),
        "env=mpe has the task as published, without mpe2's additions; with env=pettingzoo "
        "env.entry_point=mpe2.simple_spread_v3:parallel_env it can be set",
    ) | {
        "benchmark_data": "env=mpe does not report benchmark data",
        "dynamic_rescaling": "it concerns pictures only, which keep one size",
        "render_mode": "pictures are made by python -m harl.render and need no mode",
        "continuous_actions": "it is a key of its own: env.continuous_actions",
    }
    """Options of the `mpe2` package that are not taken over, and why."""

    max_cycles: int = field(metadata=COUNT)
    """Steps until an episode is truncated."""
    local_ratio: float | None = field(metadata=FRACTION)
    """Share of an agent's own reward; None = the scenario's own."""
    N: int | None = field(metadata=limits(at_least=1, at_most=1000))
    """Number of agents and landmarks; None = the scenario's own."""


@dataclass(frozen=True, kw_only=True)
class MPEConfig:
    """Batched multi-particle environments."""

    name: str
    """Which environment it is."""
    scenario: str = field(metadata=limits(choices=("simple_spread", "simple_reference", "simple_speaker_listener")))
    """The task."""
    continuous_actions: bool
    """Continuous or discrete actions."""
    physics: str = field(metadata=limits(choices=("mpe2", "classic")))
    """Dynamics and rewards of the mpe2 package, or of the published curves."""
    state_type: str = field(metadata=limits(choices=STATE_TYPES))
    """One central state for all agents (EP) or one each (FP)."""
    reward: str = field(metadata=limits(choices=REWARD_CHOICES))
    """What an agent learns from."""
    kwargs: MPEKwargs
    """Options of the scenario."""


@dataclass(frozen=True, kw_only=True)
class PettingZooConfig:
    """Any PettingZoo `ParallelEnv`."""

    name: str
    """Which adapter it is."""
    entry_point: str = field(metadata=_ENTRY_POINT)
    """What makes one environment, as module:function."""
    state_type: str = field(metadata=limits(choices=STATE_TYPES))
    """One central state for all agents (EP) or one each (FP)."""
    reward: str = field(metadata=limits(choices=REWARD_CHOICES))
    """What an agent learns from."""
    workers: int = field(metadata=limits(at_least=0))
    """Worker processes; 0 = none."""
    kwargs: dict[str, Any]
    """Keyword arguments for the entry point, checked by it."""


EnvArgs = MPEConfig | PettingZooConfig

ENV_SCHEMAS: dict[str, type[MPEConfig] | type[PettingZooConfig]] = {"mpe": MPEConfig, "pettingzoo": PettingZooConfig}
"""By `env.name`."""
