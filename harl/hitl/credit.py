"""From a press of + or − to the rewards of the steps that it is about.

A person reacts to what was on the screen a moment ago. The time axis is therefore that of the display: a frame is on
the screen until the next one is, and an event gets the weight of the reaction time that falls into that stretch,
w_j = ∫ p(u) du over [t_e − t_end, t_e − t_start] with p uniform (Warnell et al. 2018, Deep TAMER, section 3.2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOWS = {"slow": (0.2, 4.0), "fast": (0.2, 0.6)}
"""Reaction times in seconds: of Deep TAMER, and for fast games (Knox & Stone 2009). `turn` has no window."""
REMEMBERED = 4096
"""Frames, and steps, that feedback can still be about."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A frame that was shown."""

    episode: int
    step: int
    """Steps that the episode had when it was shown; 0 = its first state."""
    at: float
    """When it was published, in seconds."""
    steps: tuple[int, ...]
    """Counts of environment steps of the transitions since the frame before, the one that led to it last."""


class Weight(NamedTuple):
    """Share of an event that one transition gets."""

    env_steps: int
    weight: float


class Said(NamedTuple):
    """What a person said of a step, in all."""

    value: float
    confidence: float
    events: int


def credited(
    frames: deque[Shown],
    seen: tuple[int, int],
    event_at: float,
    window: tuple[float, float] | None,
    only_shown: bool,
    since: float = float("-inf"),
) -> list[Weight]:
    """The transitions that an event is about, with weights that sum to 1; empty where none is known any more.

    Args:
        frames: what was shown, oldest first.
        seen: episode and step of the frame that the person looked at last.
        event_at: when the event happened, on the time axis of `Shown.at`, for this person's screen.
        window: shortest and longest reaction time in seconds; None = the last shown transition alone.
        only_shown: leave out transitions that passed between two frames.
        since: when this person began to look, on the time axis of `Shown.at`. What led to frames from before, the one
            that was on display then among them, they have not seen: it gets nothing.
    """
    last = next((k for k in range(len(frames) - 1, -1, -1) if (frames[k].episode, frames[k].step) == seen), None)
    if last is None or frames[last].at < since:
        return []
    if window is None:
        steps = frames[last].steps
        return [Weight(steps[-1], 1.0)] if steps else []
    low, high = window
    found: list[Weight] = []
    until = event_at
    for k in range(last, -1, -1):
        frame = frames[k]
        if frame.at < since:
            break
        overlap = min(event_at - frame.at, high) - max(event_at - until, low)
        if overlap > 0 and frame.steps:
            steps = frame.steps[-1:] if only_shown else frame.steps
            found += [Weight(step, overlap / len(steps)) for step in reversed(steps)]
        until = frame.at
        if event_at - until > high:
            break
    total = sum(weight for _, weight in found)
    return [Weight(step, weight / total) for step, weight in reversed(found)]


@dataclass
class Ledger:
    """What all people said of the steps of one environment.

    Several people: each step gets the mean of what they said of it, weighted by their confidence.
    """

    frames: deque[Shown] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    said: dict[tuple[int, int], dict[str, Said]] = field(default_factory=dict)
    """(env_steps, agent) → session → what they said."""
    pending: list[int] = field(default_factory=list)
    """Transitions since the last frame."""

    def passed(self, env_steps: int) -> None:
        """A step was taken."""
        self.pending.append(env_steps)
        if len(self.pending) > REMEMBERED:
            del self.pending[: -REMEMBERED // 2]

    def show(self, episode: int, step: int, at: float) -> None:
        """A frame is shown after it; one that is shown again, to those who have just come, is on others' screens."""
        if self.frames and (self.frames[-1].episode, self.frames[-1].step) == (episode, step):
            return
        self.frames.append(Shown(episode, step, at, tuple(self.pending)))
        self.pending.clear()

    def say(
        self, env_steps: int, agent: int, who: str, value: float, confidence: float, events: int = 1
    ) -> tuple[float | None, float | None]:
        """Add to what a person said of a step, or, with −1 event and minus the value, take it back.

        Returns:
            The mean of what people say of it before and after; None where nobody says anything.
        """
        key = env_steps, agent
        of_step = self.said.setdefault(key, {})
        before = mean(of_step)
        old = of_step.get(who, Said(0.0, confidence, 0))
        of_step[who] = Said(old.value + value, confidence, old.events + events)
        if of_step[who].events <= 0:
            del of_step[who]
        after = mean(of_step)
        if not of_step:
            del self.said[key]
        while len(self.said) > REMEMBERED:
            self.said.pop(next(iter(self.said)))
        return before, after


def mean(of_step: dict[str, Said]) -> float | None:
    """Confidence-weighted mean of what people said; None where nobody did."""
    weight = sum(said.confidence for said in of_step.values())
    return sum(said.value * said.confidence for said in of_step.values()) / weight if weight else None
