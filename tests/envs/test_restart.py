"""Restarting one of several environments, and how the step record says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harl.envs.api import EnvError, EnvStep, FloatArray, VectorEnv
from harl.envs.breaking_off import break_off
from harl.envs.mpe import MPEVectorEnv
from harl.envs.parallel import ParallelVectorEnv
from tests.envs.fixtures import Deaths, Identity, MaskOnly

Build = Callable[[], VectorEnv]


def particles() -> VectorEnv:
    return MPEVectorEnv(3, "simple_reference", state_type="FP", max_cycles=6)


def identity() -> VectorEnv:
    return ParallelVectorEnv(lambda: Identity(T=6), 3)


def masked() -> VectorEnv:
    return ParallelVectorEnv(MaskOnly, 3)


def with_deaths() -> VectorEnv:
    return ParallelVectorEnv(Deaths, 3)


ALL = pytest.mark.parametrize("build", [particles, identity, masked, with_deaths])


def legal(env: VectorEnv, now: EnvStep) -> FloatArray:
    """The first action that is allowed, everywhere."""
    actions = np.zeros((env.num_envs, env.layout.num_agents, env.layout.action_dim), np.float32)
    if now.available_actions is not None:
        actions[..., 0] = now.available_actions.argmax(-1)
    return actions


def taken(env: VectorEnv, seeds: list[int], steps: int) -> tuple[EnvStep, FloatArray]:
    """The environments after some steps, and what was seen in between."""
    now = env.reset(seeds)
    seen = [now.obs.copy()]
    for _ in range(steps):
        now = env.step(legal(env, now))
        seen.append(now.obs.copy())
    return now, np.stack(seen)


def assert_same_view(one: EnvStep, other: EnvStep, rows: Any) -> None:
    for name in ("obs", "share_obs", "active", "available_actions"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_array_equal(first[rows], second[rows], err_msg=name)


@ALL
def test_the_restarted_environment_begins_its_next_episode_and_the_others_go_on(build: Build) -> None:
    env, plain = build(), build()
    taken(env, [4, 5, 6], 2)
    now, _ = taken(plain, [4, 5, 6], 2)
    after = env.restart([1])
    assert not after.ended.any()
    assert not after.terminated.any()
    assert not after.rewards.any()
    assert_same_view(after, now, [0, 2])
    assert (after.active[1] == 1).all()
    follows = build()
    taken(follows, [4, 5, 6], 2)
    assert_same_view(after, follows.reset(), [1])  # the episode that comes next in its own stream
    for _ in range(3):
        after, now = env.step(legal(env, after)), plain.step(legal(plain, now))
        assert_same_view(after, now, [0, 2])
        np.testing.assert_array_equal(after.rewards[[0, 2]], now.rewards[[0, 2]])
        np.testing.assert_array_equal(after.ended[[0, 2]], now.ended[[0, 2]])


@pytest.mark.parametrize("build", [particles, identity])
def test_the_new_episode_has_its_full_length(build: Build) -> None:
    env = build()
    taken(env, [1, 2, 3], 4)
    now, ends = env.restart([0]), []
    for _ in range(6):
        now = env.step(legal(env, now))
        ends.append(now.ended.tolist())
    assert ends == [[False] * 3, [False, True, True], *[[False] * 3] * 3, [True, False, False]]


@pytest.mark.parametrize("build", [particles, identity])
def test_what_cannot_be_restarted_is_named(build: Build) -> None:
    env = build()
    env.reset([1, 2, 3])
    for index in (3, -1):
        with pytest.raises(ValueError, match=f"environment {index} is not one of 0 to 2"):
            env.restart([index])


def test_particles_that_never_began_cannot_be_restarted() -> None:
    with pytest.raises(EnvError, match="call reset before restart"):
        particles().restart([0])


@ALL
def test_a_broken_off_episode_ends_in_the_step_that_was_taken(build: Build) -> None:
    env, plain = build(), build()
    before, _ = taken(env, [4, 5, 6], 2)
    reference, _ = taken(plain, [4, 5, 6], 2)
    record = break_off(env, before, [1])
    assert record.ended.tolist() == [False, True, False]
    np.testing.assert_array_equal(record.rewards, reference.rewards)
    np.testing.assert_array_equal(record.terminated, reference.terminated)
    np.testing.assert_array_equal(record.truncated, reference.truncated)
    assert_same_view(record, reference, [0, 2])
    assert record.final_obs is not None
    assert record.final_share_obs is not None
    np.testing.assert_array_equal(record.final_obs[1], reference.obs[1])
    np.testing.assert_array_equal(record.final_share_obs[1], reference.share_obs[1])
    if reference.available_actions is not None:
        assert record.final_available_actions is not None
        np.testing.assert_array_equal(record.final_available_actions[1], reference.available_actions[1])
    assert record.broken_off is not None
    assert record.broken_off.tolist() == [False, True, False]
    follows = build()
    taken(follows, [4, 5, 6], 2)
    assert_same_view(record, follows.reset(), [1])


@pytest.mark.parametrize("build", [particles, identity])
def test_what_ends_by_itself_in_the_same_step_is_not_restarted(build: Build) -> None:
    env, plain = build(), build()
    now, _ = taken(env, [4, 5, 6], 3)
    env.restart([0])
    now = env.step(legal(env, now))
    now = env.step(legal(env, now))
    plain_now, _ = taken(plain, [4, 5, 6], 6)
    now = env.step(legal(env, now))  # environments 1 and 2 end in it, environment 0 is in step 3
    assert now.ended.tolist() == [False, True, True]
    first_of_next, last = now.obs[1].copy(), now.obs[0].copy()
    record = break_off(env, now, [0, 1])
    assert record.ended.tolist() == [True, True, True]
    assert record.broken_off is not None
    assert record.broken_off.tolist() == [True, False, False]
    np.testing.assert_array_equal(record.obs[1], first_of_next)
    assert record.final_obs is not None
    assert plain_now.final_obs is not None
    np.testing.assert_array_equal(record.final_obs[0], last)
    np.testing.assert_array_equal(record.final_obs[1], plain_now.final_obs[1])


class Stubborn(MPEVectorEnv):
    """Cannot be restarted."""

    can_restart = False
    restart = VectorEnv.restart


def test_environments_that_cannot_restart_go_on() -> None:
    env = Stubborn(2)
    now = env.reset([1, 2])
    assert break_off(env, now, [0]) is now
    with pytest.raises(EnvError, match="mpe cannot restart single environments"):
        env.restart([0])


def test_nothing_to_break_off_changes_nothing() -> None:
    env = particles()
    now = env.reset([1, 2, 3])
    assert break_off(env, now, []) is now
