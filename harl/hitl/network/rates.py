"""How much of everything a client may have, and the counting of its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from harl.hitl.network.strict_json import MAX_MESSAGE

CALM_S = 1.0
"""Seconds without a dropped message after which a client is no longer over its limit."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the server; times in seconds, rates in messages a second."""

    hello_s: float = 5.0
    """Until the first message."""
    grace_s: float = 15.0
    """For which the place of somebody whose connection dropped is kept."""
    ping_s: float = 20.0
    """Between two keepalive pings, and until the answer to one is missed: a vanished client is found within twice
    that."""
    stuck_s: float = 10.0
    """For which a client may leave unread what is sent to it."""
    idle_s: float = 120.0
    """For which nothing may be heard of somebody who may act; a page pings once a second."""
    flood_s: float = 5.0
    """Over the rate, until the connection is closed."""
    close_s: float = 2.0
    """For the closing handshake."""
    max_message: int = MAX_MESSAGE
    """Bytes of a message."""
    max_queue: int = 8
    """Received messages that wait to be read."""
    max_pending: int = 256
    """Messages that wait to be sent to one client."""
    send_buffer: int = 128 * 1024
    """Bytes that the kernel holds for a slow reader: small, so that what it shows is not old."""
    max_strangers: int = 64
    """Connections that have not said hello yet."""
    input_rate: float = 60
    input_burst: float = 30
    feedback_rate: float = 10
    other_rate: float = 20
    any_rate: float = 200
    """Of all messages together, whether they can be read or not."""


class Verdict(Enum):
    """What is done with a message."""

    TAKE = auto()
    DROP = auto()
    DROP_AND_TELL = auto()
    """The first of those that are dropped."""
    HANG_UP = auto()


class Bucket:
    """A token bucket: `rate` a second, and `burst` at once after a rest."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._left, self._at = burst, now

    def take(self, now: float, count: int = 1) -> bool:
        """Whether one more, or so many more, are within the rate."""
        self._left = min(self.burst, self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left < count:
            return False
        self._left -= count
        return True


class Meter:
    """Counts the messages of one connection.

    Args:
        limits: the rates.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        now = clock()
        self._clock, self._flood_s = clock, limits.flood_s
        self._any = Bucket(limits.any_rate, limits.any_rate, now)
        self._feedback = Bucket(limits.feedback_rate, limits.feedback_rate, now)
        self._buckets = {
            "input": Bucket(limits.input_rate, limits.input_burst, now),
            "feedback": self._feedback,
            "undo": self._feedback,
        }
        self._other = Bucket(limits.other_rate, limits.other_rate, now)
        self._since = self._last = float("-inf")

    def arrived(self) -> Verdict:
        """A message came; asked before it is read."""
        return self._judge(self._any)

    def read(self, kind: str) -> Verdict:
        """It is of that type."""
        return self._judge(self._buckets.get(kind, self._other))

    def _judge(self, bucket: Bucket) -> Verdict:
        now = self._clock()
        if bucket.take(now):
            return Verdict.TAKE
        calm = now - self._last > CALM_S
        if calm:
            self._since = now
        self._last = now
        if now - self._since >= self._flood_s:
            return Verdict.HANG_UP
        return Verdict.DROP_AND_TELL if calm else Verdict.DROP
