"""Where a scripted person takes part, and what it did there."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

MOST_COMPLAINTS = 100


class RobotError(RuntimeError):
    """The person cannot take part; the message is for the user as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Where to take part, and as whom."""

    url: str
    """`ws://host:port/`, or the link that a run prints, with the token behind `#token=`."""
    token: str = ""
    """Needed where the link does not hold it."""
    name: str = "robot"
    """Pseudonym."""
    env: int | None = None
    """Index of the environment; None: the one that is shown."""
    agents: tuple[str, ...] | None = None
    """Whom to drive; None: all."""
    fps: float = 240.0
    """Most frames a second to look at."""
    consent: str | None = None
    """Version of the terms that are agreed to."""

    @property
    def place(self) -> tuple[str, str]:
        """URL of the socket, and the token."""
        parts = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        token = self.token or unquote(parts.fragment.removeprefix("token="))
        if scheme not in ("ws", "wss") or not parts.netloc:
            raise RobotError(f"{self.url!r} is no address; allowed: ws://host:port/, or the link that a run prints")
        if not token:
            raise RobotError("a token is needed: give --token, or the whole link with #token=…")
        return f"{scheme}://{parts.netloc}{parts.path or '/'}", token


@dataclass(slots=True)
class Summary:
    """What a person did."""

    frames: int = 0
    steps: int = 0
    """Steps of the environment that passed."""
    driven: int = 0
    """Steps of agents that were driven, as far as the person saw them: as many as are recorded, except in a run that
    goes faster than its frames."""
    takeovers: int = 0
    inputs: int = 0
    presses: int = 0
    acks: Counter[str] = field(default_factory=Counter)
    """Status of the answers to inputs."""
    lags: list[int] = field(default_factory=list)
    """Steps from what was seen to where the input took effect, within one episode."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the server complained of."""
    ended: str = ""
    """Why it was over."""

    def complain(self, text: str) -> None:
        """Count a complaint; of very many different ones the first are kept."""
        if text in self.errors or len(self.errors) < MOST_COMPLAINTS:
            self.errors[text] += 1

    def __str__(self) -> str:
        lag = f"{statistics.median(self.lags):.0f}" if self.lags else "-"
        acks = ", ".join(f"{count} {status}" for status, count in sorted(self.acks.items())) or "none"
        return (
            f"{self.frames} frames of {self.steps} steps, {self.takeovers} takeovers, {self.driven} steps seen driven, "
            f"{self.inputs} inputs (answered: {acks}; median lag {lag} steps), {self.presses} presses; {self.ended}"
        )
