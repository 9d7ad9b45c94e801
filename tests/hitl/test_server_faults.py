"""Whatever clients do, the run is not held up, memory is bounded, and the others do not notice."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from websockets.exceptions import InvalidStatus

from harl.hitl.network.frames import Codec, Frame, encode_picture
from harl.hitl.network.rates import Limits
from harl.hitl.network.server import Server
from tests.hitl.talking import PATIENCE, TOKENS, Client, RawClient, eventually, serving

SEEN = {"ep": 0, "step": 0}
NOISE = np.random.default_rng(0).integers(0, 256, (720, 1280, 3)).astype(np.uint8)


@pytest.fixture(autouse=True)
def log_without_errors(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What clients do is no error of ours: no test but those that cause one may log one."""
    caplog.set_level(logging.DEBUG, "harl")
    yield caplog
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING or record.exc_info]
    assert not errors, [record.getMessage() for record in errors]


def frame(step: int, size: int = 50_000) -> Frame:
    meta = {"env_steps": step, "done": False, "pace": "free"}
    return Frame(0, 0, step, meta, {512: (Codec.JPEG, b"x" * size)}, at_once=True)


def drives(server: Server, name: str = "mover") -> bool:
    return server.room.driver(0, server.room.layout.agents.index(name)) is not None


# Too much.


def test_a_message_too_large_ends_that_connection_alone_WS01() -> None:
    with serving() as server, Client(server).hello() as other:
        with Client(server).hello() as client:
            client.socket.send("x" * 2 * 1024 * 1024)
            assert client.closed_with() == 1009
        other.still_works()
        with Client(server).hello() as again:
            again.say("subscribe", env=0, mode="jpeg", fps=240, max_px=1024)
            again.still_works()
            size = {1024: encode_picture(NOISE, 1024)}
            server.offer(Frame(0, 0, 1, {"env_steps": 1, "done": False, "pace": "free"}, size))
            assert len(again.frame().payload) < 2**20


def test_size_limit_can_be_chosen_WS01() -> None:
    with serving(Limits(max_message=250)) as server, Client(server).hello() as client:
        assert client.welcome["limits"]["max_message"] == 250
        client.say("survey", answers={"q": "a" * 256})
        assert client.closed_with() == 1009


def test_a_flood_is_slowed_down_and_ended_while_others_go_on() -> None:
    # A library's client may lose what came before the end when it fails to send at that moment, so this one has none.
    with serving(Limits(flood_s=1.0)) as server, Client(server).hello() as other, RawClient(server).upgrade() as client:
        client.say("hello", v=1, token=TOKENS["admin"])
        client.hear("welcome")

        def flood() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client.say("ping", t=1)

        flooding = threading.Thread(target=flood, daemon=True)
        flooding.start()
        assert "60 input, 10 feedback and 20 other" in client.hear("notice")["text"]
        other.still_works()
        assert client.hear("error")["code"] == "rate"
        assert client.hear("close")["code"] == 1008
        flooding.join(PATIENCE)
        assert not flooding.is_alive()
        other.still_works()


def test_inputs_over_the_rate_are_dropped_with_one_notice() -> None:
    slow = Limits(input_rate=1, input_burst=5)
    with serving(slow, takeover__lease_ttl_ms=60_000) as server, Client(server).hello() as client:
        client.say("control", op="request", agent="mover")
        for seq in range(15):
            client.say("input", agent="mover", seq=seq, seen=SEEN, action=1, held=True, ttl_ms=60_000)
        client.say("ping", t=1.0)
        heard = []
        while not heard or heard[-1]["type"] != "pong":
            message = client.any()
            assert isinstance(message, dict)
            heard.append(message)
        assert [message["level"] for message in heard if message["type"] == "notice"] == ["warning"]
        assert 4 <= server.room.people[client.welcome["session"]].last_seq < 14
        assert drives(server)


def test_places_are_limited() -> None:
    with serving(max_clients=2) as server:
        with Client(server).hello() as one, Client(server).hello():
            with pytest.raises(InvalidStatus) as refused:
                Client(server)
            assert refused.value.response.status_code == 503
            one.still_works()
        eventually(lambda: not server._hub.greeted, "both have gone")
        with Client(server).hello() as later:
            later.still_works()


def test_places_for_one_address_are_limited_but_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        hub = server._hub
        with Client(server).hello(), Client(server).hello():
            monkeypatch.setattr("harl.hitl.network.hub._address", lambda socket: "192.0.2.7")
            monkeypatch.setattr(hub, "max_clients", 8)
            others = [RawClient(server).upgrade() for _ in range(6)]
            with pytest.raises(InvalidStatus) as refused:
                Client(server)
            assert b"8 connections from this address" in (refused.value.response.body or b"")
            for other in others:
                other.socket.close()


def test_500_sockets_that_say_nothing_are_bounded_and_go() -> None:
    with serving(Limits(hello_s=1.0)) as server, Client(server).hello() as other:
        silent = []
        for k in range(500):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            if k % 2:
                head = (
                    f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                )
                with contextlib.suppress(OSError):  # it may have been cut off already
                    client.sendall(f"{head}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n".encode())
                    client.sendall(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: marl-hitl.v1\r\n\r\n")
            silent.append(client)
            # Those that were cut off are counted until the event loop has seen them go.
            open_doors = [door for door in list(server._hub.doors) if not door.transport.is_closing()]
            assert len(open_doors) <= server._hub.most_doors + 1
        eventually(lambda: len(server._hub.doors) <= server._hub.most_doors + 1, "those cut off are not kept")
        assert len(server._hub.admitted) <= 1 + server.limits.max_strangers
        other.still_works()
        eventually(lambda: len(server._hub.doors) == 1, "all strangers are gone")
        with Client(server).hello() as newcomer:
            newcomer.still_works()
        for client in silent:
            client.close()


# Too slow.


def test_a_slow_reader_costs_two_frames_and_gets_the_newest() -> None:
    with serving() as server, RawClient(server, 4096).upgrade() as slow:
        slow.say("hello", v=1, token=TOKENS["observer"])
        slow.say("subscribe", env=0, mode="jpeg", fps=240)
        eventually(lambda: server._hub.watched == {0}, "it watches")
        (session,) = server._hub.sessions
        assert session.connection is not None
        transport = session.connection.socket.transport
        most = 0
        for step in range(400):
            server.offer(frame(step))
            most = max(most, transport.get_write_buffer_size())
            time.sleep(0.002)
        assert session.frames_sent < 20
        assert most <= 2 * 50_100 + 32_768
        assert not session.connection._messages
        received, deadline = b"", time.monotonic() + PATIENCE
        while b'"env_steps":399' not in received:
            assert time.monotonic() < deadline
            received += slow.socket.recv(65536)


def test_who_never_reads_is_cut_off_while_others_see() -> None:
    with serving(Limits(stuck_s=0.3)) as server, Client(server).hello() as other:
        with RawClient(server, 4096).upgrade() as stuck:
            stuck.say("hello", v=1, token=TOKENS["controller"])
            stuck.say("subscribe", env=0, mode="jpeg", fps=240)
            other.say("subscribe", env=0, mode="jpeg", fps=240)
            eventually(lambda: sum(s.view is not None for s in server._hub.sessions) == 2, "both watch")
            deadline = time.monotonic() + PATIENCE
            for step in range(10_000):
                server.offer(frame(step))
                other.frame()
                if len(server.room.people) == 1:
                    break
                assert time.monotonic() < deadline
        other.still_works()


def test_messages_for_who_does_not_read_are_bounded() -> None:
    with serving(Limits(max_pending=20)) as server, RawClient(server, 4096).upgrade() as stuck:
        stuck.say("hello", v=1, token=TOKENS["admin"])
        eventually(lambda: len(server.room.people) == 1, "it is in")
        deadline = time.monotonic() + PATIENCE
        while server.room.people:
            server.room.outbox.post({"type": "notice", "level": "info", "text": "x" * 10_000})
            time.sleep(0.001)
            assert time.monotonic() < deadline


def test_a_vanished_driver_is_found_and_may_come_back_WS03() -> None:
    with serving(Limits(ping_s=0.3), takeover__lease_ttl_ms=60_000) as server:
        with RawClient(server).upgrade() as frozen:
            frozen.say("hello", v=1, token=TOKENS["controller"], name="carol")
            frozen.say("control", op="request", agent="mover")
            eventually(lambda: drives(server), "it drives")
            (session,) = server._hub.sessions
            eventually(lambda: not drives(server), "the policy drives again")
            assert not server.room.people[session.who].here
        with Client(server).hello("controller", resume=session.resume) as back:
            assert (back.welcome["session"], back.welcome["name"]) == (session.who, "carol")
            back.say("control", op="request", agent="mover")
            assert back.hear("control")["state"] == "granted"


def test_a_busy_run_does_not_drop_anybody_WS02() -> None:
    with serving(Limits(ping_s=1.0)) as server, Client(server).hello() as client:
        slowest, count, over = 0.0, 0, threading.Event()

        def ping() -> None:
            nonlocal slowest, count
            while not over.is_set():
                began = time.monotonic()
                client.still_works()
                slowest, count = max(slowest, time.monotonic() - began), count + 1
                over.wait(0.1)

        pinging = threading.Thread(target=ping, daemon=True)
        pinging.start()
        until, sum_ = time.monotonic() + 3.0, 0
        while time.monotonic() < until:  # an update that never lets go of the interpreter by itself
            sum_ += sum(range(1000))
        over.set()
        pinging.join(PATIENCE)
        assert count > 5
        assert slowest < 2.0
        client.still_works()


def test_who_may_act_and_is_silent_for_long_gives_up_the_place() -> None:
    with (
        serving(Limits(idle_s=0.3)) as server,
        Client(server).hello("controller") as client,
        Client(server).hello("observer") as watcher,
    ):
        assert client.hear("bye")["reason"] == "idle"
        assert client.closed_with() == 4002
        eventually(lambda: len(server.room.people) == 1, "the place is free at once")
        watcher.still_works()


# Coming and going.


def test_a_dropped_connection_keeps_its_place_for_a_while() -> None:
    with serving(Limits(grace_s=0.5)) as server:
        with Client(server).hello("controller", name="carol") as first:
            first.say("subscribe", env=0, mode="none", fps=240)
            first.say("control", op="request", agent="mover")
            first.hear("control")
            resume, who = first.welcome["resume"], first.welcome["session"]
        eventually(lambda: not server.room.people[who].here, "she is away")
        assert not drives(server)
        with Client(server).hello("controller", resume=resume) as back:
            assert (back.welcome["session"], back.welcome["name"]) == (who, "carol")
            assert server.room.people[who].here
            server.offer(frame(4))
            assert back.hear("tick")["step"] == 4
        eventually(lambda: who not in server.room.people, "the grace is over")
        with Client(server).hello("controller", resume=resume) as late:
            assert late.welcome["session"] != who
            assert "new one" in late.hear("notice")["text"]


@pytest.mark.parametrize("token", ["observer", "admin"])
def test_a_stolen_resume_is_worth_nothing_with_another_token(token: str) -> None:
    with serving() as server, Client(server).hello("controller") as owner:
        with Client(server).hello(token, resume=owner.welcome["resume"]) as thief:
            assert thief.welcome["role"] == token
            assert thief.welcome["session"] != owner.welcome["session"]
        with Client(server) as stranger:
            stranger.say("hello", v=1, token="x" * 20, resume=owner.welcome["resume"])
            assert stranger.closed_with() == 1008
        owner.still_works()


def test_a_second_tab_replaces_the_first_WS08() -> None:
    with serving() as server, Client(server).hello("controller") as first:
        first.say("control", op="request", agent="mover")
        first.hear("control")
        with Client(server).hello("controller", resume=first.welcome["resume"]) as second:
            assert first.closed_with() == 4001
            assert second.welcome["session"] == first.welcome["session"]
            assert len(server.room.people) == 1
            assert server.room.people[second.welcome["session"]].here
            second.say("control", op="request", agent="mover")
            assert second.hear("control")["state"] in ("expired", "granted")
            second.still_works()


def test_a_storm_of_reconnects_leaves_one_person() -> None:
    with serving() as server:
        resume = None
        for _ in range(100):
            client = RawClient(server).upgrade()
            client.say("hello", v=1, token=TOKENS["controller"], **({"resume": resume} if resume else {}))
            eventually(lambda: len(server._hub.sessions._by_who) == 1, "there is one session")
            resume = next(iter(server._hub.sessions)).resume
            client.reset()
        eventually(lambda: not server._hub.tasks and not server._hub.doors, "all connections are gone")
        assert len(server.room.people) == 1


def test_people_who_are_away_are_bounded() -> None:
    with serving(max_clients=3) as server:
        for _ in range(10):
            with Client(server).hello("observer"):
                pass
        eventually(lambda: not server._hub.tasks, "all have gone")
        assert len(server.room.people) == len(list(server._hub.sessions)) <= 3


def test_probes_leave_no_trace_in_the_log_WS09(log_without_errors: pytest.LogCaptureFixture) -> None:
    with serving(Limits(hello_s=0.5)) as server:
        before = len(log_without_errors.records)
        for _ in range(100):
            socket.create_connection(("127.0.0.1", server.port)).close()
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\0" * 99,
                     b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"G" * 100_000):  # fmt: skip
            with socket.create_connection(("127.0.0.1", server.port)) as probe:
                probe.sendall(data)
                probe.shutdown(socket.SHUT_WR)
        half_open = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        half_open.sendall(b"GET / HTTP/1.1\r\nHo")
        assert half_open.recv(100) == b""
        half_open.close()
        eventually(lambda: not server._hub.doors, "all probes are gone")
        records = [record for record in log_without_errors.records[before:] if record.name.startswith("harl")]
        assert len(records) <= 3 * 107
        assert {record.levelno for record in records} <= {logging.DEBUG}
        assert not [record for record in records if "\n" in record.getMessage() or record.exc_info]
        with Client(server).hello() as client:
            client.still_works()


def test_clients_that_are_killed_leave_nothing_behind_WS15() -> None:
    chance = random.Random(3)
    with serving() as server, Client(server).hello() as other:
        process = psutil.Process()
        before = process.num_fds()
        for _ in range(200):
            client = RawClient(server)
            if chance.random() < 0.9:
                client.upgrade()
                client.say("hello", v=1, token=TOKENS[chance.choice(list(TOKENS))])
                if chance.random() < 0.7:
                    client.say("subscribe", env=0, mode="jpeg", fps=240)
                    client.say("control", op="request", agent="mover")
                    client.say("input", agent="mover", seq=1, seen=SEEN, action=1, held=True)
                    server.offer(frame(1))
                if chance.random() < 0.2:
                    client.send(b"half a fra", first=0x01)
            client.reset()
        eventually(lambda: len(server._hub.doors) == 1, "their connections are gone")
        eventually(lambda: len(server._hub.tasks) == 1, "their tasks are gone")
        assert process.num_fds() <= before
        assert len(server.room.people) <= 1 + server._hub.max_clients
        other.still_works()


# The end.


def test_closing_tells_everybody_and_waits_for_nobody() -> None:
    with serving(max_clients=40) as server:
        clients = [Client(server).hello("observer") for _ in range(8)]
        stuck = [RawClient(server, 4096).upgrade() for _ in range(3)]
        for raw in stuck[:2]:
            raw.say("hello", v=1, token=TOKENS["observer"])
            raw.say("subscribe", env=0, mode="jpeg", fps=240)
        eventually(lambda: len(server.room.people) == 10, "all are in")
        for step in range(30):
            server.offer(frame(step))
            time.sleep(0.005)
        server.close("trained to the end")
        assert not server._thread.is_alive()
        for client in clients:
            assert client.hear("bye")["reason"] == "trained to the end"
            assert client.closed_with() == 4003
        assert not server.room.people
        server.offer(frame(99))
        server.close("again")
        for raw in stuck:
            raw.socket.close()


def test_a_server_that_fails_takes_nobody_with_it(
    monkeypatch: pytest.MonkeyPatch, log_without_errors: pytest.LogCaptureFixture
) -> None:
    with serving() as server, Client(server).hello() as client:
        client.say("subscribe", env=0, mode="none", fps=240)
        client.say("control", op="request", agent="mover")
        client.hear("control")

        def fail(_: Frame) -> None:
            raise MemoryError("no more")

        monkeypatch.setattr(server._hub, "show", fail)
        server.offer(frame(1))
        assert client.closed_with() == 1011
        eventually(lambda: server.down is not None, "it is marked as down")
        server._thread.join(PATIENCE)
        assert server.down == "MemoryError: no more"
        assert (server.room.people, drives(server)) == ({}, False)
        server.offer(frame(2))
        server.room.outbox.post({"type": "notice", "level": "info", "text": "nobody hears this"})
        assert [record.getMessage() for record in log_without_errors.records if record.levelno >= logging.ERROR] == [
            "people can no longer take part, the run goes on: the server failed"
        ]
        log_without_errors.clear()


def test_an_error_of_ours_ends_one_connection_alone(
    monkeypatch: pytest.MonkeyPatch, log_without_errors: pytest.LogCaptureFixture
) -> None:
    with serving() as server, Client(server).hello() as other, Client(server).hello() as client:

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(server.room, "mark", fail)
            client.say("mark", label="fail", ep=0)
            assert client.closed_with() == 1011
        other.say("subscribe", env=0, mode="jpeg", fps=240)
        other.still_works()
        server.offer(Frame(0, 0, 1, {}, {512: (Codec.JPEG, "no bytes")}))  # type: ignore[dict-item]
        assert other.closed_with() == 1006
        with Client(server).hello() as later:
            later.still_works()
        assert server.down is None
        errors = [record for record in log_without_errors.records if record.levelno >= logging.ERROR]
        assert len(errors) == 2
        log_without_errors.clear()
