"""A run that is asked to stop saves, closes its files, says so in one line, and can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.run_folder import RunFolder, find_runs
from harl.runners import RunInterrupted
from tests.runners.runs import (
    assert_same_run,
    cli_tiny,
    column,
    environment,
    make,
    only_run,
    python,
    resume,
    run,
    scalars,
    stop_at,
)

STAGES = {
    "rollout": "harl.runners.on_policy_base_runner.OnPolicyBaseRunner.collect",
    "update": "harl.algorithms.critics.v_critic.VCritic.train",
    "evaluation": "harl.runners.runner.Runner.eval",
    "saving": "harl.experiment.checkpoint.CheckpointStore.save",
}
NOTICE = "finishing the step, saving; press Ctrl-C again to stop at once\n"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What a run is like that nobody stops."""
    return run(tmp_path_factory.mktemp("straight"), "eval.interval=20").folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["collect", "compute", "train", "eval", "save"])
def test_prc_04_a_signal_at_any_time_loses_nothing(
    tmp_path: Path, straight: RunFolder, stage: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(tmp_path, "eval.interval=20")
    method, calls = getattr(runner, stage), 0

    def signalled(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), number)
        return method(*args)

    monkeypatch.setattr(runner, stage, signalled)
    with pytest.raises(RunInterrupted) as stopped:
        runner.run()
    assert stopped.value.code == 128 + number
    assert runner.folder.status["status"] == "interrupted"
    assert CheckpointStore(runner.folder.checkpoints, 1).load("latest")[0] == runner.env_steps
    assert_same_run(straight, resume(runner.folder).folder)


def test_the_second_ctrl_c_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make(tmp_path, "checkpoint.interval=20")
    compute = runner.compute
    calls = 0

    def computing() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        compute()

    monkeypatch.setattr(runner, "compute", computing)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert runner.folder.status["status"] == "interrupted"
    assert calls == 2, "nothing more was learned"
    assert CheckpointStore(runner.folder.checkpoints, 1).load("latest")[0] == 20, "the last one before stays"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert resume(runner.folder).env_steps == 80


def test_what_is_said_at_the_end_is_where_the_run_was_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = make(tmp_path)
    stop_at(runner, 46)
    said = capfd.readouterr()
    assert said.err == NOTICE
    assert "interrupted at 46 steps" in said.out.splitlines()[-1]


def test_log_06_and_prc_08_an_interrupted_run_has_its_logs_on_the_disk(tmp_path: Path) -> None:
    runner = make(tmp_path)
    stop_at(runner, 46)
    series = scalars(runner.folder)
    assert [step for step, _ in series["critic/value_loss"]] == [20, 40]
    assert [step for step, _ in series["eval/return_sum"]] == [0, 40]
    for tag, points in series.items():
        assert [value for _, value in points] == pytest.approx(column(runner.folder, tag), rel=1e-6), tag


def test_log_06_and_prc_08_a_run_that_fails_has_its_logs_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(tmp_path)
    train, calls = runner.train, 0

    def failing() -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError("as it happens")
        return train()

    monkeypatch.setattr(runner, "train", failing)
    with pytest.raises(ZeroDivisionError):
        runner.run()
    assert [step for step, _ in scalars(runner.folder)["critic/value_loss"]] == [20, 40]
    status = runner.folder.status
    assert (status["status"], status["reason"]) == ("failed", "ZeroDivisionError: as it happens")
    assert not runner.folder.completed


def test_log_06_a_run_of_one_update_has_its_logs_on_the_disk(tmp_path: Path) -> None:
    runner = run(tmp_path, "train.num_env_steps=20")
    series = scalars(runner.folder)
    assert [step for step, _ in series["critic/value_loss"]] == [20]
    assert runner.folder.status["status"] == "completed"


def one_line_stop(done: subprocess.CompletedProcess[str]) -> None:
    assert done.stderr == NOTICE
    assert "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("interrupted at ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "number"),
    [*((stage, signal.SIGINT) for stage in STAGES), ("rollout", signal.SIGTERM), ("update", signal.SIGTERM)],
)
def test_prc_04_the_command_line_ends_with_128_plus_the_signal(
    tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    arguments = ["-m", "tests.runners.signalled", STAGES[stage], str(int(number)), "1"]
    done = python(tmp_path, *arguments, *cli_tiny("train.num_env_steps=200"))
    assert done.returncode == 128 + number
    one_line_stop(done)
    folder = only_run(tmp_path / "runs")
    assert folder.status["status"] == "interrupted"
    assert CheckpointStore(folder.checkpoints, 1).whole()
    scalars(folder)


@pytest.mark.slow
def test_prc_04_a_second_ctrl_c_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    arguments = ["-m", "tests.runners.signalled", STAGES["update"], str(int(signal.SIGINT)), "2"]
    done = python(tmp_path, *arguments, *cli_tiny("train.num_env_steps=200"))
    assert done.returncode == 130
    assert done.stderr == f"{NOTICE}interrupted\n"
    assert only_run(tmp_path / "runs").status["status"] == "interrupted"


@pytest.mark.slow
def test_prc_04_ctrl_c_while_the_run_is_being_built(tmp_path: Path) -> None:
    arguments = ["-m", "tests.runners.signalled", "harl.runners.runner.Runner._open_folder", "2", "1"]
    done = python(tmp_path, *arguments, *cli_tiny())
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert not find_runs(tmp_path)


@pytest.mark.slow
def test_prc_04_ctrl_c_from_outside_while_it_loads_and_while_it_runs(tmp_path: Path) -> None:
    """To the whole process group, as a terminal does it."""
    command = [sys.executable, "-m", "harl.train", *cli_tiny("train.num_env_steps=2e7", "logger.progress=plain")]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    loading = start()
    deadline = time.monotonic() + 60
    while not any("torch" in mapped.path for mapped in psutil.Process(loading.pid).memory_maps()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(loading.pid, signal.SIGINT)
    _, errors = loading.communicate(timeout=60)
    assert (loading.returncode, errors) == (130, "interrupted\n")

    running = start()
    assert running.stdout is not None
    for line in running.stdout:
        if "steps/s" in line:
            break
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (130, NOTICE)
    assert "interrupted at" in out.splitlines()[-1]
    assert CheckpointStore(only_run(tmp_path / "runs").checkpoints, 1).whole()


def test_the_handlers_of_before_come_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(tmp_path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
