"""The counter-based generator behind initial states: even, independent, a pure function of its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from harl.envs.mpe import MPEVectorEnv
from harl.envs.mpe.randomness import GOLDEN_GAMMA, mix64, uniform


def draws(seeds: list[int] | np.ndarray, episodes: list[int] | np.ndarray, count: int) -> np.ndarray:
    return uniform(np.array(seeds, np.int64), np.array(episodes, np.int64), count)


def test_mixing_gives_the_published_splitmix64_sequence() -> None:
    """First outputs of SplitMix64 for the seed 1234567, as other implementations publish them."""
    counter = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN_GAMMA
    assert mix64(counter).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_stream_depends_on_its_own_seed_and_episode_only() -> None:
    together = draws([5, 6, 2**63 - 1], [0, 3, 10**12], 12)
    for i, (seed, episode) in enumerate([(5, 0), (6, 3), (2**63 - 1, 10**12)]):
        np.testing.assert_array_equal(together[:, i], draws([seed], [episode], 12)[:, 0])
    np.testing.assert_array_equal(together[:7], draws([5, 6, 2**63 - 1], [0, 3, 10**12], 7))
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize("varied", ["seeds", "episodes", "positions"])
def test_numbers_are_uniform_and_uncorrelated_with_their_neighbours(varied: str) -> None:
    """Along each of the three arguments, 100,000 successive numbers: 100 cells of a chi-square test, and lag 1 to 3."""
    count = 100_000
    steady, running = np.full(count, 17), np.arange(count)
    numbers = {
        "seeds": draws(running, steady, 1)[0],
        "episodes": draws(steady, running, 1)[0],
        "positions": draws([17], [17], count)[:, 0],
    }[varied]
    cells = np.bincount((numbers * 100).astype(int), minlength=100)
    chi_square = ((cells - count / 100) ** 2 / (count / 100)).sum()
    assert 50 < chi_square < 170  # 99 degrees of freedom: 99 +- 14
    for lag in (1, 2, 3):
        correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(count)


def test_streams_of_neighbouring_seeds_and_episodes_do_not_overlap() -> None:
    seeds, episodes = (grid.ravel() for grid in np.meshgrid(np.arange(50), np.arange(50)))
    numbers = draws(seeds, episodes, 40)
    assert len(np.unique(numbers)) == numbers.size


def test_initial_states_have_the_distribution_of_the_original() -> None:
    """Positions uniform in [-1, 1), goals uniform over the landmarks, bodies at rest and silent."""
    env = MPEVectorEnv(3000, "simple_reference")
    env.reset(list(range(3000)))
    state = env.get_state()
    for places in (state["agent_positions"], state["landmark_positions"]):
        assert places.min() >= -1
        assert places.max() < 1
        np.testing.assert_allclose(places.mean(axis=0), 0, atol=5 / np.sqrt(3 * 3000))
        np.testing.assert_allclose(places.var(axis=0), 1 / 3, atol=0.03)
    for goal in state["goals"].T:
        np.testing.assert_allclose(np.bincount(goal, minlength=3) / 3000, 1 / 3, atol=0.045)
    pairs = np.bincount(state["goals"] @ [3, 1], minlength=9) / 3000
    np.testing.assert_allclose(pairs, 1 / 9, atol=0.03)
    assert not state["agent_velocities"].any()
    assert not state["speech"].any()
