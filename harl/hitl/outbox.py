"""Messages from the room to people, on their way from whichever thread has them to the network's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

LARGEST = 4096
"""Messages that wait at most; the oldest go first, since each state is told anew when it changes."""


class Letter(NamedTuple):
    """A message and whom it is for."""

    who: str | None
    """Session id; None for everybody."""
    env: int | None
    """Only those who look at this environment; None for all."""
    message: dict[str, Any]


class Outbox:
    """A bounded queue that any thread may post to without waiting."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque(maxlen=LARGEST)
        self._wake: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._rung = False

    def connect(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, once there is something to take; again only after `take`."""
        self._wake = wake

    def post(self, message: dict[str, Any], who: str | None = None, env: int | None = None) -> None:
        """Add a message and ring once."""
        with self._lock:
            self._letters.append(Letter(who, env, message))
            ring = not self._rung
            self._rung = True
        if ring and self._wake is not None:
            self._wake()

    def take(self) -> list[Letter]:
        """Everything that waits, oldest first."""
        with self._lock:
            letters = list(self._letters)
            self._letters.clear()
            self._rung = False
        return letters
