"""NaN, infinity and errors of the environment's own: the run stops, says where, and keeps the last good checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import harl
from harl.algorithms.base import NonFiniteError
from harl.config import ConfigError
from harl.envs.api import EnvError
from harl.experiment.checkpoint import CheckpointStore
from harl.experiment.run_folder import RunFolder
from harl.registry import make_envs
from harl.runners import OnPolicyBaseRunner
from tests.envs.fixtures import NaNAt
from tests.runners.runs import QUICK, checkpoint, evaluations, make, metrics, run, weights, world

LATE = ["train.num_env_steps=200", "checkpoint.interval=20"]


def assert_all_finite(folder: RunFolder) -> None:
    store = CheckpointStore(folder.checkpoints, 9)
    steps = store.whole()
    assert steps
    for step in steps:
        numbers = _numbers(list(checkpoint(folder, step).values()))
        assert numbers
        # Before the first evaluation the best return is minus infinity, and that is meant.
        assert not [value for value in numbers if math.isnan(value) or value == math.inf]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("algo", ["happo", "mappo"])
@pytest.mark.parametrize(("where", "value"), [("obs", "nan"), ("reward", "nan"), ("obs", "inf"), ("reward", "inf")])
def test_D_53_and_dty_03_not_a_number_from_an_environment_stops_the_run(
    tmp_path: Path, algo: str, where: str, value: str
) -> None:
    NaNAt.built = 0
    overrides = world("NaNAt", k=15, where=where, value=value, worker=1)
    runner = make(tmp_path, f"algo={algo}", *overrides, *LATE, *QUICK)
    with pytest.raises(EnvError) as error:
        runner.run()
    message = str(error.value)
    # Environment 1, first agent, in its 15th step: 28 environment steps had been counted before.
    name = {"obs": "observation", "reward": "reward"}[where]
    assert f"environment 1 returned {value} in the {name} of agent_0 after 28 environment steps" in message
    assert runner.folder.status["status"] == "failed"
    assert "environment 1" in runner.folder.status["reason"]
    assert CheckpointStore(runner.folder.checkpoints, 9).steps() == [20], "the last good one"
    assert_all_finite(runner.folder)
    assert torch.isfinite(weights(runner)).all()
    assert runner.critic.value_normalizer is not None
    assert all(torch.isfinite(tensor).all() for tensor in runner.critic.value_normalizer.state_dict().values())
    actions = harl.load(runner.folder.path).act({"agent_0": [1.0, 1.0], "agent_1": [1.0, 1.0]})
    assert set(actions) == {"agent_0", "agent_1"}


@pytest.mark.parametrize("where", ["obs", "reward"])
def test_dty_03_not_a_number_in_an_evaluation_is_no_result(tmp_path: Path, where: str) -> None:
    NaNAt.built = 0
    # Environments 0 and 1 train, 2 and 3 evaluate.
    runner = make(tmp_path, *world("NaNAt", k=15, where=where, worker=3), *LATE)
    with pytest.raises((EnvError, NonFiniteError)) as error:
        runner.run()
    assert "environment 1 returned nan" in str(error.value)
    assert "evaluation" in str(error.value)
    assert evaluations(runner.folder) == []
    assert runner.folder.status["status"] == "failed"


@pytest.mark.parametrize("algo", ["happo", "mappo"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_num_23_a_gradient_that_is_not_a_number_stops_the_run_within_that_update(
    tmp_path: Path, algo: str, value: float
) -> None:
    runner = make(tmp_path, f"algo={algo}", "algo.share_param=false", "env=mpe", *LATE, *QUICK)
    _poison(runner, agent=1, value=value, update=3)
    with pytest.raises(NonFiniteError, match="agent_1") as error:
        runner.run()
    assert "NaN or infinite" in str(error.value)
    assert "policy_loss" in str(error.value) or "grad_norm" in str(error.value)
    assert "after 60 environment steps" in str(error.value)
    assert CheckpointStore(runner.folder.checkpoints, 9).steps() == [20, 40]
    assert_all_finite(runner.folder)
    assert [row["env_steps"] for row in metrics(runner.folder)] == ["20", "40"]
    resumed = harl.make_runner([f"resume={runner.folder.path}"])
    assert resumed.run() is None
    assert resumed.env_steps == 200


def test_num_23_a_value_gradient_that_is_not_a_number_names_the_critic(tmp_path: Path) -> None:
    runner = make(tmp_path, "env=mpe", *LATE, *QUICK)
    parameter = next(runner.critic.network.parameters())
    parameter.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteError, match="critic"):
        runner.run()


def _poison(runner: OnPolicyBaseRunner, agent: int, value: float, update: int) -> None:
    """Make one gradient of one agent not a number in the given update."""
    train, calls = runner.train, 0

    def training() -> Any:
        nonlocal calls
        calls += 1
        if calls == update:
            parameter = next(runner.team.networks[agent].parameters())
            parameter.register_hook(lambda gradient: gradient * value)
        return train()

    runner.train = training  # type: ignore[method-assign]


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_num_04_and_num_06_and_num_23_nothing_to_learn_from_stays_finite(tmp_path: Path, algo: str) -> None:
    overrides = [f"algo={algo}", *world("NoReward"), *QUICK, "train.num_env_steps=100", "train.log_interval=1"]
    runner = run(tmp_path, *overrides)
    assert torch.isfinite(weights(runner)).all()
    # One step of one environment is one row, of which there is no spread.
    single = ["train.n_rollout_threads=1", "train.episode_length=1", "train.num_env_steps=3"]
    assert torch.isfinite(weights(run(tmp_path, *overrides, *single))).all()
    # Parts of unequal size, the last one of one row.
    ragged = ["train.episode_length=11", "train.n_rollout_threads=1", "algo.actor_num_mini_batch=10"]
    assert torch.isfinite(weights(run(tmp_path, *overrides, *ragged))).all()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_num_23_and_usr_05_two_thousand_updates_without_any_reward_stay_finite(tmp_path: Path, algo: str) -> None:
    updates = {"happo": 2000, "mappo": 500}[algo]
    steps = ["train.episode_length=5", f"train.num_env_steps={10 * updates}", "checkpoint.interval=20000"]
    epochs = ["algo.ppo_epoch=2", "algo.critic_epoch=2"]
    runner = run(tmp_path, f"algo={algo}", *world("NoReward"), *QUICK, *steps, *epochs)
    assert runner.iteration == updates
    assert torch.isfinite(weights(runner)).all()
    assert_all_finite(runner.folder)


def test_an_error_of_the_environment_keeps_its_type_and_says_where(tmp_path: Path) -> None:
    runner = make(tmp_path, *world("Raises", k=7), *QUICK)
    with pytest.raises(ValueError, match="boom-7") as error:
        runner.run()
    assert "pettingzoo Raises, environment 0, step 7 of episode" in "".join(error.value.__notes__)
    assert runner.folder.status == {**runner.folder.status, "status": "failed", "reason": "ValueError: boom-7"}


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("WrongState", ["(12,)", "(4,)"]),
        ("WrongObservation", ["agent_0", "(2,)", "(3,)"]),
        ("IntegerBox", ["agent_0", "int32"]),
    ],
)
def test_usr_10_and_het_06_and_het_08_what_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, name: str, texts: list[str]
) -> None:
    with pytest.raises((EnvError, ConfigError)) as error:
        make(tmp_path / "new", *world(name), "train.n_rollout_threads=10")
    for text in texts:
        assert text in str(error.value)
    assert not (tmp_path / "new").exists(), "a refused run leaves nothing behind"


def test_the_environments_are_closed_however_the_run_ends(tmp_path: Path) -> None:
    runner = make(tmp_path, *world("Raises", k=7))
    closed = []
    runner.envs.close = lambda: closed.append("train")  # type: ignore[method-assign]
    runner._eval_envs = make_envs(runner.env_args, 2)
    with pytest.raises(ValueError, match="boom-7"):
        runner.run()
    assert closed == ["train"]
