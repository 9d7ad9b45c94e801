"""People and a server over real sockets: coming in, acting, being told."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from harl.hitl.network.frames import Codec, Frame, encode_picture, encode_scene
from harl.hitl.network.rates import Limits
from harl.hitl.network.server import Server
from tests.hitl.rooms import LAYOUT
from tests.hitl.talking import META, TOKENS, Client, eventually, serving

SEEN = {"ep": 0, "step": 0}
PICTURE = np.arange(200 * 300 * 3, dtype=np.uint8).reshape(200, 300, 3)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for tests that leave nothing behind."""
    with serving() as running:
        yield running


def frame(step: int, env: int = 0, at_once: bool = False) -> Frame:
    meta = {"env_steps": step * 2, "sps": 10.0, "done": False, "pace": "free", "reward": {"mover": np.float32(np.nan)}}
    scene = {"bounds": [-1, -1, 1, 1], "shapes": []}
    return Frame(
        env, 0, step, meta, {"state": (Codec.STATE, encode_scene(scene)), 256: encode_picture(PICTURE, 256)}, at_once
    )


def test_welcome_says_who_one_is_and_what_the_room_is(server: Server) -> None:
    with Client(server).hello("trainer", name="tess") as client:
        assert client.socket.subprotocol == "marl-hitl.v1"
        told = client.welcome
        assert (told["role"], told["name"], told["num_envs"], told["consent"]) == ("trainer", "tess", 2, None)
        assert told["drivers"] == {"mover": None, "talker": None, "arm": None}
        assert told["limits"]["max_message"] == 16384


@pytest.mark.parametrize(
    ("token", "wanted", "got"),
    [("admin", "observer", "observer"), ("controller", "admin", "controller"), ("observer", None, "observer")],
)
def test_a_token_is_a_ceiling(server: Server, token: str, wanted: str | None, got: str) -> None:
    with Client(server).hello(token, want_role=wanted) as client:
        assert client.welcome["role"] == got
        client.say("control", op="request", agent="mover")
        answer = client.hear("error", "control")
        assert answer.get("code", answer.get("state")) == ("role" if got == "observer" else "granted")
        assert answer.get("fatal", False) is False


def test_what_a_driver_holds_reaches_the_run_and_is_acknowledged(server: Server) -> None:
    with Client(server).hello("controller", name="carol") as client:
        client.say("control", op="request", agent="arm")
        told = client.hear("control")
        assert (told["state"], told["holder"], told["env"]) == ("granted", "carol", 0)
        client.say("input", agent="arm", seq=1, seen=SEEN, action=[0.5, -0.25], held=True, ttl_ms=500)
        eventually(lambda: (0, 2) in server.room.seats and server.room.seats[0, 2].held is not None, "it is held")
        (drive,) = server.room.take(0, None)
        assert drive.held.action is not None
        assert drive.held.action.tolist() == [0.5, -0.25]
        acknowledged = client.hear("ack")
        assert (acknowledged["seq"], acknowledged["status"], acknowledged["applied"]) == (1, "applied", SEEN)
        client.say("input", agent="arm", seq=2, seen=SEEN, action=None, held=False)
        assert client.hear("control")["state"] == "released"


def test_everything_that_a_trainer_says_arrives(server: Server) -> None:
    with Client(server).hello("trainer") as client:
        room = server.room
        client.say("feedback", agent="team", seq=4, value=-0.5, seen=SEEN, t_client_ms=1.0, shown_ms=40, confidence=0.5)
        client.say("undo", seq=4)
        client.say("mark", label="success", ep=0)
        client.say("survey", answers={"trust": 3})
        client.say("pace", op="pause")
        assert client.hear("pace")["state"] == "paused"
        client.say("pace", op="resume")
        client.say("ping", t=1.0, rtt=30)
        client.say("ping", t=2.0, rtt=10)
        while client.hear("pong")["t"] < 2.0:
            pass
        person = room.people[client.welcome["session"]]
        assert (person.rtt_ms, person.answers) == (20.0, {"trust": 3})
        given, undone = room.feedback_box.popleft(), room.feedback_box.popleft()
        assert (given.value, given.shown_ms, given.confidence, given.undo) == (-0.5, 40.0, 0.5, False)
        assert (undone.seq, undone.undo) == (4, True)
        assert room.marks.popleft().label == "success"


def test_what_is_wrong_gets_an_error_and_changes_nothing_WS05(server: Server) -> None:
    with Client(server).hello("admin") as client:
        client.say("control", op="request", agent="mover")
        client.hear("control")
        seat = server.room.seats[0, 0]
        good = {"type": "input", "agent": "mover", "seq": 1, "seen": SEEN, "action": 1, "held": True}
        wrong = [
            "not json", "null", "[1,2,3]", "5", "{}", '{"type":42}', '{"type":"unheard-of"}', b"\x00\xff",
            json.dumps({**good, "agent": "nobody"}), json.dumps({**good, "action": 9}),
            json.dumps({**good, "action": float("nan")}), json.dumps({**good, "action": "left"}),
            '{"type":"subscribe","env":7,"mode":"jpeg"}', '{"v":1,"type":"hello","token":"again"}', '{"type":',
        ]  # fmt: skip
        codes = []
        for text in wrong:
            client.socket.send(text)
            error = client.hear("error")
            assert (error["fatal"], bool(error["text"])) == (False, True)
            codes.append(error["code"])
        assert codes == [
            "not_json", "not_object", "not_object", "not_object", "unknown_type", "unknown_type", "unknown_type",
            "binary", "unknown_agent", "bad_action", "not_finite", "bad_field", "unknown_env", "no_hello", "not_json",
        ]  # fmt: skip
        assert (seat.held, seat.driver) == (None, client.welcome["session"])
        client.still_works()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ('{"v":1,"type":"hello","token":"wrong-0123456789abcdef"}', "auth"),
        ('{"v":1,"type":"hello","token":"ü"}', "auth"),
        ('{"v":1,"type":"hello"}', "bad_field"),
        ('{"type":"ping","t":1}', "no_hello"),
        ("what?", "not_json"),
        (b"\x01", "binary"),
    ],
)
def test_nobody_comes_in_without_the_token_SEC02(server: Server, first: str | bytes, code: str) -> None:
    before = len(server.room.people)
    with Client(server) as client:
        client.socket.send(first)
        told = client.any()
        assert isinstance(told, dict)
        assert (told["type"], told["code"], told["fatal"]) == ("error", code, True)
        assert client.closed_with() == 1008
    assert len(server.room.people) == before


def test_who_says_nothing_is_sent_away() -> None:
    with serving(Limits(hello_s=0.1)) as server, Client(server) as client:
        assert client.hear("error")["code"] == "no_hello"
        assert client.closed_with() == 1008


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("http://127.0.0.1:1", 403),
        ("https://127.0.0.1:{port}", 403),
        ("null", 403),
        ("http://127.0.0.1:{port}", 101),
        ("https://study.example.org", 101),
    ],
)
def test_pages_of_other_origins_are_refused_SEC03(origin: str, status: int) -> None:
    with serving(origins=("https://Study.example.org/",)) as server:
        headers = {"Origin": origin.format(port=server.port)}
        if status == 101:
            with Client(server, additional_headers=headers).hello() as client:
                client.still_works()
        else:
            with pytest.raises(InvalidStatus) as refused:
                Client(server, additional_headers=headers)
            assert refused.value.response.status_code == status


def test_scripts_without_an_origin_may_be_refused_SEC03() -> None:
    with serving(scripts=False) as server:
        with pytest.raises(InvalidStatus):
            Client(server)
        with Client(server, additional_headers={"Origin": f"http://127.0.0.1:{server.port}"}).hello() as client:
            client.still_works()


def test_other_subprotocols_are_refused(server: Server) -> None:
    with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{server.port}/"):
        pass


def test_frames_come_in_the_form_that_was_asked_for(server: Server) -> None:
    with Client(server).hello("observer") as drawn, Client(server).hello("observer") as seen:
        drawn.say("subscribe", env=0, mode="state", fps=240)
        seen.say("subscribe", env=0, mode="jpeg", fps=240, max_px=100)
        for client in (drawn, seen):
            client.still_works()
        server.offer(frame(5))
        as_state, as_picture = drawn.frame(), seen.frame()
        assert (as_state.codec, json.loads(as_state.payload)["bounds"]) == (Codec.STATE, [-1, -1, 1, 1])
        assert (as_picture.codec, as_picture.payload[:2]) == (Codec.JPEG, b"\xff\xd8")
        for received in (as_state, as_picture):
            META.validate(received.meta)
            assert (received.env, received.episode, received.step) == (0, 0, 5)
            assert received.meta["reward"] == {"mover": None}
            assert abs(received.t_server - time.time()) < 60


def test_numbers_alone_come_as_ticks(server: Server) -> None:
    with Client(server).hello("observer") as client:
        client.say("subscribe", env=0, mode="none", fps=240)
        client.still_works()
        server.offer(frame(6))
        told = client.hear("tick")
        assert (told["step"], told["env_steps"], told["reward"]) == (6, 12, {"mover": None})


def test_nobody_gets_frames_that_they_did_not_ask_for() -> None:
    with serving(envs="all") as server, Client(server).hello("observer") as client:
        server.offer(frame(1))
        client.say("subscribe", env=1, mode="none", fps=240)
        client.still_works()
        server.offer(frame(2, env=0))
        server.offer(frame(3, env=1))
        assert client.hear("tick")["step"] == 3
        assert server._frames == {}


def test_frames_keep_to_the_clients_rate_unless_they_cannot_wait(server: Server) -> None:
    with Client(server).hello("observer") as client:
        client.say("subscribe", env=0, mode="none", fps=0.1)
        client.still_works()
        server.offer(frame(1))
        assert client.hear("tick")["step"] == 1
        server.offer(frame(2))
        client.still_works()
        server.offer(frame(3, at_once=True))
        assert client.hear("tick")["step"] == 3


def test_a_newer_frame_takes_the_place_of_one_that_waits(server: Server) -> None:
    with Client(server).hello("observer") as client:
        client.say("subscribe", env=0, mode="none", fps=0.1)
        client.still_works()
        server.offer(frame(1))
        assert client.hear("tick")["step"] == 1
        for step in range(2, 6):
            server.offer(frame(step))
            client.still_works()
        server.offer(frame(6, at_once=True))
        assert client.hear("tick")["step"] == 6
        assert server.traffic()[client.welcome["session"]] == (2, 4)


def test_a_drawing_of_anything_reaches_all_who_look_WS06(server: Server) -> None:
    with Client(server).hello("observer") as one, Client(server).hello("observer") as other:
        for client in (one, other):
            client.say("subscribe", env=0, mode="none", fps=240)
            client.still_works()
        odd = {"raw": b"\x00", "count": np.int64(3), "share": np.float32(np.inf), "flag": np.bool_(True)}
        server.offer(Frame(0, 0, 1, {"env_steps": np.int64(9), "done": False, "pace": "free", "info": odd}, {}))
        for client in (one, other):
            told = client.hear("tick")
            assert told["env_steps"] == 9
            assert told["info"] == {"raw": "1 bytes", "count": 3, "share": None, "flag": True}
            client.still_works()


def test_terms_come_before_anything_but_looking(tmp_path: Path) -> None:
    text = tmp_path / "terms.txt"
    text.write_text("We record what you do. ☺", encoding="utf-8")
    with serving(consent=str(text), consent_version="v7") as server:
        with Client(server).hello("controller") as client:
            assert client.welcome["role"] == "observer"
            assert client.welcome["consent"] == {"version": "v7", "text": "We record what you do. ☺"}
            assert client.welcome["agreed"] is False
            assert [person.recorded for person in server.room.people.values()] == [False]
            client.say("control", op="request", agent="mover")
            assert client.hear("error")["code"] == "role"
            client.say("consent", version="v6")
            assert client.hear("error")["code"] == "consent"
            client.say("subscribe", env=0, mode="none", fps=240)
            client.say("consent", version="v7")
            welcome = client.hear("welcome")
            assert (welcome["role"], welcome["agreed"]) == ("controller", True)
            assert [person.recorded for person in server.room.people.values()] == [True]
            client.say("control", op="request", agent="mover")
            assert client.hear("control")["state"] == "granted"
            server.offer(frame(8))
            assert client.hear("tick")["step"] == 8
        with Client(server).hello("controller", consent="v7") as client:
            assert client.welcome["role"] == "controller"


def test_people_wait_until_the_run_has_started() -> None:
    with serving(opened=False) as server, Client(server) as client:
        client.say("hello", v=1, token=TOKENS["observer"])
        with pytest.raises(TimeoutError):
            client.socket.recv(0.1)
        server.room.open(LAYOUT, 2)
        client.welcome = client.hear("welcome")
        client.still_works()


def test_default_address_is_this_machine_alone_SEC04(server: Server) -> None:
    assert server.settings.loopback
    assert server._socket.getsockname()[0] == "127.0.0.1"
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, server.port), timeout=5)
