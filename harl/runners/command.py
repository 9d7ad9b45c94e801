"""The command line of `harl.train`: what was typed, checked before Hydra starts, and how a sweep came out."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from harl.algorithms.base import NonFiniteError
from harl.config import ConfigError, expand_sweep, normalise_overrides
from harl.envs.api import EnvError
from harl.experiment.files import StorageError
from harl.runners.job import configure

EXPECTED_ERRORS = (ConfigError, EnvError, NonFiniteError, StorageError)
"""Errors whose text says what is wrong and what to do; a traceback would add nothing."""


def fail(error: BaseException) -> NoReturn:
    """End the process with the error's text and no traceback: exit code 2 for a wrong configuration, else 1."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, ConfigError) else 1)


@dataclass
class Command:
    """What was typed after `python -m harl.train`."""

    arguments: list[str]
    """Everything, with overrides as Hydra takes them."""
    overrides: list[str]
    """The overrides alone, as typed."""
    config_dirs: list[str]
    """Folders with configs of the user's own."""
    multirun: bool
    """Whether it is a sweep."""
    inspects: bool
    """Whether Hydra is only asked to show something."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Command:
        """Tell flags from overrides.

        Raises:
            ConfigError: an override cannot be read.
        """
        parsed = get_args_parser().parse_args(list(arguments))
        overrides = list(parsed.overrides)
        config_dirs = [] if parsed.config_dir is None else [parsed.config_dir]
        rewritten = normalise_overrides(overrides, extra_config_dirs=config_dirs)
        replacement = dict(zip(overrides, rewritten, strict=True))
        return cls(
            arguments=[replacement.get(argument, argument) for argument in arguments],
            overrides=overrides,
            config_dirs=config_dirs,
            multirun=parsed.multirun,
            inspects=bool(parsed.cfg or parsed.info or parsed.hydra_help or parsed.help),
        )

    def check(self) -> None:
        """Validate every job before the first one starts.

        Raises:
            ConfigError: everything that is wrong, of all jobs.
        """
        if self.inspects and not self.overrides:
            return
        jobs = expand_sweep(self.overrides, extra_config_dirs=self.config_dirs) if self.multirun else [self.overrides]
        errors: dict[str, None] = {}
        for job in jobs:
            try:
                configure(job, self.config_dirs)
            except ConfigError as error:
                errors |= dict.fromkeys(error.errors)
        if errors:
            raise ConfigError(list(errors))


@dataclass
class Outcome:
    """How one job of a sweep came out."""

    job: str
    """Its overrides."""
    result: float | None = None
    """Mean return of its last evaluation."""
    note: str = ""
    """What was done, or what went wrong."""
    failed: bool = False

    def fail(self, error: Exception) -> None:
        """Note the failure and show it at once."""
        self.failed, self.note = True, f"{type(error).__name__}: {error}"
        if not isinstance(error, EXPECTED_ERRORS):
            traceback.print_exc()
        print(f"error in job {self.job}: {error}", file=sys.stderr, flush=True)

    @staticmethod
    def report(outcomes: Sequence[Outcome]) -> None:
        """Print a table of all jobs."""
        print(f"\n{len(outcomes)} jobs, {sum(outcome.failed for outcome in outcomes)} failed:")
        for outcome in outcomes:
            result = "failed" if outcome.failed else "-" if outcome.result is None else f"{outcome.result:.2f}"
            print(f"  {result:>10}  {outcome.job}  {outcome.note}".rstrip())
