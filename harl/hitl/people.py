"""Who is in a room, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["observer", "controller", "trainer", "admin"]
ROLES: tuple[Role, ...] = ("observer", "controller", "trainer", "admin")
"""From the one that may least to the one that may most; each may what those before it may."""

Show = Literal["jpeg", "state", "none"]


class RoomError(Exception):
    """Something that a person may not do or that cannot be done.

    Attributes:
        code: one word, for programs.
        text: a sentence, for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(slots=True)
class Person:
    """Somebody in a room, for as long as their session lasts."""

    who: str
    """Session id; secret from others."""
    name: str
    """Pseudonym, the same for all their sessions; what others and recordings see."""
    role: Role
    device: str
    """desktop, touch or script."""
    agents: tuple[str, ...] | None
    """Agents they may drive; None for all."""
    env: int
    """Index of the environment they look at."""
    show: Show = "none"
    fps: float = 15.0
    """Most frames a second that they want."""
    max_px: int = 512
    """Longest side of their pictures."""
    here: bool = True
    """False within the grace after a dropped connection."""
    last_seq: int = -1
    """Number of their newest input or feedback."""
    rtt_ms: float | None = None
    """Median of what their last pings took."""
    recorded: bool = True
    """Whether anything of them may be recorded: not before they have agreed to the terms, where there are any."""
    since: float = float("-inf")
    """When they began to look at what they look at, on the room's clock."""
    acted_at: float = float("-inf")
    """When they last drove or gave feedback."""
    answers: dict[str, str | float] = field(default_factory=dict)
    """Of a questionnaire."""

    def may(self, role: Role) -> bool:
        """Whether they may what people of that role may."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, what: str) -> None:
        """Raise `RoomError` unless they may what people of that role may."""
        if not self.may(role):
            raise RoomError("role", f"{what} needs the role {role} or above; this link has the role {self.role}")
