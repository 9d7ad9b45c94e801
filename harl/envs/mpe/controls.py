"""From the actions of agents to forces and words."""

from __future__ import annotations

import string
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from harl.envs.api import FloatArray
from harl.envs.mpe.scenarios import Scenario
from harl.envs.mpe.world import World

STRENGTH = 5.0
"""Force of a full push."""
MOVES = 5
"""Ways to move: not at all, left, right, down, up. Box actions have a column for each; the first does nothing."""
WAYS = ("stay", "left", "right", "down", "up")
PUSHES = STRENGTH * np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)


class Controls(Protocol):
    """How one kind of action acts on the world."""

    @property
    def spaces(self) -> tuple[spaces.Space[Any], ...]:
        """Action space of each agent."""

    @property
    def meanings(self) -> tuple[tuple[str, ...], ...]:
        """What each index, or column, does, as `harl.envs.api.Layout.meanings`."""

    def apply(self, actions: FloatArray, world: World) -> None:
        """Set `world.forces` and `world.speech` from actions (N, A, widest action)."""


class DiscreteControls:
    """One index an agent: a way to move, a word, or for agents that do both, `word * MOVES + way to move`."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._sizes = [
            (MOVES if moves else 1) * (scenario.vocabulary if speaks else 1) for moves, speaks in _abilities(scenario)
        ]
        self.spaces: tuple[spaces.Space[Any], ...] = tuple(spaces.Discrete(size) for size in self._sizes)
        words = spoken(scenario)
        both = tuple(f"{way} & {word}" for word in words for way in WAYS)
        self.meanings = tuple(
            both if moves and speaks else WAYS if moves else words for moves, speaks in _abilities(scenario)
        )
        self._limits = np.array(self._sizes, np.uint64)[:, None]
        self._words = np.eye(scenario.vocabulary)

    def apply(self, actions: FloatArray, world: World) -> None:
        scenario = self._scenario
        chosen = actions[:, :, 0].T.astype(np.int64, order="C")
        outside = chosen.view(np.uint64) >= self._limits  # seen unsigned, a negative number is too large as well
        if outside.any():
            agent, env = np.argwhere(outside)[0]
            raise ValueError(
                f"{scenario.name}: action {chosen[agent, env]} of {scenario.agents[agent]} in environment {env} "
                f"is not one of 0 to {self._sizes[agent] - 1}"
            )
        words, moves = np.divmod(chosen, MOVES) if _same_agents_do_both(scenario) else (chosen, chosen)
        world.forces[...] = PUSHES.take(moves[scenario.movers], axis=0).transpose(0, 2, 1)
        if scenario.vocabulary:
            world.speech[scenario.speakers] = self._words.take(words[scenario.speakers], axis=0).transpose(0, 2, 1)


class BoxControls:
    """Numbers in [0, 1]: one for each way to move, then one for each word, as far as the agent can do either."""

    def __init__(self, scenario: Scenario, direction: float) -> None:
        self._scenario = scenario
        sizes = [MOVES * moves + scenario.vocabulary * speaks for moves, speaks in _abilities(scenario)]
        self.spaces: tuple[spaces.Space[Any], ...] = tuple(spaces.Box(0.0, 1.0, (size,), np.float32) for size in sizes)
        self._gain = direction * STRENGTH
        ways = WAYS if direction > 0 else ("stay", "right", "left", "up", "down")
        self.meanings = tuple(ways * moves + spoken(scenario) * speaks for moves, speaks in _abilities(scenario))
        first_word = MOVES if _same_agents_do_both(scenario) else 0
        self._word_columns = slice(first_word, first_word + scenario.vocabulary)

    def apply(self, actions: FloatArray, world: World) -> None:
        scenario = self._scenario
        moves = actions[:, scenario.movers]
        # Both reference implementations subtract in float32, as the actions come, and go on in float64.
        np.subtract(moves[:, :, 2:5:2], moves[:, :, 1:4:2], out=world.forces.transpose(2, 0, 1))
        world.forces *= self._gain
        if scenario.vocabulary:
            world.speech[scenario.speakers] = actions[:, scenario.speakers, self._word_columns].transpose(1, 2, 0)


def spoken(scenario: Scenario) -> tuple[str, ...]:
    """The words of the language as they are called for people: `say A` and so on, the letters that `mpe2` shows."""
    return tuple(f"say {letter}" for letter in string.ascii_uppercase[: scenario.vocabulary])


def _abilities(scenario: Scenario) -> list[tuple[bool, bool]]:
    """For each agent, whether it can move and whether it can speak."""
    everyone = range(scenario.num_agents)
    return [(agent in everyone[scenario.movers], agent in everyone[scenario.speakers]) for agent in everyone]


def _same_agents_do_both(scenario: Scenario) -> bool:
    """Whether one action holds a move and a word; otherwise every agent does one or the other."""
    return scenario.vocabulary > 0 and scenario.movers == scenario.speakers
