"""What is sampled from the replay buffer, against a reference that walks through lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_spread_v3
from pettingzoo.utils import BaseParallelWrapper

from harl.envs.parallel import ParallelVectorEnv
from tests.buffers.transitions import GAMMA, World, assert_matches, buffer_of, cut, layout_of, no_op, still


@pytest.mark.parametrize("time_limit", ["bootstrap", "ignore"])
@pytest.mark.parametrize(
    ("state_type", "reward"),
    [("EP", "shared_sum"), ("EP", "shared_mean"), ("FP", "shared_sum"), ("FP", "shared_mean"), ("FP", "individual")],
)
@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_G_5_rows_match_a_walk_through_lists(n_step: int, state_type: str, reward: str, time_limit: str) -> None:
    """G.5: several environments, ends of episodes and of agents, a ring that is part full, full and written over."""
    layout = layout_of(state_type=state_type, has_masks=n_step == 3)
    # 25 slots of 3 environments: 76 is no multiple of 3.
    buffer = buffer_of(layout, 76, 3, n_step, reward=reward, time_limit=time_limit)
    assert buffer.slots == 25
    world = World(layout, 3, seed=n_step)
    for taken in range(1, 91):
        world.step(buffer)
        if taken in (1, 13, 25, 26, 60, 90):
            assert len(buffer) == 3 * min(taken, 25)
            assert_matches(buffer, world, n_step, reward, time_limit == "bootstrap")
    kinds = {(r["ended"], bool(r["terminated"].any()), bool(r["truncated"].any())) for h in world.history for r in h}
    assert kinds >= {(True, True, False), (True, False, True), (False, True, False), (False, False, True)}


def test_G_5_look_ahead_longer_than_the_ring_and_than_any_episode() -> None:
    layout = layout_of(state_type="FP")
    buffer = buffer_of(layout, 10, 2, 20, reward="individual")
    world = World(layout, 2, leaves=0.0, ends=0.0)
    for _ in range(13):
        world.step(buffer)
        assert_matches(buffer, world, 20, "individual", True)
    assert buffer.gather(torch.tensor([6])).discounts[0].item() == pytest.approx(GAMMA**5)


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize(
    ("terminated", "time_limit", "target"),
    [(False, "bootstrap", 50.5), (False, "ignore", 1.0), (True, "bootstrap", 1.0)],
)
def test_target_at_a_time_limit_uses_the_final_state_TLB04(
    state_type: str, terminated: bool, time_limit: str, target: float
) -> None:
    layout = layout_of(1, 1, 1, state_type)
    buffer = buffer_of(layout, 4, 1, gamma=0.99, time_limit=time_limit)
    # The value of a state is the number that it shows: 50 at the end, 5 after the reset.
    buffer.insert(still(layout, [0.0]), no_op(layout, 1), cut(layout, [5.0], [50.0], terminated))
    batch = buffer.sample(8)
    y = batch.rewards + batch.discounts * batch.next_share_obs
    np.testing.assert_allclose(y, np.full(y.shape, target), rtol=1e-6)
    assert (batch.next_obs == 50.0).all()


def test_agents_that_left_before_do_not_say_how_the_episode_ended() -> None:
    layout = layout_of(2, 1, 1)
    buffer = buffer_of(layout, 4, 1)
    first_left = still(layout, [0.0], active=np.array([[[0.0], [1.0]]], np.float32))
    # The flag of the first agent is a leftover; the second one, which ends the episode, terminates.
    step = replace(cut(layout, [0.0], [1.0], terminated=True), truncated=np.array([[True, False]]))
    step.terminated[0, 0] = False
    buffer.insert(first_left, no_op(layout, 1), step)
    assert buffer.sample(1).discounts.item() == 0.0


class Spy(BaseParallelWrapper):
    """Keeps the last observations of each episode."""

    def __init__(self, env: Any, finals: list[Any]) -> None:
        super().__init__(env)
        self.finals = finals

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        if not self.agents:
            self.finals.append(np.stack([result[0][agent] for agent in self.possible_agents]))
        return result


@pytest.mark.parametrize("n_step", [1, 3])
def test_last_observation_of_every_episode_is_kept_TLB05(n_step: int) -> None:
    spied: list[list[Any]] = []

    def make() -> Spy:
        spied.append([])
        return Spy(simple_spread_v3.parallel_env(max_cycles=5), spied[-1])

    envs = ParallelVectorEnv(make, 2)
    buffer = buffer_of(envs.layout, 100, 2, n_step)
    seen = envs.reset([1, 2])
    for _ in range(20):
        before = replace(seen, obs=seen.obs.copy(), share_obs=seen.share_obs.copy(), active=seen.active.copy())
        actions = no_op(envs.layout, 2)
        seen = envs.step(actions)
        buffer.insert(before, actions, seen)
    envs.close()
    assert [len(finals) for finals in spied] == [4, 4]
    for e in range(2):
        for episode in range(4):
            # With three steps ahead the last three steps of the episode end in its last observation.
            rows = torch.tensor([(5 * episode + 4 - ago) * 2 + e for ago in range(n_step)])
            batch = buffer.gather(rows)
            for b in range(n_step):
                np.testing.assert_array_equal(batch.next_obs[:, b], spied[e][episode])
                np.testing.assert_allclose(batch.discounts[b], GAMMA ** (b + 1), rtol=1e-6)


def test_next_observation_is_not_that_of_the_next_episode_TLB06() -> None:
    layout = layout_of(1, 1, 1)
    buffer = buffer_of(layout, 6, 1)
    numbers = [0.0, 1.0, 2.0, 100.0, 101.0, 102.0]
    for t, number in enumerate(numbers):
        following = numbers[(t + 1) % 6]
        step = cut(layout, [following], [number + 1]) if t % 3 == 2 else still(layout, [following])
        buffer.insert(still(layout, [number]), no_op(layout, 1), step)
    batch = buffer.gather(torch.arange(6))
    assert batch.obs.flatten().tolist() == numbers
    assert batch.next_obs.flatten().tolist() == [1.0, 2.0, 3.0, 101.0, 102.0, 103.0]


class Counter(gymnasium.Env[Any, Any]):
    """Shows how many steps the episode has, ends after ten, and remembers the actions that it was sent."""

    observation_space = spaces.Box(0.0, 10.0, (1,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self) -> None:
        self.sent: list[float] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return np.array([0.0]), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.sent.append(float(action[0]))
        return np.array([float(self.t)]), 1.0, False, self.t == 10, {}


def test_every_stored_step_is_one_that_was_taken_TLB07() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter())
        return made[-1]

    envs = ParallelVectorEnv(make, 2)
    buffer = buffer_of(envs.layout, 1000, 2)
    random = np.random.default_rng(0)
    seen = envs.reset([0, 1])
    for _ in range(110):
        before = replace(seen, obs=seen.obs.copy(), share_obs=seen.share_obs.copy(), active=seen.active.copy())
        actions = random.uniform(-1, 1, (2, 1, 1)).astype(np.float32)
        seen = envs.step(actions)
        buffer.insert(before, actions, seen)
    assert len(buffer) == 220 == sum(len(env.sent) for env in made)
    batch = buffer.gather(torch.arange(220))
    number = batch.obs.view(110, 2)
    assert torch.equal(number, (torch.arange(110) % 10).float()[:, None].expand(110, 2))
    assert torch.equal(batch.next_obs.view(110, 2), number + 1)
    sent = np.array([env.sent for env in made], np.float32).T
    np.testing.assert_array_equal(batch.actions.view(110, 2), sent)


def test_final_mask_goes_with_the_final_observation_D13() -> None:
    layout = layout_of(2, 1, 1, has_masks=True)
    buffer = buffer_of(layout, 8, 2)
    reset_mask, final_mask = np.zeros((2, 2, 3), np.float32), np.zeros((2, 2, 3), np.float32)
    reset_mask[..., 0], final_mask[..., 2] = 1.0, 1.0
    step = replace(cut(layout, [5.0, 5.0], [50.0, 50.0]), available_actions=reset_mask)
    # Only the first environment's episode is over.
    step = replace(step, final_available_actions=final_mask, ended=np.array([True, False]))
    buffer.insert(still(layout, [0.0, 0.0]), no_op(layout, 2), step)
    batch = buffer.gather(torch.arange(2))
    assert batch.next_available_actions is not None
    assert batch.next_available_actions[:, 0].tolist() == final_mask[0].tolist()
    assert batch.next_available_actions[:, 1].tolist() == reset_mask[0].tolist()
    assert batch.next_obs[:, :, 0].tolist() == [[50.0, 5.0]] * 2


def test_end_in_one_environment_leaves_dead_agents_of_the_others_dead_D21() -> None:
    layout = layout_of(2, 1, 1)
    buffer = buffer_of(layout, 8, 2)
    one_dead = np.array([[[1.0], [1.0]], [[0.0], [1.0]]], np.float32)
    step = cut(layout, [0.0, 0.0], [1.0, 1.0])
    step = replace(step, active=one_dead, ended=np.array([True, False]))
    step.truncated[1] = False
    buffer.insert(still(layout, [0.0, 0.0], active=one_dead), no_op(layout, 2), step)
    buffer.insert(step, no_op(layout, 2), still(layout, [0.0, 0.0], active=one_dead))
    batch = buffer.gather(torch.arange(4))
    assert batch.valid[:, :, 0].tolist() == [[1, 0, 1, 0], [1, 1, 1, 1]]
    assert batch.next_valid[:, :, 0].tolist() == [[1, 0, 1, 0], [1, 1, 1, 1]]


def test_flags_are_those_of_the_first_step_and_of_the_state_to_bootstrap_from_D07() -> None:
    layout = layout_of(2, 1, 1, "FP")
    buffer = buffer_of(layout, 8, 1, 3, reward="individual")
    second = np.array([[[0.0], [1.0]]], np.float32)
    dies = np.array([[True, False]])
    buffer.insert(still(layout, [0.0]), no_op(layout, 1), still(layout, [1.0]))
    buffer.insert(still(layout, [1.0]), no_op(layout, 1), still(layout, [2.0], active=second, terminated=dies))
    late = still(layout, [3.0], active=second, rewards=second)
    buffer.insert(still(layout, [2.0], active=second), no_op(layout, 1), late)
    batch = buffer.gather(torch.arange(3))
    assert batch.valid[:, :, 0].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.next_valid[:, :, 0].tolist() == [[0, 0, 0], [1, 1, 1]]
    np.testing.assert_allclose(batch.discounts[0, :, 0], [0, 0, 0])
    np.testing.assert_allclose(batch.discounts[1, :, 0], [GAMMA**3, GAMMA**2, GAMMA], rtol=1e-6)
    np.testing.assert_allclose(batch.rewards[0, :, 0], [1 + GAMMA, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(batch.rewards[1, :, 0], [1 + GAMMA + GAMMA**2, 1 + GAMMA, 1], rtol=1e-6)


def test_reset_from_outside_separates_what_comes_before_and_after() -> None:
    layout = layout_of(1, 1, 1)
    buffer = buffer_of(layout, 8, 1, 3)
    buffer.insert(still(layout, [0.0]), no_op(layout, 1), still(layout, [1.0]))
    buffer.break_episodes()
    buffer.insert(still(layout, [10.0]), no_op(layout, 1), still(layout, [11.0]))
    buffer.insert(still(layout, [11.0]), no_op(layout, 1), still(layout, [12.0]))
    batch = buffer.gather(torch.arange(3))
    assert batch.next_obs.flatten().tolist() == [1.0, 12.0, 12.0]
    np.testing.assert_allclose(batch.discounts[:, 0], [GAMMA, GAMMA**2, GAMMA], rtol=1e-6)


def test_samples_are_uniform_over_what_is_there_and_drawn_by_the_generator() -> None:
    layout = layout_of(1, 1, 1)
    buffer = buffer_of(layout, 1000, 2, generator=torch.Generator().manual_seed(3))
    for t in range(10):
        buffer.insert(still(layout, [2.0 * t, 2.0 * t + 1]), no_op(layout, 2), still(layout, [0.0, 0.0]))
    batch = buffer.sample(40_000)
    assert torch.equal(batch.obs[0, :, 0], batch.index.float())
    counts = torch.bincount(batch.index, minlength=20)
    assert len(counts) == 20
    # Chi-squared with 19 degrees of freedom: above 43.8 once in a thousand times.
    assert ((counts - 2000.0).square() / 2000.0).sum() < 43.8
    again = torch.Generator().manual_seed(3)
    assert torch.equal(batch.index, torch.randint(20, (40_000,), generator=again))


def test_an_empty_buffer_has_nothing_to_sample() -> None:
    with pytest.raises(ValueError, match="empty"):
        buffer_of(layout_of()).sample(1)
