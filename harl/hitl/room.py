"""What people and the thread that steps the environments share: who is there, who drives, what they hold and say.

Methods under "People" are called by the network's thread, those under "The run" by the thread of the run. All of them
take one lock for microseconds; nobody waits for the network.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from harl.config import PeopleConfig
from harl.envs.api import FloatArray, Layout
from harl.hitl.outbox import Outbox
from harl.hitl.pace import Pace
from harl.hitl.people import Person, Role, RoomError, Show
from harl.hitl.seats import Held, Mode, Seat, legal, readable_action

TEAM = "team"
"""What feedback on all agents is addressed to."""
MAX_AGE_S = 2.0
"""Shown time after which what a person saw is too old to act on."""
PRAISE_COUNTS_S = 10.0
"""Seconds for which a person who gave feedback counts as taking part."""


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


@dataclass(frozen=True, slots=True)
class Mark:
    """A person's word on an episode."""

    who: str
    name: str
    env: int
    label: Literal["success", "fail", "discard"]
    episode: int


class Drive(NamedTuple):
    """An agent that a person drives in the coming step."""

    agent: int
    held: Held
    who: str
    name: str
    rtt_ms: float | None


class Room:
    """People around the environments of one run.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.
    """

    layout: Layout
    num_envs: int

    def __init__(self, config: PeopleConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.clock = config, clock
        self.outbox = Outbox()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Notified when anything comes from people."""
        self.people: dict[str, Person] = {}
        self.seats: dict[tuple[int, int], Seat] = {}
        """Seats that were ever taken, by environment and agent."""
        self.position: list[tuple[int, int]] = []
        """Episode and step of each environment, kept up while somebody is there."""
        self.rate = config.fps
        """Steps a second that people see, for the age of what they saw."""
        self.pace = Pace(self)
        self.feedback_box: deque[Feedback] = deque(maxlen=4096)
        self.marks: deque[Mark] = deque(maxlen=256)
        self.events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=4096)
        """What happened, for the recording: kind and fields."""
        self.env_steps = 0
        """Environment steps that the policies have learned from."""
        self.newcomers: set[int] = set()
        """Environments that somebody has begun to look at since the last frame."""
        self.occupied = False
        """Whether anybody is there; read without the lock."""
        self.about: dict[str, Any] = {}
        """What does not change: the run, its agents, what is learned."""
        self._agents: dict[str, int] = {}

    def open(self, layout: Layout, num_envs: int) -> None:
        """Let people in; until then they are told to come back."""
        with self.changed:
            self.layout, self.num_envs = layout, num_envs
            self.position = [(0, 0)] * num_envs
            self._agents = {name: i for i, name in enumerate(layout.agents)}

    # People.

    def enter(self, who: str, name: str, role: Role, device: str, agents: tuple[str, ...] | None = None) -> None:
        """Somebody comes in."""
        with self.changed:
            if not self._agents:
                raise RoomError("starting", "the run is starting; come back in a moment")
            self.people[who] = Person(who, name, role, device, agents, self.config.env_index)
            self._count("connect", name=name, role=role, device=device, consent_version=self.config.consent_version)

    def away(self, who: str) -> None:
        """Their connection dropped; what they drove goes back to the policies, their place is kept."""
        with self.changed:
            person = self.people.get(who)
            if person is not None:
                person.here = False
                self._free_all(who, "expired", "the connection dropped")
                self._count("away", name=person.name)

    def back(self, who: str) -> None:
        """They are back within the grace."""
        with self.changed:
            self._person(who).here = True
            self.newcomers.add(self._person(who).env)
            self._count("back", name=self._person(who).name)

    def leave(self, who: str, cause: str) -> None:
        """Their session is over."""
        with self.changed:
            person = self.people.pop(who, None)
            if person is not None:
                self._free_all(who, "released", cause, person)
                self.pace.left()
                self._count("disconnect", name=person.name, cause=cause)

    def watch(self, who: str, env: int, mode: Show, fps: float, max_px: int) -> None:
        """They look at an environment, as pictures, as a drawing, or at its numbers alone."""
        with self.changed:
            person = self._person(who)
            allowed = range(self.num_envs) if self.config.envs == "all" else (self.config.env_index,)
            if env not in allowed:
                raise RoomError("unknown_env", f"env {env} is not shown; allowed: {_some(allowed)}")
            if env != person.env:
                self._free_all(who, "released", "looks at another environment")
            person.env, person.show, person.max_px = env, mode, max_px
            person.fps = min(fps, self.config.fps)
            self.newcomers.add(env)
            self.changed.notify_all()

    def control(self, who: str, op: str, agent: str, mode: Mode) -> None:
        """Ask for an agent, give it back, or (admin) take it from its driver."""
        with self.changed:
            person = self._person(who)
            seat = self._seat(person.env, agent)
            if op == "revoke":
                person.require("admin", "taking an agent from its driver")
                if seat.driver is not None:
                    self._free(person.env, agent, seat, "revoked", f"by {person.name}")
                return
            if op == "release":
                if seat.driver == who:
                    self._free(person.env, agent, seat, "released", "let go")
                return
            person.require("controller", "driving an agent")
            if person.agents is not None and agent not in person.agents:
                raise RoomError("role", f"this link drives {', '.join(person.agents)}, not {agent}")
            if seat.driver not in (None, who):
                self._tell_control(person.env, agent, "denied", self._name(seat.driver), "somebody drives it", who)
                return
            seat.take(who, mode, self.clock(), self.config.takeover.lease_ttl_ms / 1000)
            self._tell_control(person.env, agent, "granted", person.name, mode)
            self.changed.notify_all()

    def input(
        self,
        who: str,
        agent: str,
        seq: int,
        seen_ep: int,
        seen_step: int,
        action: object,
        held: bool,
        ttl_ms: float,
    ) -> None:
        """The state of a driver's device; answered by an `ack` as soon as it is known what becomes of it."""
        with self.changed:
            person = self._person(who)
            person.require("controller", "driving an agent")
            index = self._index(agent)
            parsed = None if action is None else readable_action(action, self.layout.action_spaces[index], agent)
            seat = self._seat(person.env, agent)
            if seq <= person.last_seq:
                self._ack(who, agent, seq, "stale", f"seq {seq} is not above {person.last_seq}, the last one")
                return
            person.last_seq = seq
            if seat.driver != who:
                driver = "nobody" if seat.driver is None else self._name(seat.driver)
                text = f'{driver} drives {agent}; ask for it first: {{"type": "control", "op": "request"}}'
                self._ack(who, agent, seq, "not_owner", text)
                self._reject(person, agent, seq, "not_owner")
                return
            now = self.clock()
            if not held:
                seat.let_go(now)
                if seat.mode == "hold" and seat.tapped is None:
                    self._free(person.env, agent, seat, "released", "let go")
                elif seat.mode == "toggle":
                    seat.leaving = False
                return
            ttl = min(ttl_ms, self.config.takeover.lease_ttl_ms) / 1000
            seat.heard = now
            if self._too_old(person.env, seen_ep, seen_step):
                self._ack(who, agent, seq, "stale", "what was seen is over")
                self._reject(person, agent, seq, "stale")
                return
            seat.press(Held(parsed, seq, seen_ep, seen_step, now), ttl)
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
            person.praised_at = self.clock()
            self.feedback_box.append(
                Feedback(
                    who, person.name, agent, person.env, seq, value, seen_ep, seen_step, person.praised_at, shown_ms,
                    t_client_ms, confidence, undo,
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

    def driver(self, env: int, agent: int) -> str | None:
        """Name of who holds the lease."""
        seat = self.seats.get((env, agent))
        return None if seat is None or seat.driver is None else self._name(seat.driver)

    def expire(self) -> None:
        """Take agents back from drivers who are not heard of, or who do nothing."""
        now = self.clock()
        with self.changed:
            for (env, index), seat in self.seats.items():
                if seat.driver is None:
                    continue
                agent = self.layout.agents[index]
                if now - seat.heard > seat.ttl and seat.tapped is None:
                    self._free(env, agent, seat, "expired", "nothing was heard of the driver")
                elif now - seat.moved > self.config.takeover.idle_s:
                    self._free(env, agent, seat, "expired", "the driver did nothing")

    def driven(self) -> set[int]:
        """Environments in which somebody holds a lease."""
        return {env for (env, _), seat in self.seats.items() if seat.driver is not None}

    def take(self, env: int, masks: FloatArray | None) -> list[Drive]:
        """What the drivers of an environment do in the coming step, after `expire`.

        Args:
            env: index of the environment.
            masks: (A, action_number), 1 = allowed, or None; a forbidden action is refused, its agent driven by the
                policy.
        """
        episode, step = self.position[env]
        drives = []
        with self.changed:
            for index, agent in enumerate(self.layout.agents):
                seat = self.seats.get((env, index))
                held = None if seat is None else seat.next()
                if seat is None or seat.driver is None or held is None:
                    continue
                who, space = seat.driver, self.layout.action_spaces[index]
                own = None if masks is None else masks[index, : self.layout.action_numbers[index]]
                if held.action is not None and not legal(held.action, space, own):
                    if not held.told:
                        held.told = True
                        self._ack(who, agent, held.seq, "illegal", "this action is not allowed now")
                        self._reject(self.people[who], agent, held.seq, "illegal")
                    if held is seat.tapped:
                        seat.tapped = None
                    continue
                drives.append(Drive(index, held, who, self._name(who), self.people[who].rtt_ms))
                seat.used(held)
                if not held.told:
                    held.told = True
                    self._ack(who, agent, held.seq, "applied", applied={"ep": episode, "step": step})
                if seat.leaving and seat.tapped is None:
                    self._free(env, agent, seat, "released", "let go")
        return drives

    def episode_over(self, env: int) -> None:
        """The environment begins a new episode: what was held does not act in it."""
        with self.changed:
            for index in range(self.layout.num_agents):
                seat = self.seats.get((env, index))
                if seat is not None:
                    seat.forget_episode()

    def watchers(self, env: int) -> list[Person]:
        """Who looks at an environment now."""
        with self.changed:
            return [person for person in self.people.values() if person.here and person.env == env]

    def watched(self) -> set[int]:
        """Environments that somebody looks at."""
        with self.changed:
            return {person.env for person in self.people.values() if person.here}

    def taking_part(self) -> bool:
        """Whether anybody drives, or has given feedback within the last seconds."""
        now = self.clock()
        return bool(self.driven()) or any(
            person.here and now - person.praised_at < PRAISE_COUNTS_S for person in self.people.values()
        )

    def may_act(self) -> bool:
        """Whether anybody is there who may do more than watch."""
        with self.changed:
            return any(person.here and person.may("controller") for person in self.people.values())

    def drain_events(self) -> list[tuple[str, dict[str, Any]]]:
        """What happened since the last call."""
        with self.changed:
            events = list(self.events)
            self.events.clear()
        return events

    # Within.

    def _count(self, kind: str, **fields: Any) -> None:
        """Note who comes and goes, and wake whoever waits for people."""
        self.occupied = any(person.here for person in self.people.values())
        self.events.append((kind, {**fields, "t": self.clock()}))
        self.changed.notify_all()

    def _person(self, who: str) -> Person:
        if who not in self.people:
            raise RoomError("session", "this session is over; say hello again")
        return self.people[who]

    def _name(self, who: str) -> str:
        person = self.people.get(who)
        return "somebody" if person is None else person.name

    def _index(self, agent: str) -> int:
        if agent not in self._agents:
            raise RoomError("unknown_agent", f"there is no agent {agent[:40]}; allowed: {', '.join(self._agents)}")
        return self._agents[agent]

    def _seat(self, env: int, agent: str) -> Seat:
        return self.seats.setdefault((env, self._index(agent)), Seat())

    def _too_old(self, env: int, episode: int, step: int) -> bool:
        now_episode, now_step = self.position[env]
        return episode != now_episode or now_step - step > max(1.0, MAX_AGE_S * self.rate)

    def _free_all(self, who: str, state: str, reason: str, person: Person | None = None) -> None:
        for (env, index), seat in self.seats.items():
            if seat.driver == who:
                self._free(env, self.layout.agents[index], seat, state, reason, person)

    def _free(self, env: int, agent: str, seat: Seat, state: str, reason: str, person: Person | None = None) -> None:
        who = seat.driver
        assert who is not None
        holder = person.name if person is not None else self._name(who)
        seat.free()
        self._tell_control(env, agent, state, holder, reason)

    def _tell_control(self, env: int, agent: str, state: str, holder: str, reason: str, who: str | None = None) -> None:
        message = {"type": "control", "agent": agent, "env": env, "state": state, "holder": holder, "reason": reason}
        self.outbox.post(message, who, env)
        self._count(f"lease_{state}", agent=agent, env=env, name=holder, reason=reason)

    def _ack(
        self,
        who: str,
        agent: str,
        seq: int,
        status: str,
        text: str | None = None,
        applied: dict[str, int] | None = None,
    ) -> None:
        message = {"type": "ack", "seq": seq, "agent": agent, "applied": applied, "status": status}
        self.outbox.post(message if text is None else {**message, "text": text}, who)

    def _reject(self, person: Person, agent: str, seq: int, reason: str) -> None:
        self.events.append(
            ("rejected", {"name": person.name, "agent": agent, "seq": seq, "reason": reason, "t": self.clock()})
        )


def _some(indices: range | tuple[int, ...]) -> str:
    return str(indices[0]) if len(indices) == 1 else f"{indices[0]} to {indices[-1]}"
