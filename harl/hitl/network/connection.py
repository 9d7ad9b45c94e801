"""The sending half of a connection: messages in order, and one frame, the newest."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from harl.hitl.network.frames import Frame
from harl.hitl.network.protocol import VERSION, Close, encode
from harl.hitl.network.rates import Limits
from harl.hitl.network.sessions import Session

log = logging.getLogger(__name__)


class Connection:
    """What is on its way to one client. All methods belong to the server's thread and return at once.

    Memory is bounded whatever the client does: a frame gives way to a newer one, messages are counted, and a client
    that leaves them unread is cut off.
    """

    def __init__(self, socket: ServerConnection, session: Session, limits: Limits) -> None:
        self.socket, self.session, self.limits = socket, session, limits
        self.ending: tuple[Close, str] | None = None
        """With which it will be closed when all messages are sent."""
        self._messages: deque[str] = deque()
        self._frame: Frame | None = None
        self._hurry = False
        """Whether the frame, or one that it replaced, is to go out at once."""
        self._due = 0.0
        self._bell = asyncio.Event()

    def post(self, message: Mapping[str, Any]) -> None:
        """Send a message after those before it."""
        self.post_text(encode({"v": VERSION, **message}))

    def post_text(self, text: str) -> None:
        """Send a message that is encoded already."""
        if self.ending is not None:
            return
        if len(self._messages) >= self.limits.max_pending:
            self.cut("it does not read its messages")
            return
        self._messages.append(text)
        self._bell.set()

    def fail(self, code: str, text: str, fatal: bool = False, **more: Any) -> None:
        """Tell the client what it did wrong."""
        self.post({"type": "error", "code": code, "text": text, "fatal": fatal, **more})

    def show(self, frame: Frame) -> None:
        """Send a frame as soon as the client's rate and line allow, unless a newer one comes first."""
        self.session.frames_replaced += self._frame is not None
        self._frame, self._hurry = frame, self._hurry or frame.at_once
        self._bell.set()

    def forget_frame(self) -> None:
        """What waits is not looked at any more."""
        self._frame, self._hurry = None, False

    def hang_up(self, code: Close, reason: str) -> None:
        """Close the connection after the messages that wait."""
        if self.ending is None:
            self.ending = (code, reason)
            self.forget_frame()
            self._bell.set()

    def cut(self, why: str) -> None:
        """End the connection without a word, which would not be heard."""
        log.debug("cut a connection: %s", why)
        self.ending = self.ending or (Close.POLICY, why)
        self._messages.clear()
        self.forget_frame()
        self.socket.transport.abort()

    async def send_forever(self) -> None:
        """Send until the connection ends."""
        try:
            while True:
                data = self._next()
                if data is not None:
                    async with asyncio.timeout(self.limits.stuck_s):
                        await self.socket.send(data)
                elif self.ending is not None:
                    await self.socket.close(*self.ending)
                    return
                else:
                    await self._rest()
        except ConnectionClosed:
            return
        except TimeoutError:
            self.cut("it has not read for too long")
        except Exception:
            log.exception("a client is cut off because of an error in the server")
            self.cut("an error of the server")

    async def _rest(self) -> None:
        """Wait for something to send, or until the frame that waits is due."""
        left = None if self._frame is None else max(0.0, self._due - self._now())
        try:
            async with asyncio.timeout(left):
                await self._bell.wait()
        except TimeoutError:
            return
        self._bell.clear()

    def _next(self) -> str | bytes | None:
        if self._messages:
            return self._messages.popleft()
        frame, view, now = self._frame, self.session.view, self._now()
        if frame is None or view is None or not (self._hurry or now >= self._due):
            return None
        self.forget_frame()
        period = 1.0 / view.fps
        self._due = period + (self._due if now - self._due < period else now)
        self.session.frames_sent += 1
        return frame.wire(view.mode, view.max_px)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
