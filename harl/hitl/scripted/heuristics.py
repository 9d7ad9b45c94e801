"""What somebody who knows the particle worlds would do: go to the landmark that is yours, say what others must know."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import string
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harl.hitl.scripted.scene import STEP_S, Body, Point, Scene

KEPT, SPEED = 0.75, 0.5
"""Share of a body's speed that is left a step later, and what a push in one step adds: 5 * 0.1 s."""
COASTING_S = STEP_S / (1 - KEPT)
"""A body that is no longer pushed goes on for as far as its speed takes it in this time."""
PUSH = SPEED * COASTING_S
"""How far a push in one step takes a body in the end."""
MOST_ORDERS = 6
"""Agents up to which every assignment is tried; beyond, each takes the nearest that is left."""
CLOSE = 0.2
"""Nearer than this to its landmark, an agent is where it should be."""

SCENARIOS = ("simple_spread", "simple_reference", "simple_speaker_listener")


@functools.lru_cache(256)
def targets(scenario: str, scene: Scene) -> dict[str, int]:
    """Landmark that each agent should be at; agents that are to go nowhere are missing."""
    if scenario == "simple_spread":
        return _assignment(scene)
    if scenario in SCENARIOS:
        # An agent wears the colour of its landmark, or a lighter one; those that go nowhere have none of them.
        near = {name: _nearest_colour(body, scene.landmarks) for name, body in scene.agents.items()}
        return {name: landmark for name, landmark in near.items() if landmark is not None}
    raise ValueError(f"no heuristic for {scenario!r}; there are some for {', '.join(SCENARIOS)}")


def press(scenario: str, scene: Scene, agent: str) -> list[str]:
    """Keys that an expert would hold for an agent, by their labels."""
    where = targets(scenario, scene)
    keys = []
    if agent in where:
        way = walk(scene.agents[agent], scene.landmarks[where[agent]].place)
        keys += [] if way is None else [way]
    others = [landmark for name, landmark in where.items() if name != agent]
    if scenario != "simple_spread" and others:
        keys.append(f"say {string.ascii_uppercase[others[0]]}")
    return keys


def walk(body: Body, target: Point) -> str | None:
    """The way to push a body so that it comes to rest at the target; None: it does so by itself."""
    missing = target - (body.place + COASTING_S * body.velocity)
    axis = int(np.abs(missing).argmax())
    if abs(missing[axis]) <= PUSH / 2:
        return None
    return (("left", "right"), ("down", "up"))[axis][int(missing[axis] > 0)]


def foreseen(scene: Scene, pushes: Mapping[str, Sequence[Point]], unseen: int) -> Scene:
    """A scene some steps later, as long as nobody is in the way.

    Args:
        scene: with speeds that have not changed yet by the pushes of the last `unseen` steps.
        pushes: of each agent, (2,) one a step, in full ones to the right and up; those of the unseen steps first.
        unseen: see above.
    """
    agents = dict(scene.agents)
    for name, steps in pushes.items():
        body = agents[name]
        place, velocity = body.place, body.velocity
        for step, push in enumerate(steps):
            if step >= unseen:
                place = place + STEP_S * velocity
            velocity = KEPT * velocity + SPEED * push
        agents[name] = dataclasses.replace(body, place=place, velocity=velocity)
    return dataclasses.replace(scene, agents=agents)


def distance(scenario: str, scene: Scene, agent: str) -> float:
    """How far an agent is from where it should be; 0 for one that has nowhere to go."""
    landmark = targets(scenario, scene).get(agent)
    if landmark is None:
        return 0.0
    return float(np.linalg.norm(scene.agents[agent].place - scene.landmarks[landmark].place))


@functools.cache
def _orders(agents: int, landmarks: int) -> NDArray[np.intp]:
    """(orders, agents) every choice of a landmark for each agent, no landmark twice."""
    return np.array(list(itertools.permutations(range(landmarks), agents)), np.intp)


def _assignment(scene: Scene) -> dict[str, int]:
    """Agents to landmarks, one each, with the least way in all."""
    names = list(scene.agents)
    bodies = np.array([body.place for body in scene.agents.values()])
    marks = np.array([mark.place for mark in scene.landmarks])
    ways: NDArray[np.float64] = np.linalg.norm(bodies[:, None] - marks, axis=2)
    if len(names) <= MOST_ORDERS:
        orders = _orders(len(names), len(marks))
        best = orders[ways[np.arange(len(names)), orders].sum(axis=1).argmin()]
        return dict(zip(names, best.tolist(), strict=True))
    chosen: dict[str, int] = {}
    for index in np.argsort(ways, axis=None):
        row, mark = divmod(int(index), len(scene.landmarks))
        if names[row] not in chosen and mark not in chosen.values():
            chosen[names[row]] = mark
    return chosen


def _nearest_colour(body: Body, landmarks: Sequence[Body]) -> int | None:
    """The landmark whose colour, made lighter by a share of white, is the body's; None where none is."""
    own = _channels(body.colour)
    for index, mark in enumerate(landmarks):
        room = 255.0 - _channels(mark.colour)
        shares = (own - _channels(mark.colour)) / np.maximum(room, 1.0)
        if shares.min() > -0.05 and shares.max() - shares[room > 20].min() < 0.1 and shares.max() < 0.9:
            return index
    return None


def _channels(colour: str) -> NDArray[np.float64]:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.float64)
