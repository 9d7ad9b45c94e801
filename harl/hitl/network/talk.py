"""The receiving half of a connection: who is it, and what do they want."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from harl.hitl.network import protocol
from harl.hitl.network.connection import Connection
from harl.hitl.network.hub import Hub
from harl.hitl.network.protocol import VERSION, Close, Hello, ProtocolError, encode, parse
from harl.hitl.network.rates import Meter, Verdict
from harl.hitl.network.sessions import Session
from harl.hitl.people import RoomError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.25
"""Between two tries to let somebody in while the run is starting."""
_SLOW_DOWN_S = 0.05
"""Pause after a message beyond all rates, so that a flood fills its sender's buffers and not our time."""


class _RefusedError(Exception):
    """Somebody may not come in."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


async def serve_socket(hub: Hub, socket: ServerConnection) -> None:
    """Serve one socket; nothing that its client does, and no error in doing it, reaches anybody else."""
    task = asyncio.current_task()
    assert task is not None
    hub.tasks.add(task)
    try:
        await Talk(hub, socket).run()
    except ConnectionClosed:
        pass
    except Exception:
        log.exception("a connection ends because of an error in the server")
        await socket.close(Close.FAULT, "error of the server")
    finally:
        hub.tasks.discard(task)
        hub.greeted.discard(socket)


class Talk:
    """A conversation with one client."""

    def __init__(self, hub: Hub, socket: ServerConnection) -> None:
        self.hub, self.room, self.socket, self.limits = hub, hub.room, socket, hub.limits

    async def run(self) -> None:
        """From the hello to the end; raises `ConnectionClosed` where the connection is lost on the way."""
        try:
            hello = await self._hello()
            session, resumed = await self._enter(hello)
        except _RefusedError as refused:
            # Nothing of the run was told.
            error = {"type": "error", "code": refused.code, "text": refused.text, "fatal": True}
            await self.socket.send(encode({"v": VERSION, **error}))
            await self.socket.close(Close.POLICY, refused.code)
            return
        connection = Connection(self.socket, session, self.limits)
        self.hub.attach(session, connection)
        sender = asyncio.create_task(connection.send_forever())
        try:
            self._come_in(session, connection, hello, resumed)
            await self._listen(session, connection)
        finally:
            self.hub.detach(session, connection)
            if connection.ending is not None:
                await asyncio.wait([sender], timeout=self.limits.close_s + self.limits.stuck_s)
            sender.cancel()

    # Coming in.

    async def _hello(self) -> Hello:
        """The first message."""
        try:
            async with asyncio.timeout(self.limits.hello_s):
                first = parse(await self.socket.recv())
        except TimeoutError:
            raise _RefusedError("no_hello", f"no hello came within {self.limits.hello_s:g} s") from None
        except ProtocolError as error:
            raise _RefusedError(error.code, error.text) from None
        if not isinstance(first, Hello):
            raise _RefusedError("no_hello", "the first message has to be a hello with a token")
        return first

    async def _enter(self, hello: Hello) -> tuple[Session, bool]:
        """The session that a hello begins, or continues, and whether it continues it."""
        hub = self.hub
        grant = hub.settings.tokens.grant(hello.token)
        if grant is None:
            raise _RefusedError("auth", "this link is wrong or of an earlier run; ask for a new one")
        session = hub.sessions.found(hello, grant)
        if session is not None:
            hub.greeted.add(self.socket)
            return session, True
        if len(hub.greeted) >= hub.max_clients:
            raise _RefusedError("full", f"all {hub.max_clients} places are taken")
        hub.greeted.add(self.socket)
        session = hub.sessions.new(hello, grant)
        session.agreed = self._agrees(hello.consent)
        try:
            while not await self._let_in(session):
                pass
        except RoomError as error:
            raise _RefusedError(error.code, error.text) from None
        hub.sessions.add(session)
        return session, False

    async def _let_in(self, session: Session) -> bool:
        """Whether the room is open; waits a moment where it is not."""
        try:
            self._into_room(session)
            return True
        except RoomError as error:
            if error.code != "starting":
                raise
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self.socket.recv()  # nothing that is said now can mean anything
        except TimeoutError:
            pass
        return False

    def _come_in(self, session: Session, connection: Connection, hello: Hello, resumed: bool) -> None:
        """Welcome somebody; whoever was here before gets back what they had."""
        if not session.agreed and self._agrees(hello.consent):
            self._agree(session)
        if resumed:
            self.room.back(session.who)
        if session.view is not None:
            self._watch(session, session.view)
        connection.post(self._welcome(session))
        if hello.resume is not None and not resumed:
            text = "the earlier session is over; this is a new one"
            connection.post({"type": "notice", "level": "info", "text": text})
        if hello.consent is not None and not self._agrees(hello.consent):
            connection.fail("consent", "the terms have changed since they were agreed to")

    def _welcome(self, session: Session) -> dict[str, Any]:
        agreement, limits = self.hub.settings.agreement, self.limits
        return {
            "type": "welcome",
            **self.room.welcome(session.who),
            "session": session.who,
            "resume": session.resume,
            "role": session.acts_as,
            "name": session.name,
            "consent": None if agreement is None else {"version": agreement.version, "text": agreement.text},
            "agreed": session.agreed,
            "limits": {
                "max_message": limits.max_message,
                "input_per_s": limits.input_rate,
                "feedback_per_s": limits.feedback_rate,
                "other_per_s": limits.other_rate,
                "grace_s": limits.grace_s,
                "silence_s": limits.idle_s,
            },
        }

    # Talking.

    async def _listen(self, session: Session, connection: Connection) -> None:
        meter = Meter(self.limits, time.monotonic)
        while connection.ending is None:
            try:
                async with asyncio.timeout(None if session.acts_as == "observer" else self.limits.idle_s):
                    data = await self.socket.recv()
            except TimeoutError:
                connection.post({"type": "bye", "reason": "idle"})
                connection.hang_up(Close.IDLE, "idle")
                return
            if not self._within(meter.arrived(), connection):
                await asyncio.sleep(_SLOW_DOWN_S)
                continue
            self._take(data, meter, session, connection)

    def _within(self, verdict: Verdict, connection: Connection) -> bool:
        """Whether a message is within the rates; the first that is not is answered, and a flood ends."""
        if verdict is Verdict.DROP_AND_TELL:
            limits = self.limits
            rates = f"{limits.input_rate:g} input, {limits.feedback_rate:g} feedback and {limits.other_rate:g} other"
            text = f"too many messages, some were dropped; allowed are {rates} messages a second"
            connection.post({"type": "notice", "level": "warning", "text": text})
        elif verdict is Verdict.HANG_UP:
            connection.fail("rate", f"too many messages for {self.limits.flood_s:g} s", fatal=True)
            connection.hang_up(Close.POLICY, "too many messages")
        return verdict is Verdict.TAKE

    def _take(self, data: str | bytes, meter: Meter, session: Session, connection: Connection) -> None:
        try:
            message = parse(data)
        except ProtocolError as error:
            if self._within(meter.read("other"), connection):
                connection.fail(error.code, error.text)
            return
        if not self._within(meter.read(type(message).__name__.lower()), connection):
            return
        seq = getattr(message, "seq", None)
        try:
            self._do(message, session, connection)
        except RoomError as error:
            connection.fail(error.code, error.text, **({} if seq is None else {"seq": seq}))

    def _do(self, message: protocol.ClientMessage, session: Session, connection: Connection) -> None:
        """Do what a message asks for.

        Raises:
            RoomError: it is not allowed, or cannot be done.
        """
        room, who = self.room, session.who
        match message:
            case protocol.Input(agent=agent, seq=seq, seen=seen, action=action, held=held, ttl_ms=ttl_ms):
                ttl = room.config.takeover.lease_ttl_ms if ttl_ms is None else ttl_ms
                room.input(who, agent, seq, seen.ep, seen.step, action, held, ttl)
            case protocol.Ping(t=t, rtt=rtt):
                connection.post({"type": "pong", "t": t, "t_server": time.time()})
                if rtt is not None:
                    room.note_rtt(who, session.round_trip(rtt))
            case protocol.Control(op=op, agent=agent, mode=mode):
                room.control(who, op, agent, mode)
            case protocol.Feedback(seen=seen) as said:
                room.feedback(
                    who, said.agent, said.seq, said.value, seen.ep, seen.step, said.t_client_ms, said.shown_ms,
                    said.confidence,
                )  # fmt: skip
            case protocol.Undo(seq=seq):
                room.undo(who, seq)
            case protocol.Subscribe() as view:
                self._watch(session, view)
            case protocol.Pace(op=op, value=value):
                room.set_pace(who, op, value)
            case protocol.Mark(label=label, ep=ep):
                room.mark(who, label, ep)
            case protocol.Survey(answers=answers):
                room.survey(who, answers)
            case protocol.Consent(version=version):
                self._consent(version, session, connection)
            case protocol.Hello():
                connection.fail("no_hello", "the hello was said already")

    def _watch(self, session: Session, view: protocol.Subscribe) -> None:
        self.room.watch(session.who, view.env, view.mode, view.fps, view.max_px)
        if session.connection is not None and view.env != session.env:
            session.connection.forget_frame()
        session.env, session.view = view.env, view
        self.hub.look()

    # Terms.

    def _agrees(self, version: str | None) -> bool:
        agreement = self.hub.settings.agreement
        return agreement is None or agreement.version == version

    def _into_room(self, session: Session) -> None:
        agreement = self.hub.settings.agreement
        agreed = agreement.version if agreement is not None and session.agreed else None
        session.name = self.room.enter(
            session.who, session.name, session.acts_as, session.device, session.grant.agents, agreed, session.agreed
        )

    def _agree(self, session: Session) -> None:
        """Somebody has agreed to the terms: from now on they have the role of their link."""
        session.agreed = True
        self.room.leave(session.who, "agreed to the terms")
        self._into_room(session)

    def _consent(self, version: str, session: Session, connection: Connection) -> None:
        agreement = self.hub.settings.agreement
        if agreement is None or not self._agrees(version):
            current = "there are no terms here" if agreement is None else f"the version is {agreement.version}"
            connection.fail("consent", f"this is not what is to be agreed to; {current}")
            return
        if not session.agreed:
            self._agree(session)
            if session.view is not None:
                self._watch(session, session.view)
        connection.post(self._welcome(session))
