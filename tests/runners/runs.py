"""Whole runs for tests: tiny ones, made from the library or a command line, and readers of what they leave behind."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import harl
from harl import train
from harl.config import Config, RenderOptions, load_yaml
from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.run_folder import RunFolder, find_runs
from harl.runners import OnPolicyBaseRunner, RunInterrupted
from harl.runners.job import configure, runner_for
from harl.runners.playback import Playback

ROOT = Path(__file__).parents[2]

ITERATION = 20
"""Environment steps of one iteration of a tiny run."""

TINY = (
    "device.name=cpu",
    "train.n_rollout_threads=2",
    "train.episode_length=10",
    f"train.log_interval={ITERATION}",
    "train.num_env_steps=80",
    "model.hidden_sizes=[8]",
    "eval.interval=40",
    "eval.eval_episodes=2",
    "eval.n_eval_rollout_threads=2",
    "checkpoint.interval=40",
    "logger.progress=off",
)
"""Overrides of a run of four iterations with three evaluations; those that come later in a list win."""

QUICK = ("logger.tensorboard=false", "eval.use_eval=false")
"""What else to leave out where nothing but the training matters."""


def world(name: str, **kwargs: Any) -> list[str]:
    """Overrides for one of the environments of `tests/envs/fixtures.py` or `tests/runners/worlds.py`."""
    from tests.runners import worlds

    module = "tests.runners.worlds" if hasattr(worlds, name) else "tests.envs.fixtures"
    given = [f"env.kwargs.{key}={value!r}" for key, value in kwargs.items()]
    return ["env=pettingzoo", f"env.entry_point={module}:{name}", "env.reward=shared_mean", *given]


def make(folder: Path, *overrides: str) -> OnPolicyBaseRunner:
    """A runner of a tiny run below `folder`."""
    given = last_of_each([*TINY, *overrides])
    seeds = [int(override.removeprefix("seed=")) for override in given if override.startswith("seed=")]
    config = _configured(tuple(override for override in given if not override.startswith("seed=")))
    args = dataclasses.replace(config.run, output_dir=str(folder), seed=seeds[-1] if seeds else config.run.seed)
    runner = runner_for(dataclasses.replace(config, run=args))
    assert isinstance(runner, OnPolicyBaseRunner)
    return runner


@functools.lru_cache
def _configured(overrides: tuple[str, ...]) -> Config:
    """Composing takes longer than a tiny run, so each configuration is composed once."""
    return configure(overrides)


def run(folder: Path, *overrides: str) -> OnPolicyBaseRunner:
    """A tiny run, done."""
    runner = make(folder, *overrides)
    runner.run()
    return runner


def resume(run_folder: Path | RunFolder, *overrides: str) -> OnPolicyBaseRunner:
    """The run of this folder, carried on to its end."""
    path = run_folder.path if isinstance(run_folder, RunFolder) else run_folder
    if overrides:
        runner = harl.make_runner([f"resume={path}", *overrides])
    else:  # the same, without composing what is replaced by the stored configuration anyway
        stored = load_yaml(RunFolder.open(path).config)
        runner = runner_for(dataclasses.replace(stored, run=dataclasses.replace(stored.run, resume=str(path))))
    assert isinstance(runner, OnPolicyBaseRunner)
    runner.run()
    return runner


def last_of_each(overrides: Sequence[str]) -> list[str]:
    """The overrides without those that a later one of the same key replaces."""
    latest = {override.split("=", 1)[0]: override for override in overrides}
    return list(latest.values())


def stop_at(runner: OnPolicyBaseRunner, env_steps: int, number: signal.Signals = signal.SIGTERM) -> int:
    """Run until a signal comes right after the step that reaches `env_steps`; returns the exit code."""
    insert, sent = runner.insert, False

    def inserting(data: Any) -> None:
        nonlocal sent
        insert(data)
        if not sent and runner.env_steps >= env_steps:
            sent = True
            os.kill(os.getpid(), number)

    runner.insert = inserting  # type: ignore[method-assign]
    with pytest.raises(RunInterrupted) as stopped:
        runner.run()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def only_run(folder: Path) -> RunFolder:
    """The one run below a folder."""
    (found,) = find_runs(folder)
    return found


def metrics(run_folder: RunFolder) -> list[dict[str, str]]:
    """Rows of `metrics.csv` without what the clock decides; cells as text, so that equal means equal to the bit."""
    with run_folder.metrics_csv.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if cell and not name.startswith("time/")} for row in rows]


def column(run_folder: RunFolder, name: str) -> list[float]:
    """The values of one column of `metrics.csv`, where it has any."""
    with run_folder.metrics_csv.open(encoding="utf-8") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def evaluations(run_folder: RunFolder) -> list[dict[str, Any]]:
    """Lines of `evaluations.jsonl`."""
    return [json.loads(line) for line in run_folder.evaluations.read_text(encoding="utf-8").splitlines()]


def scalars(run_folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag of TensorBoard, as a reader of the event files sees them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder.tensorboard))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def checkpoint(run_folder: RunFolder, which: Any = "latest") -> dict[str, Any]:
    """Everything in a checkpoint: place in the state → value; floats as they are, tensors and arrays as lists."""
    _, state = CheckpointStore(run_folder.checkpoints, keep_last=1).load(which)
    return dict(leaves(state))


def parts_of(state: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The leaves of a checkpoint below the named parts of it."""
    return {place: value for place, value in state.items() if place.startswith(tuple(f"/{name}" for name in names))}


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested containers with its place, as `/learners/critic/network/v_out.weight`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from leaves(item, f"{place}/{i}")
    else:
        yield place, value.tolist() if hasattr(value, "tolist") else value


def assert_same_run(first: RunFolder, second: RunFolder) -> None:
    """Two runs ended alike, to the bit: everything in the last checkpoint, and the logs but for the times."""
    one, other = checkpoint(first), checkpoint(second)
    assert one.keys() == other.keys()
    assert not [place for place in one if one[place] != other[place]]
    assert metrics(first) == metrics(second)
    assert evaluations(first) == evaluations(second)


def weights(runner: OnPolicyBaseRunner) -> torch.Tensor:
    """All parameters of actors and critic, one after the other."""
    networks = [*runner.team.networks, runner.critic.network]
    return torch.cat([p.detach().flatten() for network in networks for p in network.parameters()])


class Done(NamedTuple):
    """How a command came out."""

    code: int
    out: str
    err: str


def typed(cwd: Path, *arguments: str, main: Callable[[], None] = train.main) -> Done:
    """What `python -m harl.train …` does when it is typed in `cwd`, without the seconds that a new process takes."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            sys.argv = [str(ROOT / "harl" / "train.py"), *arguments]
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


def cli(
    cwd: Path,
    *arguments: str,
    module: str = "harl.train",
    env: Mapping[str, str | None] | None = None,
    timeout: float = 180,
) -> subprocess.CompletedProcess[str]:
    """`python -m <module> …` in a process of its own, as a user types it."""
    return python(cwd, "-m", module, *arguments, env=env, timeout=timeout)


def python(
    cwd: Path, *arguments: str, env: Mapping[str, str | None] | None = None, timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """This interpreter in a process of its own, with this checkout; `env` changes variables, None takes them away."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a process that shall use this checkout."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def play_again(runner_folder: Path, deterministic: bool, episodes: int = 3) -> Playback:
    """Episodes of the newest checkpoint, played without learning."""
    options = RenderOptions(
        checkpoint="latest", episodes=episodes, video=False, deterministic=deterministic, fps=10, seed=None
    )
    playback = Playback(runner_folder, options)
    assert len(playback.play()) == episodes
    return playback


def cli_tiny(*overrides: str) -> list[str]:
    """Overrides of a tiny run for a command line, whose folders lie below `runs` in the working folder."""
    return last_of_each([*TINY, "output_dir=runs", *overrides])
