"""The batched particle environments keep the contract of `VectorEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harl.envs.api import EnvError, EnvStep
from harl.envs.mpe import MPEVectorEnv
from tests.envs.mpe_helpers import SCENARIOS, random_actions

ARRAYS = ("obs", "share_obs", "active", "rewards", "terminated", "truncated", "ended", "final_obs", "final_share_obs")


def assert_equal_steps(one: EnvStep, other: EnvStep) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def first_observations(env: MPEVectorEnv, episodes: int, seeds: list[int]) -> np.ndarray:
    """(episodes, N, A, obs_dim), reached by `reset` without seeds."""
    firsts = [env.reset(seeds).obs.copy()]
    firsts.extend(env.reset().obs.copy() for _ in range(episodes - 1))
    return np.stack(firsts)


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_shapes_and_types(scenario: str, continuous: bool, state_type: str) -> None:
    env = MPEVectorEnv(4, scenario, continuous, state_type=state_type, max_cycles=2)
    layout, agents = env.layout, env.layout.num_agents
    rng = np.random.default_rng(0)
    steps = [env.reset([1, 2, 3, 4]), *(env.step(random_actions(layout, 4, rng)) for _ in range(2))]
    for step in steps:
        assert step.obs.shape == (4, agents, *layout.obs_shape)
        assert step.share_obs.shape == (4, agents, *layout.share_obs_shape)
        assert step.rewards.shape == step.active.shape == (4, agents, 1)
        assert step.terminated.shape == step.truncated.shape == (4, agents)
        assert step.ended.shape == (4,)
        assert {step.obs.dtype, step.share_obs.dtype, step.rewards.dtype, step.active.dtype} == {np.dtype(np.float32)}
        assert {step.terminated.dtype, step.truncated.dtype, step.ended.dtype} == {np.dtype(np.bool_)}
        assert step.available_actions is None
        assert step.active.all()
        assert not step.terminated.any()
    assert not steps[0].rewards.any()
    for step in steps[:2]:
        assert step.final_obs is None
        assert step.final_share_obs is None
        assert not step.ended.any()
        assert not step.truncated.any()
    assert steps[2].ended.all()
    assert steps[2].truncated.all()
    assert steps[2].final_obs is not None
    assert steps[2].final_obs.shape == steps[2].obs.shape
    assert steps[2].final_share_obs is not None
    assert steps[2].final_share_obs.shape == steps[2].share_obs.shape


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_central_states_are_the_observations_at_their_own_widths(scenario: str) -> None:
    ep, fp = (MPEVectorEnv(3, scenario, state_type=state_type) for state_type in ("EP", "FP"))
    actions = random_actions(ep.layout, 3, np.random.default_rng(0))
    ep.reset([5, 6, 7])
    fp.reset([5, 6, 7])
    shared, own = ep.step(actions), fp.step(actions)
    expected = np.concatenate([shared.obs[:, i, :width] for i, width in enumerate(ep.layout.obs_dims)], axis=1)
    agents = ep.layout.num_agents
    for i in range(agents):
        np.testing.assert_array_equal(shared.share_obs[:, i], expected)
        np.testing.assert_array_equal(own.share_obs[:, i, :-agents], expected)
        np.testing.assert_array_equal(own.share_obs[:, i, -agents:], np.tile(np.eye(agents)[i], (3, 1)))
    for i, width in enumerate(ep.layout.obs_dims):
        assert not shared.obs[:, i, width:].any()


def test_ENV_07_episodes_have_25_steps_unless_told_otherwise() -> None:
    for limit, env in ((25, MPEVectorEnv(2)), (7, MPEVectorEnv(2, max_cycles=7))):
        assert env.episode_limit == limit
        env.reset([0, 1])
        ends = [bool(env.step(np.zeros((2, 3, 1), np.float32)).ended.any()) for _ in range(2 * limit)]
        assert [t + 1 for t, ended in enumerate(ends) if ended] == [limit, 2 * limit]


@pytest.mark.parametrize(("physics", "local_part"), [("mpe2", 0.0), ("classic", -0.5)])
def test_ENV_08_an_agent_does_not_collide_with_itself(physics: str, local_part: float) -> None:
    """Three agents far apart; the classic physics keeps the fault, which the published curves contain."""
    env = MPEVectorEnv(1, physics=physics, local_ratio=0.5)
    env.reset([0])
    state = env.get_state()
    state["agent_positions"][0] = [[-5, 0], [0, 5], [5, 0]]
    state["landmark_positions"][0] = [[-5, 1], [0, 6], [5, 1]]
    env.set_state(state)
    team_part = -0.5 * 3
    np.testing.assert_allclose(env.step(np.zeros((1, 3, 1), np.float32)).rewards[0, :, 0], team_part + local_part)


def test_touching_agents_are_charged_each() -> None:
    env = MPEVectorEnv(1, local_ratio=1.0)
    env.reset([0])
    state = env.get_state()
    state["agent_positions"][0] = [[0, 0], [0.1, 0], [3, 3]]
    env.set_state(state)
    assert env.step(np.zeros((1, 3, 1), np.float32)).rewards[0, :, 0].tolist() == [-1, -1, 0]


def test_bodies_on_the_very_same_spot_stay_finite() -> None:
    env = MPEVectorEnv(1)
    env.reset([0])
    state = env.get_state()
    state["agent_positions"][0] = 0.5
    env.set_state(state)
    step = env.step(np.array([[[1], [2], [0]]], np.float32))
    assert np.isfinite(step.obs).all()
    assert np.isfinite(env.step(np.zeros((1, 3, 1), np.float32)).obs).all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_TLB_05_the_final_observation_is_the_true_last_one(scenario: str) -> None:
    """The same episodes with and without a cut: what the cut one calls final, the other goes on from."""
    cut, uncut = (MPEVectorEnv(3, scenario, max_cycles=limit) for limit in (5, 1000))
    rng = np.random.default_rng(0)
    cut.reset([1, 2, 3])
    for _ in range(4):
        uncut.reset([1, 2, 3])
        uncut.set_state(cut.get_state())
        for t in range(5):
            actions = random_actions(cut.layout, 3, rng)
            short, long = cut.step(actions), uncut.step(actions)
            np.testing.assert_array_equal(short.rewards, long.rewards)
            if t < 4:
                np.testing.assert_array_equal(short.obs, long.obs)
        assert short.final_obs is not None
        np.testing.assert_array_equal(short.final_obs, long.obs)
        np.testing.assert_array_equal(short.final_share_obs, long.share_obs)
        assert (np.abs(short.obs - short.final_obs).max(axis=(1, 2)) > 0.01).all(), "the reset one was handed out"


def test_only_those_environments_are_reset_whose_episode_ended() -> None:
    env, other = MPEVectorEnv(4, "simple_reference"), MPEVectorEnv(4, "simple_reference", max_cycles=1000)
    env.reset([1, 2, 3, 4])
    state = env.get_state()
    state["steps"][:] = [24, 3, 24, 0]
    env.set_state(state)
    other.set_state(state)
    actions = random_actions(env.layout, 4, np.random.default_rng(0))
    step, uncut = env.step(actions), other.step(actions)
    ended = np.array([True, False, True, False])
    np.testing.assert_array_equal(step.ended, ended)
    np.testing.assert_array_equal(step.truncated, np.tile(ended[:, None], 2))
    np.testing.assert_array_equal(step.rewards, uncut.rewards)
    np.testing.assert_array_equal(step.obs[~ended], uncut.obs[~ended])
    assert step.final_obs is not None
    assert step.final_share_obs is not None
    np.testing.assert_array_equal(step.final_obs[ended], uncut.obs[ended])
    np.testing.assert_array_equal(step.final_share_obs[ended], uncut.share_obs[ended])
    after = env.get_state()
    assert after["steps"].tolist() == [0, 4, 0, 1]
    assert after["episodes"].tolist() == [1, 0, 1, 0]
    assert not after["agent_velocities"][ended].any()
    assert not after["speech"][ended].any()
    np.testing.assert_array_equal(step.obs[ended], MPEVectorEnv.reset(_second_episode([1, 2, 3, 4])).obs[ended])


def _second_episode(seeds: list[int]) -> MPEVectorEnv:
    """An environment whose next `reset` begins the second episode of these seeds."""
    env = MPEVectorEnv(len(seeds), "simple_reference")
    env.reset(seeds)
    return env


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_SED_04_seeds_decide_the_first_observations(scenario: str) -> None:
    env = MPEVectorEnv(4, scenario)
    first = env.reset([7, 8, 9, 10]).obs.copy()
    assert len(np.unique(first.reshape(4, -1), axis=0)) == 4
    np.testing.assert_array_equal(first, env.reset([7, 8, 9, 10]).obs)
    np.testing.assert_array_equal(first, MPEVectorEnv(4, scenario).reset([7, 8, 9, 10]).obs)
    changed = env.reset([11, 12, 13, 14]).obs
    assert (np.abs(changed - first).max(axis=(1, 2)) > 0.01).all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_SED_07_successive_episodes_differ_and_repeat_across_runs(scenario: str) -> None:
    firsts = first_observations(MPEVectorEnv(2, scenario), 5, [3, 4])
    assert len(np.unique(firsts.reshape(10, -1), axis=0)) == 10
    np.testing.assert_array_equal(firsts, first_observations(MPEVectorEnv(2, scenario), 5, [3, 4]))
    env = MPEVectorEnv(2, scenario, max_cycles=1)
    env.reset([3, 4])
    rng = np.random.default_rng(0)
    for episode in range(1, 5):  # the reset within the step goes the same way
        np.testing.assert_array_equal(env.step(random_actions(env.layout, 2, rng)).obs, firsts[episode])


def test_environments_that_nobody_seeds_differ() -> None:
    assert not np.array_equal(MPEVectorEnv(1).reset().obs, MPEVectorEnv(1).reset().obs)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_environment_does_not_depend_on_how_many_there_are(scenario: str) -> None:
    few, many = MPEVectorEnv(4, scenario, True), MPEVectorEnv(20, scenario, True)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(few.reset(list(range(4))).obs[3], many.reset(list(range(20))).obs[3])
    for _ in range(60):
        actions = random_actions(many.layout, 20, rng)
        one, other = few.step(actions[:4]), many.step(actions)
        np.testing.assert_array_equal(one.obs[3], other.obs[3])
        np.testing.assert_array_equal(one.rewards[3], other.rewards[3])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_saved_state_continues_to_the_bit(scenario: str) -> None:
    env, restored = MPEVectorEnv(3, scenario), MPEVectorEnv(3, scenario)
    assert env.can_save_state
    rng = np.random.default_rng(0)
    env.reset([1, 2, 3])
    for _ in range(30):  # into the second episode
        env.step(random_actions(env.layout, 3, rng))
    state = env.get_state()
    kept = {name: array.copy() for name, array in state.items()}
    restored.set_state(state)
    assert_equal_steps(restored.observe(), env.observe())
    for _ in range(60):
        actions = random_actions(env.layout, 3, rng)
        assert_equal_steps(env.step(actions), restored.step(actions))
    assert_equal_steps(env.reset(), restored.reset())
    for name, array in state.items():
        np.testing.assert_array_equal(array, kept[name], err_msg=f"{name} was changed by later steps")


def test_what_a_step_returned_stays_as_it_was() -> None:
    """More than the contract asks: the arrays that change are new in every step."""
    env = MPEVectorEnv(2)
    step = env.reset([0, 1])
    kept = {name: getattr(step, name).copy() for name in ("obs", "share_obs", "rewards", "ended", "truncated")}
    for _ in range(30):
        env.step(random_actions(env.layout, 2, np.random.default_rng(0)))
    for name, array in kept.items():
        np.testing.assert_array_equal(getattr(step, name), array, err_msg=name)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MPEVectorEnv(1, "simple_spred"), ["'simple_spread'", "simple_speaker_listener", "env=pettingzoo"]),
        (lambda: MPEVectorEnv(1, "simple_tag"), ["simple_reference", "env=pettingzoo"]),
        (lambda: MPEVectorEnv(1, physics="mpe"), ["physics", "mpe2, classic"]),
        (lambda: MPEVectorEnv(1, state_type="ep"), ["state_type", "EP, FP"]),
        (lambda: MPEVectorEnv(0), ["num_envs", "0"]),
        (lambda: MPEVectorEnv(1, max_cycles=0), ["max_cycles", "0"]),
        (lambda: MPEVectorEnv(1, max_cycles=2.5), ["max_cycles", "2.5"]),  # type: ignore[arg-type]
        (lambda: MPEVectorEnv(1, N=0), ["N must be", "0"]),
        (lambda: MPEVectorEnv(1, "simple_reference", N=3), ["simple_reference has no N"]),
        (lambda: MPEVectorEnv(1, local_ratio=1.5), ["local_ratio", "1.5"]),
        (lambda: MPEVectorEnv(1, local_ratio=float("nan")), ["local_ratio", "nan"]),
        (lambda: MPEVectorEnv(1, "simple_speaker_listener", local_ratio=0.5), ["has no local_ratio"]),
        (lambda: MPEVectorEnv(2).reset([1]), ["1 seeds", "2 environments"]),
        (lambda: MPEVectorEnv(1).reset([-1]), ["-1", "2**63 - 1"]),
        (lambda: MPEVectorEnv(1).reset([2**63]), [str(2**63), "2**63 - 1"]),
    ],
)
def test_bad_arguments_are_named(build: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match="mpe: ") as error:
        build()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("value", [-1, 5])
def test_a_discrete_action_out_of_range_is_refused_and_changes_nothing(value: int) -> None:
    env = MPEVectorEnv(2, "simple_speaker_listener")
    before = env.reset([0, 1])
    actions = np.zeros((2, 2, 1), np.float32)
    actions[1, 1] = value
    with pytest.raises(ValueError, match=f"action {value} of listener_0 in environment 1 is not one of 0 to 4"):
        env.step(actions)
    assert_equal_steps(env.observe(), before)
    actions[1] = [[3], [0]]
    with pytest.raises(ValueError, match="action 3 of speaker_0 in environment 1 is not one of 0 to 2"):
        env.step(actions)


def test_misuse_is_refused() -> None:
    env = MPEVectorEnv(2)
    with pytest.raises(EnvError, match="call reset before step"):
        env.step(np.zeros((2, 3, 1), np.float32))
    env.reset([0, 1])
    with pytest.raises(ValueError, match=r"shape \(2, 3, 1\).*not \(2, 3, 5\)"):
        env.step(np.zeros((2, 3, 5), np.float32))
    state = env.get_state()
    with pytest.raises(ValueError, match=r"'goals'.*'gaols'"):
        env.set_state({"gaols" if name == "goals" else name: array for name, array in state.items()})
    with pytest.raises(ValueError, match=r"steps must have shape \(2,\), not \(3,\)"):
        env.set_state(state | {"steps": np.zeros(3, np.int64)})
    reference = MPEVectorEnv(1, "simple_reference")
    reference.reset([0])
    with pytest.raises(ValueError, match="landmark indices from 0 to 2"):
        reference.set_state(reference.get_state() | {"goals": np.array([[0, 3]])})
