"""Random streams: independent by purpose, stable by environment, and seeds that are refused in plain words."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.seeding import (
    Purpose,
    SeedError,
    SeedStreams,
    draw_seed,
    global_rng_state,
    seed_everything,
    set_global_rng_state,
)


def test_sed_03_and_sed_04_every_environment_has_its_own_seed() -> None:
    seeds = SeedStreams(7).env_seeds(Purpose.TRAIN_ENVS, 4)
    assert len(set(seeds)) == 4
    assert seeds == SeedStreams(7).env_seeds(Purpose.TRAIN_ENVS, 4)
    assert not set(seeds) & set(SeedStreams(8).env_seeds(Purpose.TRAIN_ENVS, 4))
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_of_an_environment_does_not_depend_on_how_many_there_are() -> None:
    streams = SeedStreams(3)
    assert streams.env_seeds(Purpose.EVAL_ENVS, 20)[:5] == streams.env_seeds(Purpose.EVAL_ENVS, 5)


def test_D_34_neighbouring_seeds_share_no_environment() -> None:
    """With `seed + i`, run 1's second environment would be run 2's first."""
    used = [seed for run in range(50) for seed in SeedStreams(run).env_seeds(Purpose.TRAIN_ENVS, 20)]
    assert len(set(used)) == 1000


def test_purposes_are_independent_streams() -> None:
    streams = SeedStreams(0)
    assert len({tuple(streams.env_seeds(purpose, 3)) for purpose in Purpose}) == len(Purpose)
    assert len({streams.integer(purpose) for purpose in Purpose}) == len(Purpose)
    assert len({streams.numpy_generator(purpose).random() for purpose in Purpose}) == len(Purpose)


def test_streams_stay_what_they_are_when_purposes_are_added() -> None:
    """Runs of earlier versions can be repeated: these numbers must never change."""
    streams = SeedStreams(1)
    assert [purpose.value for purpose in Purpose] == list(range(len(Purpose)))
    assert list(Purpose)[:6] == [
        Purpose.TRAIN_ENVS,
        Purpose.EVAL_ENVS,
        Purpose.RENDER_ENVS,
        Purpose.MODEL,
        Purpose.SAMPLING,
        Purpose.MINIBATCH,
    ]
    assert streams.env_seeds(Purpose.TRAIN_ENVS, 2) == [1668806258052110137, 9072367441308159873]
    assert streams.integer(Purpose.MODEL) == 1161267012093657964
    assert streams.numpy_generator(Purpose.MINIBATCH).integers(2**32) == 3078545984


@pytest.mark.parametrize("seed", [0, 2735729614, 4294967295, np.int64(5)])
def test_sed_08_large_seeds_work(seed: int) -> None:
    streams = SeedStreams(seed)
    assert streams.seed == int(seed)
    seed_everything(streams)


@pytest.mark.parametrize("seed", [4294967296, -1, 1.5, "abc", None, True])
def test_sed_08_seeds_that_cannot_be_are_refused(seed: object) -> None:
    with pytest.raises(SeedError, match=r"seed=.*allowed: 0 to 4294967295, or null"):
        SeedStreams(seed)  # type: ignore[arg-type]


def test_sed_08_drawn_seeds_can_be_given_again() -> None:
    drawn = [draw_seed() for _ in range(5)]
    assert len(set(drawn)) > 1
    assert [SeedStreams(seed).seed for seed in drawn] == drawn


def _draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.rand(()))


def test_seed_everything_seeds_the_global_generators() -> None:
    seed_everything(SeedStreams(1))
    first = _draw()
    seed_everything(SeedStreams(1))
    assert _draw() == first
    seed_everything(SeedStreams(2))
    assert not set(_draw()) & set(first)


def test_global_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    seed_everything(SeedStreams(5))
    _draw()  # leaves a second normal number waiting in Python's and NumPy's generators
    store = CheckpointStore(tmp_path, 1)
    store.save(0, {"rng": global_rng_state()})
    expected = [_draw() for _ in range(3)]
    seed_everything(SeedStreams(6))
    set_global_rng_state(store.load()[1]["rng"])
    assert [_draw() for _ in range(3)] == expected
