"""Pictures are those of the `mpe2` package and need no display."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from harl.envs.api import EnvError
from harl.envs.mpe import MPEVectorEnv
from tests.envs.mpe_helpers import SCENARIOS, random_actions
from tests.envs.test_mpe_parity import MPE2_MODULES, as_mpe2, place

HEADLESS = """
import sys
import numpy as np
from harl.envs.mpe import MPEVectorEnv
env = MPEVectorEnv(2, sys.argv[1])
env.reset([0, 1])
env.step(np.zeros((2, env.layout.num_agents, 1), np.float32))
assert not {"pygame", "mpe2"} & sys.modules.keys(), "imported before the first picture"
frame = env.render(1)
assert frame.shape == (700, 700, 3) and frame.std() > 0
"""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_RND_04_rendering_needs_no_display(scenario: str) -> None:
    kept_out = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    environment = {name: value for name, value in os.environ.items() if name not in kept_out}
    done = subprocess.run(
        [sys.executable, "-c", HEADLESS, scenario], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_picture_is_the_one_that_mpe2_draws(scenario: str, continuous: bool) -> None:
    env = MPEVectorEnv(2, scenario, continuous)
    original = importlib.import_module(MPE2_MODULES[scenario]).parallel_env(
        continuous_actions=continuous, render_mode="rgb_array"
    )
    env.reset([3, 4])
    rng = np.random.default_rng(0)
    state = env.get_state()
    place(original, state, 1)
    raw = original.unwrapped
    raw.original_cam_range = np.abs(np.concatenate([state["agent_positions"][1], state["landmark_positions"][1]])).max()
    for agent in raw.world.agents:  # `place` has set goals after `mpe2` had coloured the agents
        if scenario != "simple_spread" and agent._goal_b is not None:
            agent.goal_a.color = agent.goal_b.color + (0.45 if scenario == "simple_speaker_listener" else 0.0)
    frames = []
    for _ in range(5):
        frames.append(env.render(1))
        np.testing.assert_array_equal(frames[-1], original.render())
        actions = random_actions(env.layout, 2, rng)
        env.step(actions)
        original.step(as_mpe2(env.layout, actions[1]))
    assert (frames[-1] != frames[0]).any()
    assert frames[0].shape == (700, 700, 3)
    assert frames[0].dtype == np.uint8


@pytest.mark.parametrize("place_of_all", [0.0, 1e-9, 1e6, np.nan])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_degenerate_states_are_drawn_too(scenario: str, place_of_all: float) -> None:
    env = MPEVectorEnv(1, scenario)
    env.reset([0])
    usual = env.render()
    state = env.get_state()
    env.set_state(
        state
        | {
            "agent_positions": np.full_like(state["agent_positions"], place_of_all),
            "landmark_positions": np.full_like(state["landmark_positions"], place_of_all),
        }
    )
    assert env.render().shape == (700, 700, 3)
    env.set_state(state)
    np.testing.assert_array_equal(env.render(), usual)


def test_rendering_changes_nothing_and_survives_another_environment_being_closed() -> None:
    env, other, unseen = (MPEVectorEnv(2, "simple_reference") for _ in range(3))
    for each in (env, other, unseen):
        each.reset([0, 1])
    rng = np.random.default_rng(0)
    frame = env.render()
    other.render()
    other.close()
    other.close()
    np.testing.assert_array_equal(env.render(), frame)
    for _ in range(3):
        actions = random_actions(env.layout, 2, rng)
        np.testing.assert_array_equal(env.step(actions).obs, unseen.step(actions).obs)
        env.render(1)


def test_bad_requests_are_refused() -> None:
    env = MPEVectorEnv(2)
    with pytest.raises(EnvError, match="call reset before render"):
        env.render()
    env.reset([0, 1])
    with pytest.raises(ValueError, match="environment 2 is not one of 0 to 1"):
        env.render(2)
