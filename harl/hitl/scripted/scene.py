"""What a scripted person sees: bodies and where they go, from the drawings that the page gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Point = NDArray[np.float64]
STEP_S = 0.1
"""Seconds that a step of the particle worlds stands for."""
FARTHEST = 3
"""Steps between two sights beyond which they say nothing about speed."""


@dataclass(frozen=True, slots=True)
class Body:
    """A circle of the drawing."""

    place: Point
    velocity: Point
    colour: str


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A drawing, read. Equal to itself alone: what is thought about it is remembered."""

    agents: dict[str, Body]
    landmarks: list[Body]
    words: dict[str, str] = field(default_factory=dict)
    """What agents say; `_` is silence."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The drawing as it came."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One frame."""

    clock: int
    """Steps of this environment since the run began."""
    episode: int
    step: int
    scene: Scene
    actions: Mapping[str, Any]
    """What agents did in the step that led here, by name."""
    source: Mapping[str, str]
    """Who decided it: `policy`, `human` for this person, `other` for another one, …"""
    at: float = 0.0
    """When it came, in seconds."""


class Eyes:
    """Reads drawings one after the other; speeds come from the difference to the sight before."""

    def __init__(self) -> None:
        self._before: deque[tuple[int, int, dict[str, Point]]] = deque(maxlen=1)

    def read(self, episode: int, step: int, drawing: Mapping[str, Any]) -> Scene:
        """A drawing as `VectorEnv.scene` describes it."""
        circles = [shape for shape in drawing["shapes"] if shape["kind"] == "circle"]
        places = {shape["id"]: np.array([shape["x"], shape["y"]], np.float64) for shape in circles}
        agents, landmarks = {}, []
        for shape in circles:
            body = Body(places[shape["id"]], self._velocity(episode, step, shape["id"], places), shape["fill"])
            if shape.get("agent"):
                agents[shape["agent"]] = body
            else:
                landmarks.append(body)
        words = {
            shape["agent"]: shape["text"]
            for shape in drawing["shapes"]
            if shape["kind"] == "text" and shape.get("agent")
        }
        self._before.append((episode, step, places))
        return Scene(agents, landmarks, words, drawing)

    def _velocity(self, episode: int, step: int, name: str, places: Mapping[str, Point]) -> Point:
        for earlier_episode, earlier_step, earlier in self._before:
            passed = step - earlier_step
            if earlier_episode == episode and 0 < passed <= FARTHEST and name in earlier:
                return np.asarray((places[name] - earlier[name]) / (passed * STEP_S))
        return np.zeros(2)
