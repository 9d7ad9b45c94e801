"""Servers on free ports and clients that speak to them, for tests; every message is checked against the schema."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from harl.hitl.network.frames import Received, unpack
from harl.hitl.network.pages import PAGE
from harl.hitl.network.protocol import SUBPROTOCOL
from harl.hitl.network.rates import Limits
from harl.hitl.network.server import Server
from harl.hitl.room import Room
from tests.hitl.rooms import LAYOUT, web_config

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("observer", "controller", "trainer", "admin")}
ENVIRON = {f"HARL_TOKEN_{role.upper()}": token for role, token in TOKENS.items()}
SCHEMA = json.loads((Path(__file__).parents[2] / "harl" / "hitl" / "schema.json").read_text(encoding="utf-8"))
PATIENCE = 20.0
"""Seconds after which something that should have happened will not."""


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Of one definition of the schema."""
    return jsonschema.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{name}"}]})


SAID_BY_SERVER = validator("server")
SAID_BY_CLIENT = validator("client")
META = validator("meta")


def no_constant(name: str) -> None:
    """What a browser's JSON.parse refuses."""
    raise AssertionError(f"{name} is not JSON")


class Client:
    """A client over a real socket."""

    def __init__(self, server: Server, **options: Any) -> None:
        scheme = "ws" if server.settings.tls is None else "wss"
        self._stack = ExitStack()
        self.socket: ClientConnection = self._stack.enter_context(
            connect(
                f"{scheme}://127.0.0.1:{server.port}/",
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                **{"close_timeout": 1, **options},
            )
        )
        self.welcome: dict[str, Any] = {}

    def hello(self, role: str = "admin", **fields: Any) -> Client:
        """Come in; the welcome is kept."""
        self.say("hello", v=1, token=TOKENS[role], **fields)
        self.welcome = self.hear("welcome")
        return self

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message that the protocol allows."""
        message = {"type": kind, **fields}
        SAID_BY_CLIENT.validate(message)
        self.socket.send(json.dumps(message))

    def any(self, timeout: float = PATIENCE) -> dict[str, Any] | Received:
        """The next message or frame."""
        data = self.socket.recv(timeout)
        if isinstance(data, bytes):
            frame = unpack(data)
            json.loads(json.dumps(frame.meta), parse_constant=no_constant)
            return frame
        message: dict[str, Any] = json.loads(data, parse_constant=no_constant)
        SAID_BY_SERVER.validate(message)
        return message

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these kinds; others are passed over."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.any()
            if isinstance(message, dict) and message["type"] in kinds:
                return message
        raise AssertionError(f"no {' or '.join(kinds)} came")

    def frame(self) -> Received:
        """The next frame; messages are passed over."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.any()
            if isinstance(message, Received):
                return message
        raise AssertionError("no frame came")

    def still_works(self) -> None:
        """A ping is answered."""
        self.say("ping", t=7.0)
        assert self.hear("pong")["t"] == 7.0

    def closed_with(self) -> int:
        """The code with which the connection is closed by the server, within the patience."""
        deadline = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < deadline:
                self.socket.recv(PATIENCE)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006
        raise AssertionError("the connection stays open")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def serving(
    limits: Limits | None = None,
    page: Path = PAGE,
    opened: bool = True,
    environ: dict[str, str] = ENVIRON,
    **changes: Any,
) -> Iterator[Server]:
    """A running server with the tokens of `TOKENS` and a room of three agents; `changes` as `web_config` takes them."""
    config = web_config(**{"port": 0, **changes})
    room = Room(config)
    if opened:
        room.open(LAYOUT, 2)
    server = Server(room, config, limits=limits or Limits(), environ=environ, page=page)
    server.start()
    try:
        yield server
    finally:
        server.close("the test is over")
        assert not any(thread is server._thread for thread in threading.enumerate())


def eventually(true: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


class RawClient:
    """A socket with no library behind it: it reads and answers only when told to."""

    def __init__(self, server: Server, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", server.port))
        self.port = server.port

    def upgrade(self) -> RawClient:
        """The opening handshake."""
        fields = {
            "Host": f"127.0.0.1:{self.port}", "Upgrade": "websocket", "Connection": "Upgrade",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": SUBPROTOCOL,
        }  # fmt: skip
        lines = ["GET / HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.socket.recv(1)
        assert b" 101 " in answer
        return self

    def say(self, kind: str, **fields: Any) -> None:
        """Send a text message, in one frame."""
        self.send(json.dumps({"type": kind, **fields}).encode())

    def send(self, payload: bytes, first: int = 0x81) -> None:
        """Send a frame, masked with zeros."""
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
        self.socket.sendall(bytes([first]) + size + b"\0\0\0\0" + payload)

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these kinds; a `close` has the `code` with which the server ends it."""
        while True:
            first, size = self._read(2)
            payload = self._read(int.from_bytes(self._read(2), "big") if size == 126 else size)
            message: dict[str, Any] = {"type": "frame"}
            if first == 0x88:
                message = {"type": "close", "code": int.from_bytes(payload[:2], "big")}
            elif first == 0x81:
                message = json.loads(payload, parse_constant=no_constant)
                SAID_BY_SERVER.validate(message)
            if message["type"] in kinds:
                return message

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            assert part, "the connection is over"
            data += part
        return data

    def reset(self) -> None:
        """Vanish without a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
