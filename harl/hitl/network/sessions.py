"""Who takes part, over all the connections that they had."""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harl.hitl.network.protocol import Hello, Subscribe
from harl.hitl.network.tokens import Grant
from harl.hitl.people import ROLES, Role

if TYPE_CHECKING:
    from harl.hitl.network.connection import Connection

_PINGS = 20
"""Round trips over which the median is taken."""


@dataclass(eq=False)
class Session:
    """A person, as long as they do not stay away."""

    grant: Grant
    role: Role
    """What they take part as, once they have agreed to the terms where there are any."""
    name: str
    device: str
    env: int
    """Environment that they look at."""
    agreed: bool = False
    who: str = field(default_factory=lambda: secrets.token_hex(8))
    resume: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    connection: Connection | None = None
    """None within the grace after it dropped."""
    view: Subscribe | None = None
    frames_sent: int = 0
    frames_replaced: int = 0
    """Frames that gave way to newer ones before they could be sent."""
    _expiry: asyncio.TimerHandle | None = None
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=_PINGS))

    @property
    def acts_as(self) -> Role:
        """The role that counts now."""
        return self.role if self.agreed else "observer"

    def round_trip(self, ms: float) -> float:
        """Note how long a ping took; the median of the last ones."""
        self._trips.append(ms)
        return statistics.median(self._trips)

    def expire_in(self, seconds: float, gone: Callable[[Session], None]) -> None:
        """Call `gone` unless they are back by then."""
        self._expiry = asyncio.get_running_loop().call_later(seconds, gone, self)

    def stay(self) -> None:
        """They are back."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


class Sessions:
    """All sessions of a run.

    Args:
        env: environment that newcomers look at.
        most_away: sessions of people who are away; beyond that the one that was away longest ends.
    """

    def __init__(self, env: int, most_away: int) -> None:
        self._env, self._most_away = env, most_away
        self._by_resume: dict[str, Session] = {}
        self._by_who: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_who.values()))

    def get(self, who: str) -> Session | None:
        return self._by_who.get(who)

    def found(self, hello: Hello, grant: Grant) -> Session | None:
        """The session that a hello continues; what one link began no other link can go on with."""
        session = self._by_resume.get(hello.resume) if hello.resume is not None else None
        return session if session is not None and session.grant is grant else None

    def new(self, hello: Hello, grant: Grant) -> Session:
        """A session that is not yet kept here; the role is what was asked for, at most what the link allows."""
        wanted = ROLES.index(hello.want_role) if hello.want_role is not None else len(ROLES)
        role = ROLES[min(wanted, ROLES.index(grant.role))]
        session = Session(grant, role, hello.name or "", hello.device or "script", self._env)
        session.name = session.name or f"{role}-{session.who[:4]}"
        return session

    def add(self, session: Session) -> None:
        """Keep a session until `end`."""
        self._by_resume[session.resume] = self._by_who[session.who] = session

    def end(self, session: Session) -> None:
        """Forget a session."""
        session.stay()
        self._by_resume.pop(session.resume, None)
        self._by_who.pop(session.who, None)

    def too_long_away(self) -> list[Session]:
        """Those for whom no place can be kept."""
        away = [session for session in self if session.connection is None]
        return away[: max(0, len(away) - self._most_away)]
