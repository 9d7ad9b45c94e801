"""A scripted person's decisions: when to take over, what to do, what to praise. Knows no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harl.hitl.scripted.keys import Action, Keys
from harl.hitl.scripted.scene import Sight
from harl.hitl.scripted.traits import Expert, Foresighted, Traits

RANDOM_START = 0.2
"""Chance, at each sight, that a person whose gate is `random` takes over an agent."""
JUDGED = 4
"""Sights over which mistakes are counted."""
SHARE_RANDOM = 0.5
"""Of the actions of somebody who is not good at it."""
MOST_TRIES = 50
"""Sights after which somebody gives up whose inputs take no effect, and who gets no answer asks again."""
REMEMBERED = 256


@dataclass(slots=True)
class Hold:
    """An agent that is driven."""

    delay: int
    until: int | None = None
    """Clock at which it is given back; None until the first input has taken effect."""
    tries: int = 0
    """Sights without effect."""


@dataclass(slots=True)
class _Agent:
    """What the person thinks of an agent."""

    mistakes: deque[bool] = field(default_factory=lambda: deque(maxlen=JUDGED))
    asked: int = 0
    """Sights since the agent was asked for, that one among them; 0: it was not."""
    hold: Hold | None = None
    action: Action | None = None
    pressed: deque[tuple[int, Action]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """From which clock on what was held since the takeover, as far as the person can tell."""
    did: deque[tuple[int, Action]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """At which clock what was done, of the steps since the takeover that were seen."""

    def drop(self) -> None:
        """It is driven no longer."""
        self.hold, self.action = None, None
        self.pressed.clear()
        self.did.clear()

    def done(self, since: int, until: int) -> list[Action | None]:
        """What the person had the agent do in each step from one clock to another; None outside of the takeover."""
        steps: dict[int, Action] = {}
        end = until
        for begin, action in reversed(self.pressed):
            steps |= dict.fromkeys(range(max(begin, since), end), action)
            end = min(end, begin)
            if end <= since:
                break
        for clock, action in reversed(self.did):
            if clock < since:
                break
            steps[clock] = action
        return [steps.get(clock) for clock in range(since, until)]


class Mind:
    """What a person decides at each sight; gives messages of the protocol without `seq`, which the client counts.

    Args:
        agents: whom the person may drive.
        team: how many agents the environment has.
        keys: of each agent, by name.
        expert: what the person knows.
        traits: how the person is.
        rng: all chances.
        lease_ttl_ms: how long an input holds.

    Raises:
        ValueError: the person anticipates, and the expert does not know what actions lead to.
    """

    def __init__(
        self,
        agents: Sequence[str],
        team: int,
        keys: Mapping[str, Keys],
        expert: Expert,
        traits: Traits,
        rng: np.random.Generator,
        lease_ttl_ms: int = 500,
    ) -> None:
        self._foresight: Foresighted | None = None
        if traits.anticipates:
            if not isinstance(expert, Foresighted):
                raise ValueError(
                    f"a person who anticipates needs an expert with `ahead`; {type(expert).__name__} has none"
                )
            self._foresight = expert
        self.traits, self.expert, self.rng = traits, expert, rng
        self.lag = 0.0
        """Steps that pass between a sight and the effect of an input on it; the client measures it."""
        self._team, self._keys, self._ttl = team, keys, lease_ttl_ms
        self._agents = {name: _Agent() for name in agents}
        self._sights: deque[Sight] = deque(maxlen=REMEMBERED)
        self._first_clock: int | None = None
        self.driven = 0
        """Steps of agents that this person drove so far."""
        self._presses: list[tuple[float, str, float]] = []
        """When, for whom, and what, of judgements on their way to the key."""
        self._judged_at: float | None = None
        self._leaving = False

    @property
    def steps(self) -> int:
        """Steps of the environment since the first sight."""
        return self._sights[-1].clock - (self._first_clock or 0) if self._sights else 0

    @property
    def share(self) -> float:
        """Driven steps as a share of all steps of all agents."""
        return self.driven / max(1, self.steps * self._team)

    def see(self, sight: Sight) -> list[dict[str, Any]]:
        """Look at a frame; what the person does about it."""
        if self._first_clock is None:
            self._first_clock = sight.clock
        before = self._sights[-1] if self._sights else None
        self._sights.append(sight)
        messages: list[dict[str, Any]] = []
        for agent in self._agents.values():
            if agent.asked:
                agent.asked = (agent.asked + 1) % MOST_TRIES  # whoever gets no answer asks again
        free = [name for name, agent in self._agents.items() if agent.hold is None and not agent.asked]
        for name, agent in self._agents.items():
            if before is not None:
                self._judge(name, agent, before, sight)
            if agent.hold is not None:
                messages += self._drive(name, agent, agent.hold, sight)
        for name in () if self._leaving else self._wanted(free):
            self._agents[name].asked = 1
            messages.append({"type": "control", "op": "request", "agent": name, "mode": "hold"})
        if self.traits.feedback and before is not None:
            self._think_of_praise(before, sight)
        return messages

    def leave(self) -> list[dict[str, Any]]:
        """Let go of everything, and want nothing more."""
        self._leaving = True
        held = [(name, agent) for name, agent in self._agents.items() if agent.hold is not None]
        return [message for name, agent in held for message in self._let_go(name, agent, self._sights[-1])]

    @property
    def free(self) -> bool:
        """Whether this person drove none of the agents in the step that was seen last."""
        return not self._sights or all(self._sights[-1].source.get(name) != "human" for name in self._agents)

    def hear(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What the server says of an agent's lease that is this person's own."""
        agent = self._agents.get(message["agent"])
        if agent is None:
            return []
        agent.asked = 0
        if message["state"] != "granted":
            agent.drop()
            return []
        if self._leaving:
            return [{**self._input(message["agent"], None, self._sights[-1]), "held": False}]
        if agent.hold is None and self._sights:
            low, high = self.traits.delay_steps
            now = self._sights[-1]
            agent.hold = Hold(int(self.rng.integers(low, high + 1)))
            agent.mistakes.clear()
            return self._drive(message["agent"], agent, agent.hold, now)
        return []

    def remind(self) -> list[dict[str, Any]]:
        """Say again what is held, so that the lease does not run out while nothing new is seen."""
        return [
            self._input(name, agent.action, self._sights[-1])
            for name, agent in self._agents.items()
            if agent.hold is not None and agent.action is not None
        ]

    def presses(self, now: float) -> list[dict[str, Any]]:
        """Praise and blame whose time has come."""
        due = [press for press in self._presses if press[0] <= now]
        self._presses = [press for press in self._presses if press[0] > now]
        if not due:
            return []
        seen = self._sights[-1]
        shown = max(0.0, now - seen.at) * 1000
        place = {"ep": seen.episode, "step": seen.step}
        return [
            {
                "type": "feedback", "agent": agent, "value": value, "seen": place,
                "t_client_ms": round(now * 1000, 3), "shown_ms": round(shown, 3),
            }
            for _, agent, value in due
        ]  # fmt: skip

    def _judge(self, name: str, agent: _Agent, before: Sight, now: Sight) -> None:
        """Count the steps that this person drove, and the policy's mistakes."""
        passed = now.clock - before.clock
        if now.source.get(name) == "human":
            if agent.hold is not None:
                agent.did.append((now.clock - 1, now.actions[name]))
            self.driven += passed if before.source.get(name) == "human" else 1
        elif _shows_policy(now, name):
            agent.mistakes.append(self.expert.mistaken(_same_episode(before, now), now, name))

    def _wanted(self, free: Sequence[str]) -> Iterator[str]:
        """Those of the agents that nobody holds to take over now; each is to be asked for before the next."""
        if not self.traits.together:
            yield from (name for name in free if self._affordable(1) and self._wants(self._agents[name]))
        elif len(free) == len(self._agents) and self._affordable(len(free)):
            opinions = [self._wants(self._agents[name]) for name in free]
            yield from free if any(opinions) else ()

    def _wants(self, agent: _Agent) -> bool:
        """Whether to take an agent over."""
        gate, traits = self.traits.gate, self.traits
        if gate == "always":
            return True
        if gate == "random":
            wants = bool(self.rng.random() < RANDOM_START)
        else:
            full = len(agent.mistakes) == JUDGED
            wants = full and sum(agent.mistakes) / JUDGED > traits.threshold
        # Turned round as often as the decisions that it may turn are, so that a calm team is not taken over each time.
        return not wants if self.rng.random() < (traits.flip if wants else traits.flip * RANDOM_START) else wants

    def _affordable(self, agents: int) -> bool:
        """Whether a segment of so many agents more is within the budget, with what those held are promised."""
        budget = self.traits.budget
        if budget is None:
            return True
        now = self._sights[-1].clock
        promised = 0
        for agent in self._agents.values():
            if agent.hold is not None and agent.hold.until is not None:
                promised += max(0, agent.hold.until - now)
            elif agent.hold is not None or agent.asked:
                promised += self.traits.segment
        return self.driven + promised + agents * self.traits.segment <= budget * self.steps * self._team

    def _drive(self, name: str, agent: _Agent, hold: Hold, now: Sight) -> list[dict[str, Any]]:
        if hold.until is None:
            hold.tries += 1
            if now.source.get(name) == "human":
                hold.until = now.clock - 1 + self.traits.segment
            elif hold.tries > MOST_TRIES:
                return self._let_go(name, agent, now)
        elif now.clock + round(self.lag) >= hold.until:
            if self.traits.gate != "always" or not self._affordable(1):
                return self._let_go(name, agent, now)
            hold.until = now.clock + self.traits.segment
        seen = self._remembered(hold.delay, now)
        agent.action = self._action(name, self._allowing_for(seen, now))
        agent.pressed.append((now.clock + round(self.lag), agent.action))
        return [self._input(name, agent.action, now)]

    def _let_go(self, name: str, agent: _Agent, now: Sight) -> list[dict[str, Any]]:
        agent.drop()
        return [{**self._input(name, None, now), "held": False}]

    def _remembered(self, delay: int, now: Sight) -> Sight:
        """What was seen as many steps ago as it takes to react, without those that the network takes."""
        wanted = now.clock - max(0, round(delay - self.lag))
        found = now
        for sight in reversed(self._sights):
            if sight.episode != now.episode:
                break
            found = sight
            if sight.clock <= wanted:
                break
        return found

    def _allowing_for(self, seen: Sight, now: Sight) -> Sight:
        """What will have come of what was seen, of the last actions and of what was pressed, when an input acts."""
        if self._foresight is None:
            return seen
        unseen = min(self._foresight.unseen, seen.step)
        since, until = seen.clock - unseen, now.clock + round(self.lag)
        done = {}
        for name in seen.scene.agents:
            known = self._agents.get(name, _Agent()).done(since, until)
            if unseen and known:  # what was done in the step that led to a sight is no guess: the sight says it
                known[unseen - 1] = seen.actions.get(name, known[unseen - 1])
            done[name] = known
        return self._foresight.ahead(seen, done)

    def _action(self, name: str, seen: Sight) -> Action:
        share = SHARE_RANDOM if self.traits.suboptimal else self.traits.noise
        if self.rng.random() < share:
            return self._keys[name].random(self.rng)
        return self.expert.act(seen, name)

    def _input(self, name: str, action: Action | None, now: Sight) -> dict[str, Any]:
        seen = {"ep": now.episode, "step": now.step}
        return {
            "type": "input", "agent": name, "seen": seen, "action": action, "held": True, "ttl_ms": self._ttl,
        }  # fmt: skip

    def _think_of_praise(self, before: Sight, now: Sight) -> None:
        """Judge an agent that the policy drives, and begin to reach for the key."""
        since = 0.0 if self._judged_at is None else now.at - self._judged_at
        self._judged_at = now.at
        traits = self.traits
        if self.rng.random() >= min(1.0, since * traits.feedback_rate):
            return
        driven = [name for name in self._keys if _shows_policy(now, name)]
        if driven and self.rng.random() >= traits.feedback_misses:
            name = driven[int(self.rng.integers(len(driven)))]
            value = -1.0 if self.expert.mistaken(_same_episode(before, now), now, name) else 1.0
            self._presses.append((now.at + float(self.rng.uniform(*traits.feedback_delay_s)), name, value))


def _shows_policy(now: Sight, name: str) -> bool:
    """Whether a sight shows what a policy's action led to; the first one of an episode shows none."""
    return now.step > 0 and now.source.get(name) == "policy" and name in now.actions


def _same_episode(before: Sight, now: Sight) -> Sight | None:
    return before if before.episode == now.episode and before.step < now.step else None
