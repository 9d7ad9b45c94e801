"""The scene says the same as the state and as the picture, without a picture being drawn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from harl.envs.api import EnvError
from harl.envs.mpe import MPEVectorEnv
from harl.envs.mpe.rendering import Renderer
from harl.envs.mpe.scenarios import SCENARIOS as SCENARIO_TYPES
from harl.envs.mpe.scene import LANDMARK_COLOURS
from harl.envs.palette import AGENT_COLOURS, INK, agent_colour, lighter
from tests.envs.mpe_helpers import SCENARIOS, random_actions


def circles(scene: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {shape["id"]: shape for shape in scene["shapes"] if shape["kind"] == "circle"}


def words(scene: dict[str, Any]) -> dict[str, str]:
    return {shape["agent"]: shape["text"] for shape in scene["shapes"] if shape["kind"] == "text"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_bodies_are_where_the_state_has_them(scenario: str) -> None:
    env = MPEVectorEnv(3, scenario)
    env.reset([0, 1, 2])
    rng = np.random.default_rng(0)
    for _ in range(4):
        env.step(random_actions(env.layout, 3, rng))
    for index in range(3):
        scene = env.scene(index)
        state = env.get_state()
        shown = circles(scene)
        assert len(shown) == len(state["agent_positions"][index]) + len(state["landmark_positions"][index])
        for agent, place in zip(env.layout.agents, state["agent_positions"][index], strict=True):
            assert (shown[agent]["x"], shown[agent]["y"]) == pytest.approx(tuple(place), abs=1e-4)
            assert shown[agent]["agent"] == shown[agent]["label"] == agent
        for number, place in enumerate(state["landmark_positions"][index]):
            body = shown[f"landmark_{number}"]
            assert (body["x"], body["y"]) == pytest.approx(tuple(place), abs=1e-4)
            assert body["agent"] is None
        assert len({shape["id"] for shape in scene["shapes"]}) == len(scene["shapes"])
        assert json.loads(json.dumps(scene, allow_nan=False)) == scene


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sizes_are_those_of_the_picture(scenario: str) -> None:
    env = MPEVectorEnv(1, scenario)
    env.reset([0])
    stage = Renderer(SCENARIO_TYPES[scenario](), continuous_actions=False)._build_stage()
    shown = circles(env.scene())
    sizes = [body.size for body in stage.world.agents], [body.size for body in stage.world.landmarks[:-1]]
    assert [shown[agent]["r"] for agent in env.layout.agents] == sizes[0]
    assert [shown[f"landmark_{number}"]["r"] for number in range(len(sizes[1]))] == sizes[1]


def test_goals_are_the_colours_of_those_who_have_to_reach_them() -> None:
    env = MPEVectorEnv(1, "simple_reference")
    env.reset([0])
    env.set_state(env.get_state() | {"goals": np.array([[2, 0]])})
    shown = circles(env.scene())
    assert [shown[f"landmark_{number}"]["fill"] for number in range(3)] == list(LANDMARK_COLOURS)
    assert shown["agent_1"]["fill"] == LANDMARK_COLOURS[2], "agent_0 knows where agent_1 has to go"
    assert shown["agent_0"]["fill"] == LANDMARK_COLOURS[0]

    env = MPEVectorEnv(1, "simple_speaker_listener")
    env.reset([0])
    env.set_state(env.get_state() | {"goals": np.array([[1]])})
    shown = circles(env.scene())
    assert shown["speaker_0"]["fill"] == INK
    assert shown["listener_0"]["fill"] == lighter(LANDMARK_COLOURS[1], 0.45)


def test_agents_without_goals_are_told_apart_by_colour() -> None:
    env = MPEVectorEnv(1, "simple_spread", N=4)
    env.reset([0])
    shown = circles(env.scene())
    assert [shown[agent]["fill"] for agent in env.layout.agents] == list(AGENT_COLOURS[:4])
    assert agent_colour(len(AGENT_COLOURS)) == AGENT_COLOURS[0]


def test_what_was_said_is_shown() -> None:
    env = MPEVectorEnv(1, "simple_reference")
    env.reset([0])
    assert words(env.scene()) == {"agent_0": "_", "agent_1": "_"}
    env.step(np.array([[[5.0], [47.0]]], np.float32))
    assert words(env.scene()) == {"agent_0": "B", "agent_1": "J"}

    env = MPEVectorEnv(1, "simple_speaker_listener", continuous_actions=True)
    env.reset([0])
    env.step(np.array([[[0.25, 0.75, 0, 0, 0], [0, 0, 0, 0, 0]]], np.float32))
    assert words(env.scene()) == {"speaker_0": "B 0.75"}


@pytest.mark.parametrize("place_of_all", [0.0, 1e-9, 2.7, 1e6, np.nan])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_everything_is_in_view_and_is_json(scenario: str, place_of_all: float) -> None:
    env = MPEVectorEnv(1, scenario)
    env.reset([0])
    usual = env.scene()["bounds"]
    state = env.get_state()
    env.set_state(state | {"agent_positions": np.full_like(state["agent_positions"], place_of_all)})
    scene = env.scene()
    json.dumps(scene, allow_nan=False)
    low_x, low_y, high_x, high_y = scene["bounds"]
    for body in circles(scene).values():
        assert low_x < body["x"] < high_x
        assert low_y < body["y"] < high_y
    assert (high_x > usual[2]) is (place_of_all > 2.0)


def test_describing_changes_nothing() -> None:
    env, unseen = MPEVectorEnv(2, "simple_reference"), MPEVectorEnv(2, "simple_reference")
    env.reset([0, 1])
    unseen.reset([0, 1])
    rng = np.random.default_rng(0)
    for _ in range(3):
        assert env.scene(1) == env.scene(1)
        actions = random_actions(env.layout, 2, rng)
        np.testing.assert_array_equal(env.step(actions).obs, unseen.step(actions).obs)


def test_bad_requests_are_refused() -> None:
    env = MPEVectorEnv(2)
    with pytest.raises(EnvError, match="call reset before scene"):
        env.scene()
    env.reset([0, 1])
    with pytest.raises(ValueError, match="environment 2 is not one of 0 to 1"):
        env.scene(2)
