"""A world as shapes that a page can draw, with the meaning that colours have in `mpe2`'s pictures."""

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs import palette
from harl.envs.mpe.scenarios import Scenario
from harl.envs.mpe.world import World

LANDMARK_COLOURS = (palette.VERMILLION, palette.GREEN, palette.BLUE)
"""In place of the red, green and blue of `mpe2`, which not everybody tells apart."""
USUAL_VIEW = 1.3
"""Half the side of the view: bodies start within 1 of the centre."""
MARGIN = 0.15
"""Between the place of the outermost body and the edge."""
ZOOM_STEP = 0.5
"""A view that followed the outermost body as closely as `mpe2`'s would never be at rest: it grows in steps."""
DECIMALS = 4


def draw_scene(scenario: Scenario, world: World, env_index: int, graded_speech: bool) -> dict[str, Any]:
    """Bodies, colours and words of one world, as `harl.envs.api.VectorEnv.scene` says.

    What is not a finite number is drawn at the centre, as in pictures. Where speech is graded, its strength is shown.
    """
    places = np.nan_to_num(world.positions[:, :, env_index], posinf=0.0, neginf=0.0)
    speech = np.nan_to_num(world.speech[:, :, env_index])
    agents = scenario.num_agents
    colours = _agent_colours(scenario, world.goals[:, env_index])
    landmarks = [
        _circle(f"landmark_{i}", place, scenario.landmark_radius, _landmark_colour(scenario, i))
        for i, place in enumerate(places[agents:])
    ]
    bodies = [
        _circle(name, place, scenario.agent_radius, colour) | {"agent": name, "label": name}
        for name, place, colour in zip(scenario.agents, places, colours, strict=False)
    ]
    words = [
        {
            "id": f"{scenario.agents[i]} says",
            "kind": "text",
            "x": _rounded(places[i, 0]),
            "y": _rounded(places[i, 1] + scenario.agent_radius),
            "text": _word(speech[i], graded_speech),
            "agent": scenario.agents[i],
        }
        for i in range(agents)[scenario.speakers]
    ]
    reach = _reach(places)
    return {"bounds": [-reach, -reach, reach, reach], "shapes": landmarks + bodies + words}


def _agent_colours(scenario: Scenario, goals: NDArray[np.int64]) -> list[str]:
    """Where an agent has a goal it wears the colour of the landmark that it has to reach; else colours only tell
    agents apart, or there are none for those that go nowhere."""
    if not scenario.num_goals:
        return [palette.agent_colour(i) for i in range(scenario.num_agents)]
    colours = [palette.INK] * scenario.num_agents
    for walker, goal in zip(range(scenario.num_agents)[scenario.walkers], goals, strict=True):
        colours[walker] = palette.lighter(LANDMARK_COLOURS[goal], scenario.goal_brightening)
    return colours


def _landmark_colour(scenario: Scenario, index: int) -> str:
    return LANDMARK_COLOURS[index] if scenario.num_goals else palette.INK


def _circle(name: str, place: NDArray[np.float64], radius: float, fill: str) -> dict[str, Any]:
    where = {"x": _rounded(place[0]), "y": _rounded(place[1]), "r": radius}
    return {"id": name, "kind": "circle", **where, "fill": fill, "agent": None, "label": None}


def _word(said: NDArray[np.float64], graded: bool) -> str:
    """The loudest word, `_` for silence."""
    if not said.any():
        return "_"
    loudest = int(said.argmax())
    letter = string.ascii_uppercase[loudest]
    return f"{letter} {said[loudest]:.2f}" if graded else letter


def _reach(places: NDArray[np.float64]) -> float:
    """Half the side of a square around the centre with all bodies in it."""
    beyond = float(np.abs(places).max()) + MARGIN - USUAL_VIEW
    return USUAL_VIEW + max(0, math.ceil(beyond / ZOOM_STEP)) * ZOOM_STEP


def _rounded(number: np.float64) -> float:
    return round(float(number), DECIMALS)
