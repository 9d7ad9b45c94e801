"""`python -m harl.train algo=happo env=mpe`: train; `-m` sweeps; `resume=<run folder>` continues."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from harl.config import config_dir, to_config
from harl.config.help import help_text

if TYPE_CHECKING:
    from harl.buffers.demonstrations import Demonstration
    from harl.config import Config
    from harl.runners.command import Command, Outcome

_command: Command
_outcomes: list[Outcome] = []


@hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
def _job(composed: DictConfig) -> float:
    """One run; its result is the mean return of the last evaluation, NaN where there was none."""
    from harl.runners.command import EXPECTED_ERRORS, Outcome, fail
    from harl.runners.job import configure, run_or_continue

    if HydraConfig.get().mode is not RunMode.MULTIRUN:
        try:
            result = _run(configure(_command.overrides, _command.config_dirs))
        except EXPECTED_ERRORS as error:
            fail(error)
        return float("nan") if result is None else result
    outcome = Outcome(" ".join(HydraConfig.get().overrides.task))
    _outcomes.append(outcome)
    try:
        result, outcome.note = run_or_continue(to_config(composed), _run)
        outcome.result = result
    except Exception as error:
        outcome.fail(error)
        if not HydraConfig.get().launcher._target_.endswith("BasicLauncher"):
            raise  # another process keeps the table of outcomes; the exception is all that reaches it
        return float("nan")
    return float("nan") if result is None else result


def _run(config: Config) -> float | None:
    """Train, with people where the section `hitl` asks for them."""
    from harl.hitl import make_bridge
    from harl.runners.job import runner_for

    recorded, remarks = _recorded(config)
    bridge = make_bridge(config.run.hitl)
    try:
        runner = runner_for(config, bridge)
        if recorded:
            runner.teach(recorded)
            runner.notices += remarks
        return runner.run()
    finally:
        if bridge is not None:
            bridge.close("the run is over")


def _recorded(config: Config) -> tuple[list[Demonstration], list[str]]:
    """What `hitl.demonstrations` holds, and what is to be said of it; refused before the run has a folder.

    A run that is continued has it already.
    """
    from harl.config import ConfigError, PeopleConfig, to_dict

    hitl = config.run.hitl
    if not isinstance(hitl, PeopleConfig) or hitl.demonstrations is None or config.run.resume is not None:
        return [], []
    from harl.hitl.recording.demonstrations import demonstrations, other_options
    from harl.registry import make_envs

    with closing(make_envs(config.env, 1)) as envs:
        layout = envs.layout
    found = demonstrations(hitl.demonstrations, layout)
    problems = [f"hitl.demonstrations: {text}" for episode in found for text in episode.problems(layout)]
    if problems:
        raise ConfigError(problems)
    others = other_options(hitl.demonstrations, to_dict(config)["env"])
    return found, [f"hitl.demonstrations={hitl.demonstrations}: {text}" for text in others]


def main() -> None:
    """Train; Ctrl-C ends it without a traceback at any time, also while it starts."""
    try:
        _train()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _train() -> None:
    """Check everything that was typed, then hand over to Hydra."""
    # Loads torch, which takes a second.
    from harl.runners.command import EXPECTED_ERRORS, Command, Outcome, ended_by_a_closed_pipe, fail

    global _command
    _outcomes.clear()
    try:
        _command = Command.parse(sys.argv[1:])
        sys.argv[1:] = _command.arguments
        _command.check()
        with ended_by_a_closed_pipe() if _command.inspects else nullcontext():
            if _command.asks_help:
                print(help_text(_command.overrides, _command.config_dirs))
            else:
                _job()
    except EXPECTED_ERRORS as error:
        fail(error)
    finally:
        if len(_outcomes) > 1 or any(outcome.failed for outcome in _outcomes):
            Outcome.report(_outcomes)
    if any(outcome.failed for outcome in _outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
