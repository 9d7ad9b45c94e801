"""What is reported of rewards and what is learned from them, where the right numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.runners.runs import (
    QUICK,
    column,
    evaluations,
    play_again,
    run,
    world,
)

ALGOS = ["happo", "mappo"]
LOCAL = ["algo.share_param=false"]
FAST_CRITIC = ["algo.critic_lr=3e-2", "algo.critic_epoch=20", "algo.ppo_epoch=1", "algo.use_clipped_value_loss=false"]
"""So that the value settles within a second."""


@pytest.mark.parametrize("algo", ALGOS)
def test_log_01_every_return_is_exactly_one(tmp_path: Path, algo: str) -> None:
    steps = ["train.num_env_steps=500", "eval.eval_episodes=10", "eval.interval=100"]
    runner = run(tmp_path, f"algo={algo}", *world("SumOne"), *steps)
    assert column(runner.folder, "train/return/agent_0") == pytest.approx([1.0] * 25, abs=1e-6)
    assert sum(column(runner.folder, "train/episodes")) == 50
    lines = evaluations(runner.folder)
    assert len(lines) == 60
    assert [value for line in lines for value in line["returns"].values()] == pytest.approx([1.0] * 120, abs=1e-6)
    playback = play_again(runner.folder.path, deterministic=True)
    episodes = playback.play()
    assert [value for episode in episodes for value in episode.returns.values()] == pytest.approx([1.0] * 6, abs=1e-6)


@pytest.mark.parametrize("algo", ALGOS)
def test_log_02_and_log_03_time_limited_episodes_do_not_leak_into_the_next(tmp_path: Path, algo: str) -> None:
    runner = run(tmp_path, f"algo={algo}", *world("ConstReward", T=3), "eval.eval_episodes=10")
    for name, value in [("return/agent_0", 3.0), ("return_sum", 6.0), ("return_mean", 3.0), ("episode_length", 3.0)]:
        assert set(column(runner.folder, f"train/{name}")) == {value}, name
    assert {(line["length"], line["return_sum"]) for line in evaluations(runner.folder)} == {(3, 6.0)}
    # 40 steps of each of the two environments are 13 whole episodes of 3.
    assert sum(column(runner.folder, "train/episodes")) == 26


def test_D_39_and_log_04_sum_mean_and_agents_are_told_apart(tmp_path: Path) -> None:
    runner = run(tmp_path, *world("MinusOne"), "train.num_env_steps=100")
    for kind in ("train", "eval"):
        assert set(column(runner.folder, f"{kind}/return_sum")) == {-75.0}
        assert set(column(runner.folder, f"{kind}/return_mean")) == {-25.0}
        assert set(column(runner.folder, f"{kind}/episode_length")) == {25.0}
    assert set(column(runner.folder, "train/return/agent_2")) == {-25.0}
    assert {(line["return_sum"], line["return_mean"]) for line in evaluations(runner.folder)} == {(-75.0, -25.0)}
    done = json.loads((runner.folder.path / "COMPLETED").read_text(encoding="utf-8"))
    assert done["last_return"] == -75.0


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize(
    ("choice", "expected"),
    [("shared_sum", [111.0]), ("shared_mean", [37.0]), ("individual", [1.0, 10.0, 100.0])],
)
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_D_06_and_G_12_rewards_that_differ_by_agent_are_never_dropped(
    tmp_path: Path, algo: str, choice: str, expected: list[float], state_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [f"algo={algo}", *LOCAL, *world("OwnRewards"), f"env.reward={choice}", f"env.state_type={state_type}"]
    runner = run(tmp_path, *overrides, *QUICK)
    rewards = runner.learning_rewards()
    per_agent = choice == "individual" or state_type == "FP"
    assert runner.layout.state_type == ("FP" if per_agent else "EP")
    assert rewards.shape == ((10, 2, 3, 1) if per_agent else (10, 2, 1))
    wanted = torch.tensor(expected * (3 if per_agent and len(expected) == 1 else 1))
    assert torch.equal(rewards.squeeze(-1)[0, 0] if per_agent else rewards[0, 0], wanted)
    assert (rewards == rewards[0, 0]).all()
    assert runner.buffer.returns.shape == rewards.shape
    # Returns that are reported are those of the raw rewards, whatever is learned from.
    assert set(column(runner.folder, "train/return_sum")) == {555.0}
    assert set(column(runner.folder, "train/return/agent_1")) == {50.0}
    assert f"reward {choice}" in capsys.readouterr().out


def test_G_12_individual_rewards_give_each_agent_a_value_of_its_own(tmp_path: Path) -> None:
    overrides = [*world("OwnRewards", agents=2), "env.reward=individual", *QUICK, "algo.gamma=0.5"]
    runner = run(tmp_path, *overrides, *FAST_CRITIC, "train.num_env_steps=400")
    states = runner.buffer.share_obs[0, 0]
    assert states.shape == (2, 6), "both observations and the one-hot index of the agent"
    assert torch.equal(states[:, -2:], torch.eye(2))
    values = runner.critic.denormalize(runner.critic.get_values(states)).flatten()
    torch.testing.assert_close(values, torch.tensor([2.0, 20.0]), rtol=0.15, atol=0.0)


@pytest.mark.parametrize("algo", ALGOS)
def test_tlb_02_a_time_limit_is_bootstrapped(tmp_path: Path, algo: str) -> None:
    """Reward 1 in every step, cut at 25: the value is 1 / (1 - 0.99) = 100."""
    value = settled_value(tmp_path, algo, "bootstrap")
    assert 60 < value < 140


@pytest.mark.parametrize("algo", ALGOS)
def test_tlb_02_a_time_limit_that_is_taken_for_an_end_is_worth_the_episode_alone(tmp_path: Path, algo: str) -> None:
    assert 8 < settled_value(tmp_path, algo, "ignore") <= 22.2


def settled_value(folder: Path, algo: str, time_limit: str) -> float:
    shape = ["train.episode_length=25", "train.n_rollout_threads=1", "train.num_env_steps=1000"]
    choice = f"algo.time_limit={time_limit}"
    runner = run(folder, f"algo={algo}", *world("ConstReward"), *QUICK, choice, *shape, *FAST_CRITIC)
    return float(runner.critic.denormalize(runner.critic.get_values(runner.buffer.share_obs[0])).mean())


@pytest.mark.parametrize("algo", ALGOS)
def test_tlb_10_no_step_enters_a_loss_with_its_own_prediction_as_target(tmp_path: Path, algo: str) -> None:
    overrides = [f"algo={algo}", *world("ConstReward", T=5), "train.episode_length=20", *QUICK]
    runner = run(tmp_path, *overrides, "train.num_env_steps=40")
    cut = runner.cuts()
    assert cut.sum() == 2 * 4
    assert (runner.advantages[cut] != 0).all()
    values = runner.critic.denormalize(runner.buffer.value_preds[:-1])
    assert (runner.buffer.returns[cut] != values[cut]).all()
