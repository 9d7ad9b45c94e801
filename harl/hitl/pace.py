"""How fast the environments go: as fast as they can, in people's time, or step by step when people have acted.

The only place where a run waits for people, always with a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from harl.hitl.people import RoomError

if TYPE_CHECKING:
    from harl.hitl.room import Room

Speed = Literal["free", "realtime", "lockstep", "paused"]
SLICE_S = 0.1
"""Longest wait between two looks at whether the run shall stop."""
PATIENCE = 3
"""Time-outs in a row after which lockstep gives way to realtime."""
SLOWEST, FASTEST = 0.25, 4.0


class Pace:
    """The pace of a room. All methods but `hold` and `state`, which take it themselves, need the room's lock."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.speed = 1.0
        """Times `fps`."""
        self.paused_by: str | None = None
        self.single_steps = 0
        """Steps still to take while paused."""
        self.misses = 0
        """Time-outs in a row."""
        self.gave_way = False
        """Whether lockstep was given up, after `PATIENCE` time-outs."""
        self.timeouts = 0
        """Time-outs in all."""
        self._due = 0.0
        self._paused_at = 0.0
        self._told: Speed = "free"
        self._before: Speed = "free"
        """How the run went at the last step."""

    def ask(self, name: str, op: str, value: float | None) -> None:
        """Do what a trainer asks for: pause, resume, step or speed."""
        if op == "pause":
            self.paused_by, self._paused_at, self.single_steps = name, self.room.clock(), 0
        elif op == "resume":
            self.paused_by = None
            self.gave_way, self.misses = False, 0
        elif op == "step":
            if self.paused_by is None:
                self.paused_by, self._paused_at = name, self.room.clock()
            self.single_steps += 1
        elif op == "speed":
            if value is None or not SLOWEST <= value <= FASTEST:
                raise RoomError("bad_value", f"a speed is a number from {SLOWEST} to {FASTEST}")
            self.speed = value
        else:
            raise RoomError("bad_value", f"the pace knows pause, resume, step and speed, not {op[:40]}")
        self.tell()

    def left(self) -> None:
        """Somebody has left: a pause ends with the last of those who may end it."""
        if self.paused_by is not None and not any(person.may("trainer") for person in self.room.people.values()):
            self.paused_by = None
            self.tell()

    def state(self) -> Speed:
        """How the run goes now."""
        if self.paused_by is not None:
            return "paused"
        kind = self.room.config.pace
        if kind == "auto":
            return "realtime" if self.room.taking_part() or self._for_show() else "free"
        if kind == "lockstep" and self.gave_way:
            return "realtime"
        return kind  # type: ignore[return-value]

    def _for_show(self) -> bool:
        """Whether somebody watches what is played to be watched: free, it would be over before they have seen any."""
        return self.room.about.get("purpose") == "evaluate" and bool(self.room.watched())

    def tell(self) -> None:
        """Say how the run goes now."""
        state = self.state()
        self._told = state
        self.room.outbox.post(self.message(state))

    def message(self, state: Speed) -> dict[str, Any]:
        """As people are told."""
        return {
            "type": "pace", "state": state, "fps": self.room.config.fps, "speed": self.speed, "by": self.paused_by,
        }  # fmt: skip

    def hold(self, stopping: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        """Wait until the next step is due.

        Args:
            stopping: whether the run shall stop: then there is no waiting.
            meanwhile: called, without the lock, when there is news while nothing moves: somebody has come in to look,
                or has said something.

        Returns:
            Whether drivers were awaited and have not acted in time.
        """
        room = self.room
        if self._told == self._before == "free" == self.state():
            return False  # nothing to tell, to show or to wait for
        with room.changed:
            state = self.state()
            if state != self._told:
                self.tell()
            if state not in ("free", self._before):
                self._show_now()
                self._due = room.clock() if self._before == "free" else self._due
            self._before = state
        if state == "paused":
            self._while_paused(stopping, meanwhile)
            with room.changed:
                state = self._before = self.state()
        if state == "realtime":
            self._until_due(stopping, meanwhile)
        elif state == "lockstep":
            return self._until_acted(stopping, meanwhile)
        return False

    def _show_now(self) -> None:
        """Have those who saw last what has passed by since see how it stands, before anything else happens."""
        room = self.room
        room.newcomers |= {env for env in room.watched() if room.shown.get(env) != room.position[env]}

    def linger(
        self, over: Callable[[], bool], stopping: Callable[[], bool], meanwhile: Callable[[], None], until: float
    ) -> bool:
        """Wait for something of people, up to a time on the room's clock.

        Args:
            over: whether it has come; asked with the lock.
            stopping, meanwhile: as for `hold`.
            until: the end of all waiting.

        Returns:
            Whether it came.
        """
        return self._wait(over, stopping, meanwhile, lambda: until)

    def _while_paused(self, stopping: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
        room = self.room

        def over() -> bool:
            if self.paused_by is not None and room.clock() - self._paused_at > room.config.max_pause_s:
                self.paused_by = None
                self.tell()
            return self.paused_by is None or self.single_steps > 0

        self._wait(over, stopping, meanwhile, None)
        with room.changed:
            self.single_steps = max(0, self.single_steps - 1)

    def _until_due(self, stopping: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
        clock, period = self.room.clock, 1.0 / (self.room.config.fps * self.speed)
        now = clock()
        # After a long update there is nothing to catch up with.
        self._due = max(self._due + period, now) if now - self._due < 5 * period else now
        self._wait(lambda: clock() >= self._due or self.paused_by is not None, stopping, meanwhile, lambda: self._due)

    def _until_acted(self, stopping: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        room = self.room

        def acted() -> bool:
            room.expire()
            seats = [
                (place[0], seat)
                for place, seat in room.seats.items()
                if seat.driver is not None and place not in room.gone  # nothing can be done for who has left
            ]
            return all(
                (held := seat.next()) is not None and (held.episode, held.step) == room.position[env]
                for env, seat in seats
            )

        with room.changed:
            if room.driven():
                self._show_now()
        deadline = room.clock() + room.config.timeout_s
        in_time = self._wait(acted, stopping, meanwhile, lambda: deadline)
        with room.changed:
            self.misses = 0 if in_time else self.misses + 1
            self.timeouts += not in_time
            if self.misses >= PATIENCE:
                self.gave_way = True
                text = f"nobody acted in {room.config.timeout_s:g} s, {PATIENCE} times in a row: going on in realtime"
                room.outbox.post({"type": "notice", "level": "warning", "text": text})
                self.tell()
        return not in_time

    def _wait(
        self,
        over: Callable[[], bool],
        stopping: Callable[[], bool],
        meanwhile: Callable[[], None],
        deadline: Callable[[], float] | None,
    ) -> bool:
        """Wait for `over`; returns whether it came before the deadline."""
        room = self.room
        while True:
            with room.changed:
                if over():
                    return True
                left = SLICE_S if deadline is None else min(SLICE_S, deadline() - room.clock())
                if left <= 0 or stopping():
                    return False
                if not room.newcomers:
                    room.changed.wait(left)
            if room.news:
                meanwhile()
