"""Run folders: their names, how they are found again, what they record, and the guard against two writers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from harl.experiment.provenance import command_line, git_commit
from harl.experiment.run_folder import RunFolder, RunFolderError, experiment_folder, find_runs

NOW = datetime(2026, 1, 2, 3, 4, 5)


def make_run(root: Path, seed: int = 1, env: str = "mpe") -> RunFolder:
    """A run folder with what every started run has."""
    run = RunFolder.create(root, env, "simple_spread", "happo", "default", seed)
    run.config.write_text(f"seed: {seed}\n")
    run.write_meta()
    return run


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], text=True, stdout=subprocess.PIPE)


def test_layout(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "mpe", "simple_spread", "happo", "default", 3, NOW)
    assert run.path == tmp_path / "mpe/simple_spread/happo/default/seed-3_20260102-030405"
    assert [run.config.name, run.meta.name, run.metrics_csv.name, run.evaluations.name] == [
        "config.yaml",
        "meta.json",
        "metrics.csv",
        "evaluations.jsonl",
    ]
    assert {folder.name for folder in (run.tensorboard, run.checkpoints, run.videos, run.people)} == {
        "tensorboard",
        "checkpoints",
        "videos",
        "people",
    }


@pytest.mark.parametrize(
    "name", ["lbforaging:Foraging-8x8-2p-3f-v3", "a/b", "a*b", "trailing.", "x" * 300, "CON", "a=b", "..", "ü ", ""]
)
def test_cfg_06_any_name_makes_a_folder_with_portable_parts(tmp_path: Path, name: str) -> None:
    run = RunFolder.create(tmp_path, name, name, "happo", name, 0)
    parts = run.path.relative_to(tmp_path).parts
    assert len(parts) == 5
    for part in parts:
        assert part.isascii()
        assert not set(part) & set('<>:"/\\|?*= ')
        assert part.upper() != "CON"
        assert len(part) <= 100
        assert not part.endswith(".")


def test_cfg_07_eight_processes_in_one_second_get_eight_folders(tmp_path: Path) -> None:
    code = (
        "import sys; from datetime import datetime; from harl.experiment.run_folder import RunFolder\n"
        "print(RunFolder.create(sys.argv[1], 'mpe', 'spread', 'happo', 'x', 1, datetime(2026, 1, 2)).path)"
    )
    processes = [python(code, str(tmp_path)) for _ in range(8)]
    paths = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 8
    assert len(paths) == 8
    assert {Path(path).name for path in paths} == {"seed-1_20260102-000000"} | {
        f"seed-1_20260102-000000-{number}" for number in range(1, 8)
    }


def test_cfg_08_relative_folders_are_meant_from_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = make_run(Path("outputs"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.path.is_absolute()
    assert run.path.is_relative_to(tmp_path / "outputs")
    assert RunFolder.open(Path("..") / run.path.relative_to(tmp_path)).path == run.path


def test_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(RunFolderError, match=r"cannot create a run folder in .*outputs.*: .*set output_dir"):
        RunFolder.create(tmp_path / "outputs", "mpe", "spread", "happo", "x", 1)


def test_res_13_any_part_of_a_run_opens_it(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    checkpoint = run.checkpoints / "100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "actors.pt").touch()
    for part in (run.path, run.checkpoints, checkpoint, checkpoint / "actors.pt", run.config, str(run.meta)):
        assert RunFolder.open(part).path == run.path


def test_res_13_what_is_not_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "outputs")
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "outputs" / "nonsense": r"no such run: .*nonsense does not exist; .*outputs holds mpe",
        tmp_path / "empty": r"empty is an empty folder: looked there and above it for a folder with config\.yaml",
        run.path.parent: rf"not part of a run: looked .*; runs below it: {run.path}",
    }
    for path, message in cases.items():
        with pytest.raises(RunFolderError, match=message) as error:
            RunFolder.open(path)
        assert "\n" not in str(error.value)


def test_res_07_a_moved_run_goes_on_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.move(run.path, tmp_path / "b" / "moved")
    monkeypatch.chdir(tmp_path / "b")
    moved = RunFolder.open("moved")
    moved.write_meta({"resumed_from": 100})
    moved.write_status("running")
    assert moved.path == tmp_path / "b" / "moved"
    assert not run.path.exists()
    assert [resume["resumed_from"] for resume in json.loads(moved.meta.read_text())["resumes"]] == [100]


def test_meta_says_what_the_run_came_from(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "mpe", "spread", "happo", "x", 1)
    run.write_meta({"seed_drawn": True})
    meta = json.loads(run.meta.read_text())
    assert {"python", "harl", "torch", "numpy", "gymnasium", "pettingzoo", "mpe2"} <= meta["versions"].keys()
    assert meta["machine"].keys() == {"platform", "cpu", "cores", "memory", "gpus"}
    assert meta["machine"]["cores"] >= 1
    assert meta["seed_drawn"] is True
    assert meta["resumes"] == []
    assert datetime.fromisoformat(meta["started"]).tzinfo is not None


def test_sec_05_secrets_are_masked_in_the_command_line() -> None:
    line = command_line(["train", "hitl.token=SECRET123", "+a.api_key=SECRET123", "hitl.token=${oc.env:T}", "exp=a b"])
    assert "SECRET123" not in line
    assert line == "train 'hitl.token=***' '+a.api_key=***' 'hitl.token=${oc.env:T}' 'exp=a b'"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "harl"
    package.mkdir(parents=True)
    assert git_commit(package) is None
    (package / "code.py").write_text("1")
    git = ["git", "-C", str(package.parent), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_commit(package) == {"commit": head, "dirty": False}
    (package / "code.py").write_text("2")
    assert git_commit(package) == {"commit": head, "dirty": True}
    (package / "venv" / "harl").mkdir(parents=True)
    assert git_commit(package / "venv" / "harl") is None  # installed within another project's checkout


def test_prc_08_status_tells_how_the_run_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run.status == {}
    run.write_status("running")
    run.write_status("interrupted", "SIGTERM")
    assert (run.status["status"], run.status["reason"]) == ("interrupted", "SIGTERM")
    assert not run.completed
    run.mark_completed({"env_steps": 1000})
    assert run.completed
    assert run.status["status"] == "completed"
    assert json.loads((run.path / "COMPLETED").read_text())["env_steps"] == 1000
    run.write_status("running")  # a finished run that is extended
    assert not run.completed


def test_find_runs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, seed) for seed in (1, 2, 12)]
    other = make_run(tmp_path, 1, env="other")
    (runs[0].path / "people").mkdir()
    assert {run.path for run in find_runs(tmp_path)} == {run.path for run in [*runs, other]}
    parent = experiment_folder(tmp_path, "mpe", "simple_spread", "happo", "default")
    assert [run.path for run in find_runs(parent, seed=1)] == [runs[0].path]
    assert find_runs(tmp_path / "none") == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_one_run_has_one_writer(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from harl.experiment.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock(): print('locked', flush=True); time.sleep(60)"
    )
    holder = python(code, str(run.path))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunFolderError, match=rf"being written by another process \(pid {holder.pid} "), run.lock():
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(30)
        assert holder.stdout is not None
        holder.stdout.close()
    with run.lock(), pytest.raises(RunFolderError, match=f"pid {os.getpid()} "), run.lock():
        pass
    with contextlib.ExitStack() as stack:  # free again after the block
        stack.enter_context(run.lock())
