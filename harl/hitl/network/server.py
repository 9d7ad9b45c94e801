"""The server of page and socket: a thread of its own that the run gives frames to and never waits for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from websockets.asyncio.server import Server as SocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from harl.config import WebConfig
from harl.hitl.network.frames import Frame
from harl.hitl.network.hub import Door, Hub
from harl.hitl.network.pages import PAGE, Gate, load_files
from harl.hitl.network.protocol import SUBPROTOCOL, Close
from harl.hitl.network.rates import Limits
from harl.hitl.network.settings import check, listen
from harl.hitl.network.talk import serve_socket
from harl.hitl.room import Room

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""For which people are told that the run is over before their connections are cut."""
JOIN_S = 2.0
"""For which `close` waits at most."""
START_S = 10.0


class Server:
    """Serves a room to people.

    The run calls `start`, `offer` and `close`; none of them raises or waits because of what people or the network do.

    Args:
        room: what people and the run share.
        config: the `hitl` section.
        limits: of what a client may do.
        page: folder with the page.
        environ: environment variables, for tokens.
        agents: names of the agents, so that a token file that names others is refused; None where they are not known.

    Raises:
        ConfigError: with everything that is wrong in the configuration.
    """

    def __init__(
        self,
        room: Room,
        config: WebConfig,
        *,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        page: Path = PAGE,
        environ: Mapping[str, str] = os.environ,
        agents: Sequence[str] | None = None,
    ) -> None:
        self.room, self.limits = room, limits
        self.settings = check(config, environ, agents)
        self.port = config.port
        self.down: str | None = None
        """Why nobody can take part any more; None while all is well."""
        self._files = load_files(page)
        self._hub = Hub(room, self.settings, limits, config.max_clients)
        self._frames: dict[int, Frame] = {}
        """The newest of each environment, until the server's thread takes it."""
        self._rung = False
        """Whether the server's thread knows that there is something for it."""
        self._reason = ""
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._live, name="harl-people", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know before the run begins."""
        return self.settings.warnings

    def start(self) -> dict[str, str]:
        """Listen, and return the links; raises `ConfigError` where that cannot be done."""
        self._socket = listen(self.settings, self.limits.send_buffer)
        self.port = int(self._socket.getsockname()[1])
        self._thread.start()
        self._started.wait(START_S)
        if self.down is not None:
            raise RuntimeError(f"the server did not start: {self.down}")
        return self.links()

    def links(self) -> dict[str, str]:
        """Role → link. The token stands where browsers do not send it, and no server writes it into a log."""
        place = f"{self.settings.scheme}://{self.settings.link_host}:{self.port}/"
        return {grant.role: f"{place}#token={quote(grant.token, safe='')}" for grant in self.settings.tokens.grants}

    def offer(self, frame: Frame) -> None:
        """Show a frame to whoever looks at its environment; a newer one takes its place if it comes first."""
        if frame.env in self._hub.watched:
            self._frames[frame.env] = frame
            self._ring()

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Session → frames sent, and frames that gave way to newer ones before they could be."""
        return {session.who: (session.frames_sent, session.frames_replaced) for session in self._hub.sessions}

    def close(self, reason: str) -> None:
        """Say goodbye to everybody and end the thread, within two seconds; may be called twice, and before `start`."""
        if not self._thread.is_alive():
            return
        self._reason = self._reason or reason
        self._call(self._stop.set)
        self._thread.join(JOIN_S)

    # Within: any thread.

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._call(self._bell.set)

    def _call(self, what: Any) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(what)

    # Within: the server's own thread.

    def _live(self) -> None:
        cause = "the run is over"
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            cause = "the server failed"
            self.down = f"{type(error).__name__}: {error}"
            log.exception("people can no longer take part, the run goes on: the server failed")
        finally:
            self._loop = None
            self._socket.close()
            self._started.set()
            try:
                self._hub.everybody_out(cause)
            except Exception:
                log.exception("the room could not be emptied")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_note)
        self._bell, self._stop = asyncio.Event(), asyncio.Event()
        self.room.outbox.connect(self._ring)
        self._rung = False
        self._ring()
        server = await self._listen()
        self._started.set()
        fan = asyncio.create_task(self._fan_out())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({fan, stop}, return_when=asyncio.FIRST_COMPLETED)
            if fan.done():
                fan.result()
        finally:
            failed = fan.done() and not fan.cancelled() and fan.exception() is not None
            server.close(close_connections=False)
            code, reason = (Close.FAULT, "error of the server") if failed else (Close.FINISHED, self._reason)
            await self._hub.farewell(reason, code, PATIENCE_S)

    async def _listen(self) -> SocketServer:
        limits = self.limits
        return await serve(
            functools.partial(serve_socket, self._hub),
            sock=self._socket,
            ssl=self.settings.tls,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            process_request=Gate(self.settings, self._files, self._hub.full),
            server_header=None,
            open_timeout=limits.hello_s,
            ping_interval=limits.ping_s,
            ping_timeout=limits.ping_s,
            close_timeout=limits.close_s,
            max_size=limits.max_message,
            max_queue=limits.max_queue,
            logger=Discreet(log, {}),
            create_connection=cast(type[ServerConnection], functools.partial(Door, self._hub)),
        )

    async def _fan_out(self) -> None:
        """Hand on frames and messages whenever there are any."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._rung = False
            while self._frames:
                self._hub.show(self._frames.popitem()[1])
            self._hub.deliver(self.room.outbox.take())


class Discreet(logging.LoggerAdapter[logging.Logger]):
    """What the library has to say of connections: a line each at level debug, no tracebacks, and nothing of what was
    sent over them, where tokens are."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is the library's
        return level > logging.DEBUG and self.logger.isEnabledFor(logging.DEBUG)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            self.logger.debug(msg, *args)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop has to say: broken connections are no errors of ours."""
    error = context.get("exception")
    if isinstance(error, OSError):
        log.debug("%s: %s", context["message"], error)
    else:
        log.error("%s", context["message"], exc_info=error)
