"""Training returns: exact, per agent, never leaking from one episode to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.episodes import EnvMetrics, EpisodeTracker
from tests.runners import off_policy_runs, runs


def add(tracker: EpisodeTracker, rewards: list[list[float]], ended: list[bool]) -> None:
    """One vector step from plain numbers (N, A)."""
    tracker.add(np.asarray(rewards, np.float32)[..., None], np.asarray(ended))


def test_log_01_the_last_reward_of_an_episode_counts() -> None:
    """10-step episodes with reward x on the first step and 1 - x on the last: the return is always 1."""
    tracker = EpisodeTracker(2, ["a", "b"])
    generator = np.random.default_rng(0)
    for _ in range(25):
        x = generator.integers(0, 1025, size=(2, 2)) / 1024
        for step in range(10):
            rewards = x if step == 0 else 1 - x if step == 9 else np.zeros((2, 2))
            add(tracker, rewards.tolist(), [step == 9] * 2)
        means = tracker.drain()
        assert means["train/return/a"] == means["train/return/b"] == means["train/return_mean"] == 1.0
        assert means["train/episodes"] == 2.0


def test_log_02_every_episode_has_its_own_length_and_return() -> None:
    """3-step episodes with reward 1, one environment a step behind the other."""
    tracker = EpisodeTracker(2, ["a"])
    seen = []
    for step in range(1, 17):
        add(tracker, [[1.0], [1.0]], [step % 3 == 0, step % 3 == 1 and step > 1])
        if means := tracker.drain():
            seen.append((means["train/episode_length"], means["train/return_sum"]))
    assert seen[0] == (3.0, 3.0)
    assert seen[1] == (4.0, 4.0)  # the other environment's first episode ends at step 4
    assert seen[2:] == [(3.0, 3.0)] * 8


def test_log_03_a_time_limited_return_does_not_leak_into_the_next() -> None:
    tracker = EpisodeTracker(1, ["a"])
    returns = []
    for step in range(20):
        add(tracker, [[1.0]], [step % 10 == 9])
        returns += [means["train/return_sum"] for means in [tracker.drain()] if means]
    assert returns == [10.0, 10.0]


def test_log_04_sum_mean_and_length_are_told_apart() -> None:
    tracker = EpisodeTracker(1, ["a", "b", "c"])
    for step in range(25):
        add(tracker, [[-1.0] * 3], [step == 24])
    assert tracker.drain() == {
        "train/return_sum": -75.0,
        "train/return_mean": -25.0,
        "train/episode_length": 25.0,
        "train/episodes": 1.0,
        "train/return/a": -25.0,
        "train/return/b": -25.0,
        "train/return/c": -25.0,
    }


def test_log_05_agents_that_leave_at_different_times() -> None:
    """Agent i lives 2 + i steps with reward 1; the episode ends with the last of them."""
    tracker = EpisodeTracker(2, ["a", "b", "c"])
    for step in range(4):
        add(tracker, [[float(step < 2 + agent) for agent in range(3)]] * 2, [step == 3] * 2)
    means = tracker.drain()
    assert [means[f"train/return/{agent}"] for agent in "abc"] == [2.0, 3.0, 4.0]
    assert (means["train/return_mean"], means["train/return_sum"], means["train/episode_length"]) == (3.0, 9.0, 4.0)


def test_log_08_nothing_is_reported_until_an_episode_ends() -> None:
    tracker = EpisodeTracker(1, ["a"])
    add(tracker, [[1.0]], [False])
    assert tracker.drain() == {}
    add(tracker, [[1.0]], [True])
    assert tracker.drain()["train/return_sum"] == 2.0
    assert tracker.drain() == {}


def test_means_are_over_episodes_not_environments() -> None:
    tracker = EpisodeTracker(2, ["a"])
    add(tracker, [[1.0], [5.0]], [True, False])
    add(tracker, [[3.0], [5.0]], [True, True])
    means = tracker.drain()
    assert means["train/return_sum"] == (1 + 3 + 10) / 3
    assert means["train/episode_length"] == 4 / 3


def test_small_rewards_are_not_lost_in_large_returns() -> None:
    tracker = EpisodeTracker(1, ["a"])
    add(tracker, [[2.0**24]], [False])
    for step in range(10):
        add(tracker, [[1.0]], [step == 9])
    assert tracker.drain()["train/return_sum"] == 2.0**24 + 10


def test_reset_forgets_episodes_under_way() -> None:
    tracker = EpisodeTracker(2, ["a"])
    add(tracker, [[9.0], [9.0]], [True, False])
    tracker.reset()
    add(tracker, [[1.0], [1.0]], [True, True])
    assert tracker.drain() == {
        "train/return_sum": 11 / 3,
        "train/return_mean": 11 / 3,
        "train/return/a": 11 / 3,
        "train/episode_length": 1.0,
        "train/episodes": 3.0,
    }


def test_state_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    steps = [(generator.normal(size=(4, 2, 1)).astype(np.float32), generator.random(4) < 0.1) for _ in range(60)]
    straight, first = EpisodeTracker(4, ["a", "b"]), EpisodeTracker(4, ["a", "b"])
    for rewards, ended in steps[:30]:
        straight.add(rewards, ended)
        first.add(rewards, ended)
    store = CheckpointStore(tmp_path, 1)
    store.save(30, {"episodes": first.get_state()})
    for rewards, ended in steps[30:40]:
        first.add(rewards, ended)  # what was saved is not touched by what comes after
    second = EpisodeTracker(4, ["a", "b"])
    second.set_state(store.load()[1]["episodes"])
    for rewards, ended in steps[30:]:
        straight.add(rewards, ended)
        second.add(rewards, ended)
    assert second.drain() == straight.drain()
    with pytest.raises(ValueError, match=r"\(4, 2\), this run has \(3, 2\)"):
        EpisodeTracker(3, ["a", "b"]).set_state(second.get_state())


def test_mem_01_what_is_kept_does_not_grow_with_episodes(tmp_path: Path) -> None:
    tracker = EpisodeTracker(2, ["a"])
    store = CheckpointStore(tmp_path, 1)

    def size_of_state() -> int:
        folder = store.save(0, {"episodes": tracker.get_state()})
        return (folder / "episodes.pt").stat().st_size

    add(tracker, [[1.0], [1.0]], [True, True])
    small = size_of_state()
    for _ in range(20_000):
        add(tracker, [[1.0], [1.0]], [True, True])
    assert size_of_state() <= small + 64  # counters take some more digits
    assert tracker.drain()["train/episodes"] == 40_002.0


def test_log_09_env_metrics_that_are_asked_for_arrive() -> None:
    metrics = EnvMetrics(["coverage", "no_such"])
    metrics.add({"coverage": np.array([1.0, np.nan]), "other": np.array([5.0, 5.0])})
    metrics.add({"coverage": np.array([2.0, 6.0])})
    metrics.add({})
    assert metrics.drain() == {"env/coverage": 3.0}
    assert metrics.unseen == ["no_such"]
    metrics.add({"coverage": np.array([np.nan, np.nan])})
    assert metrics.drain() == {}


def test_log_09_all_env_metrics_arrive_unless_some_are_named() -> None:
    metrics = EnvMetrics()
    metrics.add({"a": np.array([1.0]), "b": np.array([2.0])})
    assert metrics.drain() == {"env/a": 1.0, "env/b": 2.0}
    assert metrics.unseen == []


def test_episodes_of_each_environment_are_numbered_and_their_place_survives_a_checkpoint() -> None:
    first = EpisodeTracker(2, ["a", "b"])
    for step in range(5):
        add(first, [[1.0, 10.0], [2.0, 20.0]], [step in (1, 3), step == 2])
    first.discard(0)
    second = EpisodeTracker(2, ["a", "b"])
    second.set_state(first.get_state())
    for tracker in (first, second):
        assert tracker.numbers.tolist() == [2, 1]
        assert tracker.lengths.tolist() == [1, 2]
        assert tracker.returns.tolist() == [[1.0, 10.0], [4.0, 40.0]]
    add(second, [[0.0, 0.0]] * 2, [True, False])
    assert second.numbers.tolist() == [3, 1]  # discarded ones have numbers too
    second.reset()
    assert second.numbers.tolist() == [3, 2]  # what was under way is over, what had not begun is not
    assert second.lengths.tolist() == [0, 0]
    assert first.numbers.tolist() == [2, 1]


def test_older_checkpoint_without_numbers_counts_from_zero() -> None:
    first = EpisodeTracker(1, ["a"])
    add(first, [[1.0]], [True])
    add(first, [[1.0]], [False])
    state = first.get_state()
    del state["numbers"]
    second = EpisodeTracker(1, ["a"])
    second.set_state(state)
    assert second.numbers.tolist() == [0]
    assert second.lengths.tolist() == [1]


def test_D_23_the_share_of_the_dead_is_one_minus_the_mean_of_the_living() -> None:
    """The original divides by the number of agents twice, so that with three of them two thirds are always dead."""
    tracker = EpisodeTracker(2, ["a", "b", "c"])
    here, ended = np.ones((2, 3, 1), np.float32), np.zeros(2, np.bool_)
    rewards = np.zeros((2, 3, 1), np.float32)
    for step in range(1, 5):  # of the first environment: a is gone after 2 steps, b after 3
        living = here.copy()
        living[0, :, 0] = [step < 2, step < 3, 1]
        over = step == 4
        tracker.add(rewards, np.array([over, False]), here if over else living)
        if step == 3:  # goes on from a checkpoint
            state, tracker = tracker.get_state(), EpisodeTracker(2, ["a", "b", "c"])
            tracker.set_state(state)
    assert tracker.drain()["train/dead_share"] == (2 + 1) / (4 * 3)
    for step in range(1, 4):
        tracker.add(rewards, ended if step < 3 else ~ended, here)
    assert "train/dead_share" not in tracker.drain(), "nobody left"


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_D_23_the_share_of_the_dead_in_a_run(tmp_path: Path, algo: str) -> None:
    """Three agents that live 2, 3 and 4 steps: 3 of 12 are those of the dead."""
    if algo == "happo":
        folder = runs.run(tmp_path, *runs.world("Deaths"), *runs.QUICK).folder
    else:
        folder = off_policy_runs.run(tmp_path, algo, off_policy_runs.fixture("Deaths"), **off_policy_runs.QUICK).folder
    assert set(runs.column(folder, "train/dead_share")) == {0.25}
