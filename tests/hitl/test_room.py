"""Leases and held keys: who drives, with what, and when it ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from harl.hitl.people import RoomError
from harl.hitl.room import Room
from tests.hitl.rooms import LAYOUT, MASKS, Clock, messages, room, web_config


@pytest.fixture
def clock():
    return Clock()


def press(made, action, seq, who="c", agent="mover", held=True, ep=0, step=0, ttl=500):
    made.input(who, agent, seq, ep, step, action, held, ttl)


def test_a_held_key_acts_in_every_step_until_it_is_let_go(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    for step in range(3):
        made.position[0] = (0, step)
        (drive,) = made.take(0, MASKS)
        assert (drive.agent, drive.held.action.tolist(), drive.name) == (0, [3.0], "carol")
    press(made, None, 2, held=False)
    assert made.take(0, MASKS) == []
    assert made.driver(0, 0) is None


def test_acknowledged_once_with_the_step_at_which_it_took_effect(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    made.position[0] = (0, 7)
    press(made, 3, 5, step=7)
    made.take(0, MASKS)
    made.take(0, MASKS)
    assert messages(made, "ack") == [
        {"type": "ack", "seq": 5, "agent": "mover", "applied": {"ep": 0, "step": 7}, "status": "applied"}
    ]


def test_nothing_pressed_is_doing_nothing_and_not_the_policy(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, None, 1)
    (drive,) = made.take(0, MASKS)
    assert drive.held.action is None


def test_a_tap_shorter_than_a_step_acts_once(clock):
    made = room(clock)
    made.control("c", "request", "mover", "toggle")
    press(made, 4, 1)
    press(made, None, 2)
    assert [made.take(0, MASKS)[0].held.action, made.take(0, MASKS)[0].held.action] == [np.array([4.0]), None]


def test_a_tap_and_release_within_a_step_acts_once_and_then_ends_the_lease(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 4, 1)
    press(made, None, 2, held=False)
    assert len(made.take(0, MASKS)) == 1
    assert made.take(0, MASKS) == []
    assert made.driver(0, 0) is None


def test_a_key_that_has_acted_is_not_latched_when_it_is_repeated_and_let_go(clock):
    made = room(clock)
    made.control("c", "request", "mover", "toggle")
    press(made, 4, 1)
    made.take(0, MASKS)
    press(made, 4, 2)
    press(made, None, 3)
    assert made.take(0, MASKS)[0].held.action is None


ENDS = {
    "released": lambda made, clock: made.control("c", "release", "mover", "hold"),
    "expired": lambda made, clock: (setattr(clock, "now", clock.now + 1.0), made.expire()),
    "revoked": lambda made, clock: made.control("t", "revoke", "mover", "hold"),
    "episode_over": lambda made, clock: made.episode_over(0),
    "left": lambda made, clock: made.leave("c", "closed"),
}


@pytest.mark.parametrize("acted", [False, True])
@pytest.mark.parametrize("how", list(ENDS))
def test_an_action_whose_turn_never_came_is_told_and_noted(clock, how, acted):
    made = room(clock)
    made.people["t"].role = "admin"
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    if acted:
        made.take(0, MASKS)
    made.outbox.take()
    made.drain_events()
    ENDS[how](made, clock)
    noted = [(f["name"], f["seq"], f["reason"]) for kind, f in made.drain_events() if kind == "rejected"]
    assert noted == [] if acted else [("carol", 1, {"left": "released"}.get(how, how))]
    assert [ack["status"] for ack in messages(made, "ack")] == ([] if acted else ["stale"])
    assert made.take(0, MASKS) == []


def test_one_driver_an_agent_and_the_second_one_is_told_who(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    made.outbox.take()
    made.control("t", "request", "mover", "hold")
    (denied,) = messages(made, "control")
    assert (denied["state"], denied["holder"]) == ("denied", "carol")
    (noted,) = [fields for kind, fields in made.drain_events() if kind == "lease_denied"]
    assert (noted["name"], noted["holder"]) == ("tess", "carol")
    made.control("t", "request", "talker", "hold")
    assert made.driver(0, 1) == "tess"


def test_actions_without_a_lease_are_answered_with_how_to_get_one_WS12(clock):
    made = room(clock)
    made.control("t", "request", "mover", "hold")
    made.outbox.take()
    press(made, 3, 1)
    made.input("c", "talker", 2, 0, 0, [0, 1], True, 500)
    first, second = messages(made, "ack")
    assert first["status"] == second["status"] == "not_owner"
    assert "tess drives mover" in first["text"]
    assert "request" in first["text"]
    assert "nobody drives talker" in second["text"]
    assert made.take(0, MASKS) == []


def test_a_lease_expires_when_nothing_is_heard(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    clock.now += 0.49
    made.expire()
    assert len(made.take(0, MASKS)) == 1
    clock.now += 0.02
    made.expire()
    assert made.take(0, MASKS) == []
    assert messages(made, "control")[-1]["state"] == "expired"


def test_a_driver_who_does_nothing_for_long_gives_the_agent_back(clock):
    made = room(clock)
    made.control("c", "request", "mover", "toggle")
    for seq in range(1, 60):
        clock.now += 0.4
        press(made, None, seq)
        made.expire()
    assert made.driver(0, 0) is None
    reasons = [message["reason"] for message in messages(made, "control")]
    assert "the driver did nothing" in reasons


def test_a_dropped_connection_ends_the_leases_and_keeps_the_place_WS11(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    made.away("c")
    assert made.take(0, MASKS) == []
    made.back("c")
    made.control("c", "request", "mover", "hold")
    press(made, 3, 2)
    assert len(made.take(0, MASKS)) == 1


def test_numbers_that_do_not_rise_are_ignored(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 5)
    press(made, 1, 5)
    press(made, 1, 4)
    assert made.take(0, MASKS)[0].held.action.tolist() == [3.0]
    assert [message["status"] for message in messages(made, "ack")] == ["stale", "stale", "applied"]


def test_a_key_of_the_last_episode_does_not_act_in_the_next(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    made.episode_over(0)
    made.position[0] = (1, 0)
    assert made.take(0, MASKS) == []
    press(made, 3, 2, ep=0)
    assert made.take(0, MASKS) == []
    assert messages(made, "ack")[-1]["status"] == "stale"
    press(made, 3, 3, ep=1)
    assert len(made.take(0, MASKS)) == 1


def test_doing_nothing_is_taken_whatever_was_seen_and_ends_what_was_held(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    made.position[0] = (7, 3)
    press(made, None, 1, ep=4)  # the first word of a driver whose picture has flown by
    assert made.take(0, MASKS)[0].held.action is None
    press(made, 3, 2, ep=7, step=3)
    made.take(0, MASKS)
    made.position[0] = (7, 90)
    press(made, None, 3, ep=7, step=3)  # the key is up, however late the picture is
    assert made.take(0, MASKS)[0].held.action is None
    assert [message["status"] for message in messages(made, "ack")] == ["applied"] * 3


def test_what_was_seen_two_seconds_ago_is_too_old(clock):
    made = room(clock, fps=10.0)
    made.control("c", "request", "mover", "hold")
    made.position[0] = (0, 40)
    press(made, 3, 1, step=19)
    assert made.take(0, MASKS) == []
    press(made, 3, 2, step=20)
    assert len(made.take(0, MASKS)) == 1


def test_a_forbidden_action_is_refused_and_the_policy_drives(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    masks = MASKS.copy()
    masks[0, 3] = 0
    assert made.take(0, masks) == []
    assert made.take(0, masks) == []
    assert [message["status"] for message in messages(made, "ack")] == ["illegal"]
    assert len(made.take(0, MASKS)) == 1


def test_nothing_acts_on_an_agent_that_has_left_until_the_next_episode(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    press(made, 3, 1)
    made.gone = {(0, 0), (1, 1)}
    assert made.take(0, MASKS) == made.take(0, MASKS) == []
    (ack,) = messages(made, "ack")
    assert (ack["status"], ack["text"]) == ("illegal", "mover has left this episode")
    made.gone = set()
    assert len(made.take(0, MASKS)) == 1  # the lease is still theirs


def test_masks_of_several_components(clock):
    made = room(clock)
    made.control("c", "request", "talker", "hold")
    made.input("c", "talker", 1, 0, 0, [2, 1], True, 500)
    masks = MASKS.copy()
    masks[1, 4] = 0  # the second component's 1
    assert made.take(0, masks) == []
    masks[1, 4] = 1
    assert made.take(0, masks)[0].held.action.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("agent", "action", "allowed"),
    [
        ("mover", 5, "a whole number from 0 to 4"),
        ("mover", -1, "from 0 to 4"),
        ("mover", 1.5, "whole number"),
        ("mover", True, "number"),
        ("mover", "1", "number"),
        ("mover", [1, 1], "whole number"),
        ("talker", 1, "2 whole numbers below 3, 2"),
        ("talker", [0, 2], "below 3, 2"),
        ("arm", [0.0], "2 numbers"),
        ("arm", [0.0, 1.1], "from [-1.0, -1.0] to [1.0, 1.0]"),
        ("arm", [0.0, float("nan")], "2 numbers"),
        ("arm", {"x": 1}, "2 numbers"),
    ],
)
def test_an_action_of_another_space_is_refused_not_clipped_WS05(clock, agent, action, allowed):
    made = room(clock)
    made.control("c", "request", agent, "hold")
    with pytest.raises(RoomError) as refused:
        made.input("c", agent, 1, 0, 0, action, True, 500)
    assert refused.value.code == "bad_action"
    assert allowed in refused.value.text
    assert made.take(0, MASKS) == []


def test_what_a_role_may_not_do(clock):
    made = room(clock)
    made.enter("o", "olga", "observer", "desktop")
    for act in (
        lambda: made.control("o", "request", "mover", "hold"),
        lambda: made.input("o", "mover", 1, 0, 0, 1, True, 500),
        lambda: made.feedback("c", "mover", 1, 1.0, 0, 0),
        lambda: made.set_pace("c", "pause", None),
        lambda: made.mark("o", "success", 0),
        lambda: made.control("t", "revoke", "mover", "hold"),
    ):
        with pytest.raises(RoomError) as refused:
            act()
        assert refused.value.code == "role"


def test_an_admin_takes_an_agent_from_its_driver(clock):
    made = room(clock)
    made.enter("a", "ada", "admin", "desktop")
    made.control("c", "request", "mover", "hold")
    made.control("a", "revoke", "mover", "hold")
    assert made.driver(0, 0) is None
    assert messages(made, "control")[-1]["reason"] == "by ada"


def test_a_link_for_some_agents_drives_those_alone(clock):
    made = room(clock)
    made.enter("s", "sam", "controller", "touch", ("talker",))
    made.control("s", "request", "talker", "hold")
    with pytest.raises(RoomError, match="talker, not mover"):
        made.control("s", "request", "mover", "hold")


def test_unknown_agents_and_environments_are_named(clock):
    made = room(clock)
    with pytest.raises(RoomError, match="mover, talker, arm"):
        made.control("c", "request", "nobody", "hold")
    with pytest.raises(RoomError, match="allowed: 0"):
        made.watch("c", 1, "state", 15, 512)
    other = room(clock, envs="all")
    other.watch("c", 1, "state", 15, 512)
    with pytest.raises(RoomError, match="0 to 1"):
        other.watch("c", 2, "state", 15, 512)


def test_each_environment_has_drivers_of_its_own(clock):
    made = room(clock, envs="all")
    made.watch("t", 1, "state", 15, 512)
    made.control("c", "request", "mover", "hold")
    made.control("t", "request", "mover", "hold")
    assert (made.driver(0, 0), made.driver(1, 0)) == ("carol", "tess")
    made.watch("t", 0, "state", 15, 512)
    assert made.driver(1, 0) is None


def test_before_the_run_is_there_people_are_told_to_come_back(clock):
    with pytest.raises(RoomError) as refused:
        Room(web_config(), clock).enter("c", "carol", "controller", "desktop")
    assert refused.value.code == "starting"


def test_an_old_session_is_over(clock):
    made = room(clock)
    made.control("c", "request", "mover", "hold")
    made.leave("c", "gone")
    assert made.driver(0, 0) is None
    with pytest.raises(RoomError) as refused:
        press(made, 3, 1)
    assert refused.value.code == "session"


def test_nobody_left_means_unoccupied(clock):
    made = room(clock)
    assert made.occupied
    made.leave("c", "gone")
    made.away("t")
    assert not made.occupied


def test_people_may_come_and_go_while_the_run_looks(clock):
    made = room(clock, num_envs=64, envs="all", pace="auto")
    stop, failed = threading.Event(), []

    def run() -> None:
        try:
            while not stop.is_set():
                made.expire()
                for env in made.driven():
                    made.take(env, MASKS)
                made.taking_part()
                made.watched()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for k in range(600):
        made.enter(f"p{k}", f"p{k}", "controller", "script")
        made.watch(f"p{k}", k % 64, "state", 15, 512)
        made.control(f"p{k}", "request", LAYOUT.agents[k % 3], "toggle")
        if k >= 50:
            made.leave(f"p{k - 50}", "gone")
    stop.set()
    thread.join()
    assert not failed
