"""`hitl.demonstrations=<folder>` as it is typed: learned from, or refused before a run leaves anything behind."""

from __future__ import annotations

from pathlib import Path

from harl.hitl.recording.recorder import Recorder
from tests.hitl.recording_fixtures import mpe, record_episodes, session
from tests.runners.runs import QUICK, Done, cli_tiny, only_run, typed


def recorded(folder: Path, scenario: str) -> Path:
    """One episode in which people drove six steps."""
    envs, config = mpe(scenario)
    recorder = Recorder(folder, session(envs.layout, config))
    record_episodes(recorder, envs, 1)
    recorder.close()
    return folder


def train_on(folder: Path, cwd: Path) -> Done:
    people = ("hitl=web", "hitl.port=0", f"hitl.demonstrations={folder}")
    return typed(cwd, *cli_tiny("env.scenario=simple_spread", *people, *QUICK))


def test_they_are_learned_from(tmp_path: Path) -> None:
    done = train_on(recorded(tmp_path / "people", "simple_spread"), tmp_path)
    assert done.code == 0, done.err
    assert "demonstrations: 6 steps that people drove" in done.out
    assert only_run(tmp_path / "runs").completed


def test_a_folder_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = train_on(tmp_path / "nowhere", tmp_path)
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert f"hitl.demonstrations={tmp_path / 'nowhere'}" in done.err


def test_other_agents_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = train_on(recorded(tmp_path / "people", "simple_reference"), tmp_path)
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (2, ["people"])
    assert "here agent_0, agent_1, agent_2" in done.err
