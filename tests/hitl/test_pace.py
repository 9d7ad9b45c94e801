"""How fast the environments go, and that nobody waits for ever."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from harl.hitl.people import RoomError
from tests.hitl.rooms import MASKS, Clock, messages, room


def no() -> bool:
    return False


def nothing() -> None:
    return None


def test_lockstep_does_not_wait_for_the_driver_of_an_agent_that_has_left():
    made = room(time.monotonic, pace="lockstep", timeout_s=60.0, takeover__lease_ttl_ms=60_000)
    made.control("c", "request", "mover", "toggle")
    made.gone = {(0, 0)}
    assert made.pace.hold(no, nothing) is False
    made.gone = {(1, 0)}
    made.config = dataclasses.replace(made.config, timeout_s=0.01)
    assert made.pace.hold(no, nothing) is True


def test_free_does_not_wait():
    made = room(Clock(), pace="free")
    assert made.pace.hold(no, nothing) is False


def test_auto_is_realtime_while_somebody_drives_or_gives_feedback():
    clock = Clock()
    made = room(clock, pace="auto")
    assert made.pace.state() == "free"
    made.control("c", "request", "mover", "hold")
    assert made.pace.state() == "realtime"
    made.control("c", "release", "mover", "hold")
    assert made.pace.state() == "free"
    made.feedback("t", "mover", 1, 1.0, 0, 0)
    assert made.pace.state() == "realtime"
    clock.now += 11
    assert made.pace.state() == "free"


def test_auto_is_realtime_while_anybody_watches_a_playback():
    made = room(Clock(), pace="auto")
    made.about = {"purpose": "train"}
    assert made.pace.state() == "free"
    made.about = {"purpose": "evaluate"}
    assert made.pace.state() == "realtime"
    made.leave("t", "gone")
    made.away("c")
    assert made.pace.state() == "free", "nobody is there"
    made.back("c")
    assert made.pace.state() == "realtime"


def test_realtime_keeps_its_beat_whatever_the_steps_take():
    made = room(time.monotonic, pace="realtime", fps=50.0)
    made.pace.hold(no, nothing)
    started = time.monotonic()
    for _ in range(10):
        time.sleep(0.005)
        made.pace.hold(no, nothing)
    assert time.monotonic() - started >= 0.19


def test_realtime_does_not_catch_up_after_a_long_update():
    made = room(time.monotonic, pace="realtime", fps=20.0)
    made.pace.hold(no, nothing)
    time.sleep(0.4)
    made.pace.hold(no, nothing)
    started = time.monotonic()
    made.pace.hold(no, nothing)
    assert time.monotonic() - started >= 0.04


@pytest.mark.parametrize("how", ["drives", "pauses"])
def test_whoever_ends_a_free_run_sees_how_it_stands_before_the_next_step(how):
    made = room(time.monotonic, pace="auto", fps=5.0)
    made.pace.hold(no, nothing)
    shown = []

    def meanwhile():
        shown.append(sorted(made.newcomers))
        made.newcomers.clear()

    made.drain_events()
    started = time.monotonic()
    if how == "drives":
        made.control("c", "request", "mover", "hold")
    else:
        made.set_pace("t", "pause", None)
        threading.Timer(0.2, lambda: made.set_pace("t", "step", None)).start()
    made.pace.hold(no, meanwhile)
    assert shown[0] == [0]
    assert time.monotonic() - started >= 0.15, "and has time to look"


def test_whoever_is_awaited_sees_what_for():
    made = room(time.monotonic, pace="lockstep", timeout_s=0.2)
    shown = []

    def meanwhile():
        shown.extend(made.newcomers)
        made.shown |= {env: made.position[env] for env in made.newcomers}
        made.newcomers.clear()

    made.pace.hold(no, meanwhile)  # nobody drives: it goes on without showing every step
    assert not shown
    made.position[0] = (3, 7)
    made.control("c", "request", "mover", "toggle")
    made.pace.hold(no, meanwhile)
    made.pace.hold(no, meanwhile)
    assert shown == [0], "and once is enough"


def test_a_pause_holds_until_it_is_lifted():
    made = room(time.monotonic, pace="free")
    made.set_pace("t", "pause", None)
    threading.Timer(0.2, lambda: made.set_pace("t", "resume", None)).start()
    started = time.monotonic()
    made.pace.hold(no, nothing)
    assert time.monotonic() - started >= 0.15
    assert [message["state"] for message in messages(made, "pace")] == ["paused", "free"]


def test_single_steps_while_paused():
    made = room(time.monotonic, pace="free")
    made.set_pace("t", "step", None)
    made.set_pace("t", "step", None)
    made.pace.hold(no, nothing)
    made.pace.hold(no, nothing)
    assert made.pace.state() == "paused"
    held = threading.Event()
    waiting = threading.Thread(target=lambda: (made.pace.hold(no, nothing), held.set()))
    waiting.start()
    assert not held.wait(0.2)
    made.set_pace("t", "resume", None)
    assert held.wait(5)
    waiting.join()


def test_a_pause_ends_when_the_last_trainer_leaves():
    made = room(time.monotonic, pace="free")
    made.set_pace("t", "pause", None)
    threading.Timer(0.1, lambda: made.leave("t", "gone")).start()
    made.pace.hold(no, nothing)
    assert made.pace.state() == "free"


def test_a_pause_has_a_longest_time():
    made = room(time.monotonic, pace="free", max_pause_s=0.2)
    made.set_pace("t", "pause", None)
    made.pace.hold(no, nothing)
    assert made.pace.state() == "free"


def test_a_stop_ends_every_wait():
    made = room(time.monotonic, pace="free")
    made.set_pace("t", "pause", None)
    started = time.monotonic()
    assert made.pace.hold(lambda: True, nothing) is False
    assert made.pace.state() == "paused"  # it was the stop that ended the wait
    assert time.monotonic() - started < made.config.max_pause_s / 2


def test_newcomers_are_shown_what_stands_still():
    made = room(time.monotonic, pace="free")
    made.newcomers.clear()
    made.set_pace("t", "pause", None)
    shown = []

    def show() -> None:
        shown.append(set(made.newcomers))
        made.newcomers.clear()
        made.set_pace("t", "resume", None)

    threading.Timer(0.1, lambda: made.watch("c", 0, "state", 15, 512)).start()
    made.pace.hold(no, show)
    assert shown == [{0}]


def test_lockstep_waits_for_every_driver_and_no_longer():
    made = room(time.monotonic, pace="lockstep", timeout_s=30.0, takeover__lease_ttl_ms=60_000)
    assert made.pace.hold(no, nothing) is False  # nobody drives
    made.control("c", "request", "mover", "hold")
    made.control("t", "request", "talker", "hold")
    made.input("c", "mover", 1, 0, 0, 3, True, 60_000)
    threading.Timer(0.2, lambda: made.input("t", "talker", 1, 0, 0, [0, 0], True, 60_000)).start()
    started = time.monotonic()
    assert made.pace.hold(no, nothing) is False
    assert 0.15 <= time.monotonic() - started < 20
    assert len(made.take(0, MASKS)) == 2


def test_lockstep_times_out_and_gives_way_after_three_times_WS10():
    made = room(time.monotonic, pace="lockstep", timeout_s=0.05, takeover__lease_ttl_ms=60_000)
    made.control("c", "request", "mover", "hold")
    made.outbox.take()
    assert [made.pace.hold(no, nothing) for _ in range(3)] == [True, True, True]
    assert made.pace.timeouts == 3
    assert made.pace.state() == "realtime"
    assert "3 times in a row" in messages(made, "notice")[0]["text"]
    assert made.pace.hold(no, nothing) is False


def test_an_answer_to_an_earlier_step_is_not_applied_later_WS10():
    made = room(time.monotonic, pace="lockstep", timeout_s=0.05, takeover__lease_ttl_ms=60_000)
    made.control("c", "request", "mover", "hold")
    made.position[0] = (0, 4)
    made.input("c", "mover", 1, 0, 3, 3, True, 60_000)
    assert made.pace.hold(no, nothing) is True


@pytest.mark.parametrize(("op", "value"), [("speed", None), ("speed", 9.0), ("speed", 0.0), ("warp", None)])
def test_what_the_pace_does_not_know(op, value):
    made = room(Clock())
    with pytest.raises(RoomError) as refused:
        made.set_pace("t", op, value)
    assert refused.value.code == "bad_value"
