"""A stopped off-policy run that goes on is the run that was never stopped; what is said where it cannot be."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import harl
from harl.config import ConfigError
from harl.runners import OffPolicyBaseRunner
from tests.algorithms.learners import parameters
from tests.runners.off_policy_runs import ALGORITHMS, QUICK, fixture, make, resume, run, stop_at
from tests.runners.runs import assert_same_run, checkpoint, column, metrics

WORLDS = "tests.runners.worlds"
DECAY = {"train__use_linear_lr_decay": True}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OffPolicyBaseRunner]:
    """One run of each algorithm, without a stop."""
    folder = tmp_path_factory.mktemp("straight")
    return {algo: run(folder, algo, **DECAY) for algo in ALGORITHMS}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_G_8_and_RES_04_D_44_stopped_and_resumed_equals_straight_through(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner], algo: str
) -> None:
    """Weights, slow copies, optimisers, temperatures, replay, generators, counters: to the bit."""
    stopped = make(tmp_path, algo, **DECAY)
    # Between two bouts of updates, with the buffer about to be full.
    assert stop_at(stopped, 46) == 128 + signal.SIGTERM
    assert stopped.env_steps == 46
    assert stopped.folder.status["status"] == "interrupted"
    resumed = resume(stopped.folder)
    assert (resumed.env_steps, resumed.total_it) == (80, 30)
    assert resumed.folder.completed
    assert_same_run(straight[algo].folder, resumed.folder)


def test_what_a_checkpoint_holds(straight: dict[str, OffPolicyBaseRunner]) -> None:
    places = list(checkpoint(straight["hasac"].folder))
    for part in (
        "/learners/actors/agent_0/policy",
        "/learners/actors/agent_0/optimizer/state/0/exp_avg",
        "/learners/actors/agent_0/temperature/log_alpha",
        "/learners/actors/agent_0/temperature/optimizer",
        "/learners/critic/networks/1",
        "/learners/critic/target_networks/1",
        "/learners/critic/optimizer/state/0/exp_avg_sq",
        "/learners/critic/temperature/log_alpha",
        "/learners/critic/value_normalizer/running_mean",
        "/progress/exploration",
        "/progress/replay_order",
        "/progress/random_actions",
        "/progress/agent_order",
        "/progress/total_it",
    ):
        assert any(place.startswith(part) for place in places), part
    places = list(checkpoint(straight["matd3"].folder))
    assert any(place.startswith("/learners/actors/agent_0/target") for place in places)


@pytest.mark.parametrize("stop", [10, 20, 22], ids=["mid_warm_up", "end_of_warm_up", "before_the_first_update"])
def test_RES_04_stopped_in_and_around_the_warm_up(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner], stop: int
) -> None:
    stopped = make(tmp_path, "hasac", **DECAY)
    stop_at(stopped, stop)
    assert_same_run(straight["hasac"].folder, resume(stopped.folder).folder)


def test_RES_04_stopped_three_times(tmp_path: Path, straight: dict[str, OffPolicyBaseRunner]) -> None:
    runner = make(tmp_path, "hatd3", **DECAY)
    for stop in (14, 38, 74):
        stop_at(runner, stop)
        runner = harl.make_runner([f"resume={runner.folder.path}"])  # type: ignore[assignment]
    runner.run()
    assert_same_run(straight["hatd3"].folder, runner.folder)


@pytest.mark.parametrize(
    "overrides",
    [
        {"algo": "maddpg", "algo__share_param": True},
        {"algo": "hasac", "env": "speaker", "env__state_type": "FP"},
        {"algo": "hatd3", "env": "speaker_box", "env__reward": "individual"},
        {"algo": "had3qn", "env": fixture("GlobalDice", WORLDS)},
    ],
    ids=["shared", "FP", "individual", "global_generator"],
)
def test_RES_04_other_settings(tmp_path: Path, overrides: dict[str, Any]) -> None:
    quiet = {**overrides, "eval__use_eval": False}
    whole, stopped = run(tmp_path, **quiet), make(tmp_path, **quiet)
    stop_at(stopped, 46)
    assert_same_run(whole.folder, resume(stopped.folder).folder)


def test_metrics_that_the_environment_reports_survive_a_stop(tmp_path: Path) -> None:
    world = fixture("Reports", WORLDS)
    whole, stopped = run(tmp_path, "haddpg", world), make(tmp_path, "haddpg", world)
    stop_at(stopped, 46)
    resumed = resume(stopped.folder)
    assert len(column(whole.folder, "env/height")) == 4
    assert_same_run(whole.folder, resumed.folder)


def test_a_completed_run_can_be_extended(tmp_path: Path, straight: dict[str, OffPolicyBaseRunner]) -> None:
    long = run(tmp_path, "matd3", train__num_env_steps=120)
    short = run(tmp_path, "matd3")
    assert_same_run(long.folder, resume(short.folder, "train.num_env_steps=120").folder)


@pytest.mark.parametrize("algo", ["haddpg", "hasac", "had3qn"])
def test_without_the_replay_it_is_filled_again_and_the_log_says_so(
    tmp_path: Path, algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = make(tmp_path, algo, algo__save_replay=False)
    stop_at(stopped, 40)
    before = stopped.total_it
    assert not any("/replay/" in place for place in checkpoint(stopped.folder))
    capsys.readouterr()
    resumed = harl.make_runner([f"resume={stopped.folder.path}"])
    assert isinstance(resumed, OffPolicyBaseRunner)
    learned_at, bout = [], resumed.learn_for_a_while

    def noting() -> None:
        learned_at.append(resumed.env_steps)
        bout()

    resumed.learn_for_a_while = noting  # type: ignore[method-assign]
    resumed.run()
    said = capsys.readouterr().out
    assert "the checkpoint has no replay buffer (algo.save_replay=false)" in said
    assert "learning goes on when it holds 20 transitions" in said
    assert resumed.env_steps == 80
    # From 40 on, the buffer holds 20 at 60; bouts come every 3 vector steps, as if nothing had happened.
    assert learned_at == [62, 68, 74, 80]
    assert resumed.total_it == before + 12


def test_without_the_replay_a_buffer_smaller_than_the_warm_up_learns_on(tmp_path: Path) -> None:
    stopped = make(tmp_path, "haddpg", algo__save_replay=False, algo__buffer_size=8, **QUICK)
    stop_at(stopped, 40)
    resumed = resume(stopped.folder)
    assert resumed.enough == 8
    assert resumed.total_it == 30 - 3


def test_an_environment_that_cannot_save_its_state_is_reset_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = make(tmp_path, "hasac", fixture("Identity"), algo__n_step=4, algo__buffer_size=200)
    stop_at(stopped, 46)
    capsys.readouterr()
    resumed = harl.make_runner([f"resume={stopped.folder.path}"])
    assert isinstance(resumed, OffPolicyBaseRunner)
    before = resumed.buffer.gather(torch.arange(46))
    resumed.run()
    assert "cannot save its state: the environments were reset" in capsys.readouterr().out
    assert resumed.env_steps == 80
    after = resumed.buffer.gather(torch.arange(46))
    for name in ("rewards", "discounts", "next_share_obs"):
        assert torch.equal(getattr(before, name), getattr(after, name)), "nothing looks ahead beyond the reset"
    assert [row["env_steps"] for row in metrics(resumed.folder)] == ["0", "20", "40", "60", "80"]


# Weights alone.


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_RES_10_a_new_run_starts_from_the_weights_of_another(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner], algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = straight[algo]
    runner = make(tmp_path, algo, init_from=str(source.folder.checkpoints / "80"), seed=5)
    one, other = parameters(source), parameters(runner)
    temperatures = {name for name in one if name.startswith("temperature")}
    for name in one.keys() - temperatures:
        assert torch.equal(one[name], other[name]), name
    assert all(other[name].item() == 0.0 for name in temperatures), "a learned one starts from 1"
    assert runner.env_steps == runner.total_it == len(runner.buffer) == 0
    assert not any(actor.optimizer.adam.state for actor in runner.team.own)
    runner.run()
    assert runner.total_it == 30
    assert f"started from the weights of {source.folder.path}" in capsys.readouterr().out


def test_RES_10_a_fixed_temperature_is_the_new_runs_own(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner]
) -> None:
    source = str(straight["hasac"].folder.path)
    runner = make(tmp_path, "hasac", init_from=source, algo__auto_alpha=False, algo__alpha=0.2)
    runner.close()
    alphas = [actor.temperature.alpha.item() for actor in runner.team.own] + [runner.critic.temperature.alpha.item()]
    assert alphas == pytest.approx([0.2] * 4)


@pytest.mark.parametrize(
    ("source", "new", "named"),
    [
        ("haddpg", {"algo": "hatd3"}, ["critic", "QCritic", "TwinQCritic"]),
        ("hasac", {"algo": "hasac", "algo__use_valuenorm": False}, ["use_valuenorm", "True", "False"]),
        ("matd3", {"algo": "matd3", "model__hidden_sizes": [9]}, ["hidden_sizes", "[8]", "[9]"]),
        ("had3qn", {"algo": "had3qn", "env": "speaker"}, ["agents", "speaker_0", "action_spaces"]),
        ("had3qn", {"algo": "hasac", "env": "spread"}, ["JointQCritic", "SoftTwinQCritic"]),
    ],
)
def test_RES_10_weights_of_another_team_are_refused_with_what_differs(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner], source: str, new: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path, init_from=str(straight[source].folder.path), **new)
    for text in named:
        assert text in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_RES_10_weights_of_the_sequential_twin_are_welcome(
    tmp_path: Path, straight: dict[str, OffPolicyBaseRunner]
) -> None:
    runner = make(tmp_path, "matd3", init_from=str(straight["hatd3"].folder.checkpoints / "80"))
    runner.close()
    assert torch.equal(parameters(runner)["slow agent_1"], parameters(straight["hatd3"])["slow agent_1"])


def test_save_replay_is_part_of_what_a_run_is(straight: dict[str, OffPolicyBaseRunner]) -> None:
    with pytest.raises(ConfigError, match=r"algo\.save_replay"):
        harl.make_runner([f"resume={straight['haddpg'].folder.path}", "algo.save_replay=false"])
