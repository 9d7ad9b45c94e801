"""A person of a site in the room of a run: their key presses as inputs, praise or hints."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from harl.hitl.room import Room
from harl.hitl.seats import Seat
from harl.hitl.sharpie_site.environments import UnfitAction, fit_action
from harl.hitl.sharpie_site.messages import log
from harl.hitl.sharpie_site.settings import Role

HINT_LENGTH = 500
"""Letters of a hint that are recorded."""


class SiteSeat:
    """Somebody who sits at one agent.

    Args:
        session: name of the session, part of the person's name in recordings.
        role: as the site calls the agent.
        agent: as the environment calls it.
        index: of the agent.
        settings: of the site.
        space: the agent's actions.
        shared: whether no key leaves the agent to its policy.
    """

    def __init__(
        self, session: str, role: str, agent: str, index: int, settings: Role, space: spaces.Space[Any], shared: bool
    ) -> None:
        self.role, self.agent, self.index, self.settings, self.space = role, agent, index, settings, space
        self.shared = shared
        self.who = f"sharpie/{session}/{role}"
        self.name = f"{session}:{role}"[-32:]
        self.seq = 0
        self._driving = False
        self._reported = False

    def enter(self, room: Room) -> None:
        """Sit down; an agent without a policy on the site is driven from the start."""
        kind = self.settings.inputs_type
        room.enter(self.who, self.name, "trainer" if kind == "reward" else "controller", "desktop", (self.agent,))
        if kind == "actions" and not self.shared:
            self._request(room)

    def take(self, room: Room, value: Any, place: tuple[int, int]) -> None:
        """What the person answered to the frame of this place; raises `RoomError` where the room does not take it."""
        self.seq += 1
        kind, silent = self.settings.inputs_type, self.settings.is_default(value)
        if kind == "actions" and not (silent and self.shared):
            self._drive(room, value, place)
        elif kind == "actions" and self._driving:
            self._driving = False
            room.input(self.who, self.agent, self.seq, *place, None, False, 0)
        elif kind == "reward" and not silent:
            self._praise(room, value, place)
        elif kind == "other" and not silent:
            said = {"name": self.name, "agent": self.agent, "value": str(value)[:HINT_LENGTH], "seen": list(place)}
            room.events.append(("hint", {**said, "t": room.clock()}))

    def asked(self, room: Room) -> None:
        """A frame is on its way to them: who says nothing to it loses the agent in the usual time."""
        with room.changed:
            if (seat := self._own(room)) is not None and seat.answered:
                seat.answered, seat.heard, seat.moved = False, room.clock(), room.clock()

    def missing(self, room: Room, absent: str) -> None:
        """No answer came. Where the policy is not to stand in, the lease is kept for what does."""
        if self.settings.inputs_type != "actions":
            return
        with room.changed:
            taken = room.seats.get((room.config.env_index, self.index))
            if absent != "policy" and not self.shared and (taken is None or taken.driver is None):
                self._request(room)
            if (seat := self._own(room)) is None:
                return
            seat.held = seat.tapped = None
            seat.answered = absent != "policy"
            if absent == "policy":
                seat.heard = float("-inf")
        self._driving = absent != "policy"

    def _own(self, room: Room) -> Seat | None:
        """The seat, where the person has the lease; needs the room's lock."""
        seat = room.seats.get((room.config.env_index, self.index))
        return seat if seat is not None and seat.driver == self.who else None

    def _request(self, room: Room) -> None:
        room.control(self.who, "request", self.agent, "hold")
        self._driving = True

    def _drive(self, room: Room, value: Any, place: tuple[int, int]) -> None:
        try:
            action = self._columns(value)
        except UnfitAction as error:
            if not self.settings.is_default(value):
                if not self._reported:
                    log.warning("ignored: input for %s: %s", self.role, error)
                self._reported = True
                self._let_go_of_keys(room)
                return
            action = None
        if room.driver(room.config.env_index, self.index) != self.name:
            self._request(room)
        lease = room.config.takeover.lease_ttl_ms
        room.input(self.who, self.agent, self.seq, *place, action, True, lease)
        with room.changed:
            if (seat := self._own(room)) is not None:
                seat.answered = True  # a page answers frames, and nothing is shown while the run learns

    def _let_go_of_keys(self, room: Room) -> None:
        """What was held before does not act in place of what could not be understood."""
        with room.changed:
            if (seat := self._own(room)) is not None:
                seat.held = seat.tapped = None

    def _columns(self, value: Any) -> list[float]:
        """The action as the room takes it: choices from 0, one number a column."""
        action = np.atleast_1d(np.asarray(fit_action(self.space, value), np.float64))
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            action = action - np.atleast_1d(self.space.start)
        columns: list[float] = action.tolist()
        return columns

    def _praise(self, room: Room, value: Any, place: tuple[int, int]) -> None:
        values = value if isinstance(value, list) else [value]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) != len(values) or not np.isfinite(numbers).all():
            log.warning("ignored: a reward for %s that is no number: %.80r", self.role, value)
            return
        room.feedback(self.who, self.agent, self.seq, sum(numbers) / self.settings.largest, *place)
