"""Who drives which agent: leases that are asked for, refreshed, taken back, and what is done with them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from harl.config import PeopleConfig
from harl.envs.api import FloatArray, Layout
from harl.hitl.outbox import Outbox
from harl.hitl.people import Person, RoomError
from harl.hitl.seats import Held, Mode, Seat, legal, readable_action

MAX_AGE_S = 2.0
"""Shown time after which what a person saw is too old to act on."""


class Drive(NamedTuple):
    """An agent that a person drives in the coming step."""

    agent: int
    held: Held
    who: str
    name: str
    rtt_ms: float | None

    def seen_ago(self, episode: int, step: int) -> int:
        """Steps that have passed since what the driver has seen; more than the episode has, where it was before it."""
        return step - self.held.step if self.held.episode == episode else step + 1


class Leases:
    """The part of a room that knows who is there and who drives; see `Room`."""

    layout: Layout
    num_envs: int

    def __init__(self, config: PeopleConfig, clock: Callable[[], float]) -> None:
        self.config, self.clock = config, clock
        self.outbox = Outbox()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Notified when anything comes from people."""
        self.people: dict[str, Person] = {}
        self.seats: dict[tuple[int, int], Seat] = {}
        """Seats that were ever taken, by environment and agent."""
        self.gone: set[tuple[int, int]] = set()
        """Environments and agents that have left the running episode: nothing that is held acts on them."""
        self.position: list[tuple[int, int]] = []
        """Episode and step of each environment, kept up while somebody is there."""
        self.shown: dict[int, tuple[int, int]] = {}
        """Environment → episode and step of the newest frame of it."""
        self.rate = config.fps
        """Steps a second that people see, for the age of what they saw."""
        self.events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=4096)
        """What happened, for the recording: kind and fields."""
        self.occupied = False
        """Whether anybody is there; read without the lock."""
        self._watched: frozenset[int] = frozenset()
        """Environments that somebody looks at."""
        self._witnessed: frozenset[int] = frozenset()
        """Those that somebody looks at who may be recorded."""
        self.newcomers: set[int] = set()
        """Environments that somebody has begun to look at, or is about to drive in, since the last frame."""
        self._agents: dict[str, int] = {}

    # People.

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
            now = person.acted_at = self.clock()
            if not held:
                seat.let_go(now)
                if seat.mode == "hold" and seat.tapped is None:
                    self._free(person.env, agent, seat, "released", "let go")
                elif seat.mode == "toggle":
                    seat.leaving = False
                return
            ttl = min(ttl_ms, self.config.takeover.lease_ttl_ms) / 1000
            seat.heard = now
            # Doing nothing is no answer to anything that was seen: it is never too late for letting go of all keys.
            if parsed is not None and self._too_old(person.env, seen_ep, seen_step):
                self._ack(who, agent, seq, "stale", "what was seen is over")
                self._reject(person, agent, seq, "stale")
                return
            seat.press(Held(parsed, seq, seen_ep, seen_step, now), ttl)
            self.changed.notify_all()

    # The run.

    def driver(self, env: int, agent: int) -> str | None:
        """Name of who holds the lease."""
        seat = self.seats.get((env, agent))
        return None if seat is None or seat.driver is None else self._name(seat.driver)

    def expire(self) -> None:
        """Take agents back from drivers who are not heard of, or who do nothing."""
        if not self.seats:
            return
        now = self.clock()
        with self.changed:
            for (env, index), seat in self.seats.items():
                if seat.driver is None or seat.answered:
                    continue
                agent = self.layout.agents[index]
                if now - seat.heard > seat.ttl and seat.tapped is None:
                    self._free(env, agent, seat, "expired", "nothing was heard of the driver")
                elif now - seat.moved > self.config.takeover.idle_s:
                    self._free(env, agent, seat, "expired", "the driver did nothing")

    def driven(self) -> set[int]:
        """Environments in which somebody holds a lease; without the lock where nobody ever did."""
        if not self.seats:
            return set()
        with self.changed:
            return {env for (env, _), seat in self.seats.items() if seat.driver is not None}

    def take(self, env: int, masks: FloatArray | None) -> list[Drive]:
        """What the drivers of an environment do in the coming step, after `expire`.

        Args:
            env: index of the environment.
            masks: (A, action_number), 1 = allowed, or None; a forbidden action is refused, its agent driven by the
                policy. What is held of an agent in `gone` is refused too; the lease stays, for the next episode.
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
                if (env, index) in self.gone:
                    self._refuse(seat, held, agent, f"{agent} has left this episode")
                    continue
                if held.action is not None and not legal(held.action, space, own):
                    self._refuse(seat, held, agent, "this action is not allowed now")
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
        if not self.seats:
            return
        with self.changed:
            for index in range(self.layout.num_agents):
                seat = self.seats.get((env, index))
                if seat is not None:
                    if seat.driver is not None:
                        person = self.people.get(seat.driver)
                        self._lapse(self.layout.agents[index], seat, person, "episode_over", "the episode ended")
                    seat.forget_episode()

    # Within.

    def _count(self, kind: str, **fields: Any) -> None:
        """Note what happened, and wake whoever waits for people."""
        self._look_round()
        self.events.append((kind, {**fields, "t": self.clock()}))
        self.changed.notify_all()

    def _look_round(self) -> None:
        """Note who is there and looks at what, for the run, which asks in every step."""
        here = [person for person in self.people.values() if person.here]
        self._watched = frozenset(person.env for person in here)
        self._witnessed = frozenset(person.env for person in here if person.recorded)
        self.occupied = bool(here)

    def _moved(self, kind: str, person: Person, **fields: Any) -> None:
        """Note that somebody comes or goes; of those who may not be recorded, that it was somebody and no more."""
        self._count(kind, **({"name": person.name, **fields} if person.recorded else {}))

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
        person = person or self.people.get(who)
        holder = "somebody" if person is None else person.name
        self._lapse(agent, seat, person, state, reason)
        seat.free()
        self._tell_control(env, agent, state, holder, reason)

    def _lapse(self, agent: str, seat: Seat, person: Person | None, state: str, reason: str) -> None:
        """What the driver holds will not act any more: say so where no step was ever taken with it."""
        held = seat.next()
        if person is None or held is None or not held.pressed or held.used or held.told:
            return
        held.told = True
        self._ack(person.who, agent, held.seq, "stale", f"{reason} before a step was taken with it")
        self._reject(person, agent, held.seq, state)

    def _tell_control(self, env: int, agent: str, state: str, holder: str, reason: str, who: str | None = None) -> None:
        message = {"type": "control", "agent": agent, "env": env, "state": state, "holder": holder, "reason": reason}
        self.outbox.post(message, who, env)
        whose = {"name": holder} if who is None else {"name": self._name(who), "holder": holder}
        self._count(f"lease_{state}", agent=agent, env=env, **whose, reason=reason)

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

    def _refuse(self, seat: Seat, held: Held, agent: str, text: str) -> None:
        """Do not act on what a driver holds, and tell them once."""
        assert seat.driver is not None
        if not held.told:
            held.told = True
            self._ack(seat.driver, agent, held.seq, "illegal", text)
            self._reject(self.people[seat.driver], agent, held.seq, "illegal")
        if held is seat.tapped:
            seat.tapped = None

    def _reject(self, person: Person, agent: str, seq: int, reason: str) -> None:
        self.events.append(
            ("rejected", {"name": person.name, "agent": agent, "seq": seq, "reason": reason, "t": self.clock()})
        )
