"""Equal seeds give equal runs, to the bit; evaluation changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import harl
from harl.config import load_yaml
from harl.runners import OnPolicyBaseRunner
from tests.runners.runs import (
    QUICK,
    TINY,
    assert_same_run,
    checkpoint,
    evaluations,
    make,
    parts_of,
    run,
    weights,
    world,
)

SPREAD = ["env=mpe"]
CONTINUOUS = ["env=mpe", "env.continuous_actions=true"]
SPEAKER = ["env=mpe", "env.scenario=simple_speaker_listener"]
CRITIC = ["algo.critic_num_mini_batch=3"]
MINIBATCHES = ["algo.actor_num_mini_batch=2", *CRITIC]
"""So that the order of samples is random too."""
HAPPO, MAPPO, SHARED = ["algo=happo"], ["algo=mappo", "algo.share_param=false"], ["algo=mappo"]
HAA2C, HATRPO = ["algo=haa2c"], ["algo=hatrpo"]


@pytest.mark.parametrize(
    "overrides",
    [
        [*HAPPO, *SPREAD, *MINIBATCHES],
        [*HAPPO, *CONTINUOUS, *MINIBATCHES],
        [*HAPPO, *SPEAKER, *MINIBATCHES],
        [*MAPPO, *SPREAD, *MINIBATCHES],
        [*MAPPO, *SPEAKER, "env.continuous_actions=true", *MINIBATCHES],
        [*SHARED, *SPREAD, *MINIBATCHES],
        [*SHARED, *CONTINUOUS, *MINIBATCHES],
        [*HAA2C, *SPREAD, *MINIBATCHES],
        [*HAA2C, *CONTINUOUS, *MINIBATCHES],
        [*HATRPO, *SPREAD, *CRITIC],
        [*HATRPO, *SPEAKER, "env.continuous_actions=true", *CRITIC],
    ],
    ids=lambda overrides: "-".join(part.split("=")[1] for part in overrides),
)
def test_equal_seeds_give_equal_runs(tmp_path: Path, overrides: list[str]) -> None:
    minibatches = [] if overrides[0] == "algo=hatrpo" else MINIBATCHES  # hatrpo has none
    first, second = (run(tmp_path, *overrides, *minibatches, "seed=7") for _ in range(2))
    assert first.folder.path != second.folder.path
    assert_same_run(first.folder, second.folder)


@pytest.mark.parametrize("algo", [HAPPO, SHARED], ids=["happo", "mappo"])
def test_another_seed_gives_another_run(tmp_path: Path, algo: list[str]) -> None:
    first, other = (run(tmp_path, *algo, *SPREAD, f"seed={seed}") for seed in (7, 8))
    assert not torch.equal(weights(first), weights(other))
    assert evaluations(first.folder) != evaluations(other.folder)


def test_the_comparison_sees_the_smallest_difference(tmp_path: Path) -> None:
    first = run(tmp_path, *HAPPO, *SPREAD)
    changed = run(tmp_path, *HAPPO, *SPREAD, "algo.lr=5.000001e-4")
    with pytest.raises(AssertionError):
        assert_same_run(first.folder, changed.folder)


@pytest.mark.parametrize("env", [SPREAD, world("GlobalDice")], ids=["mpe", "global_generator"])
@pytest.mark.parametrize("algo", [HAPPO, SHARED], ids=["happo", "mappo"])
def test_evaluation_does_not_change_training(tmp_path: Path, algo: list[str], env: list[str]) -> None:
    quiet = run(tmp_path, *algo, *env, "eval.use_eval=false")
    often = run(tmp_path, *algo, *env, "eval.interval=20", "eval.dump_metrics=true")
    assert len(evaluations(often.folder)) == 2 * 5
    for part in ("learners", "progress", "rng"):
        assert parts_of(checkpoint(quiet.folder), part) == parts_of(checkpoint(often.folder), part), part


def test_rendering_in_mid_run_does_not_change_training(tmp_path: Path) -> None:
    plain = run(tmp_path, *HAPPO, *world("GlobalDice"), *QUICK)
    filmed = make(tmp_path, *HAPPO, *world("GlobalDice"), *QUICK)
    train = filmed.train

    def training() -> object:
        assert len(filmed.render(episodes=2)) == 2
        return train()

    filmed.train = training  # type: ignore[method-assign,assignment]
    filmed.run()
    assert torch.equal(weights(plain), weights(filmed))


def test_what_came_before_in_the_process_does_not_matter(tmp_path: Path) -> None:
    first = run(tmp_path, *HAPPO, *world("GlobalDice"))
    np.random.seed(99)
    torch.manual_seed(99)
    torch.rand(3)
    run(tmp_path, *SHARED, *CONTINUOUS, "seed=5")
    second = run(tmp_path, *HAPPO, *world("GlobalDice"))
    assert_same_run(first.folder, second.folder)


def test_sed_08_a_drawn_seed_is_recorded_and_repeats_the_run(tmp_path: Path) -> None:
    drawn = run_drawn(tmp_path)
    seed = load_yaml(drawn.folder.config).run.seed
    assert seed is not None
    assert drawn.folder.path.name.startswith(f"seed-{seed}_")
    assert_same_run(drawn.folder, run(tmp_path, f"seed={seed}").folder)
    assert load_yaml(run_drawn(tmp_path).folder.config).run.seed != seed


def run_drawn(folder: Path) -> OnPolicyBaseRunner:
    runner = harl.make_runner([*TINY, "seed=null", f"output_dir={folder}"])
    runner.run()
    assert isinstance(runner, OnPolicyBaseRunner)
    return runner
