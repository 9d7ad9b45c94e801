"""Waiting for people: for whom, for how long, and what is taken as an answer."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any
from unittest.mock import MagicMock

import pytest
from websockets.exceptions import ConnectionClosedOK

from harl.hitl.sharpie import receive_message
from harl.hitl.sharpie_site.people import NobodyThere, People, PersonLeft, Stopped, Waits
from harl.hitl.sharpie_site.settings import Tempo, read_roles
from tests.hitl.sharpie_fakes import FakeSocket, agent, batch, left

TWO = {"agent_0": agent(), "agent_1": agent(), "agent_2": agent(participant=False)}
QUICK = Waits(timeout_s=2.0, thinking_s=50.0, join_s=5.0, gone_s=4.0, last_s=1.0)


def people(socket: FakeSocket, settings: dict[str, Any] = TWO, waits: Waits = QUICK, thinking: bool = False) -> People:
    return People(socket, read_roles(settings), waits, Tempo(10.0, thinking), clock=lambda: socket.now)


def sent(socket: FakeSocket, *messages: str) -> FakeSocket:
    socket.inbox += messages
    return socket


def test_nothing_is_read_where_nobody_sits() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1))
    alone = {"agent_0": agent(participant=False)}
    assert receive_message(socket, alone) == {}
    assert people(socket, alone).answers() == {}
    assert people(socket, alone).last() == {}
    people(socket, alone).clear()
    assert socket.waited == []


def test_one_message_gives_the_inputs_of_all() -> None:
    assert receive_message(sent(FakeSocket([]), batch(agent_0=1, agent_1=[0])), TWO) == {"agent_0": 1, "agent_1": [0]}


def test_a_message_that_does_not_come_is_waited_for_with_a_limit() -> None:
    socket = FakeSocket([])
    assert receive_message(socket, TWO) == {}
    assert socket.waited == [10.0]
    assert receive_message(socket, TWO, timeout=0.5) == {}
    assert socket.waited[-1] == 0.5


def test_a_socket_without_time_outs_will_do() -> None:
    socket = MagicMock()
    socket.recv.return_value = batch(agent_0=1)
    assert receive_message(socket, TWO) == {"agent_0": 1}


def test_who_leaves_ends_the_episode_and_not_the_process() -> None:
    with pytest.raises(PersonLeft, match="A user has disconnected"):
        receive_message(sent(FakeSocket([]), left()), TWO)


@pytest.mark.parametrize("odd", ["no json", "[]", '{"batch_actions": 3}', "{}", json.dumps({"image": "forged"})])
def test_odd_messages_are_ignored(odd: str) -> None:
    assert receive_message(sent(FakeSocket([]), odd), TWO) == {}
    assert people(sent(FakeSocket([]), odd, batch(agent_0=1, agent_1=2))).answers() == {"agent_0": 1, "agent_1": 2}


def test_answers_that_come_one_by_one_are_put_together() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1), batch(agent_0=2), batch(agent_1=3))
    assert people(socket).answers() == {"agent_0": 2, "agent_1": 3}


def test_inputs_of_strangers_are_dropped_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    socket = sent(FakeSocket([]), batch(agent_2=9, nobody=1), batch(agent_2=9, agent_0=1, agent_1=1))
    with caplog.at_level(logging.WARNING, "harl.sharpie"):
        assert people(socket).answers() == {"agent_0": 1, "agent_1": 1}
    assert len(caplog.records) == 2


def test_who_is_silent_is_waited_for_once_and_again_when_heard_of() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1, agent_1=1))
    room = people(socket)
    room.answers()
    socket.inbox = [batch(agent_0=2)]
    assert room.answers() == {"agent_0": 2}
    assert socket.now == pytest.approx(2.0)
    socket.inbox = [batch(agent_0=3)]
    assert room.answers() == {"agent_0": 3}
    assert socket.now == pytest.approx(2.0)
    socket.inbox = [batch(agent_1=9)]  # late: for an earlier frame
    room.clear()
    socket.inbox = [batch(agent_0=4)]
    assert room.answers() == {"agent_0": 4}
    assert socket.now == pytest.approx(4.0)


def test_late_answers_are_not_taken_for_the_next_frame() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1, agent_1=1), batch(agent_0=2, agent_1=2))
    room = people(socket)
    room.clear()
    socket.inbox = [batch(agent_0=3, agent_1=3)]
    assert room.answers() == {"agent_0": 3, "agent_1": 3}


def test_a_tab_closed_before_the_first_answer_ends_the_episode() -> None:
    socket = FakeSocket([])
    with pytest.raises(NobodyThere):
        people(socket).answers()
    assert socket.now == pytest.approx(5.0)


def test_frames_are_repeated_until_somebody_joins() -> None:
    socket, repeats = FakeSocket([]), []

    def repeat() -> None:
        repeats.append(socket.now)
        if len(repeats) == 3:
            socket.inbox = [batch(agent_0=1, agent_1=1)]

    room = people(socket, waits=dataclasses.replace(QUICK, join_s=30.0))
    assert room.answers(repeat) == {"agent_0": 1, "agent_1": 1}
    assert repeats == [2.0, 6.0, 10.0]
    socket.inbox = []
    assert room.answers(repeat) == {}
    assert len(repeats) == 3


def test_frames_are_repeated_for_those_who_come_later_than_others() -> None:
    socket, repeats = sent(FakeSocket([]), batch(agent_0=1)), []

    def repeat() -> None:
        repeats.append(socket.now)
        if len(repeats) == 2:
            socket.inbox = [batch(agent_0=2), batch(agent_1=3)]

    assert people(socket, waits=dataclasses.replace(QUICK, join_s=30.0)).answers(repeat) == {"agent_0": 2, "agent_1": 3}
    assert repeats == [2.0, 6.0]


def test_silence_of_everybody_ends_the_episode_in_the_end() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1, agent_1=1))
    room = people(socket)
    room.answers()
    assert room.answers() == {}
    assert room.answers() == {}
    socket.now = 6.5
    with pytest.raises(NobodyThere, match="6 s"):
        room.answers()


def test_people_who_think_get_time_to_do_so() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1, agent_1=1))
    room = people(socket, thinking=True)
    room.answers()
    assert room.answers() == {}
    assert socket.now == pytest.approx(50.0)


def test_after_the_last_frame_people_may_leave() -> None:
    socket = sent(FakeSocket([]), batch(agent_0=1), left())
    assert people(socket).last() == {"agent_0": 1}
    socket = FakeSocket([])
    assert people(socket).last() == {}
    assert socket.now == pytest.approx(1.0)


def test_who_leaves_after_the_last_frame_does_not_silence_the_others() -> None:
    """The site passes answers on when it has all of them, and that may be after the first page has closed."""
    socket = sent(FakeSocket([]), left(), batch(agent_0=1, agent_1=-1))
    assert people(socket).last() == {"agent_0": 1, "agent_1": -1}
    assert socket.now == 0.0
    socket = sent(FakeSocket([]), left(), left(), batch(agent_0=1, agent_1=-1))
    assert people(socket).last() == {}  # nobody is left
    assert len(socket.inbox) == 1


def test_a_connection_that_ends_after_the_last_frame_ends_nothing_else() -> None:
    socket = FakeSocket([])
    socket.recv = MagicMock(side_effect=[batch(agent_0=1), ConnectionClosedOK(None, None)])  # type: ignore[method-assign]
    assert people(socket).last() == {"agent_0": 1}


def test_a_runner_that_stops_waits_no_longer() -> None:
    socket = FakeSocket([])
    room = People(socket, read_roles(TWO), QUICK, Tempo(10.0, False), stopping=lambda: True, clock=lambda: socket.now)
    with pytest.raises(Stopped):
        room.answers()
    assert socket.now == 0.0
