"""`hitl.demonstrations=<folder>` as it is typed: learned from, or refused before a run leaves anything behind."""

from __future__ import annotations

import json
from pathlib import Path

from harl.hitl.recording.demonstrations import other_options
from harl.hitl.recording.recorder import Recorder
from harl.hitl.recording.recordings import find_sessions
from tests.hitl.recording_fixtures import mpe, record_episodes, session
from tests.runners.runs import QUICK, Done, cli_tiny, only_run, typed


def recorded(folder: Path, scenario: str, *overrides: str) -> Path:
    """One episode in which people drove six steps."""
    envs, config = mpe(scenario, *overrides)
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
    assert "recorded with" not in done.out
    assert only_run(tmp_path / "runs").completed


def test_a_folder_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = train_on(tmp_path / "nowhere", tmp_path)
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert f"hitl.demonstrations={tmp_path / 'nowhere'}" in done.err


def test_other_agents_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = train_on(recorded(tmp_path / "people", "simple_reference"), tmp_path)
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (2, ["people"])
    assert "here agent_0, agent_1, agent_2" in done.err


def test_what_was_otherwise_when_they_were_recorded_is_said(tmp_path: Path) -> None:
    """The steps fit, but rewards and what follows an action are others: it may be meant, and is not to be missed."""
    folder = recorded(tmp_path / "people", "simple_spread", "env.physics=classic", "env.kwargs.local_ratio=0.25")
    done = train_on(folder, tmp_path)
    assert done.code == 0, done.err
    said = [line for line in done.out.splitlines() if "recorded with" in line]
    assert said == [
        f"hitl.demonstrations={folder}: recorded with env.kwargs.local_ratio=0.25; this run has None",
        f"hitl.demonstrations={folder}: recorded with env.physics=classic; this run has mpe2",
    ]


def test_an_option_that_only_one_of_both_has_is_said_and_without_a_configuration_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "people", "simple_spread")
    (found,) = find_sessions(tmp_path / "people")
    env = found.facts["config"]["env"]
    assert other_options(tmp_path, env) == []
    other = {**env, "kwargs": {"max_cycles": env["kwargs"]["max_cycles"], "wind": 3}}
    assert other_options(tmp_path, other) == [
        "recorded with env.kwargs.N=None; this run has (not set)",
        "recorded with env.kwargs.local_ratio=None; this run has (not set)",
        "recorded with env.kwargs.wind=(not set); this run has 3",
    ]
    path = found.folder / "session.json"
    path.write_text(json.dumps({**found.facts, "config": None}), encoding="utf-8")
    assert other_options(tmp_path, other) == []


def test_a_run_that_goes_on_takes_no_others_in(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "people", "simple_spread")
    assert train_on(folder, tmp_path).code == 0
    run = only_run(tmp_path / "runs")
    before = sorted(run.path.rglob("*"))
    other = recorded(tmp_path / "other", "simple_spread")
    done = typed(tmp_path, f"resume={run.path}", f"hitl.demonstrations={other}", "hitl.port=0")
    assert (done.code, sorted(run.path.rglob("*"))) == (2, before)
    assert f"hitl.demonstrations={other}: the run that is continued has {folder}" in done.err
    assert "init_from=" in done.err
    same = typed(tmp_path, f"resume={run.path}", f"hitl.demonstrations={folder}", "hitl.port=0")
    assert same.code == 0, same.err
