"""A replay buffer and people: rewards that come late, handovers, discarded episodes, and the second buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harl.buffers.human_transitions import HumanTransitions
from tests.buffers.transitions import (
    GAMMA,
    TEAM_FIELDS,
    World,
    assert_equal_batches,
    assert_matches,
    buffer_of,
    expected_row,
    layout_of,
    no_op,
    still,
)

KINDS = [("EP", "shared_sum"), ("EP", "shared_mean"), ("FP", "shared_sum"), ("FP", "shared_mean"), ("FP", "individual")]


def somebody(rows: int, agents: int) -> torch.Tensor:
    """(rows, agents): a person drove agent 0 in even rows, agent 1 in each third one, and agent 2 in none."""
    row = torch.arange(rows)
    return torch.stack([row % 2 == 0, row % 3 == 0, *[row < 0] * (agents - 2)], dim=1)


@pytest.mark.parametrize("time_limit", ["bootstrap", "ignore"])
@pytest.mark.parametrize(("state_type", "reward"), KINDS)
@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_late_rewards_are_in_every_sum_that_contains_their_step(
    n_step: int, state_type: str, reward: str, time_limit: str
) -> None:
    """Equal to a walk through lists in which the rewards had been right at once; the ring goes round twice."""
    layout = layout_of(state_type=state_type)
    buffer = buffer_of(layout, 30, 3, n_step, reward=reward, time_limit=time_limit)
    world, rng = World(layout, 3, seed=n_step), np.random.default_rng(0)
    applied = 0
    for taken in range(1, 26):
        world.step(buffer)
        back, env, agent, delta = int(rng.integers(12)), int(rng.integers(3)), int(rng.integers(3)), rng.normal()
        there = back < min(taken, buffer.slots)
        assert (buffer.amend(back, env, agent, delta) is not None) == there
        if there:
            world.history[env][taken - 1 - back]["rewards"][agent] += delta
            applied += 1
        if taken % 6 == 1:
            assert_matches(buffer, world, n_step, reward, time_limit == "bootstrap")
    assert applied > 10


def test_reward_that_comes_after_its_step_was_overwritten_changes_nothing() -> None:
    layout = layout_of()
    buffer = buffer_of(layout, 8, 2)
    world = World(layout, 2)
    for _ in range(6):
        world.step(buffer)
    before = buffer.gather(torch.arange(8))
    assert buffer.amend(4, 0, 0, 1.0) is None
    assert buffer.amend(-1, 0, 0, 1.0) is None
    assert_equal_batches(before, buffer.gather(torch.arange(8)))


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_sums_do_not_run_across_a_handover(state_type: str) -> None:
    """Environment 1 is handed over before steps 4 and 6: sums end there and bootstrap from what was seen then."""
    layout = layout_of(state_type=state_type)
    buffer = buffer_of(layout, 40, 2, 3)
    world = World(layout, 2, leaves=0.0, ends=0.0)
    for t in range(10):
        if t in (4, 6):
            buffer.end_sums(np.array([False, True]))
        world.step(buffer)
    starts = {0: [0], 1: [0, 4, 6]}
    for env, borders in starts.items():
        for t in range(10):
            end = min([border for border in borders if border > t], default=10)
            expected = expected_row(world.history[env][t:end], layout, 3, "shared_sum", True)
            batch = buffer.gather(torch.tensor([2 * t + env]))
            for name in ("rewards", "discounts", "next_obs", "next_share_obs"):
                team = state_type == "EP" and name in TEAM_FIELDS
                one = getattr(batch, name)[0] if team else getattr(batch, name)[:, 0]
                np.testing.assert_allclose(one, expected[name], rtol=2e-6, atol=1e-6)


def test_discarded_transitions_are_never_drawn_until_new_ones_take_their_place() -> None:
    layout = layout_of(1, 1, 1)
    buffer = buffer_of(layout, 8, 2, people=True)
    for t in range(4):
        buffer.insert(still(layout, [t, 10 + t]), no_op(layout, 2), still(layout, [t + 1, 11 + t]))
    buffer.forget(1, 1)
    assert len(buffer) == 6
    assert set(buffer.sample(500).obs.flatten().tolist()) == {0, 1, 2, 3, 10, 11}
    restored = buffer_of(layout, 8, 2, people=True, generator=buffer.generator.clone_state())
    restored.set_state(buffer.get_state())
    assert_equal_batches(restored.sample(50), buffer.sample(50))
    for t in range(4, 7):
        buffer.insert(still(layout, [t, 10 + t]), no_op(layout, 2), still(layout, [t + 1, 11 + t]))
    assert len(buffer) == 7
    assert set(buffer.sample(500).obs.flatten().tolist()) == {3, 4, 5, 6, 14, 15, 16}


def test_everything_discarded_leaves_nothing_to_draw() -> None:
    layout = layout_of()
    buffer = buffer_of(layout, 8, 2, people=True)
    world = World(layout, 2)
    world.step(buffer)
    buffer.forget(5, 0)
    buffer.forget(0, 1)
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)


@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_second_buffer_gives_back_what_was_put_in(state_type: str, has_masks: bool) -> None:
    layout = layout_of(state_type=state_type, has_masks=has_masks)
    buffer = buffer_of(layout, 60, 2, 3)
    world = World(layout, 2)
    for _ in range(20):
        world.step(buffer)
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    index = torch.arange(10)
    second.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, somebody(len(index), 3))
    drawn = torch.randint(10, (64,), generator=torch.Generator().manual_seed(0))
    sample, expected = second.sample(64), buffer.gather(drawn)
    assert (sample.index == -1).all()
    sample.index = drawn
    assert_equal_batches(sample, expected)
    batch = buffer.sample(8)
    mixed = second.mixed(batch, 5)
    assert mixed.obs.shape[1] == mixed.index.shape[0] == 13
    assert torch.equal(mixed.obs[:, :8], batch.obs)
    assert torch.equal(mixed.rewards[..., :8, :], batch.rewards)
    assert mixed.index[8:].tolist() == [-1] * 5


@pytest.mark.parametrize(("state_type", "reward"), KINDS)
def test_late_rewards_reach_the_second_buffer_too(state_type: str, reward: str) -> None:
    layout = layout_of(state_type=state_type)
    buffer = buffer_of(layout, 80, 2, 3, reward=reward)
    world, rng = World(layout, 2), np.random.default_rng(0)
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    for _ in range(20):
        world.step(buffer)
    index = torch.arange(36)
    second.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, somebody(len(index), 3))
    for _ in range(10):
        back, env, agent = int(rng.integers(20)), int(rng.integers(2)), int(rng.integers(3))
        gains = buffer.amend(back, env, agent, 1.0)
        assert gains is not None
        second.amend(env, 2 * (19 - back), gains)
    drawn = torch.randint(36, (64,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(second.sample(64).rewards, buffer.gather(drawn).rewards)


def test_forgotten_episode_leaves_the_second_buffer() -> None:
    layout = layout_of()
    buffer = buffer_of(layout, 40, 2)
    world = World(layout, 2)
    for _ in range(10):
        world.step(buffer)
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    index = torch.arange(20)
    second.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, somebody(len(index), 3))
    second.forget(1, 8)
    assert len(second) == 20 - 6


@pytest.mark.parametrize("has_masks", [False, True])
def test_each_agent_imitates_the_rows_in_which_it_was_driven(has_masks: bool) -> None:
    """Weights add up to the coefficient; there are none for a choice that the agent did not have, or for nobody."""
    layout = layout_of(has_masks=has_masks)
    buffer = buffer_of(layout, 60, 2)
    world = World(layout, 2)
    for _ in range(20):
        world.step(buffer)
    index = torch.arange(24)
    batch, driven = buffer.gather(index), somebody(24, 3)
    batch.actions[0, 2] = 7.0
    fine = batch.actions[:, :, 0] < 3
    if batch.available_actions is not None:
        choice = batch.actions.long().clamp(max=2)
        fine &= batch.available_actions.gather(2, choice)[..., 0] > 0
        assert not fine[1].all()
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    second.add(batch, index % 2, index // 2 * 2, buffer.lengths(index), 2, driven)
    restored = HumanTransitions(layout, 100, GAMMA, torch.Generator())
    restored.set_state(second.get_state())
    drawn = torch.randint(24, (64,), generator=torch.Generator().manual_seed(0))
    expected = (driven.t() & fine)[:, drawn].float()
    assert (expected.sum(1) > 0).tolist() == [True, True, False]
    expected = 0.3 * expected / expected.sum(1, keepdim=True).clamp(min=1)
    first = buffer.sample(8)
    mixed = second.mixed(first, 64, 0.3)
    assert mixed.imitate is not None
    assert (mixed.imitate[:, :8] == 0).all()
    torch.testing.assert_close(mixed.imitate[:, 8:, 0], expected)
    torch.testing.assert_close(mixed.imitate.sum((1, 2)), torch.tensor([0.3, 0.3, 0.0]))
    assert_equal_batches(restored.mixed(first, 64, 0.3), mixed)
    assert second.mixed(first, 64).imitate is None


def test_transitions_from_before_it_was_noted_who_was_driven() -> None:
    layout = layout_of()
    buffer = buffer_of(layout)
    world = World(layout, 2)
    for _ in range(4):
        world.step(buffer)
    index = torch.arange(6)
    second = HumanTransitions(layout, 100, GAMMA, torch.Generator().manual_seed(0))
    second.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, somebody(6, 3))
    state = second.get_state()
    del state["rows"]["tensors"]["driven"]
    restored = HumanTransitions(layout, 100, GAMMA, torch.Generator())
    restored.set_state(state)
    assert_equal_batches(restored.sample(9), second.sample(9))
    restored.add(buffer.gather(index), index % 2, index // 2 * 2, buffer.lengths(index), 2, somebody(6, 3))
    assert len(restored) == 12
