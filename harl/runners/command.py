"""The command line of `harl.train`: what was typed, checked before Hydra starts, and how a sweep came out."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType

from harl.algorithms.base import NonFiniteError
from harl.config import Config, ConfigError, expand_sweep, normalise_overrides
from harl.envs.api import EnvError, Layout
from harl.experiment.files import StorageError
from harl.hitl.bridge import PeopleError
from harl.registry import make_envs, unsupported
from harl.runners.job import configure, stored_choices

EXPECTED_ERRORS = (ConfigError, EnvError, NonFiniteError, PeopleError, StorageError)
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
    """Whether it only asks to be shown something."""
    asks_help: bool
    """Whether that is the help."""

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
        if parsed.multirun:
            rewritten = for_every_job(rewritten)
        replacement = {typed: [text] for typed, text in zip(overrides, rewritten, strict=True)}
        if overrides and not parsed.multirun:  # next to the others, since argparse takes them in one piece
            replacement[overrides[0]] += stored_choices(overrides)
        return cls(
            arguments=[text for argument in arguments for text in replacement.get(argument, [argument])],
            overrides=overrides,
            config_dirs=config_dirs,
            multirun=parsed.multirun,
            inspects=bool(parsed.cfg or parsed.info or parsed.hydra_help or parsed.help),
            asks_help=bool(parsed.help),
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
        layouts: dict[str, Layout | None] = {}
        for job in jobs:
            try:
                config = configure(job, self.config_dirs)
                if self.multirun:
                    errors |= dict.fromkeys(_misfits(config, layouts))
            except ConfigError as error:
                errors |= dict.fromkeys(error.errors)
        if errors:
            raise ConfigError(list(errors))


@contextlib.contextmanager
def ended_by_a_closed_pipe() -> Iterator[None]:
    """Let the process end without a word when nobody reads on (`… --help | head`), as other programs do.

    For what is only shown: a run must not end like this.
    """
    if not hasattr(signal, "SIGPIPE"):  # Windows
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
        sys.stdout.flush()
    finally:
        signal.signal(signal.SIGPIPE, before)


def for_every_job(overrides: Sequence[str]) -> list[str]:
    """Overrides of a sweep, such that every value is set in its jobs alone.

    Hydra composes once before the jobs, with the default algorithm where algorithms are swept, and would refuse keys
    that only the swept ones have.
    """
    parser = OverridesParser.create()
    parsed = [parser.parse_override(text) for text in overrides]
    swept_choice = any(override.is_sweep_override() and "." not in override.key_or_group for override in parsed)
    if not swept_choice:
        return list(overrides)
    rewritten = []
    for text, override in zip(overrides, parsed, strict=True):
        single = override.value_type is ValueType.ELEMENT and not override.is_delete()
        ours = "." in override.key_or_group and not override.is_hydra_override()
        key, _, value = text.partition("=")
        rewritten.append(f"{key}=choice({value})" if single and ours and value else text)
    return rewritten


def _misfits(config: Config, layouts: dict[str, Layout | None]) -> list[str]:
    """Why the algorithm of a job cannot train its environment's agents; each environment is looked at once.

    An environment that cannot be made is left to its job, which does not stop the others.
    """
    key = repr(config.env)
    if key not in layouts:
        try:
            with contextlib.closing(make_envs(config.env, 1)) as envs:
                layouts[key] = envs.layout
        except Exception:
            layouts[key] = None
    layout = layouts[key]
    return [] if layout is None else unsupported(config, layout)


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
