"""Stand-ins for a SHARPIE site: a socket without a network, and a small server that behaves as the real one does."""

from __future__ import annotations

import base64
import io
import json
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

KEY = "a-key"


def agent(**changes: Any) -> dict[str, Any]:
    """Settings of an agent as the site sends them: a person with two keys, unless changed."""
    return {
        "participant": True,
        "keyboard_inputs": {"ArrowLeft": -1, "ArrowRight": 1, "default": 0},
        "multiple_keyboard_inputs": False,
        "textual_inputs": False,
        "inputs_type": "actions",
        **changes,
    }


def policy(interval: int = 1) -> dict[str, Any]:
    """The part of an agent's settings that names a policy."""
    return {"checkpoint_interval": interval, "files": {"policy": {"path": "policy.py", "content": None}}}


def batch(**inputs: Any) -> str:
    return json.dumps({"type": "websocket.message", "from": "x", "batch_actions": inputs})


def left() -> str:
    return json.dumps({"type": "websocket.message", "from": "x", "error": "A user has disconnected"})


def picture_of(message: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The picture of a frame, (H, W, 3)."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(message["image"]))))


class FakeSocket:
    """Answers every numbered frame with the next of the scripted messages; silence (time-out) when they are used up.

    Args:
        script: one entry for each frame: a message, a list of messages, or None for silence.
    """

    def __init__(self, script: list[Any]) -> None:
        self.script, self.sent, self.inbox = list(script), [], []
        self.waited: list[float | None] = []
        self.now = 0.0
        """A clock that time-outs move on."""

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [message for message in self.sent if "step" in message]

    def send(self, text: str) -> None:
        message = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))
        self.sent.append(message)
        if "step" in message and self.script:
            answer = self.script.pop(0)
            self.inbox += answer if isinstance(answer, list) else [] if answer is None else [answer]

    def recv(self, timeout: float | None = None) -> str:
        self.waited.append(timeout)
        if self.inbox:
            return self.inbox.pop(0)
        assert timeout is not None, "nothing may be waited for without end"
        self.now += timeout
        raise TimeoutError


Script = Callable[[ServerConnection, dict[str, Any]], None]
"""What the people of a room do with each message of the runner."""


def obliging(value: Any = 1) -> Script:
    """People who press the same key at every frame."""

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            connection.send(batch(agent_0=value))

    return people


class FakeSite:
    """A site on a free port of this machine.

    Attributes:
        settings: the three settings messages; None closes the room with 1011 when they are asked for.
        people: link → what people do.
        got: (link, room) → messages of the runner.
        closed: (link, room) → code with which the runner left.
        connections: paths of all connections, in their order.
        refuse: path → HTTP status, while it is there.
        cut: path → how many more connections die before they are answered.
    """

    def __init__(self) -> None:
        self.settings: list[Any] | None = [
            {"files": {}, "metadata": {}},
            {"agent_0": agent()},
            {"conda_environment": None, "target_fps": 500.0, "wait_for_inputs": False},
        ]
        self.people: dict[str, Script] = {}
        self.got: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.closed: dict[tuple[str, str], int | None] = {}
        self.connections: list[str] = []
        self.refuse: dict[str, int] = {}
        self.cut: dict[str, int] = {}
        self.queue: queue.Queue[Any] = queue.Queue()
        """Sessions (link, room), texts that are sent as they are, or integers: close the queue with that code."""
        self.idle = 0
        self.changed = threading.Condition()

    def wait_for(self, what: Callable[[], Any], seconds: float = 20.0) -> Any:
        """The first true result of `what`; fails when there is none in time."""
        with self.changed:
            found = self.changed.wait_for(what, seconds)
        assert found, "it did not come to pass"
        return found

    def note(self, do: Callable[[], Any]) -> None:
        with self.changed:
            do()
            self.changed.notify_all()

    def frames(self, link: str, room: str) -> list[dict[str, Any]]:
        return [message for message in self.got.get((link, room), []) if "step" in message]

    def errors(self, link: str, room: str) -> list[str]:
        return [message["error"] for message in self.got.get((link, room), []) if "error" in message]

    @contextmanager
    def running(self, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[int]:
        with serve(self._handle, "127.0.0.1", port, process_request=self._check, compression=None, ssl=tls) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield server.socket.getsockname()[1]
            finally:
                server.shutdown()
                thread.join(10)

    def _check(self, connection: ServerConnection, request: Any) -> Any:
        self.note(lambda: self.connections.append(request.path))
        if request.headers.get("authorization") != KEY:
            return connection.respond(HTTPStatus.FORBIDDEN, "no\n")
        for path, left in self.cut.items():
            if request.path.startswith(path) and left:
                self.cut[path] -= 1
                connection.socket.shutdown(socket.SHUT_RDWR)
        for path, status in self.refuse.items():
            if request.path.startswith(path):
                return connection.respond(HTTPStatus(status), "no\n")
        return None

    def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        parts = connection.request.path.strip("/").split("/")
        try:
            if parts[0] == "runner":
                self._queue(connection)
            else:
                self._room(connection, (parts[1], parts[3]))
        except ConnectionClosed:
            pass

    def _queue(self, connection: ServerConnection) -> None:
        for text in connection:
            assert json.loads(text) == {"status": "idle"}
            self.note(lambda: setattr(self, "idle", self.idle + 1))
            item = None if self.queue.empty() else self.queue.get()
            if isinstance(item, int):
                connection.close(item)
                return
            if item is None:
                connection.send(json.dumps({"message": "No session in the queue"}))
            elif isinstance(item, str):
                connection.send(item)
            else:
                connection.send(json.dumps({"experiment": item[0], "room": item[1]}))

    def _room(self, connection: ServerConnection, session: tuple[str, str]) -> None:
        got = self.got.setdefault(session, [])
        try:
            for text in connection:
                message = json.loads(text)
                self.note(lambda message=message: got.append(message))
                if message.get("message") == "settings":
                    if self.settings is None:
                        connection.close(1011)
                        return
                    for part in self.settings:
                        connection.send(part if isinstance(part, str) else json.dumps(part))
                elif session[0] in self.people:
                    self.people[session[0]](connection, message)
        finally:
            self.note(lambda: self.closed.__setitem__(session, connection.close_code))
