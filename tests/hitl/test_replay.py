"""Sessions are shown again, and the record is checked against the environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harl.config import from_dict
from harl.hitl import replay as command
from harl.hitl.recording.caption import HUMAN, captioned
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.replay import CannotReplayError, replay
from harl.registry import make_envs
from tests.hitl.recording_fixtures import mpe, record_episodes, started

AGREES = "replayed: rewards and returns agree with the record"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recorder, envs = started(tmp_path / "run", condition="helped")
    record_episodes(recorder, envs, 2)
    recorder.event("connect", {"name": "alice-93f1"})
    recorder.close()
    return tmp_path / "run"


def test_session_is_told_checked_and_filmed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run), "--episode", "1"]) == 0
    said = capsys.readouterr().out
    assert "2 episodes, 50 steps; people drove 12 steps of agents; 2 took part: alice-93f1, bob-77c0" in said
    assert "condition: helped" in said
    assert "events: 1 connect" in said
    assert "episode 1 of environment 0: 25 steps, truncated" in said
    assert said.count(AGREES) == 1
    (video,) = run.rglob("replay/*")
    assert video.stat().st_size > 1000
    assert str(video) in said


def test_all_episodes_are_checked_without_pictures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run), "--no-video"]) == 0
    assert capsys.readouterr().out.count(AGREES) == 2
    assert not list(run.rglob("replay"))


@pytest.mark.parametrize("scenario", ["simple_reference", "simple_speaker_listener"])
def test_environments_of_several_are_replayed_one_by_one(tmp_path: Path, scenario: str) -> None:
    envs, _ = mpe(scenario, envs=3)
    recorder, single = started(tmp_path, scenario)
    returns = record_episodes(recorder, envs, 3, env=2)
    recorder.close()
    for episode, expected in zip(find_sessions(tmp_path)[0].episodes(), returns, strict=True):
        replayed = replay(episode, single)
        assert list(replayed.returns.values()) == expected.tolist()
        assert replayed.differs_at is None


def test_record_that_does_not_hold_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file, _) = sorted(run.rglob("*.npz"))
    with np.load(file) as arrays:
        changed = dict(arrays)
    changed["executed"][7, 1] = (changed["executed"][7, 1] + 1) % 5
    np.savez(file, **changed)
    assert command.main([str(run), "--no-video"]) == 1
    said = capsys.readouterr().out
    assert "DIFFERS from the record's" in said
    assert "first at step 8" in said  # bodies move before they are pushed
    assert said.count(AGREES) == 1


def test_without_a_state_the_seed_brings_back_the_first_episode_alone(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 2, state=False)
    recorder.close()
    first, second = find_sessions(tmp_path)[0].episodes()
    assert first.state() is None
    assert replay(first, envs).differs_at is None
    with pytest.raises(CannotReplayError, match="only the first episode after a reset with a known seed"):
        replay(second, envs)


def test_configuration_of_the_session_makes_the_environment(run: Path) -> None:
    session = find_sessions(run)[0]
    assert session.config == from_dict(session.facts["config"])
    assert make_envs(session.config.env, 1).layout == session.layout


def test_session_without_configuration_is_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder, envs = started(tmp_path, config=None)
    record_episodes(recorder, envs, 1)
    recorder.close()
    assert command.main([str(tmp_path)]) == 1
    assert "does not say how the environment was made" in capsys.readouterr().err


def test_episode_that_is_not_there_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run), "--episode", "9"]) == 1
    assert "no episode 9" in capsys.readouterr().err


def watched_only(folder: Path) -> None:
    """A session in which somebody was there and no episode was recorded."""
    recorder, _ = started(folder)
    recorder.event("connect", {"name": "bob-77c0"})
    recorder.close()


def test_session_without_episodes_does_not_keep_others_from_being_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched_only(tmp_path)
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 1)
    recorder.close()
    watched_only(tmp_path)
    assert len(find_sessions(tmp_path)) == 3
    assert command.main([str(tmp_path), "--no-video"]) == 0
    said = capsys.readouterr()
    assert said.out.count("no episode in this session") == 2
    assert said.out.count(AGREES) == 1
    assert "error" not in said.err


def test_sessions_without_any_episode_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched_only(tmp_path)
    watched_only(tmp_path)
    assert command.main([str(tmp_path)]) == 1
    assert f"error: no episode in {tmp_path}" in capsys.readouterr().err


def test_caption_marks_people() -> None:
    frame = np.zeros((200, 400, 3), np.uint8)
    picture = captioned(frame, [("plain", False), ("alice drives", True)])
    assert picture.shape[0] > 220
    assert picture.shape[1] == 400
    rows = np.flatnonzero((picture == HUMAN).all(axis=2).any(axis=1))
    assert rows.min() > 210
