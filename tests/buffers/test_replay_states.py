"""States that are made of observations are kept once, and come back as the environments gave them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.buffers.human_transitions import HumanTransitions
from harl.buffers.replay import ReplayBuffer
from harl.envs.api import EnvStep, Layout, VectorEnv
from harl.envs.check import random_actions
from harl.envs.mpe.vector_env import MPEVectorEnv
from harl.envs.parallel import ParallelVectorEnv
from tests.buffers.transitions import GAMMA, assert_equal_batches, buffer_of
from tests.envs.fixtures import Deaths, FixtureEnv, Hetero


class Images(FixtureEnv):
    """Two agents that see images, and no state()."""

    def __init__(self) -> None:
        super().__init__(agents=2, T=3)
        self.set_spaces(spaces.Box(0, 255, (1, 2, 3), np.uint8), spaces.Discrete(2))

    def observe(self, agent: str) -> Any:
        return np.full((1, 2, 3), 10 * self.t + self.possible_agents.index(agent), np.uint8)

    def reward(self, agent: str, action: Any) -> float:
        return 0.0


class WithState(Images):
    """Has a state of its own."""

    def state(self) -> Any:
        return np.array([7.0, self.t], np.float32)


ENVS: dict[str, Callable[[str], Any]] = {
    "spread": lambda kind: MPEVectorEnv(2, "simple_spread", state_type=kind, max_cycles=4),
    "speaker-listener": lambda kind: MPEVectorEnv(2, "simple_speaker_listener", state_type=kind, max_cycles=4),
    "differing widths": lambda kind: ParallelVectorEnv(Hetero, 2, kind),
    "dying agents": lambda kind: ParallelVectorEnv(Deaths, 2, kind),
    "images": lambda kind: ParallelVectorEnv(Images, 2, kind),
}


def filled(env: VectorEnv, steps: int, layout: Layout | None = None) -> tuple[ReplayBuffer, list[Any], list[Any]]:
    """A buffer of random steps, and the states (N, …) before and after each of them: final ones where it ended."""
    buffer = buffer_of(layout or env.layout, env.num_envs * steps, env.num_envs)
    view, rng = env.reset([1, 2]), np.random.default_rng(0)
    before, after = [], []
    for _ in range(steps):
        seen: EnvStep = view
        before.append(seen.share_obs[:, 0].copy())
        actions = random_actions(env, seen, rng)
        kept = {name: np.copy(getattr(seen, name)) for name in ("obs", "share_obs", "active")}
        masks = None if seen.available_actions is None else seen.available_actions.copy()
        view = env.step(actions)
        states = view.share_obs[:, 0].copy()
        if view.final_share_obs is not None:
            states[view.ended] = view.final_share_obs[view.ended, 0]
        after.append(states)
        no = np.zeros(actions.shape[:2], np.bool_)
        earlier = EnvStep(**kept, available_actions=masks, rewards=no, terminated=no, truncated=no, ended=no[:, 0])
        buffer.insert(earlier, actions, view)
    return buffer, before, after


@pytest.mark.parametrize("name", list(ENVS))
def test_states_made_of_observations_are_kept_once_and_come_back_as_they_were(name: str) -> None:
    env = ENVS[name]("EP")
    assert env.layout.state_is_observations
    buffer, before, after = filled(env, 13)
    assert not {"share_obs", "next_share_obs"} & {*buffer._before.shapes, *buffer._after.shapes}
    batch = buffer.gather(torch.arange(26))
    np.testing.assert_array_equal(batch.share_obs, np.concatenate(before))
    np.testing.assert_array_equal(batch.next_share_obs, np.concatenate(after))
    assert any((one != other).any() for one, other in zip(before[1:], after, strict=False)), "no episode ended"
    for states in (batch.share_obs, batch.next_share_obs):
        assert states.shape[1:] == env.layout.share_obs_shape
        assert states.is_contiguous()
        assert states.dtype == torch.float32


def second_buffer(buffer: ReplayBuffer, layout: Layout) -> HumanTransitions:
    """All of a buffer, as what a person drove."""
    index = torch.arange(len(buffer))
    driven = torch.ones(len(buffer), layout.num_agents, dtype=torch.bool)
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    second.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, driven)
    return second


@pytest.mark.parametrize("name", list(ENVS))
def test_what_people_drove_has_the_same_states(name: str) -> None:
    env = ENVS[name]("EP")
    buffer, before, after = filled(env, 13)
    second = second_buffer(buffer, env.layout)
    mixed = second.mixed(buffer.gather(torch.tensor([3, 5])), 64)
    drawn = torch.randint(26, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    np.testing.assert_array_equal(mixed.share_obs, np.concatenate(before)[[3, 5, *drawn]])
    np.testing.assert_array_equal(mixed.next_share_obs, np.concatenate(after)[[3, 5, *drawn]])


@pytest.mark.parametrize("name", list(ENVS))
def test_a_buffer_that_was_saved_with_these_states_is_read_without_them(name: str) -> None:
    env = ENVS[name]("EP")
    layout = replace(env.layout, state_is_observations=False)
    earlier, *_ = filled(env, 13, layout)
    assert {*earlier._before.shapes} >= {"share_obs"}
    buffer = buffer_of(env.layout, 26, 2)
    buffer.set_state(earlier.get_state())
    assert_equal_batches(buffer.sample(40), earlier.sample(40))
    second = HumanTransitions(env.layout, 100, GAMMA, torch.Generator())
    saved = second_buffer(earlier, layout)
    second.set_state(saved.get_state())
    assert_equal_batches(second.sample(40), saved.sample(40))
    rows = torch.arange(2)
    for one in (second, saved):
        one.add(earlier.gather(rows), rows, rows, rows, 2, torch.ones(2, layout.num_agents, dtype=torch.bool))
    assert_equal_batches(second.sample(40), saved.sample(40))


def test_a_saved_buffer_of_other_settings_is_refused_also_where_it_has_these_states() -> None:
    env = ENVS["spread"]("EP")
    earlier, *_ = filled(env, 13, replace(env.layout, state_is_observations=False))
    with pytest.raises(ValueError, match=r"does not fit this one.*record is"):
        buffer_of(ENVS["speaker-listener"]("EP").layout, 26, 2).set_state(earlier.get_state())


def test_a_state_of_another_width_is_refused() -> None:
    env = ENVS["spread"]("EP")
    step = env.reset([1, 2])
    wrong = replace(step, share_obs=step.share_obs[:, :, :5])
    with pytest.raises(ValueError, match=r"share_obs has shape \(2, 3, 5\), expected .*\(54,\)"):
        buffer_of(env.layout, 26, 2).insert(wrong, np.zeros((2, 3, 1), np.float32), step)


@pytest.mark.parametrize("change", [{"state_type": "FP"}, {"share_obs_shape": (53,)}])
def test_a_layout_that_cannot_be_true_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"state_is_observations needs state_type EP and share_obs_shape \(54,\)"):
        replace(ENVS["spread"]("EP").layout, **change)


@pytest.mark.parametrize("name", list(ENVS))
def test_states_with_the_agents_identity_are_kept_as_they_are(name: str) -> None:
    assert not ENVS[name]("FP").layout.state_is_observations


def test_a_state_of_the_environments_own_is_kept_as_it_is() -> None:
    env = ParallelVectorEnv(WithState, 2)
    assert not env.layout.state_is_observations
    buffer, before, after = filled(env, 7)
    batch = buffer.gather(torch.arange(14))
    np.testing.assert_array_equal(batch.share_obs, np.concatenate(before))
    np.testing.assert_array_equal(batch.next_share_obs, np.concatenate(after))


def test_memory_of_states_that_are_kept_once() -> None:
    """Three agents with 18 numbers each, twice, and 12 more of what they did and earned."""
    assert ReplayBuffer.estimate(MPEVectorEnv(1, "simple_spread").layout, 1) == 4 * (2 * 54 + 3 + 3 + 1 + 1 + 1 + 3)
