"""From typed overrides to the configuration, as a library call: no command line, no folder written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from harl.config.command_line import inspect
from harl.config.convert import to_config
from harl.config.fields import ConfigError
from harl.config.overrides import normalise_overrides, open_tree
from harl.config.schema import Config


def compose(
    overrides: Sequence[str] = (), config_name: str = "config", extra_config_dirs: Sequence[str | Path] = ()
) -> DictConfig:
    """The composed configuration: `config_name`, algorithm, environment, experiment, overrides.

    May be called any number of times, also inside a function that `hydra.main` runs.

    Args:
        overrides: As typed on the command line, `["algo=happo", "train.num_env_steps=2e6"]`.
        config_name: Primary file, `config` or `render`.
        extra_config_dirs: Folders with groups of the user's own.

    Raises:
        ConfigError: with everything that is wrong with the overrides.
    """
    rewritten = normalise_overrides(overrides, config_name, extra_config_dirs)
    findings = inspect(rewritten, False, config_name, extra_config_dirs)
    if findings.errors:
        raise ConfigError(findings.errors)
    return open_tree(rewritten, config_name, extra_config_dirs).compose(rewritten)


def build_config(overrides: Sequence[str] = (), extra_config_dirs: Sequence[str | Path] = ()) -> Config:
    """The typed configuration of a run: composed and checked.

    Raises:
        ConfigError: with everything that is wrong, with the overrides and with the values together.
    """
    rewritten = normalise_overrides(overrides, extra_config_dirs=extra_config_dirs)
    findings = inspect(rewritten, False, "config", extra_config_dirs)
    try:
        config = to_config(open_tree(findings.sound, "config", extra_config_dirs).compose(findings.sound))
    except ConfigError as error:
        raise ConfigError([*findings.errors, *error.errors]) from None
    if findings.errors:
        raise ConfigError(findings.errors)
    return config
