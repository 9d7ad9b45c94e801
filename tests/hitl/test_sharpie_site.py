"""The runner and a site over real sockets: the queue, rooms, and what can go wrong with either."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from harl.hitl.sharpie import start_experiment
from harl.hitl.sharpie_site.mapping import parse_mapping
from harl.hitl.sharpie_site.people import Waits
from harl.hitl.sharpie_site.serving import Serving
from harl.hitl.sharpie_site.site import RefusedBySite, Site, pauses, read_key
from harl.hitl.sharpie_site.waiting import Rooms, serve_queue, serve_room
from tests.hitl.sharpie_fakes import KEY, FakeSite, batch, left, obliging

WORLDS = "tests.hitl.sharpie_worlds"
WALK = {"entry_point": f"{WORLDS}:Walk", "kwargs": {"length": 5}}
STEADY = {"object": f"{WORLDS}:Steady"}
MAPPING = {
    "walk": {"environment": WALK, "agents": {"agent_0": {}, "agent_1": STEADY}},
    "long": {"environment": {**WALK, "kwargs": {"length": 10**6}}, "agents": {"agent_1": STEADY}},
    "broken": {"environment": {"entry_point": f"{WORLDS}:Broken"}, "agents": {"agent_1": STEADY}},
    "slow": {"environment": WALK, "agents": {"agent_1": {"object": f"{WORLDS}:Slow"}}},
}


def serving(**more: Any) -> Serving:
    return Serving(
        parse_mapping({"experiments": MAPPING}, "test", Path()), waits=Waits(last_s=0.2, settle_s=0.0), **more
    )


@contextlib.contextmanager
def runner(port: int, most: int = 4, tls: str | None = None, **more: Any) -> Iterator[threading.Event]:
    """A runner that serves the queue of the site at this port, by wss:// where a certificate is given."""
    stop = threading.Event()
    served = serving(stopping=stop.is_set, **more)
    site = Site("127.0.0.1", port, KEY, tls is not None, tls)
    rooms = Rooms(lambda link, room: start_experiment("", 0, "", link, room, serving=served, site=site), most)
    thread = threading.Thread(target=serve_queue, args=(site, rooms, stop))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(20)
        rooms.join(20)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harl.hitl.sharpie_site.waiting.ASK_S", 0.02)
    for module in ("site", "waiting"):
        monkeypatch.setattr(f"harl.hitl.sharpie_site.{module}.pauses", lambda: iter(lambda: 0.05, None))


def test_a_session_of_the_queue_is_played_and_the_room_left_in_order() -> None:
    site = FakeSite()
    site.people["walk"] = obliging(2)
    site.queue.put(("walk", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: ("walk", "A1") in site.closed)
        asked = site.idle
        site.wait_for(lambda: site.idle > asked)
    frames = site.frames("walk", "A1")
    assert [frame["step"] for frame in frames] == [1, 2, 3, 4, 5, 6]
    assert frames[-1]["truncated"] is True
    assert frames[-1]["observations"] == {"agent_0": [5.0], "agent_1": [5.0]}
    assert site.closed["walk", "A1"] == 1000


def test_an_unknown_experiment_is_refused_so_that_its_people_know() -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(("unknown", "A1"))
    site.queue.put(("walk", "A2"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: ("walk", "A2") in site.closed)
        site.wait_for(lambda: ("unknown", "A1") in site.closed)
    assert site.errors("unknown", "A1") == [
        "This runner does not serve this experiment. Please tell whoever runs the study."
    ]
    assert site.closed["unknown", "A1"] == 1000
    assert site.frames("unknown", "A1") == []


@pytest.mark.parametrize("odd", ["no json", "[]", '{"experiment": 3}', '{"experiment": "walk"}', "{}"])
def test_odd_answers_of_the_queue_are_survived(odd: str) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(odd)
    site.queue.put(("walk", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)


@pytest.mark.parametrize("code", [1000, 1001, 1011])
def test_a_queue_that_closes_is_connected_to_again(code: int) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(code)
    site.queue.put(("walk", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)
    assert site.connections.count("/runner/connection") == 2


@pytest.mark.parametrize("status", [403, 500, 502])
def test_a_queue_that_refuses_is_asked_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(("walk", "A1"))
    site.refuse["/runner"] = status
    with site.running() as port, runner(port):
        site.wait_for(lambda: len(site.connections) >= 2)
        site.refuse.clear()
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)
    assert f"HTTP {status}" in caplog.text


def test_a_site_that_restarts_is_found_again() -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    with site.running() as port:
        stack = contextlib.ExitStack()
        stack.enter_context(runner(port))
        site.wait_for(lambda: site.idle > 0)
    with stack, site.running(port):
        site.queue.put(("walk", "A1"))
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)


def test_a_site_that_dies_in_an_episode_ends_it_alone_and_nothing_is_lost(tmp_path: Path) -> None:
    site = FakeSite()

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if message.get("step") == 4:
            connection.socket.shutdown(socket.SHUT_RDWR)
        elif "step" in message:
            connection.send(batch(agent_0=1))

    site.people.update(long=people, walk=obliging())
    site.queue.put(("long", "A1"))
    with site.running() as port, runner(port, record=tmp_path):
        site.wait_for(lambda: ("long", "A1") in site.closed)
        site.queue.put(("walk", "A2"))
        site.wait_for(lambda: site.closed.get(("walk", "A2")) == 1000)
    (file,) = (tmp_path / "long").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "reset", *["step"] * 3, "end"]
    assert "ConnectionClosed" in lines[-1]["why"]


def test_people_who_leave_end_their_episode_alone() -> None:
    site = FakeSite()

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        connection.send(left() if message.get("step") == 3 else batch(agent_0=1))

    site.people.update(long=people, walk=obliging())
    site.queue.put(("long", "A1"))
    site.queue.put(("walk", "A2"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("long", "A1")) == 1000)
        site.wait_for(lambda: site.closed.get(("walk", "A2")) == 1000)
    assert len(site.frames("long", "A1")) == 3


def test_a_tab_closed_while_pending_frees_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(("long", "A1"))
    site.queue.put(("walk", "A2"))
    MAPPING["long"] |= {"join_s": 0.2, "timeout_s": 0.1}
    try:
        with site.running() as port, runner(port, most=1):
            site.wait_for(lambda: site.closed.get(("walk", "A2")) == 1000)
    finally:
        del MAPPING["long"]["join_s"], MAPPING["long"]["timeout_s"]
    assert site.errors("long", "A1") == ["nobody answered for 0 s"]


def test_rooms_are_served_at_the_same_time() -> None:
    site = FakeSite()
    both = threading.Barrier(2)

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if message.get("step") == 2:
            both.wait(20)  # only if the other room has come this far too
        if "step" in message:
            connection.send(batch(agent_0=1))

    site.people["walk"] = people
    site.queue.put(("walk", "A1"))
    site.queue.put(("walk", "A2"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed == {("walk", "A1"): 1000, ("walk", "A2"): 1000})


def test_a_fault_in_one_room_is_told_there_and_ends_no_other() -> None:
    site = FakeSite()
    site.people.update(walk=obliging(), broken=obliging())
    site.queue.put(("broken", "A1"))
    site.queue.put(("walk", "A2"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("walk", "A2")) == 1000)
        site.wait_for(lambda: site.closed.get(("broken", "A1")) == 1000)
    assert site.errors("broken", "A1") == ["The episode failed on the runner."]


@pytest.mark.parametrize("part", ["garbage", json.dumps({"agent_0": {"inputs_type": "thoughts"}})])
def test_settings_that_are_none_are_replaced_by_those_of_the_mapping(part: str) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = part
    site.people["walk"] = obliging(2)
    site.queue.put(("walk", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)
    assert site.frames("walk", "A1")[-1]["actions"] == {"agent_0": 2, "agent_1": 2}


def test_a_room_that_closes_on_the_question_for_settings_is_played_with_the_mappings() -> None:
    site = FakeSite()
    site.settings = None
    site.people["walk"] = obliging(2)
    site.queue.put(("walk", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: len(site.frames("walk", "A1")) == 6)
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)
    assert site.frames("walk", "A1")[-1]["actions"] == {"agent_0": 2, "agent_1": 2}


def test_pings_are_answered_while_a_policy_takes_its_time() -> None:
    site = FakeSite()
    answered: list[bool] = []

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" not in message:
            return
        connection.send(batch(agent_0=1))
        if message["step"] == 1:  # the policy sleeps for a second now
            started = time.monotonic()
            pong = connection.ping().wait(15)
            answered.append(pong and time.monotonic() - started < 0.9 and len(site.frames("slow", "A1")) == 1)

    site.people["slow"] = people
    site.queue.put(("slow", "A1"))
    with site.running() as port, runner(port):
        site.wait_for(lambda: site.closed.get(("slow", "A1")) == 1000)
    assert answered == [True]


def test_a_runner_that_stops_says_goodbye() -> None:
    site = FakeSite()
    site.people["long"] = lambda connection, message: (
        connection.send(batch(agent_0=1)) if message.get("step", 9) < 3 else None
    )
    site.queue.put(("long", "A1"))
    with site.running() as port:
        with runner(port):
            site.wait_for(lambda: len(site.frames("long", "A1")) == 3)
        site.wait_for(lambda: site.closed.get(("long", "A1")) == 1000)
    assert site.errors("long", "A1") == ["the runner was stopped"]


def test_a_room_without_the_queue_is_played_until_its_session_is_over() -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    with site.running() as port:
        where = Site("127.0.0.1", port, KEY)

        def serve() -> bool:
            if len(site.closed) and site.frames("walk", "A1")[-1]["truncated"]:
                site.refuse["/experiment"] = 500
            return start_experiment("", 0, "", "walk", "A1", serving=serving(), site=where)

        assert serve_room(serve, threading.Event(), None, 0.5, time.monotonic) == 1
        with pytest.raises(RefusedBySite, match="no open session"):
            serve_room(serve, threading.Event(), None, 0.3, time.monotonic)
        site.refuse.clear()


def test_people_who_open_a_room_late_see_the_frame_that_they_missed() -> None:
    site = FakeSite()

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        late = sum("image" in frame for frame in site.got["walk", "A1"]) >= 2
        if "image" in message and late:
            with contextlib.suppress(ConnectionClosed):
                connection.send(batch(agent_0=1))

    site.people["walk"] = people
    with site.running() as port:
        where = Site("127.0.0.1", port, KEY)
        assert start_experiment("", 0, "", "walk", "A1", serving=serving(), site=where)
    images = [message for message in site.got["walk", "A1"] if "image" in message]
    assert "step" not in images[1]
    assert [frame["step"] for frame in site.frames("walk", "A1")] == [1, 2, 3, 4, 5, 6]


def test_a_wrong_key_and_a_missing_session_are_told_apart() -> None:
    site = FakeSite()
    with site.running() as port:
        with pytest.raises(RefusedBySite, match="does not know this connection key"):
            start_experiment("127.0.0.1", port, "wrong", "walk", "A1")
        site.refuse["/experiment"] = 500
        with pytest.raises(RefusedBySite, match="no open session"):
            start_experiment("127.0.0.1", port, KEY, "walk", "A1")
    with pytest.raises(OSError, match=r"refused|connect"):
        start_experiment("127.0.0.1", port, KEY, "walk", "A1")


def test_pauses_grow_to_a_minute_and_differ() -> None:
    grow = pauses(lambda: 0.0)
    assert [next(grow) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert next(pauses(lambda: 1.0)) == 0.75


def test_the_key_comes_from_the_command_line_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    assert read_key("typed", str(file), "variable") == "typed"
    assert read_key(None, str(file), "variable") == "from-file"
    assert read_key("", None, "variable") == "variable"
    for arguments, message in (
        ((None, None, None), "no connection key"),
        ((None, str(tmp_path / "none"), "x"), "cannot be read"),
        (("two\nlines", None, None), "printable ASCII"),
    ):
        with pytest.raises(ValueError, match=message):
            read_key(*arguments)


def test_addresses_and_the_secrecy_of_the_key() -> None:
    assert Site("h", 1, "secret", tls=True).url == "wss://h:1"
    assert Site("::1", 1, "secret").url == "ws://[::1]:1"
    assert "secret" not in repr(Site("h", 1, "secret"))


def test_faults_of_a_room_thread_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(link: str, room: str) -> None:
        raise KeyError(link)

    rooms = Rooms(fail, 1)
    with caplog.at_level(logging.ERROR, "harl.sharpie"):
        rooms.open("x", "y")
        rooms.join(10)
    assert rooms.free
    assert "x/y: a fault of the runner" in caplog.text
