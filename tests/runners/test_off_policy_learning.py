"""Small problems that each off-policy algorithm must solve in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.algorithms.learners import sizes
from tests.runners.off_policy_runs import ALGORITHMS, config_for, fixture, run
from tests.runners.runs import evaluations

WORLDS = "tests.runners.worlds"
SETTINGS: dict[str, Any] = {
    "algo__lr": 1e-3,
    "algo__critic_lr": 3e-3,
    "algo__gamma": 0.5,
    "algo__batch_size": 128,
    "algo__buffer_size": 10_000,
    "algo__polyak": 0.05,
    "algo__policy_freq": 1,
    "algo__n_step": 1,
    "train__n_rollout_threads": 4,
    "train__warmup_steps": 400,
    "train__train_interval": 1,
    "train__log_interval": 1000,
    "eval__at_start": False,
    "eval__eval_episodes": 20,
    "eval__n_eval_rollout_threads": 4,
    "checkpoint__interval": 1_000_000,
    "logger__tensorboard": False,
    "algo__save_replay": False,
}
OWN: dict[str, dict[str, Any]] = {
    "hasac": {"algo__auto_alpha": False, "algo__alpha": 0.02, "algo__use_valuenorm": False, "model__gain": 1.0},
    "had3qn": {"algo__epsilon": 0.2},
}


def mean_return(folder: Path, algo: str, world: str, steps: int, **overrides: Any) -> float:
    """Mean return of an agent in the evaluation at the end."""
    small = {key.replace(".", "__"): value for key, value in sizes(algo, 32).items()}
    budget = {"train__num_env_steps": steps, "eval__interval": steps}
    runner = run(folder, algo, world, **{**SETTINGS, **small, **OWN.get(algo, {}), **budget, **overrides})
    lines = evaluations(runner.folder)
    assert len(lines) == 20
    return sum(line["return_mean"] for line in lines) / len(lines)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_identity_discrete(tmp_path: Path, algo: str) -> None:
    """Best 10; a uniform policy has 2.5."""
    assert mean_return(tmp_path, algo, fixture("Identity"), 2000) > 9.5


@pytest.mark.slow
@pytest.mark.parametrize("algo", [algo for algo in ALGORITHMS if algo != "had3qn"])
def test_identity_continuous(tmp_path: Path, algo: str) -> None:
    """Best 0; the best constant action has -5."""
    assert mean_return(tmp_path, algo, fixture("IdentityBox"), 2000) > -1.2


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_two_agents_agree_on_a_convention(tmp_path: Path, algo: str) -> None:
    """Best 8; agents that do not attend to each other have 2.67.

    The replay is short, since an agent of MADDPG sees the others as they were when it was recorded.
    """
    assert mean_return(tmp_path, algo, fixture("Convention", WORLDS), 3200, algo__buffer_size=400) > 7.5


@pytest.mark.slow
def test_D_29_local_values_at_the_greedy_choice_alone_keep_a_wrong_choice(tmp_path: Path) -> None:
    """The original's rule: whatever once looked better is never compared again. Its opposite is the default."""
    stuck = mean_return(tmp_path, "had3qn", fixture("Identity"), 2000, algo__regress_at="greedy")
    assert stuck < 6.0
    assert config_for("had3qn").algo.algo.regress_at == "all"  # type: ignore[union-attr]
