"""A session of a site that a run serves with its own environment and policies: frames out, people's answers in.

The run's thread offers what it has reached and waits, with a limit, for the answers; the network's thread does the
talking. Neither holds the other up in any other way.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.hitl.people import RoomError
from harl.hitl.room import Room
from harl.hitl.sharpie_site.frames import frame_text, step_members
from harl.hitl.sharpie_site.messages import dumps, log
from harl.hitl.sharpie_site.people import People, Stopped, Waits, read_answers
from harl.hitl.sharpie_site.pictures import encode
from harl.hitl.sharpie_site.seat import SiteSeat
from harl.hitl.sharpie_site.settings import Tempo

LOOK_S = 0.02
"""Between two looks for something new where nobody waits for answers."""
SLACK_S = 5.0
"""By which the run's thread outwaits the network's, so that no fault of the network can hold a run up for good."""
Place = tuple[int, int]
"""Episode, and steps that it has had."""


@dataclass(frozen=True)
class Shot:
    """What is shown of one state of the environment."""

    place: Place
    picture: NDArray[np.uint8]
    obs: Mapping[str, Any]
    actions: Mapping[str, Any]
    rewards: Any
    terminated: bool = False
    truncated: bool = False

    @property
    def last(self) -> bool:
        """Whether the episode is over with it."""
        return self.terminated or self.truncated


class Session:
    """One episode for the people of a room.

    Args:
        websocket: connection to the room.
        room: what the run and its people share.
        seats: who sits where.
        tempo: of the experiment.
        waits: how long people are waited for.
        lockstep: whether every step waits for the answers to the frame before it.
        stopping: whether nobody may wait any longer.
    """

    def __init__(
        self,
        websocket: Any,
        room: Room,
        seats: Sequence[SiteSeat],
        tempo: Tempo,
        waits: Waits,
        lockstep: bool,
        stopping: Callable[[], bool],
    ) -> None:
        self.websocket, self.room, self.waits, self.lockstep = websocket, room, waits, lockstep
        self.seats = {seat.role: seat for seat in seats}
        self._aborted: bool = False
        self._spectator = f"sharpie/{id(self)}"
        self.stopping: Callable[[], bool] = lambda: self._aborted or stopping()
        roles = {seat.role: seat.settings for seat in seats}
        self.people = People(websocket, roles, waits, tempo, self.stopping)
        self.begun = self.finished = False
        """Whether the first, and the last state was offered."""
        self.over = False
        """Whether nothing more comes from people."""
        self.last_picture: NDArray[np.uint8] | None = None
        self.frames = 0
        """Sent so far."""
        self.between = 1.0 / tempo.target_fps
        """Seconds from one frame to the next, at least."""
        self._due = 0.0
        self._patience = max(waits.join_s, waits.answer(tempo)) + SLACK_S
        self._shots: queue.SimpleQueue[Shot] = queue.SimpleQueue()
        self._answered: Place | None = None
        self._missed = False

    # The run's thread.

    def offer(self, shot: Shot) -> None:
        """Show a state; returns at once."""
        self.begun, self.finished, self.last_picture = True, shot.last, shot.picture
        if not self.lockstep and not shot.last:
            while not self._shots.empty():  # newest wins
                self._shots.get()
        self._shots.put(shot)

    def wait(self, place: Place, stopping: Callable[[], bool]) -> bool:
        """Wait for the answers to a state; returns whether somebody did not answer in time."""
        deadline = time.monotonic() + self._patience
        with self.room.changed:
            while not self.over and self._answered != place:
                if stopping() or time.monotonic() > deadline:
                    return True
                self.room.changed.wait(0.1)
            return self._missed and not self.over

    def wait_for_end(self, stopping: Callable[[], bool]) -> None:
        """Wait until people have answered the last frame."""
        deadline = time.monotonic() + self.waits.last_s + SLACK_S
        with self.room.changed:
            while not self.over and not stopping() and time.monotonic() < deadline:
                self.room.changed.wait(0.1)

    def abort(self) -> None:
        """End the episode where it is."""
        self._aborted = True

    # The network's thread.

    def enter(self) -> None:
        """Everybody takes their seats; where there is none, somebody watches, so that there is an episode at all."""
        for seat in self.seats.values():
            seat.enter(self.room)
        if not self.seats:
            self.room.enter(self._spectator, "site", "observer", "desktop")

    def run(self) -> None:
        """Serve the episode to its end, or to what ends it early, which is raised."""
        try:
            while True:
                shot = self._next_shot()
                if (left := self._due - time.monotonic()) > 0:
                    time.sleep(left)
                self._due = max(self._due, time.monotonic() - self.between) + self.between
                self.people.settle()
                self.people.clear()
                self.frames += 1
                if not self.lockstep:
                    for seat in self.seats.values():
                        seat.asked(self.room)
                self.websocket.send(self._message(shot))
                if shot.last:
                    answers = self.people.last()  # there is nothing left to do, but a step to judge
                    judging = [role for role in answers if self.seats[role].settings.inputs_type != "actions"]
                    self._feed({role: answers[role] for role in judging}, shot.place)
                    return
                if self.lockstep:
                    self._gather(shot)
                else:
                    self._listen(shot)
        finally:
            with self.room.changed:
                self.over = True
                self.room.changed.notify_all()

    def leave(self, cause: str) -> None:
        """Everybody is gone; what they drove goes back to the policies."""
        for seat in self.seats.values():
            self.room.leave(seat.who, cause)
        self.room.leave(self._spectator, cause)

    def _next_shot(self) -> Shot:
        while True:
            try:
                return self._shots.get(timeout=0.1)
            except queue.Empty:
                if self.stopping():
                    raise Stopped("the run was stopped") from None
                self._look()

    def _message(self, shot: Shot) -> str:
        told = step_members(shot.obs, shot.actions, shot.rewards)
        return frame_text(encode(shot.picture), self.frames, (shot.terminated, shot.truncated), told)

    def _look(self, seconds: float = 0.0) -> Mapping[str, Any]:
        """What came meanwhile; raises where somebody left."""
        return read_answers(self.websocket, seconds) or {} if self.people.expected else {}

    def _gather(self, shot: Shot) -> None:
        answers = self.people.answers(lambda: self._send_again(shot))
        missing = self.people.expected - answers.keys()
        self._feed(answers, shot.place)
        for role in missing:
            self.seats[role].missing(self.room, self.waits.absent)
        with self.room.changed:
            self._answered, self._missed = shot.place, bool(missing)
            self.room.changed.notify_all()

    def _send_again(self, shot: Shot) -> None:
        self.websocket.send(
            dumps({"type": "broadcast", "terminated": False, "truncated": False, "image": encode(shot.picture)})
        )

    def _listen(self, shot: Shot) -> None:
        while self._shots.empty() and not self.stopping():
            answers = self._look(LOOK_S)
            self._feed({role: answers[role] for role in answers if role in self.people.expected}, shot.place)
            if not self.people.expected:
                time.sleep(LOOK_S)

    def _feed(self, answers: Mapping[str, Any], place: Place) -> None:
        for role, value in answers.items():
            if self.frames == 1 and self.seats[role].settings.inputs_type == "reward":
                continue  # nothing has been done yet that could be judged
            try:
                self.seats[role].take(self.room, value, place)
            except RoomError as error:
                log.warning("%s: %s", role, error.text)
