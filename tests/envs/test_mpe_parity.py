"""The batched particle environments equal the published ones, step for step."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.envs.api import Layout
from harl.envs.mpe import MPEVectorEnv
from tests.envs.mpe_helpers import random_actions

RECORDINGS = Path(__file__).parents[1] / "data" / "mpe_classic_trajectories.npz"
MPE2_MODULES = {
    "simple_spread": "mpe2.simple_spread_v3",
    "simple_reference": "mpe2.simple_reference_v3",
    "simple_speaker_listener": "mpe2.simple_speaker_listener_v4",
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("simple_spread", {"N": size}) for size in (1, 2, 3, 5)),
    *(("simple_spread", {"local_ratio": ratio}) for ratio in (0.0, 1.0)),
    *(("simple_reference", {"local_ratio": ratio}) for ratio in (0.0, 0.5, 1.0)),
    ("simple_speaker_listener", {}),
]


def place(mpe2_env: Any, state: dict[str, Any], env: int) -> None:
    """Give an environment of `mpe2` the state that one of ours has."""
    mpe2_env.reset(seed=0)
    world = mpe2_env.unwrapped.world
    for agent, position, velocity in zip(
        world.agents, state["agent_positions"][env], state["agent_velocities"][env], strict=True
    ):
        agent.state.p_pos, agent.state.p_vel = position.copy(), velocity.copy()
    for landmark, position in zip(world.landmarks, state["landmark_positions"][env], strict=True):
        landmark.state.p_pos = position.copy()
    for agent, goal in zip(world.agents, state["goals"][env], strict=False):
        agent.goal_b = world.landmarks[goal]


def as_mpe2(layout: Layout, actions: np.ndarray) -> dict[str, Any]:
    """One environment's actions as a dict by agent."""
    return {
        agent: int(actions[i, 0]) if layout.action_numbers[i] else actions[i, : layout.action_dims[i]]
        for i, agent in enumerate(layout.agents)
    }


def padded(layout: Layout, observations: dict[str, np.ndarray]) -> np.ndarray:
    wide = np.zeros((layout.num_agents, *layout.obs_shape), np.float32)
    for i, agent in enumerate(layout.agents):
        wide[i, : layout.obs_dims[i]] = observations[agent]
    return wide


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize(("scenario", "options"), VARIANTS, ids=lambda value: str(value).replace(" ", ""))
def test_equals_mpe2_over_whole_episodes(scenario: str, options: dict[str, Any], continuous: bool) -> None:
    num_envs, rng = 4, np.random.default_rng(0)
    env = MPEVectorEnv(num_envs, scenario, continuous, **options)
    originals = [
        importlib.import_module(MPE2_MODULES[scenario]).parallel_env(continuous_actions=continuous, **options)
        for _ in range(num_envs)
    ]
    env.reset(list(range(num_envs)))
    touched = False
    for episode in range(3):
        state = env.get_state()
        if episode == 1:  # crowd the bodies, so that the contact forces count
            state["agent_positions"] *= 0.25
            env.set_state(state)
        for n, original in enumerate(originals):
            place(original, state, n)
        first = env.observe()
        for n, original in enumerate(originals):
            np.testing.assert_allclose(first.share_obs[n, 0], original.state(), atol=1e-6)
        for cycle in range(25):
            actions = random_actions(env.layout, num_envs, rng)
            step = env.step(actions)
            last = cycle == 24
            assert step.ended.all() == step.ended.any() == last
            obs, share_obs = (step.final_obs, step.final_share_obs) if last else (step.obs, step.share_obs)
            assert obs is not None
            assert share_obs is not None
            for n, original in enumerate(originals):
                seen, rewards, terminated, truncated, _ = original.step(as_mpe2(env.layout, actions[n]))
                np.testing.assert_allclose(obs[n], padded(env.layout, seen), atol=1e-5)
                np.testing.assert_allclose(share_obs[n], np.tile(original.state(), (len(seen), 1)), atol=1e-5)
                np.testing.assert_allclose(step.rewards[n, :, 0], list(rewards.values()), atol=1e-5)
                assert step.terminated[n].tolist() == list(terminated.values())
                assert step.truncated[n].tolist() == list(truncated.values())
            touched |= bool((step.rewards.std(axis=1) > 0).any())
    if scenario == "simple_spread" and env.layout.num_agents > 2 and options.get("local_ratio") != 0.0:
        assert touched, "no agent collided more often than another: the test saw no contact"


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("scenario", list(MPE2_MODULES))
def test_spaces_equal_those_of_mpe2(scenario: str, continuous: bool) -> None:
    layout = MPEVectorEnv(1, scenario, continuous).layout
    original = importlib.import_module(MPE2_MODULES[scenario]).parallel_env(continuous_actions=continuous)
    assert layout.agents == tuple(original.possible_agents)
    assert layout.action_spaces == tuple(original.action_space(agent) for agent in layout.agents)
    assert layout.observation_spaces == tuple(original.observation_space(agent) for agent in layout.agents)
    assert layout.share_obs_shape == original.state_space.shape


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("recorded", ["simple_spread_v2", "simple_reference_v2", "simple_speaker_listener_v3"])
def test_classic_physics_equals_the_recorded_trajectories(recorded: str, kind: str) -> None:
    """Three episodes of pettingzoo 1.22.2, played in three environments at once."""
    with np.load(RECORDINGS) as recordings:
        prefix = f"{recorded}/{kind}/"
        data = {key.removeprefix(prefix): recordings[key] for key in recordings if key.startswith(prefix)}
    episodes = sorted({key.split("/")[0] for key in data})
    assert len(episodes) == 3

    def every(name: str) -> np.ndarray:
        return np.stack([data[f"{episode}/{name}"] for episode in episodes])

    env = MPEVectorEnv(3, recorded.rsplit("_", 1)[0], kind == "continuous", physics="classic")
    env.reset([0, 1, 2])
    state = env.get_state()
    state["agent_positions"], state["agent_velocities"] = every("agent_pos"), every("agent_vel")
    state["landmark_positions"] = every("landmark_pos")
    state["goals"] = every("goals")[:, : state["goals"].shape[1], 1]
    env.set_state(state)
    first, agents = env.observe(), env.layout.agents
    for i, agent in enumerate(agents):
        np.testing.assert_allclose(first.obs[:, i, : env.layout.obs_dims[i]], every(f"obs0/{agent}"), atol=1e-6)
    for t in range(25):
        actions = np.zeros((3, len(agents), env.layout.action_dim), np.float32)
        for i, agent in enumerate(agents):
            actions[:, i, : env.layout.action_dims[i]] = every(f"actions/{agent}")[:, t].reshape(3, -1)
        step = env.step(actions)
        obs = step.obs if t < 24 else step.final_obs
        assert obs is not None
        np.testing.assert_allclose(step.rewards[:, :, 0], every("rewards")[:, t], atol=1e-5)
        for i, agent in enumerate(agents):
            np.testing.assert_allclose(
                obs[:, i, : env.layout.obs_dims[i]], every(f"obs/{agent}")[:, t], atol=1e-5, err_msg=f"step {t}"
            )
