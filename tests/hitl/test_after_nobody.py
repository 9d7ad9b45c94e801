"""Whatever comes between two steps of a run that had nobody is heard at the next one: nothing is skipped for good."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.hitl.bridge import Source
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.room import Room
from tests.hitl.rooms import Clock, messages, room
from tests.hitl.scripted import PEOPLE, any_family
from tests.hitl.talking import PATIENCE, eventually
from tests.hitl.test_discard import Bridge
from tests.hitl.test_people_bridge import Play, feedback
from tests.runners.runs import column


@pytest.fixture
def alone(tmp_path: Path) -> Play:
    """A run that has taken three steps without anybody."""
    made = Play(tmp_path, pace="free", record="touched", reward__anneal=False, takeover__lease_ttl_ms=60_000)
    for _ in range(3):
        proposed, override, _, credits = made.step(rewards=1.0)
        assert (override.actions is proposed, override.source, credits) == (True, None, ())
    return made


def enter_and_press(made: Room) -> None:
    made.enter("c", "carol", "controller", "desktop")
    made.control("c", "request", "mover", "hold")
    made.input("c", "mover", 1, 0, 0, 3, True, 60_000)


def test_a_key_acts_in_the_next_step(alone: Play) -> None:
    enter_and_press(alone.room)
    proposed, override, _, _ = alone.step()
    assert override.actions[0, 0, 0] == 3
    assert override.source.tolist() == [[Source.HUMAN, 0, 0], [0, 0, 0]]
    assert (proposed == 0.5).all()


def test_who_drives_and_is_gone_leaves_the_next_step_to_the_policies(alone: Play) -> None:
    enter_and_press(alone.room)
    assert alone.step()[1].source is not None
    alone.room.leave("c", "gone")
    for _ in range(2):
        proposed, override, _, _ = alone.step()
        assert (override.actions is proposed, override.source) == (True, None)
    assert not alone.bridge.source.any()


def test_a_pause_stops_the_next_step(alone: Play) -> None:
    alone.room.enter("t", "tess", "trainer", "desktop")
    alone.room.set_pace("t", "pause", None)
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(alone.step()), daemon=True)
    thread.start()
    eventually(lambda: bool(alone.bridge.chronicle), "what she did is written down while the run stands still")
    assert not returned
    alone.room.set_pace("t", "resume", None)
    thread.join(PATIENCE)
    assert returned


def test_who_has_left_the_episode_while_nobody_was_there_is_not_driven(alone: Play) -> None:
    alone.step(left=[(0, 0)])
    enter_and_press(alone.room)
    _, override, _, _ = alone.step()
    assert override.source is None
    (told,) = messages(alone.room, "ack")
    assert (told["status"], told["text"]) == ("illegal", "mover has left this episode")
    alone.step(ended=True)
    alone.room.input("c", "mover", 2, *alone.room.position[0], 3, True, 60_000)
    assert alone.step()[1].source[0].tolist() == [Source.HUMAN, 0, 0]


def test_places_and_returns_are_counted_while_nobody_is_there(alone: Play) -> None:
    alone.step(rewards=1.0, ended=True)
    alone.step(rewards=2.0)
    alone.room.enter("o", "olga", "observer", "desktop")
    alone.room.watch("o", 0, "state", 15.0, 512)
    alone.step(rewards=2.0)
    assert alone.room.position[0] == (1, 2)
    assert alone.bridge.last_return.tolist() == [[4.0] * 3] * 2
    assert alone.bridge.returns.tolist() == [[4.0] * 3] * 2


def test_a_word_of_somebody_who_has_left_again_is_heard_in_the_next_step(alone: Play) -> None:
    alone.room.enter("t", "tess", "trainer", "desktop")
    alone.step()
    feedback(alone, seen=(0, 4))
    alone.room.mark("t", "discard", 0)
    alone.room.leave("t", "gone")
    assert alone.bridge.discarded() == [0]
    assert alone.step()[3] == []  # of a discarded episode nothing is learned
    assert not alone.room.feedback_box


def test_praise_of_somebody_who_has_left_again_is_learned_from(alone: Play) -> None:
    alone.room.enter("t", "tess", "trainer", "desktop")
    alone.step()
    feedback(alone, seen=(0, 4))
    alone.room.leave("t", "gone")
    assert sum(credit.delta for credit in alone.step()[3]) == pytest.approx(0.5)


def test_who_comes_and_goes_between_two_steps_is_told_of_and_written_down(alone: Play, tmp_path: Path) -> None:
    said: list[str] = []
    alone.bridge.stage = dataclasses.replace(alone.stage, notice=said.append)
    alone.room.enter("o", "olga", "observer", "desktop")
    alone.room.leave("o", "gone")
    alone.step()
    assert said == ["people: olga came in", "people: olga has left"]
    alone.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    assert [event.kind for event in session.events()] == ["connect", "disconnect"]


def test_the_room_knows_at_once_who_looks_at_what() -> None:
    made = room(Clock(), envs="all")
    assert (made.watched(), made.witnessed()) == ({0}, {0})
    made.watch("c", 1, "state", 15.0, 512)
    assert made.watched() == {0, 1}
    made.enter("o", "olga", "observer", "desktop", recorded=False)
    made.leave("t", "gone")
    assert (made.watched(), made.witnessed()) == ({0, 1}, {1})
    made.away("c")
    assert (made.watched(), made.witnessed()) == ({0}, set())
    made.back("c")
    assert made.watched() == {0, 1}
    made.leave("c", "gone")
    made.leave("o", "gone")
    assert (made.watched(), made.occupied) == (set(), False)


def test_a_recording_says_that_nobody_drove_and_who_drove_after_that(alone: Play, tmp_path: Path) -> None:
    alone.room.enter("o", "olga", "observer", "desktop")
    alone.step()
    alone.step()
    enter_and_press(alone.room)
    alone.step()
    alone.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    (episode,) = [found for found in session.episodes() if found.env == 0]
    data = episode.load()
    for name, driven in (("controller", 0), ("seq", 1), ("seen_step", 0)):
        assert data[name].tolist() == [[-1, -1, -1], [driven, -1, -1]]
    for name in ("t_received", "t_applied"):
        assert np.isfinite(data[name]).tolist() == [[False] * 3, [True, False, False]]
    assert data["active"].all()
    assert data["source"].tolist() == [[0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_a_run_hears_each_of_two_people_who_come_after_nobody(tmp_path: Path, algo: str) -> None:
    """Steps 4 and 5 by carol, who leaves; nobody until 12; then dora takes over again."""

    def come(who: str) -> Callable[[Any], None]:
        def act(made: Any) -> None:
            made.enter(who, who, "controller", "desktop")
            made.control(who, "request", "agent_0", "toggle")
            made.input(who, "agent_0", 1, *made.position[0], None, True, 60_000)

        return act

    script = {4: come("carol"), 6: lambda made: made.leave("carol", "gone"), 12: come("dora")}
    bridge = Bridge(script | {14: lambda made: made.leave("dora", "gone")}, record="off")
    drove: list[np.ndarray[Any, Any]] = []
    runner = any_family(tmp_path, bridge, algo, "env=mpe", PEOPLE, "train.num_env_steps=40")
    publish = bridge.publish

    def note(outcome: Any) -> None:
        assert runner.people is not None
        drove.append(runner.people.source.copy())
        publish(outcome)

    bridge.publish = note  # type: ignore[method-assign]
    runner.run()
    assert [t for t, source in enumerate(drove) if source.any()] == [4, 5, 12, 13]
    assert all(np.argwhere(drove[t]).tolist() == [[0, 0]] for t in (4, 5, 12, 13))
    assert sum(column(runner.folder, "people/human_steps")) == 4
    assert sum(column(runner.folder, "people/interventions")) == 2
