"""Everybody who is connected, seen from the server's thread."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from typing import Any

from websockets.asyncio.server import ServerConnection

from harl.hitl.network.connection import Connection
from harl.hitl.network.frames import Frame
from harl.hitl.network.protocol import VERSION, Close, encode
from harl.hitl.network.rates import Limits
from harl.hitl.network.sessions import Session, Sessions
from harl.hitl.network.settings import Settings
from harl.hitl.outbox import Letter
from harl.hitl.room import Room

SPARE = 64
"""Connections beyond all limits that are only told that there is no place."""
LEAST_PER_ADDRESS = 8


class Door(ServerConnection):
    """A connection from its first byte on, so that those that never say anything are counted too."""

    def __init__(self, hub: Hub, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hub = hub

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._hub.doors.add(self)
        if len(self._hub.doors) > self._hub.most_doors:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.doors.discard(self)
        self._hub.admitted.discard(self)
        super().connection_lost(exc)


class Hub:
    """Connections and sessions of one server."""

    def __init__(self, room: Room, settings: Settings, limits: Limits, max_clients: int) -> None:
        self.room, self.settings, self.limits, self.max_clients = room, settings, limits, max_clients
        self.sessions = Sessions(room.config.env_index, max_clients)
        self.doors: set[ServerConnection] = set()
        """All connections, whatever they are."""
        self.most_doors = max_clients + limits.max_strangers + SPARE
        self.admitted: set[ServerConnection] = set()
        """Those that were let through to become sockets."""
        self.greeted: set[ServerConnection] = set()
        """Those that have shown a right token."""
        self.watched: frozenset[int] = frozenset()
        """Environments that frames are wanted of; read by the thread of the run."""
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each socket."""

    def full(self, socket: ServerConnection) -> str | None:
        """Why there is no place for a further socket; None, and it is admitted, where there is."""
        if len(self.greeted) >= self.max_clients:
            return f"All {self.max_clients} places are taken."
        if len(self.admitted) - len(self.greeted) >= self.limits.max_strangers:
            return "Too many connections are waiting to say hello."
        address = _address(socket)
        most = max(LEAST_PER_ADDRESS, self.max_clients // 4)
        if address is not None and sum(_address(other) == address for other in self.admitted) >= most:
            return f"There are {most} connections from this address already."
        self.admitted.add(socket)
        return None

    def attach(self, session: Session, connection: Connection) -> None:
        """The session goes on over this connection; an older one is closed."""
        session.stay()
        older, session.connection = session.connection, connection
        if older is not None:
            self.room.away(session.who)
            older.hang_up(Close.REPLACED, "replaced")
        self.look()

    def detach(self, session: Session, connection: Connection) -> None:
        """The connection is over; the session goes on for a while unless it was thrown out."""
        if session.connection is not connection:
            return
        session.connection = None
        if connection.ending is not None and connection.ending[0] in (Close.POLICY, Close.IDLE):
            self.expel(session, connection.ending[1])
        else:
            self.room.away(session.who)
            session.expire_in(self.limits.grace_s, lambda gone: self.expel(gone, "did not come back"))
            for other in self.sessions.too_long_away():
                self.expel(other, "did not come back")
        self.look()

    def expel(self, session: Session, cause: str) -> None:
        """End a session."""
        self.sessions.end(session)
        self.room.leave(session.who, cause)

    def look(self) -> None:
        """Note which environments are watched."""
        self.watched = frozenset(
            session.env for session in self.sessions if session.connection is not None and session.view is not None
        )

    def show(self, frame: Frame) -> None:
        """Give a frame to everybody who looks at its environment."""
        for session in self.sessions:
            if session.connection is not None and session.view is not None and session.env == frame.env:
                session.connection.show(frame)

    def deliver(self, letters: Iterable[Letter]) -> None:
        """Give the room's messages to whom they are for."""
        for who, env, message in letters:
            text = encode({"v": VERSION, **message})
            sessions = self.sessions if who is None else (self.sessions.get(who),)
            for session in sessions:
                if session is not None and session.connection is not None and env in (None, session.env):
                    session.connection.post_text(text)

    async def farewell(self, reason: str, code: Close, patience: float) -> None:
        """Tell everybody that it is over, and close all connections."""
        for session in self.sessions:
            if session.connection is not None:
                session.connection.post({"type": "bye", "reason": reason})
                session.connection.hang_up(code, reason[:100])
        strangers = self.doors - self.greeted
        for socket in strangers:
            socket.transport.abort()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=patience)
        for socket in set(self.doors):
            socket.transport.abort()

    def everybody_out(self, cause: str) -> None:
        """End all sessions."""
        for session in self.sessions:
            self.expel(session, cause)
        self.watched = frozenset()


def _address(socket: ServerConnection) -> str | None:
    """Where it comes from; None for this machine itself, which may be a proxy for many."""
    peer = socket.remote_address
    host = str(peer[0]).partition("%")[0] if peer else ""
    try:
        return None if ipaddress.ip_address(host).is_loopback else host
    except ValueError:
        return None
