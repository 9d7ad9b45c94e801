"""Agents that differ in their spaces, and every kind of space, through `ParallelVectorEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harl.envs.api import EnvError
from harl.envs.check import random_actions
from harl.envs.parallel import ParallelVectorEnv
from tests.envs.fixtures import FixtureEnv, Hetero


class Spaces(FixtureEnv):
    """One agent for each (observation space, observation, action space); remembers what was sent."""

    def __init__(self, *agents: tuple[spaces.Space[Any], Any, spaces.Space[Any]]) -> None:
        super().__init__(len(agents), 5)
        self.observation_spaces = {name: entry[0] for name, entry in zip(self.possible_agents, agents, strict=True)}
        self.action_spaces = {name: entry[2] for name, entry in zip(self.possible_agents, agents, strict=True)}
        self.shown = {name: entry[1] for name, entry in zip(self.possible_agents, agents, strict=True)}
        self.sent: dict[str, Any] = {}

    def observe(self, agent: str) -> Any:
        return self.shown[agent]

    def reward(self, agent: str, action: Any) -> float:
        self.sent[agent] = action
        return 0.0


def box(*shape: int, low: float = -1.0, high: float = 1.0, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def observing(space: spaces.Space[Any], observation: Any) -> tuple[spaces.Space[Any], Any, spaces.Space[Any]]:
    return space, observation, spaces.Discrete(2)


def acting(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Any, spaces.Space[Any]]:
    return box(1), np.zeros(1, np.float32), space


def send(space: spaces.Space[Any], row: list[float]) -> Any:
    """What an environment whose agent acts in `space` gets for a row of the action array."""
    own = Spaces(acting(space))
    env = ParallelVectorEnv(lambda: own, 1)
    env.reset([1])
    env.step(np.array([[row]], np.float32))
    return own.sent["agent_0"]


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_het_02_four_kinds_of_agents_share_the_arrays(state_type: str) -> None:
    env = ParallelVectorEnv(Hetero, 3, state_type)
    layout = env.layout
    assert layout.obs_dims == (3, 7, 11, 4)
    assert layout.action_dims == (1, 1, 2, 2)
    assert layout.action_numbers == (3, 5, 5, 0)
    view = env.reset([1, 2, 3])
    assert view.obs.shape == (3, 4, 11)
    rng = np.random.default_rng(0)
    for _ in range(25):
        view = env.step(random_actions(env, view, rng))  # Hetero raises on an action outside of an agent's own space
        for agent, width in enumerate(layout.obs_dims):
            assert (view.obs[:, agent, :width] != 0).all()
            assert (view.obs[:, agent, width:] == 0).all()
        joined = np.concatenate([view.obs[:, i, :width] for i, width in enumerate(layout.obs_dims)], axis=1)
        np.testing.assert_array_equal(view.share_obs[:, 2, :25], joined)


def test_het_04_a_discrete_observation_is_seen_one_hot_beside_padded_boxes() -> None:
    own = Spaces(
        observing(spaces.Discrete(4, start=2), np.int64(3)),
        observing(box(3), np.array([0.1, 0.2, 0.3], np.float32)),
        observing(box(7, low=-9.0, high=-1.0), np.full(7, -2.0, np.float32)),
    )
    env = ParallelVectorEnv(lambda: own, 1)
    view = env.reset([1])
    assert env.layout.obs_dims == (4, 3, 7)
    assert view.obs[0, 0].tolist() == [0, 1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(view.obs[0, 1], [0.1, 0.2, 0.3, 0, 0, 0, 0], rtol=1e-6)
    assert view.obs[0, 2].tolist() == [-2] * 7
    assert view.share_obs.shape == (1, 3, 14)
    assert view.share_obs[0, 0, :4].tolist() == [0, 1, 0, 0]
    own.shown["agent_0"] = 5
    assert env.step(np.zeros((1, 3, 1), np.float32)).obs[0, 0].tolist() == [0, 0, 0, 1, 0, 0, 0]
    own.shown["agent_0"] = 6
    with pytest.raises(EnvError, match=r"agent 'agent_0'.*whole number from 2 to 5, received array\(6\)"):
        env.step(np.zeros((1, 3, 1), np.float32))


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_come_channels_first(channels_last: bool) -> None:
    picture = np.arange(2 * 5 * 4, dtype=np.uint8).reshape(5, 4, 2)
    shown = picture if channels_last else picture.transpose(2, 0, 1)
    agent = observing(spaces.Box(0, 255, shown.shape, np.uint8), shown)
    env = ParallelVectorEnv(lambda: Spaces(agent, agent), 1)
    view = env.reset([1])
    assert env.layout.obs_shape == (2, 5, 4)
    assert view.obs.dtype == np.float32
    np.testing.assert_array_equal(view.obs[0, 1], picture.transpose(2, 0, 1))
    assert view.share_obs.shape == (1, 2, 4, 5, 4)
    identified = ParallelVectorEnv(lambda: Spaces(agent, agent), 1, "FP").reset([1]).share_obs
    assert identified.shape == (1, 2, 6, 5, 4)
    assert (identified[0, 1, 4] == 0).all()
    assert (identified[0, 1, 5] == 1).all()


def test_other_ranks_are_flattened_and_mixed_images_refused() -> None:
    image = spaces.Box(0, 255, (5, 4, 3), np.uint8)
    matrix = observing(box(2, 3), np.arange(6).reshape(2, 3))
    view = ParallelVectorEnv(lambda: Spaces(matrix), 1).reset([1])
    assert view.obs[0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(EnvError, match="images of different shapes, or images beside vectors"):
        ParallelVectorEnv(lambda: Spaces(observing(image, np.zeros((5, 4, 3), np.uint8)), matrix), 1)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.MultiBinary(3), "agent 'agent_0': observation space MultiBinary.*allowed: Box, Discrete"),
        (spaces.Dict({"x": box(1)}), r"Dict observation space has the keys \['x'\]"),
    ],
)
def test_unsupported_observation_spaces_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        ParallelVectorEnv(lambda: Spaces(observing(space, None)), 1)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (box(2, dtype=np.int32), "'agent_0'.*is a Box of int32"),
        (box(2, 2), "'agent_0'.*allowed: Discrete, MultiDiscrete, one-dimensional Box"),
        (spaces.MultiBinary(3), "'agent_0'.*allowed: Discrete, MultiDiscrete, one-dimensional Box"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "'agent_0'(?s:.*)one-dimensional nvec"),
    ],
)
def test_het_08_unsupported_action_spaces_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        ParallelVectorEnv(lambda: Spaces(acting(space)), 1)


def test_het_07_multidiscrete_actions_arrive_whole() -> None:
    action = send(spaces.MultiDiscrete([3, 2], start=[1, 5]), [2.0, 1.0])
    assert action.tolist() == [3, 6]
    assert action.dtype == np.int64
    for row in ([3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]):
        with pytest.raises(EnvError, match=r"agent 'agent_0': action .* is outside of MultiDiscrete"):
            send(spaces.MultiDiscrete([3, 2]), row)


def test_discrete_actions_begin_at_the_spaces_start() -> None:
    action = send(spaces.Discrete(3, start=-1), [0.0])
    assert action == -1
    assert np.issubdtype(type(action), np.integer)
    with pytest.raises(EnvError, match="action 3 is outside of 0 to 2"):
        send(spaces.Discrete(3), [3.0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_dty_01_box_actions_have_the_declared_dtype_and_stay_inside(dtype: Any) -> None:
    space = spaces.Box(np.array([-0.1, 0.0], dtype), np.array([0.1, 10.0], dtype), dtype=dtype)
    action = send(space, [float(np.float32(0.1)), 2.5])
    assert action.dtype == dtype
    assert action.shape == (2,)
    assert space.contains(action)


def test_dty_01_float64_observations_become_float32() -> None:
    agent = observing(box(2, dtype=np.float64), np.array([0.1, 0.2]))
    view = ParallelVectorEnv(lambda: Spaces(agent), 1).reset([1])
    assert view.obs.dtype == view.share_obs.dtype == np.float32
    np.testing.assert_array_equal(view.obs[0, 0], np.array([0.1, 0.2], np.float32))
