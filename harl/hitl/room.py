"""What people and the thread that steps the environments share: who is there, who drives, what they hold and say.

Methods under "People" are called by the network's thread, those under "The run" by the thread of the run. All of them
take one lock for microseconds; nobody waits for the network.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from harl.config import PeopleConfig
from harl.envs.api import Layout
from harl.hitl.leases import Leases
from harl.hitl.pace import Pace
from harl.hitl.people import Person, Role, RoomError, Show

TEAM = "team"
"""What feedback on all agents is addressed to."""
STAYS_S = 10.0
"""Seconds for which a person who drove or gave feedback counts as taking part."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """Praise or blame."""

    who: str
    name: str
    agent: str
    """An agent's name, or `TEAM`."""
    env: int
    seq: int
    value: float
    episode: int
    """Episode and step that were shown."""
    step: int
    received: float
    """On the room's clock."""
    shown_ms: float | None
    """Milliseconds from the display of that step to the event, by the person's own clock."""
    t_client_ms: float | None
    confidence: float
    undo: bool = False
    """Take the event of this number back."""
    since: float = float("-inf")
    """When the person began to look at that environment; they saw nothing of what was shown before."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A person's word on an episode."""

    who: str
    name: str
    env: int
    label: Literal["success", "fail", "discard"]
    episode: int


class Room(Leases):
    """People around the environments of one run.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.
    """

    def __init__(self, config: PeopleConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config, clock)
        self.pace = Pace(self)
        self.feedback_box: deque[Feedback] = deque(maxlen=4096)
        self.marks: deque[Mark] = deque(maxlen=256)
        self.env_steps = 0
        """Environment steps that the policies have learned from."""
        self.about: dict[str, Any] = {}
        """What does not change: the run, its agents, what is learned."""

    def open(self, layout: Layout, num_envs: int) -> None:
        """Let people in; until then they are told to come back."""
        with self.changed:
            self.layout, self.num_envs = layout, num_envs
            self.position = [(0, 0)] * num_envs
            self._agents = {name: i for i, name in enumerate(layout.agents)}

    # People.

    def enter(
        self,
        who: str,
        name: str,
        role: Role,
        device: str,
        agents: tuple[str, ...] | None = None,
        consent: str | None = None,
        recorded: bool = True,
    ) -> str:
        """Somebody comes in.

        Args:
            who: id of their session.
            name: pseudonym that they ask for.
            role: what they may do.
            device: desktop, touch or script.
            agents: those that they may drive; None for all.
            consent: version of the terms that they have agreed to, where there are any.
            recorded: False for those who have not agreed to them: nothing of them is recorded.

        Returns:
            The name that they go by: with a number where somebody of that name is there already.
        """
        with self.changed:
            if not self._agents:
                raise RoomError("starting", "the run is starting; come back in a moment")
            taken = {person.name for person in self.people.values()}
            numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
            own = name if name not in taken else next(other for other in numbered if other not in taken)
            person = Person(who, own, role, device, agents, self.config.env_index, recorded=recorded)
            person.since = self.clock()
            self.people[who] = person
            self._moved("connect", person, role=role, device=device, consent_version=consent)
            return own

    def away(self, who: str) -> None:
        """Their connection dropped; what they drove goes back to the policies, their place is kept."""
        with self.changed:
            person = self.people.get(who)
            if person is not None:
                person.here = False
                self._free_all(who, "expired", "the connection dropped")
                self._moved("away", person)

    def back(self, who: str) -> None:
        """They are back within the grace."""
        with self.changed:
            person = self._person(who)
            person.here, person.since = True, self.clock()
            self.newcomers.add(person.env)
            self._moved("back", person)

    def leave(self, who: str, cause: str) -> None:
        """Their session is over."""
        with self.changed:
            person = self.people.pop(who, None)
            if person is not None:
                self._free_all(who, "released", cause, person)
                self.pace.left()
                self._moved("disconnect", person, cause=cause)

    def watch(self, who: str, env: int, mode: Show, fps: float, max_px: int) -> None:
        """They look at an environment, as pictures, as a drawing, or at its numbers alone."""
        with self.changed:
            person = self._person(who)
            allowed = range(self.num_envs) if self.config.envs == "all" else (self.config.env_index,)
            if env not in allowed:
                raise RoomError("unknown_env", f"env {env} is not shown; allowed: {_some(allowed)}")
            if env != person.env:
                self._free_all(who, "released", "looks at another environment")
            if env != person.env or person.show == "none":
                person.since = self.clock()
            person.env, person.show, person.max_px = env, mode, max_px
            person.fps = min(fps, self.config.fps)
            self.newcomers.add(env)
            self._look_round()
            self.changed.notify_all()

    def feedback(
        self,
        who: str,
        agent: str,
        seq: int,
        value: float,
        seen_ep: int,
        seen_step: int,
        t_client_ms: float | None = None,
        shown_ms: float | None = None,
        confidence: float = 1.0,
        undo: bool = False,
    ) -> None:
        """Praise or blame of an agent, or of the team."""
        with self.changed:
            person = self._person(who)
            person.require("trainer", "feedback")
            if agent != TEAM:
                self._index(agent)
            if not -1.0 <= value <= 1.0:
                raise RoomError("bad_value", f"the value {value} of feedback is not from -1 to 1")
            if not undo:
                if seq <= person.last_seq:
                    return
                person.last_seq = seq
            person.acted_at = self.clock()
            self.feedback_box.append(
                Feedback(
                    who, person.name, agent, person.env, seq, value, seen_ep, seen_step, person.acted_at, shown_ms,
                    t_client_ms, confidence, undo, person.since,
                )
            )  # fmt: skip
            self.changed.notify_all()

    def undo(self, who: str, seq: int) -> None:
        """Take feedback back."""
        self.feedback(who, TEAM, seq, 0.0, 0, 0, undo=True)

    def set_pace(self, who: str, op: str, value: float | None) -> None:
        """Pause, go on, take one step, or go faster or slower than `fps`."""
        with self.changed:
            person = self._person(who)
            person.require("trainer", "the pace")
            self.pace.ask(person.name, op, value)
            self._count("pace", name=person.name, op=op, value=value)
            self.changed.notify_all()

    def mark(self, who: str, label: str, episode: int) -> None:
        """A word on the running episode, or on one before it."""
        with self.changed:
            person = self._person(who)
            person.require("controller", "marking an episode")
            if label not in ("success", "fail", "discard"):
                raise RoomError("bad_value", f"the label {label[:40]} is none of success, fail, discard")
            if not 0 <= episode <= self.position[person.env][0]:
                raise RoomError("stale", f"there is no episode {episode} yet")
            kind = cast(Literal["success", "fail", "discard"], label)
            self.marks.append(Mark(who, person.name, person.env, kind, episode))

    def survey(self, who: str, answers: dict[str, str | float]) -> None:
        """Answers to a questionnaire, for the recording."""
        with self.changed:
            person = self._person(who)
            person.require("controller", "answering a questionnaire")
            person.answers.update(answers)
            self._count("survey", name=person.name, answers=answers)

    def note_rtt(self, who: str, rtt_ms: float) -> None:
        """How long their last pings took, the median."""
        with self.changed:
            self._person(who).rtt_ms = rtt_ms

    def welcome(self, who: str) -> dict[str, Any]:
        """What somebody who comes in has to know of the room."""
        with self.changed:
            person = self._person(who)
            return {
                **self.about,
                "policy": {"env_steps": self.env_steps},
                "env": person.env,
                "envs": self.config.envs,
                "num_envs": self.num_envs,
                "pace": self.pace.state(),
                "fps": self.config.fps,
                "lease_ttl_ms": self.config.takeover.lease_ttl_ms,
                "idle_s": self.config.takeover.idle_s,
                "drivers": {agent: self.driver(person.env, i) for agent, i in self._agents.items()},
            }

    # The run.

    @property
    def news(self) -> bool:
        """Whether the run has anything to show, to take in, or to write down; read without the lock."""
        return bool(self.newcomers or self.events or self.marks or self.feedback_box)

    def watchers(self, env: int) -> list[Person]:
        """Who looks at an environment now."""
        with self.changed:
            return [person for person in self.people.values() if person.here and person.env == env]

    def watched(self) -> frozenset[int]:
        """Environments that somebody looks at; without the lock."""
        return self._watched

    def judged(self) -> set[int]:
        """Environments that somebody looks at who may praise and blame."""
        with self.changed:
            return {person.env for person in self.people.values() if person.here and person.may("trainer")}

    def witnessed(self) -> frozenset[int]:
        """Environments that somebody looks at who may be recorded; without the lock."""
        return self._witnessed

    def taking_part(self) -> bool:
        """Whether anybody drives, or has driven or given feedback within the last seconds."""
        now = self.clock()
        with self.changed:
            return bool(self.driven()) or any(
                person.here and now - person.acted_at < STAYS_S for person in self.people.values()
            )

    def may_act(self) -> bool:
        """Whether anybody is there who may do more than watch."""
        with self.changed:
            return any(person.here and person.may("controller") for person in self.people.values())

    def drain_events(self) -> list[tuple[str, dict[str, Any]]]:
        """What happened since the last call; without the lock where nothing did."""
        if not self.events:
            return []
        with self.changed:
            events = list(self.events)
            self.events.clear()
        return events


def _some(indices: range | tuple[int, ...]) -> str:
    return str(indices[0]) if len(indices) == 1 else f"{indices[0]} to {indices[-1]}"
