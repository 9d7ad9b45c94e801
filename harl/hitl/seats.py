"""Who drives an agent, and what they hold down: one seat for each agent of each environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from harl.envs.api import FloatArray, action_width
from harl.hitl.people import RoomError

Mode = Literal["hold", "toggle"]


def readable_action(value: object, space: spaces.Space[object], agent: str) -> FloatArray:
    """An action (columns of the agent,) from what a message says.

    Raises:
        RoomError: it is none of this agent's space; nothing is clipped or rounded.
    """
    allowed = f"{agent} takes {_describe(space)}"
    numbers = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise RoomError("bad_action", f"the action {str(value)[:40]} is no number or list of numbers; {allowed}")
    action = np.asarray(numbers, np.float64)
    if len(action) != action_width(space) or not np.isfinite(action).all():
        raise RoomError("bad_action", f"the action {str(value)[:40]} has {len(action)} numbers; {allowed}")
    if isinstance(space, spaces.Box):
        fits = bool(((action >= space.low) & (action <= space.high)).all())
    else:
        size = np.atleast_1d(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)  # type: ignore[attr-defined]
        fits = bool(((action >= 0) & (action < size) & (action == np.floor(action))).all())
    if not fits:
        raise RoomError("bad_action", f"the action {str(value)[:40]} is out of range; {allowed}")
    return action.astype(np.float32)


def legal(action: FloatArray, space: spaces.Space[object], mask: FloatArray | None) -> bool:
    """Whether the action mask (of the agent's own width) allows this action."""
    if mask is None or isinstance(space, spaces.Box):
        return True
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec]  # type: ignore[attr-defined]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return all(mask[int(start + choice)] > 0 for start, choice in zip(starts, action, strict=True))


def describe_space(space: spaces.Space[object]) -> dict[str, Any]:
    """Kind and extent of an action space, for a message."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multidiscrete", "nvec": space.nvec.tolist()}
    assert isinstance(space, spaces.Box)
    return {"kind": "box", "low": space.low.tolist(), "high": space.high.tolist()}


def _describe(space: spaces.Space[object]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"a whole number from 0 to {space.n - 1}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"{len(space.nvec)} whole numbers below {', '.join(map(str, space.nvec))}"
    assert isinstance(space, spaces.Box)
    return f"{space.shape[0]} numbers from {space.low.tolist()} to {space.high.tolist()}"


@dataclass(slots=True)
class Held:
    """What a driver holds down."""

    action: FloatArray | None
    """(columns of the agent,); None = do nothing."""
    seq: int
    episode: int
    """Episode and step that the driver saw."""
    step: int
    received: float
    """When it came, on the room's clock."""
    used: bool = False
    """Whether a step has been taken with what is held down, also under an earlier number."""
    shown: bool = False
    """Whether a frame has shown what it did."""
    told: bool = False
    """Whether the driver knows what became of it."""

    @property
    def pressed(self) -> bool:
        return self.action is not None


@dataclass(slots=True)
class Seat:
    """One agent of one environment."""

    driver: str | None = None
    """Session id of who holds the lease."""
    mode: Mode = "hold"
    heard: float = 0.0
    """When the driver was last heard of."""
    moved: float = 0.0
    """When the driver last pressed something."""
    ttl: float = 0.5
    """Seconds after `heard` at which the lease expires."""
    answered: bool = False
    """The driver has done all that can be done until something newer is shown: no time-out ends the lease."""
    held: Held | None = None
    tapped: Held | None = None
    """What was pressed and let go again before a step was taken: it still acts once."""
    leaving: bool = False
    """The driver has let go; the lease ends when `tapped` has acted."""

    def take(self, driver: str, mode: Mode, now: float, ttl: float) -> None:
        """Give the lease to a driver."""
        self.driver, self.mode, self.heard, self.moved, self.ttl = driver, mode, now, now, ttl
        self.held = self.tapped = None
        self.leaving = self.answered = False

    def free(self) -> None:
        """End the lease."""
        self.driver = self.held = self.tapped = None
        self.leaving = self.answered = False

    def press(self, held: Held, ttl: float) -> None:
        """The driver's device is in a new state."""
        old = self.held
        if old is not None and old.pressed and not old.used and not held.pressed:
            self.tapped = old
        if held.pressed:
            self.moved, self.tapped = held.received, None
        if old is not None and old.used and old.episode == held.episode and _same(old.action, held.action):
            held.used = True
        self.heard, self.held, self.ttl = held.received, held, ttl

    def let_go(self, now: float) -> None:
        """The driver's device is at rest: the policy drives, after a tap that has not acted yet."""
        if self.held is not None and self.held.pressed and not self.held.used:
            self.tapped = self.held
        self.heard, self.held, self.leaving = now, None, True

    def next(self) -> Held | None:
        """What the coming step is taken with."""
        return self.tapped if self.tapped is not None else self.held

    def used(self, held: Held) -> None:
        """A step was taken with it."""
        held.used = True
        if held is self.tapped:
            self.tapped = None

    def forget_episode(self) -> None:
        """A key held in one episode does not act in the next one."""
        self.held = self.tapped = None


def _same(a: FloatArray | None, b: FloatArray | None) -> bool:
    return a is b if a is None or b is None else bool(np.array_equal(a, b))
