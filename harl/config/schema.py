"""The typed configuration: what each key is and which values it may have. Defaults stand in `configs/` alone.

Every runner gets three parts: `Runner(args=config.run, algo_args=config.algo, env_args=config.env)`. An algorithm or
an environment that is added later brings its schema by an entry in `ALGO_SCHEMAS` or `ENV_SCHEMAS`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from harl.config.algo_schema import ALGO_SCHEMAS, AlgoArgs, EvalConfig
from harl.config.env_schema import ENV_SCHEMAS, EnvArgs
from harl.config.fields import NO_LIMITS, Limits
from harl.config.hitl_schema import HITL_SCHEMAS
from harl.config.run_schema import RenderConfig, RunArgs


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a runner is made of."""

    run: RunArgs
    """The run as a whole."""
    algo: AlgoArgs
    """The algorithm."""
    env: EnvArgs
    """The environment."""


class Leaf(NamedTuple):
    """Type and limits of a key that holds a value."""

    hint: Any
    bounds: Limits


def leaves(schema: type, prefix: str = "") -> dict[str, Leaf]:
    """Every key of a schema by its dotted name; free-form sections are one key."""
    hints = get_type_hints(schema)
    found: dict[str, Leaf] = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= leaves(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            found[f"{prefix}{field.name}"] = Leaf(hint, field.metadata.get("limits", NO_LIMITS))
    return found


def config_leaves(algo: str, env: str, hitl: str) -> dict[str, Leaf]:
    """Every key, by its dotted name, of a run with this algorithm, environment and mode of people."""
    schema = ALGO_SCHEMAS[algo]
    sections = {"train": schema.train, "model": schema.model, "algo": schema.algo, "eval": EvalConfig}
    found = leaves(RunArgs)
    for name, section in (sections | {"env": ENV_SCHEMAS[env], "hitl": HITL_SCHEMAS[hitl]}).items():
        found |= leaves(section, f"{name}.")
    return found


def render_leaves(hitl: str) -> dict[str, Leaf]:
    """Every key of `harl.render`, by its dotted name, with this mode of people."""
    return leaves(RenderConfig) | leaves(HITL_SCHEMAS[hitl], "hitl.")


def refusals(schema: type, prefix: str = "") -> dict[str, str]:
    """Keys that one may expect but that are refused, by their dotted names, with the reason."""
    found = {f"{prefix}{name}": reason for name, reason in getattr(schema, "refused", {}).items()}
    for name, hint in get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint):
            found |= refusals(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
    return found


def all_leaves() -> dict[str, Leaf]:
    """Every key that any configuration may have."""
    found: dict[str, Leaf] = {}
    for hitl in HITL_SCHEMAS:
        found |= render_leaves(hitl)
        for algo in ALGO_SCHEMAS:
            for env in ENV_SCHEMAS:
                found |= config_leaves(algo, env, hitl)
    return found
