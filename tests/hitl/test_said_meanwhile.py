"""What people say while nothing moves is on the disk at once, and nothing is kept of who has not agreed."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from harl.hitl.recording import files
from harl.hitl.recording.files import RecordingFiles
from harl.hitl.recording.recordings import find_sessions
from tests.hitl.rooms import messages
from tests.hitl.talking import PATIENCE, eventually
from tests.hitl.test_people_bridge import Play


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Whole lines of a file of the only recording; none before there is one."""
    return [json.loads(line) for path in folder.glob(f"people/*/{name}") for line in path.read_bytes().splitlines(True)]


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in lines(folder, "events.jsonl")]


@pytest.fixture
def paused(tmp_path: Path) -> Any:
    """A run of three steps that stands still in its fourth, and what that step returns."""
    made = Play(tmp_path, pace="free", record="touched", reward__anneal=False, reward__credit="turn")
    made.room.enter("t", "tess", "trainer", "desktop")
    for _ in range(3):
        made.step()
    made.room.set_pace("t", "pause", None)
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(made.step()), daemon=True)
    thread.start()
    eventually(lambda: "pace" in kinds(tmp_path), "the pause is written down")
    yield made, returned
    made.room.set_pace("t", "resume", None)
    thread.join(PATIENCE)
    made.bridge.close("over")
    assert returned


def test_what_is_said_during_a_pause_is_written_down_during_the_pause(paused: Any, tmp_path: Path) -> None:
    made, returned = paused
    made.room.survey("t", {"how": "well"})
    made.room.feedback("t", "mover", 1, 1.0, 0, 3, 0.0, 500.0)
    made.room.mark("t", "success", 0)
    eventually(lambda: {"survey", "feedback"} <= set(kinds(tmp_path)), "both are written down")
    eventually(lambda: not made.room.marks, "the mark is taken in")
    (feedback,) = [event for event in lines(tmp_path, "events.jsonl") if event["kind"] == "feedback"]
    assert feedback["data"]["credited"], "and so is what it is about"
    (told,) = messages(made.room, "credit")
    assert (told["seq"], told["late"]) == (1, False)
    assert not returned, "the run stands still all the while"


def test_what_is_said_during_a_pause_is_learned_from_once(paused: Any, tmp_path: Path) -> None:
    made, returned = paused
    made.room.feedback("t", "mover", 1, 1.0, 0, 3, 0.0, 500.0)
    eventually(lambda: "feedback" in kinds(tmp_path), "it is written down")
    made.room.set_pace("t", "resume", None)
    eventually(lambda: bool(returned), "the step is taken")
    *_, credits = returned[0]
    assert sum(credit.delta for credit in credits) == pytest.approx(0.5)
    assert made.step()[3] == []


def test_what_is_said_after_the_last_step_is_written_down_at_the_end(tmp_path: Path) -> None:
    made = Play(tmp_path, pace="free", record="touched")
    made.room.enter("t", "tess", "trainer", "desktop")
    made.step(ended=True)
    made.step()
    made.room.feedback("t", "mover", 1, 1.0, 1, 1)
    made.room.mark("t", "fail", 1)
    made.bridge.close("over")
    assert "feedback" in kinds(tmp_path)
    (session,) = find_sessions(tmp_path)
    (episode,) = [found for found in session.episodes() if (found.env, found.episode) == (0, 1)]
    assert episode.facts["success"] is False
    assert episode.people == ["tess"]


def test_a_line_is_on_the_disk_within_a_second_without_anything_else_happening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe: list[bytes] = []

    def note(file: Any) -> None:
        file.flush()
        os.fsync(file.fileno())
        safe.append(Path(file.name).read_bytes())

    monkeypatch.setattr(files, "to_disk", note)
    recording = RecordingFiles(tmp_path / "people", {})
    recording.append("events.jsonl", {"kind": "one"})
    eventually(lambda: bool(safe), "the first line is kept")
    for number in range(40):  # others that keep coming do not put it off for ever
        recording.append("events.jsonl", {"kind": str(number)})
        threading.Event().wait(0.05)
    assert len(safe) > 1
    recording.close()
    assert safe[-1].count(b"\n") == 41


def test_nothing_is_recorded_of_who_has_not_agreed_to_the_terms(tmp_path: Path) -> None:
    made = Play(tmp_path, pace="free", record="watched")
    said: list[str] = []
    made.bridge.stage = dataclasses.replace(made.stage, notice=said.append)
    made.room.enter("o", "olga", "observer", "desktop", recorded=False)
    made.step(ended=True)
    made.step()
    made.room.away("o")
    made.step()
    made.room.back("o")
    made.step(ended=True)
    assert not (tmp_path / "people").exists(), "nor that there was anybody"
    assert len(said) == 3
    assert not [line for line in said if "olga" in line]

    made.room.enter("c", "carol", "controller", "desktop")
    made.step(ended=True)
    made.step()
    made.room.leave("c", "gone")
    made.room.leave("o", "gone")
    made.step()
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    assert [event.person for event in session.events()] == ["carol", "carol"]
    assert [(found.env, found.episode, found.steps) for found in session.episodes()] == [(0, 3, 1)]
    kept = [path for path in (tmp_path / "people").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"olga" in path.read_bytes()]


def test_the_watching_of_who_has_agreed_since_is_recorded(tmp_path: Path) -> None:
    made = Play(tmp_path, pace="free", record="watched")
    made.room.enter("o", "olga", "observer", "desktop", recorded=False)
    made.step(ended=True)
    made.room.leave("o", "agreed to the terms")
    made.room.enter("o", "olga", "controller", "desktop", None, "v1")
    made.step(ended=True)
    made.step()
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    assert [(event.kind, event.data["consent_version"]) for event in session.events()] == [("connect", "v1")]
    assert [found.episode for found in session.episodes()] == [2]
