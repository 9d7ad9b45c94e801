"""From what was typed to a run: a new one, one that goes on, or one of a sweep that is done already."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harl.config import Config, ConfigError, build_config, flat, from_dict, load_yaml, portable_name, to_dict
from harl.config.overrides import parse, typed_value
from harl.experiment.run_folder import RunFolder, RunFolderError, find_runs
from harl.runners import RUNNER_REGISTRY
from harl.runners.runner import Runner

CHANGEABLE = (
    "train.num_env_steps", "train.log_interval", "eval.interval", "checkpoint.", "logger.", "device.", "hitl.",
    "resume",
)  # fmt: skip
"""Keys that may be given another value when a run is continued: they change how long it goes on and what it says of
itself, not what it is."""

FROM_THE_START = "hitl.demonstrations"
"""What a run takes in as it begins, and has in its checkpoints."""

_NOT_IDENTITY = ("resume", "output_dir", "logger", "checkpoint")
"""Sections in which two runs of one job may differ."""


def configure(overrides: Sequence[str], extra_config_dirs: Sequence[str | Path] = ()) -> Config:
    """The configuration that overrides ask for; with `resume=<run folder>` that of the run, with allowed changes.

    Raises:
        ConfigError: everything that is wrong.
    """
    try:
        config = build_config([*stored_choices(overrides), *overrides], extra_config_dirs)
    except ConfigError as error:
        raise ConfigError([*error.errors, *_not_to_be_changed(overrides, extra_config_dirs)]) from None
    if config.run.resume is None:
        return config
    stored = load_yaml(RunFolder.open(config.run.resume).config)
    return continued(stored, config, overrides)


def stored_choices(overrides: Sequence[str]) -> list[str]:
    """`algo=…` and `hitl=…` of the run that `resume=<run folder>` continues, but for those that are typed themselves.

    They decide which keys there are, so whatever composes the typed overrides needs them in front; empty without
    `resume`.
    """
    resume = _typed(overrides, "resume")
    if resume is None:
        return []
    try:
        stored = load_yaml(RunFolder.open(resume).config)
    except (ConfigError, RunFolderError):
        return []  # what is wrong with the folder is said where it is opened
    choices = {"algo": stored.algo.algo.name, "hitl": stored.run.hitl.name}
    return [f"{group}={name}" for group, name in choices.items() if _typed(overrides, group) is None]


def _typed(overrides: Sequence[str], key: str) -> str | None:
    """The text that a key is given, the last one of several; None where it is given none."""
    found = None
    for text in overrides:
        if text.lstrip("+").startswith(f"{key}="):
            try:
                value = parse(text).value()
            except ConfigError:
                continue  # said where everything that was typed is checked
            found = value if isinstance(value, str) else typed_value(text)
    return found


def _not_to_be_changed(overrides: Sequence[str], extra_config_dirs: Sequence[str | Path]) -> list[str]:
    """What must not change in the run that is continued, among overrides of which others are wrong in themselves.

    They are looked at one by one; those that are wrong, or mean nothing without another one, are passed over.
    """
    found: list[str] = []
    resume = [override for override in overrides if override.lstrip("+").startswith("resume=")]
    for override in overrides:
        try:
            alone = [*resume, override] if override not in resume else resume
            typed = build_config([*stored_choices(alone), *alone], extra_config_dirs)
        except ConfigError:
            continue
        if typed.run.resume is None:
            return []
        try:
            continued(load_yaml(RunFolder.open(typed.run.resume).config), typed, [override])
        except RunFolderError as error:
            return [str(error)]
        except ConfigError as error:
            found += error.errors
    return found


def continued(stored: Config, typed: Config, overrides: Sequence[str]) -> Config:
    """The stored configuration with the typed changes; what was not typed stays as it is stored.

    Raises:
        ConfigError: a typed value differs from the stored one where it must not; all of them.
    """
    keys = [override.lstrip("+~").split("=", 1)[0] for override in overrides]
    old, new = flat(to_dict(stored)), flat(to_dict(typed))
    changed = dict(old)
    if _typed(overrides, "hitl") == stored.run.hitl.name:
        keys = [key for key in keys if key != "hitl"]  # what it is already
    elif "hitl" in keys:  # another mode has other keys
        changed = {key: value for key, value in old.items() if not key.startswith("hitl.")}
        changed |= {key: value for key, value in new.items() if key.startswith("hitl.")}
    refused = [
        f"{key}: the run that is continued has its own configuration, of which no recipe is a part; leave {key} out"
        for key in keys
        if key in ("experiment", "debug")
    ]
    for key in sorted(old.keys() | new.keys()):
        named = any(key == name or key.startswith((f"{name}.", f"{name.replace('/', '.')}.")) for name in keys)
        if not named or old.get(key) == new.get(key):
            continue
        if key == FROM_THE_START and new.get(key) is not None:
            refused.append(
                f"{key}={new[key]}: the run that is continued has {old.get(key)}; demonstrations are taken in when a "
                f"run begins (start a new one, with init_from=<run folder> {key}=<folder>)"
            )
        elif key.startswith(CHANGEABLE):
            if key in new:
                changed[key] = new[key]
        else:
            refused.append(
                f"{key}={new.get(key)}: the run that is continued has {old.get(key)}; a run keeps what it is (start a "
                "new one, with init_from=<run folder> if it shall begin with these weights)"
            )
    if refused:
        raise ConfigError(refused)
    return from_dict(_nested(changed))


def runner_for(config: Config, bridge: Any = None) -> Runner:
    """The runner of the configured algorithm."""
    return RUNNER_REGISTRY[config.algo.algo.name](config.run, config.algo, config.env, bridge)


def earlier_run(config: Config) -> RunFolder | None:
    """The newest run of exactly this job, where there is one."""
    folder = Path(config.run.output_dir) / portable_name(config.env.name)
    if config.run.seed is None or not folder.is_dir():
        return None
    wanted = _identity(config)
    for run in reversed(find_runs(folder, config.run.seed)):
        try:
            if _identity(load_yaml(run.config)) == wanted:
                return run
        except (ConfigError, OSError):
            continue
    return None


def run_or_continue(config: Config, run: Callable[[Config], float | None]) -> tuple[float | None, str]:
    """Do one job of a sweep: skip it if it was completed, continue it if it was begun, else run it.

    Args:
        config: the job.
        run: how a job is run.

    Returns:
        Its last mean return, and what was done.
    """
    earlier = earlier_run(config)
    if earlier is None:
        return run(config), "run"
    if earlier.completed:
        done = json.loads((earlier.path / "COMPLETED").read_text(encoding="utf-8"))
        return done["last_return"], f"was completed already: {earlier.path}"
    if not any(earlier.checkpoints.glob("[0-9]*")):
        return run(config), "run"
    resumed = dataclasses.replace(config.run, resume=str(earlier.path))
    return run(dataclasses.replace(config, run=resumed)), f"continued: {earlier.path}"


def _identity(config: Config) -> dict[str, Any]:
    return {name: value for name, value in to_dict(config).items() if name not in _NOT_IDENTITY}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree
