"""A person who asks for it leaves no trace in a recording; others' data stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.hitl import forget, replay
from harl.hitl.recording.forgetting import mentions
from harl.hitl.recording.recordings import find_sessions
from tests.hitl.recording_fixtures import record_episodes, started

ALICE, BOB = "alice-93f1", "bob-77c0"


def driving(episode: int, step: int) -> list[str | None]:
    """Episode 0: Alice alone. 1: both. 2: Bob alone."""
    alice = ALICE if episode < 2 and step < 5 else None
    return [alice, BOB if episode > 0 and step == 20 else None, None]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 3, driving)
    recorder.sync()
    recorder.event("connect", {"name": ALICE, "role": "controller"})
    recorder.event("lease", {"name": BOB, "reason": f"taken from {ALICE}", "drivers": {ALICE: 1}})
    recorder.event("survey", {"name": ALICE, "answers": {"age": 31}})
    recorder.event("survey", {"name": BOB, "answers": {"age": 44}})
    recorder.amend(0, 2, 3, 1, 0.5, 9, who=ALICE)
    recorder.amend(0, 2, 4, 1, 0.5, 9, who=BOB)
    recorder.close()
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    return tmp_path


def bytes_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_of_the_person_is_left(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main([str(run), "--episode", "1"]) == 0
    (run / "people" / "x.txt").write_text("")
    assert mentions(run, ALICE)
    (recorded,) = find_sessions(run)
    before = {e.episode: e.load() for e in recorded.episodes()}
    (recorded.folder / "episodes" / f".{ALICE}.npz.1.tmp").write_text(ALICE)
    assert forget.main([str(run), "--person", ALICE]) == 0
    said = capsys.readouterr().out
    assert "1 episodes were removed: episode 0 of environment 0" in said
    assert "1 episodes shared with others were redacted: episode 1 of environment 0" in said
    assert "3 events, answers and feedback amendments were removed; 1 videos too" in said
    assert "checkpoints keep what was learned" in said
    for path, content in bytes_of(run).items():
        for word in (ALICE.encode(), ALICE.encode("utf-32-le"), ALICE.encode("utf-16-le")):
            assert word not in content, path
    (recorded,) = find_sessions(run)
    shared, bobs = recorded.episodes()
    assert (shared.episode, shared.redacted, shared.people) == (1, True, [BOB, "forgotten"])
    arrays = shared.load()
    assert np.isnan(arrays["executed"][:5, 0]).all()
    assert np.isnan(arrays["human_raw"]).all()
    assert (arrays["seq"][:5, 0] == -1).all()
    np.testing.assert_array_equal(arrays["executed"][5:], before[1]["executed"][5:])
    np.testing.assert_array_equal(arrays["executed"][:, 1:], before[1]["executed"][:, 1:])
    np.testing.assert_array_equal(arrays["reward"], before[1]["reward"])
    assert (bobs.episode, bobs.redacted, bobs.people, len(bobs.amendments)) == (2, False, [BOB], 1)
    change = bobs.load()["reward_learned"] - before[2]["reward_learned"]
    assert [(int(t), int(i)) for t, i in np.argwhere(change)] == [(3, 1)]  # Alice's part is gone, Bob's is not
    events = list(recorded.events())
    assert [(event.kind, event.person) for event in events] == [("lease", BOB), ("survey", BOB)]
    assert events[0].data["reason"] == "taken from forgotten"
    assert events[0].data["drivers"] == {"forgotten": 1}


def test_dry_run_changes_nothing_and_says_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = bytes_of(run)
    assert forget.main([str(run), "--person", ALICE, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1 episodes would be removed: episode 0" in said
    assert "1 episodes shared with others would be redacted" in said
    assert {path: content for path, content in bytes_of(run).items() if path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }


def test_second_run_finds_nobody(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget.main([str(run), "--person", ALICE]) == 0
    assert forget.main([str(run), "--person", ALICE]) == 1
    said = capsys.readouterr().err
    assert f"nobody is called '{ALICE}'" in said
    assert BOB in said


def test_everybody_can_be_forgotten(run: Path) -> None:
    for person in (ALICE, BOB):
        assert forget.main([str(run), "--person", person]) == 0
    (recorded,) = find_sessions(run)
    assert list(recorded.episodes()) == []
    assert list(recorded.events()) == []


def test_longer_names_are_somebody_else(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    names = ["ann", "ann b", "ann-2"]
    record_episodes(recorder, envs, 1, lambda episode, step: list(names) if step == 3 else [None] * 3)
    recorder.event("note", {"who": "ann-2", "text": "ann, ann b and ann-2, not joann"})
    recorder.close()
    assert forget.main([str(tmp_path), "--person", "ann"]) == 0
    (recorded,) = find_sessions(tmp_path)
    (episode,) = recorded.episodes()
    assert episode.people == ["ann b", "ann-2", "forgotten"]
    (event,) = recorded.events()
    assert event.data == {"who": "ann-2", "text": "forgotten, ann b and ann-2, not joann"}


def test_name_that_json_escapes_goes_too(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 2, lambda episode, step: ["Zoë", BOB if episode else None, None])
    recorder.event("connect", {"name": "Zoë"})
    recorder.close()
    assert mentions(tmp_path, "Zoë")
    assert forget.main([str(tmp_path), "--person", "Zoë"]) == 0
    assert mentions(tmp_path, "Zoë") == []


def test_parts_of_a_killed_process_are_forgotten_as_well(run: Path) -> None:
    (recorded,) = find_sessions(run)
    lines = (recorded.folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (recorded.folder / "episodes.jsonl").write_text(lines[2] + '{"torn": "' + ALICE)
    assert len(list(find_sessions(run)[0].episodes())) == 3
    assert forget.main([str(run), "--person", ALICE]) == 0
    assert mentions(run, ALICE) == []
    assert [e.episode for e in find_sessions(run)[0].episodes()] == [2, 1]


def test_recording_that_is_being_written_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 1)
    recorder.sync()
    before = bytes_of(tmp_path)
    assert forget.main([str(tmp_path), "--person", ALICE]) == 1
    assert "is being written by another process" in capsys.readouterr().err
    assert bytes_of(tmp_path) == before
    recorder.close()


def test_mentions_beside_the_recording_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "notes.txt").write_text(f"{ALICE} was here")
    assert forget.main([str(run / "people"), "--person", ALICE]) == 0
    assert f"still named in {run / 'notes.txt'}" in capsys.readouterr().out


def test_redacted_episodes_are_neither_replayed_nor_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget.main([str(run), "--person", ALICE])
    assert replay.main([str(run), "--no-video"]) == 0
    assert "a person's actions were taken out of it" in capsys.readouterr().out


def facts(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("session.json")
    data: dict[str, Any] = json.loads(file.read_text())
    return data


def test_description_of_the_session_stays_readable(run: Path) -> None:
    before = facts(run)
    forget.main([str(run), "--person", ALICE])
    assert facts(run) == before
