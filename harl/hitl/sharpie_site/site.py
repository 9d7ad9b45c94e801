"""Connections to a site: one to its queue, one to each room. The library's own thread answers pings meanwhile."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from harl.hitl.sharpie_site.messages import log

LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes; settings may hold files."""
LONGEST_PAUSE_S = 60.0
"""Between two attempts to connect."""
ROOM_ATTEMPTS = 4
"""Connections to a room that are tried, 1, 2 and 4 seconds apart, where they die before the site has answered."""


def pauses(draw: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds before each further attempt: 1, 2, 4 … 60, each up to a quarter shorter so that runners do not all come
    back at once."""
    pause = 1.0
    while True:
        yield pause * (1 - draw() / 4)
        pause = min(2 * pause, LONGEST_PAUSE_S)


class Socket(Protocol):
    """What of a connection is used."""

    def send(self, message: str, /) -> None:
        """Send one text message."""

    def recv(self, timeout: float | None = None) -> str | bytes:
        """The next message; `TimeoutError` where none comes in time."""


class RefusedBySite(Exception):  # noqa: N818 - it is the site that errs, or the key
    """The site answered a connection by an HTTP status."""

    def __init__(self, status: int, url: str) -> None:
        self.status = status
        meaning = {
            403: "it does not know this connection key",
            404: "there is no SHARPIE site at this address",
            500: "it has no open session there",
        }
        super().__init__(f"{url} refused the connection with HTTP {status}: {meaning.get(status, 'see its log')}")


class CutOff(OSError):  # noqa: N818 - as `RefusedBySite`
    """A connection died, or time was up, before the site had answered; the next one may come about."""


@dataclass(frozen=True)
class Site:
    """Where a site is, and the key that it knows this runner by."""

    hostname: str
    port: int
    key: str
    tls: bool = False
    ca_file: str | None = None
    """PEM file with the certificate of a site whose authority the system does not know."""

    @property
    def url(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Site({self.url})"  # never the key

    def queue(self) -> Any:
        """A connection to the queue; raises like `connect`."""
        return self.connect("/runner/connection")

    def room(self, link: str, room: str) -> Any:
        """A connection to a room; raises like `connect`.

        One that dies before the site has answered is tried again. The site has given the session away by then: if
        nobody came, its people would wait for ever.
        """
        path = f"/experiment/{quote(link, safe='')}/run/{quote(room, safe='')}"
        for pause in itertools.islice(pauses(), ROOM_ATTEMPTS - 1):
            try:
                return self.connect(path)
            except (CutOff, ConnectionResetError) as error:
                log.warning("%s was cut off: %s; next attempt in %.1f s", path, error, pause)
                time.sleep(pause)
        return self.connect(path)

    def connect(self, path: str) -> Any:
        """A connection, to be used in a `with` block.

        Raises:
            RefusedBySite: the site answered by an HTTP status.
            CutOff: it did not answer. With TLS that happens once in 500 connections or so: a thread of the library
                reads the session tickets of TLS 1.3 while another one writes the request.
            OSError: there is nobody, or what is there speaks no WebSocket.
        """
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
        from websockets.sync.client import connect

        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=self.ca_file)
        try:
            return connect(
                self.url + path,
                additional_headers={"authorization": self.key},
                ssl=context,
                compression=None,  # pictures are compressed already
                max_size=LARGEST_MESSAGE,
                max_queue=None,  # reading, and with it the answers to pings, never waits for a learner
            )
        except InvalidStatus as error:
            raise RefusedBySite(error.response.status_code, self.url) from None
        except (InvalidMessage, ConnectionClosed, EOFError, TimeoutError) as error:
            raise CutOff(f"{self.url} did not open a WebSocket: {error}") from None
        except InvalidHandshake as error:
            raise OSError(f"{self.url} did not open a WebSocket: {error}") from None


@functools.cache
def _takes_timeout(recv: Callable[..., Any]) -> bool:
    return "timeout" in inspect.signature(recv).parameters


def receive(websocket: Any, timeout: float | None) -> str | bytes | None:
    """The next message, or None where none comes within `timeout` seconds.

    A `recv` that knows no time-out, as of a stand-in for a socket, is called without one.
    """
    recv = websocket.recv
    try:
        message: str | bytes = recv(timeout=timeout) if _takes_timeout(getattr(recv, "__func__", recv)) else recv()
    except TimeoutError:
        return None
    return message


def read_key(argument: str | None, file: str | None, environment: str | None) -> str:
    """The connection key from the command line, a file, or the environment variable SHARPIE_CONNECTION_KEY.

    Raises:
        ValueError: there is none, or it cannot be the value of an HTTP header.
    """
    key = argument
    if not key and file is not None:
        try:
            key = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the key file {file} cannot be read: {error}") from None
    key = key or environment
    if not key:
        raise ValueError(
            "no connection key: give --connection-key, --key-file (hitl.sharpie: hitl.key_file), or set "
            "SHARPIE_CONNECTION_KEY; a site's administrator makes keys under Runners"
        )
    if not key.isascii() or not key.isprintable():
        raise ValueError("the connection key holds characters that an HTTP header cannot; it is printable ASCII")
    return key
