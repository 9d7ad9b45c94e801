"""The log of a run: nothing lost, nothing twice, no NaN, whatever ends the run."""

from __future__ import annotations

import csv
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl.experiment.files import StorageError
from harl.experiment.logger import RunLogger
from harl.experiment.progress import duration
from harl.experiment.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "mpe", "simple_spread", "happo", "default", 1)


def table(run: RunFolder) -> list[dict[str, str]]:
    with run.metrics_csv.open(newline="") as file:
        return list(csv.DictReader(file))


def episodes(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.evaluations.read_text().splitlines()]


def events(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Every scalar series as TensorBoard shows it."""
    accumulator = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def episode(number: int, value: float = 1.0) -> dict[str, Any]:
    return {"episode": number, "env": 0, "seed": 2**62 + number, "returns": {"a": value, "b": 2 * value}, "length": 25}


def quiet(run: RunFolder, **options: Any) -> RunLogger:
    return RunLogger(run, 10_000, progress="off", **options)


def test_one_row_for_each_step_and_a_column_for_each_name(run: RunFolder) -> None:
    with quiet(run, tensorboard=False) as log:
        log.scalars(100, {"train/loss": 0.1, "train/episodes": 4})
        log.scalars(200, {"train/loss": np.float32(0.5), "eval/return, mean": torch.tensor(2.0)})
        assert table(run)[1] == {
            "env_steps": "200",
            "train/loss": "0.5",
            "train/episodes": "",
            "eval/return, mean": "2.0",
        }
        log.scalars(300, {"eval/return, mean": 1 / 3})
        log.scalars(300, {"train/loss": 1e-8})
        log.scalars(300, {"fresh": 1})
        log.scalars(400, {"train/loss": 2.0})
    assert run.metrics_csv.read_text().splitlines() == [
        'env_steps,train/loss,train/episodes,"eval/return, mean",fresh',
        "100,0.1,4,,",
        "200,0.5,,2.0,",
        "300,1e-08,,0.3333333333333333,1",
        "400,2.0,,,",
    ]
    assert not run.tensorboard.exists()


def test_steps_go_forward(run: RunFolder) -> None:
    with quiet(run, tensorboard=False) as log:
        log.scalars(200, {"x": 1.0})
        with pytest.raises(ValueError, match="step 100 come after those of step 200"):
            log.scalars(100, {"x": 1.0})


def test_log_08_no_nan_point(run: RunFolder) -> None:
    with quiet(run) as log:
        log.scalars(100, {"return": float("nan"), "loss": 1.0, "kl": float("inf")})
        log.scalars(150, {"return": float("nan")})
        log.scalars(200, {"return": 3.0})
    assert [(row["env_steps"], row["loss"], row["return"]) for row in table(run)] == [
        ("100", "1.0", ""),
        ("200", "", "3.0"),
    ]
    assert "nan" not in run.metrics_csv.read_text().lower()
    assert events(run) == {"loss": [(100, 1.0)], "return": [(200, 3.0)]}


def test_log_04_evaluations_tell_sum_and_mean_apart(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with quiet(run, tensorboard=False) as log:
        log.evaluation(500, [episode(0, 1.0), episode(1, np.float32(3.0))])
        log.evaluation(600, [episode(0) | {"metrics": {"coverage": float("nan"), "hits": np.arange(2)}}])
        log.evaluation(700, [])
    first, second, third = episodes(run)
    assert first == {
        "env_steps": 500,
        "episode": 0,
        "env": 0,
        "seed": 2**62,
        "returns": {"a": 1.0, "b": 2.0},
        "length": 25,
        "return_sum": 3.0,
        "return_mean": 1.5,
    }
    assert (second["episode"], second["return_sum"]) == (1, 9.0)
    assert third["metrics"] == {"coverage": None, "hits": [0, 1]}
    assert "evaluation at 500 steps: return 6.00 ± 3.00 (summed over agents, 2 episodes)" in capsys.readouterr().out


def test_res_05_after_a_resume_every_series_rises(run: RunFolder) -> None:
    with quiet(run) as log:
        for step in range(100, 1600, 100):
            log.scalars(step, {"x": float(step)} | ({"late": 1.0} if step > 1200 else {}))
            if step % 500 == 0:
                log.evaluation(step, [episode(0), episode(1)])
    time.sleep(1.1 - time.time() % 1)  # event files are read in the order of the seconds in their names
    with quiet(run, resume_step=1000) as log:
        log.scalars(1000, {"again": 5.0})
        for step in range(1100, 2100, 100):
            log.scalars(step, {"x": float(-step)})
        log.evaluation(1500, [episode(7)])
    rows = table(run)
    assert [int(row["env_steps"]) for row in rows] == list(range(100, 2100, 100))
    assert [float(row["x"]) for row in rows] == [float(s if s <= 1000 else -s) for s in range(100, 2100, 100)]
    assert (rows[9]["again"], {row["late"] for row in rows}) == ("5.0", {""})
    assert [(line["env_steps"], line["episode"]) for line in episodes(run)] == [
        (500, 0),
        (500, 1),
        (1000, 0),
        (1000, 1),
        (1500, 7),
    ]
    for tag, series in events(run).items():
        steps = [step for step, _ in series]
        assert all(earlier < later for earlier, later in itertools.pairwise(steps)), tag
    assert events(run)["x"] == [(step, float(step if step <= 1000 else -step)) for step in range(100, 2100, 100)]


def test_a_line_that_a_crash_cut_short_is_dropped(run: RunFolder) -> None:
    with quiet(run, tensorboard=False) as log:
        for step in (100, 200):
            log.scalars(step, {"x": 12.75})
            log.evaluation(step, [episode(0)])
    for file in (run.metrics_csv, run.evaluations):
        os.truncate(file, file.stat().st_size - 2)
    with quiet(run, tensorboard=False, resume_step=200) as log:
        log.scalars(300, {"x": 1.0})
        log.evaluation(300, [episode(0)])
    assert run.metrics_csv.read_text() == "env_steps,x\n100,12.75\n300,1.0\n"
    assert [line["env_steps"] for line in episodes(run)] == [100, 300]


def test_a_resume_before_the_first_row(run: RunFolder) -> None:
    with quiet(run, tensorboard=False, resume_step=0) as log:
        log.scalars(100, {"x": 1.0})
    with quiet(run, tensorboard=False, resume_step=0) as log:
        log.scalars(50, {"x": 2.0})
    assert run.metrics_csv.read_text() == "env_steps,x\n50,2.0\n"


def test_a_new_run_does_not_write_over_an_old_log(run: RunFolder) -> None:
    with quiet(run, tensorboard=False) as log:
        log.scalars(100, {"x": 1.0})
    before = run.metrics_csv.read_bytes()
    with pytest.raises(StorageError, match=r"metrics\.csv exists: a new run does not overwrite it"):
        quiet(run)
    assert run.metrics_csv.read_bytes() == before


KILLED = """
import os, signal, sys
from pathlib import Path
from harl.experiment.logger import RunLogger
from harl.experiment.run_folder import RunFolder
log = RunLogger(RunFolder(Path(sys.argv[1])), 1000, progress="plain")
log.scalars(100, {"x": 1.5})
log.evaluation(100, [{"episode": 0, "env": 0, "seed": 1, "returns": {"a": 1.0}, "length": 3}])
log.scalars(200, {"x": 2.5, "y": 1.0})
os.kill(os.getpid(), signal.SIGKILL)
"""


def assert_everything_logged(run: RunFolder) -> None:
    assert events(run) == {"x": [(100, 1.5), (200, 2.5)], "y": [(200, 1.0)]}
    assert table(run) == [{"env_steps": "100", "x": "1.5", "y": ""}, {"env_steps": "200", "x": "2.5", "y": "1.0"}]
    assert len(episodes(run)) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_log_06_a_killed_run_has_its_log_on_the_disk(run: RunFolder) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(run.path)], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert_everything_logged(run)


@pytest.mark.parametrize(
    ("end", "word"),
    [(KeyboardInterrupt(), "interrupted"), (SystemExit(143), "interrupted"), (ValueError("boom"), "failed")],
    ids=["ctrl-c", "exit", "exception"],
)
def test_log_06_and_prc_08_an_interrupted_or_failed_run_closes_its_log(
    run: RunFolder, end: BaseException, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def log_and_end() -> None:
        with quiet(run) as log:
            log.scalars(100, {"x": 1.5})
            log.evaluation(100, [episode(0)])
            log.scalars(200, {"x": 2.5, "y": 1.0})
            raise end

    before = psutil.Process().num_fds()
    with pytest.raises(type(end)):
        log_and_end()
    assert f"{word} at 200 steps after" in capsys.readouterr().out
    assert psutil.Process().num_fds() == before
    assert_everything_logged(run)


def test_log_07_files_stay_few(run: RunFolder) -> None:
    process = psutil.Process()
    before = process.num_fds()
    counts = set()
    with quiet(run) as log:
        for update in range(1, 501):
            log.scalars(update, {f"agent_{agent}/loss": 1.0 for agent in range(10)} | {f"late_{update // 100}": 1.0})
            counts.add(process.num_fds())
    assert len(counts) == 1
    assert max(counts) - before <= 4
    assert process.num_fds() == before
    assert len(list(run.tensorboard.iterdir())) == 1
    assert {len(series) for tag, series in events(run).items() if tag.startswith("agent")} == {500}


def test_closing_twice_is_closing_once(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    log = quiet(run)
    log.close("interrupted")
    log.close()
    assert capsys.readouterr().out.count(" at 0 steps after ") == 1


def test_a_log_that_cannot_be_written_is_named(run: RunFolder) -> None:
    run.tensorboard.write_text("a file")
    before = psutil.Process().num_fds()
    with pytest.raises(StorageError, match=r"cannot write to .*tensorboard"):
        quiet(run)
    assert psutil.Process().num_fds() == before


def test_plain_progress_is_one_clean_line_for_each_log_step(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLogger(run, 10_000, progress="auto", tensorboard=False) as log:  # pytest's output is no terminal
        for step in (2500, 5000):
            log.progress(step, "collect", steps_per_second=50.0)
            log.progress(step, "update", last_return=-10.0)
            log.scalars(step, {"x": 1.0})
            log.scalars(step, {"y": 1.0})
        log.message("[a message] with [red]brackets")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "25.0 %, 2,500/10,000 steps, 50 steps/s, 2 min 30 s left, return -10.00, update",
        "50.0 %, 5,000/10,000 steps, 50 steps/s, 1 min 40 s left, return -10.00, update",
        "[a message] with [red]brackets",
    ]
    assert lines[3].startswith("completed at 5,000 steps after ")
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_progress_off_prints_messages_only(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with quiet(run, tensorboard=False) as log:
        log.progress(100, "collect", 10.0, 1.0)
        log.scalars(100, {"x": 1.0})
        log.message("hello")
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["hello", "completed"]
    with pytest.raises(ValueError, match="progress='loud' is not known; allowed: auto, bar, plain, off"):
        RunLogger(run, 1, progress="loud", resume_step=0)  # type: ignore[arg-type]


BAR = """
import sys
from pathlib import Path
from harl.experiment.logger import RunLogger
from harl.experiment.run_folder import RunFolder
with RunLogger(RunFolder(Path(sys.argv[1])), 10_000, tensorboard=False) as log:
    log.progress(2500, "collect", steps_per_second=50.0, last_return=-10.0)
    log.scalars(2500, {"x": 1.0})
    log.message("a [message] above the bar")
    log.progress(5000, "update")
"""


def test_a_terminal_gets_a_live_bar(run: RunFolder) -> None:
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", BAR, str(run.path)], stdout=child, stderr=child, env=environment)
    os.close(child)
    shown = b""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert process.wait(60) == 0
    text = shown.decode()
    for expected in ("update", "50.0 %", "5,000/10,000 steps, 50 steps/s, 1 min 40 s left, return -10.00"):
        assert expected in text
    assert "a [message] above the bar" in text
    assert "\x1b[" in text
    assert "completed at 5,000 steps" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (18420, "5 h 07 min"),
        (183600, "2 d 03 h"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
