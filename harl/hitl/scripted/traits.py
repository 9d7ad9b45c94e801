"""How a scripted person is, and what it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from harl.hitl.scripted.heuristics import CLOSE, distance, foreseen, press
from harl.hitl.scripted.keys import Action, Keys
from harl.hitl.scripted.scene import Point, Sight

Gate = Literal["always", "random", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a person is."""

    delay_steps: tuple[int, int] = (2, 4)
    """Steps from seeing to acting, drawn anew for each takeover; what the network takes counts in."""
    anticipates: bool = False
    """Whether to act on where bodies will be by then, as people do who have practised."""
    noise: float = 0.1
    """Share of actions that are random."""
    suboptimal: bool = False
    """Half of the actions are random."""
    budget: float | None = None
    """Most steps that are driven, as a share of all steps of all agents of the environment; None: no limit."""
    gate: Gate = "always"
    """When to take over: always, at random, or when the policy makes mistakes."""
    together: bool = False
    """Whether to take over all agents when one is to be taken over; where they have to understand each other, one alone
    can show nothing."""
    threshold: float = 0.5
    """`error`: share of the last sights in which the agent did something else than the expert, and got no nearer."""
    segment: int = 8
    """Steps that a takeover lasts."""
    flip: float = 0.05
    """Share of the decisions of the gates `error` and `random` that are turned round."""
    feedback: bool = False
    """Whether to praise and blame agents that the policy drives."""
    feedback_rate: float = 1.0
    """Judgements a second."""
    feedback_delay_s: tuple[float, float] = (0.2, 4.0)
    """Seconds from a judgement to the press."""
    feedback_misses: float = 0.2
    """Share of judgements that are not pressed."""


class Expert(Protocol):
    """Somebody who knows what to do."""

    def act(self, sight: Sight, agent: str) -> Action:
        """What an agent should do in a situation."""

    def mistaken(self, before: Sight | None, now: Sight, agent: str) -> bool:
        """Whether what an agent did last was a mistake; `before` is an earlier sight of the same episode, if any."""


@runtime_checkable
class Foresighted(Protocol):
    """An expert who knows what actions lead to."""

    unseen: int
    """How many of the last steps before a sight have actions whose effect does not show in it yet."""

    def ahead(self, sight: Sight, done: Mapping[str, Sequence[Action | None]]) -> Sight:
        """What will be seen once these agents have done these actions, one a step; None: what, nobody knows.

        They begin `unseen` steps before the sight, or with the episode.
        """


class Heuristic:
    """The expert of the particle worlds.

    Args:
        scenario: as `simple_spread`.
        keys: of each agent, by name.
    """

    unseen = 1
    """A push changes the speed of a body, and the speed its place a step later. (With physics=classic in the same step:
    what is foreseen there is a step behind.)"""

    def __init__(self, scenario: str, keys: Mapping[str, Keys]) -> None:
        self._scenario, self._keys = scenario, keys

    def act(self, sight: Sight, agent: str) -> Action:
        """See `Expert`."""
        return self._keys[agent].action(press(self._scenario, sight.scene, agent))

    def ahead(self, sight: Sight, done: Mapping[str, Sequence[Action | None]]) -> Sight:
        """See `Foresighted`; agents of which nothing is known go on as fast as they were, slowing down."""
        pushes = {name: [self._push(name, action) for action in actions] for name, actions in done.items()}
        return replace(sight, scene=foreseen(sight.scene, pushes, min(self.unseen, sight.step)))

    def _push(self, agent: str, action: Action | None) -> Point:
        """(2,) where an action pushes, to the right and up."""
        if action is None:
            return np.zeros(2)
        left, right, down, up = (self._keys[agent].share(way, action) for way in ("left", "right", "down", "up"))
        return np.array([right - left, up - down])

    def mistaken(self, before: Sight | None, now: Sight, agent: str) -> bool:
        """Another action than the expert's, while the agent is not where it should be and got no nearer."""
        if self._keys[agent].same(now.actions[agent], self.act(now if before is None else before, agent)):
            return False
        left = distance(self._scenario, now.scene, agent)
        return left > CLOSE and (before is None or left >= distance(self._scenario, before.scene, agent))
