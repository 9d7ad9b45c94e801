"""Whole runs of environments whose right answer is known: masks, deaths, unlike agents, seeds, rewards."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import harl
from harl.config import ConfigError, RenderOptions
from harl.runners.playback import Playback
from tests.envs.fixtures import Hetero
from tests.runners.runs import (
    QUICK,
    checkpoint,
    column,
    evaluations,
    make,
    metrics,
    parts_of,
    resume,
    run,
    stop_at,
    weights,
    world,
)
from tests.runners.worlds import Logged

ALGOS = ["happo", "mappo"]
LOCAL = ["algo.share_param=false"]
FAST_CRITIC = ["algo.critic_lr=3e-2", "algo.critic_epoch=20", "algo.ppo_epoch=1", "algo.use_clipped_value_loss=false"]
"""So that the value settles within a second."""


def play_again(runner_folder: Path, deterministic: bool, episodes: int = 3) -> Playback:
    options = RenderOptions(
        checkpoint="latest", episodes=episodes, video=False, deterministic=deterministic, fps=10, seed=None
    )
    playback = Playback(runner_folder, options)
    assert len(playback.play()) == episodes
    return playback


# Masks.


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("in_observation", [False, True], ids=["in_info", "in_observation"])
@pytest.mark.parametrize("legal", [1, 2])
def test_msk_04_no_illegal_action_in_training_evaluation_and_playback(
    tmp_path: Path, algo: str, in_observation: bool, legal: int
) -> None:
    """The environment raises on an illegal action, and its masks change in every step."""
    overrides = world("MaskOnly", actions=30, legal=legal, in_observation=in_observation)
    runner = run(tmp_path, f"algo={algo}", *overrides, "model.gain=100", "algo.lr=1e-2")
    assert runner.layout.has_masks
    assert {line["length"] for line in evaluations(runner.folder)} == {10}
    assert {line["return_sum"] for line in evaluations(runner.folder)} == {20.0}
    for deterministic in (True, False):
        play_again(runner.folder.path, deterministic)


def test_msk_06_the_mask_in_the_buffer_is_the_environments(tmp_path: Path) -> None:
    runner = make(tmp_path, *world("MaskOnly", actions=30, legal=2, in_observation=True), *QUICK)
    stop_at(runner, 14)
    masks = runner.buffer.available_actions
    assert masks is not None
    assert set(masks[:8].unique().tolist()) == {0.0, 1.0}
    assert (masks[:8].sum(-1) == 2).all()
    chosen = masks[:7].gather(-1, runner.buffer.actions[:7].long())
    assert (chosen == 1).all()
    assert runner.layout.obs_dims == (30, 30), "the mask is no part of what is observed and normalised"


# Agents that leave.


@pytest.mark.parametrize("late", [0.0, 5.0], ids=["gone", "late_rewards"])
@pytest.mark.parametrize("algo", [["algo=happo"], ["algo=mappo"], ["algo=happo", "env.reward=individual"]], ids=str)
def test_ded_01_and_ded_04_and_log_05_agents_that_leave_at_different_times(
    tmp_path: Path, algo: list[str], late: float
) -> None:
    runner = run(tmp_path, *world("Deaths", late_reward=late), *algo)
    assert runner.folder.completed
    expected = {"agent_0": 2.0, "agent_1": 3.0, "agent_2": 4.0}
    for line in evaluations(runner.folder):
        assert line["returns"] == expected
        assert (line["return_sum"], line["return_mean"], line["length"]) == (9.0, 3.0, 4)
    for name, value in [
        *((f"train/return/{agent}", value) for agent, value in expected.items()),
        ("train/return_sum", 9.0),
        ("train/return_mean", 3.0),
        ("train/episode_length", 4.0),
        ("eval/return_sum", 9.0),
        ("eval/return_mean", 3.0),
        ("eval/episode_length", 4.0),
    ]:
        assert set(column(runner.folder, name)) == {value}, name
    play_again(runner.folder.path, deterministic=False)


@pytest.mark.parametrize("algo", ALGOS)
def test_ded_06_steps_after_an_agents_end_change_none_of_its_parameters(tmp_path: Path, algo: str) -> None:
    """Whatever stands in the buffer where an agent was gone."""
    overrides = [*world("Deaths"), f"algo={algo}", *LOCAL, *QUICK, "train.num_env_steps=20"]
    expected = weights(run(tmp_path, *overrides))
    disturbed = make(tmp_path, *overrides)
    compute = disturbed.compute

    def computing() -> None:
        buffer = disturbed.buffer
        gone = buffer.active[:-1, ..., 0] == 0
        assert gone.any()
        buffer.actions[gone] = 3.0
        buffer.action_log_probs[gone] = -50.0
        buffer.obs[:-1][gone] = 1e3
        compute()

    disturbed.compute = computing  # type: ignore[method-assign]
    disturbed.run()
    assert torch.equal(weights(disturbed), expected)


# Agents that differ.


@pytest.mark.parametrize("algo", ALGOS)
def test_het_02_and_het_07_agents_of_four_kinds_learn_together(tmp_path: Path, algo: str) -> None:
    """The environment raises on an action outside of its own agent's space."""
    runner = run(tmp_path, f"algo={algo}", *LOCAL, *world("Hetero"), "train.num_env_steps=400", "algo.lr=5e-3")
    assert runner.layout.obs_dims == Hetero.WIDTHS == (3, 7, 11, 4)
    assert runner.layout.action_dims == (1, 1, 2, 2)
    for network, width in zip(runner.team.networks, Hetero.WIDTHS, strict=True):
        first = next(p for p in network.parameters() if p.dim() == 2)
        assert first.shape[1] == width, "no padded zero reaches a network"
    series = {f"agent/agent_{i}/policy_loss" for i in range(4)}
    assert series <= metrics(runner.folder)[-1].keys()
    policy = harl.load(runner.folder.path)
    world_of_its_own = Hetero()
    observations, _ = world_of_its_own.reset(seed=1)
    for deterministic in (True, False):
        actions = policy.act(observations, deterministic=deterministic)
        assert isinstance(actions, dict)
        for agent, action in actions.items():
            assert world_of_its_own.action_space(agent).contains(action), agent
        observations = world_of_its_own.step(actions)[0]


def test_het_07_the_log_probability_of_a_multi_part_action_is_the_sum_over_its_parts(tmp_path: Path) -> None:
    runner = make(tmp_path, *LOCAL, *world("Hetero"), *QUICK)
    stop_at(runner, 14)
    assert isinstance(runner.layout.action_spaces[2], spaces.MultiDiscrete)
    obs, actions = runner.buffer.obs[:7, :, 2, :11].flatten(0, 1), runner.buffer.actions[:7, :, 2, :2].flatten(0, 1)
    stored = runner.buffer.action_log_probs[:7, :, 2, :2].flatten(0, 1)
    data = runner.buffer.actor_data(2, torch.zeros(10, 2, 1))
    joint = runner.actors[2].log_probs(data).view(10, 2, -1)[:7].flatten(0, 1)
    assert actions[:, 0].max() <= 2
    assert actions[:, 1].max() <= 1
    assert len(obs) == len(actions) == 14
    torch.testing.assert_close(joint.sum(-1), stored.sum(-1))


def test_het_02_a_team_that_cannot_share_is_refused_with_its_agents_and_spaces(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path / "new", "algo=mappo", *world("Hetero"))
    message = str(refused.value)
    for text in ("agent_1", "agent_2", "agent_3", "MultiDiscrete([3 2])", "Box(", "algo.share_param=false"):
        assert text in message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("algo", ALGOS)
def test_het_01_and_usr_02_speaker_and_listener(tmp_path: Path, algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = [f"algo={algo}", *LOCAL, "env=mpe", "env.scenario=simple_speaker_listener"]
    run(tmp_path, *overrides, "train.num_env_steps=500", "logger.progress=plain")
    said = capsys.readouterr().out
    assert "speaker_0 sees 3 and acts in Discrete(3)" in said
    assert "listener_0 sees 11 and acts in Discrete(5)" in said


# Returns.


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


def test_log_04_sum_mean_and_agents_are_told_apart(tmp_path: Path) -> None:
    runner = run(tmp_path, *world("MinusOne"), "train.num_env_steps=100")
    for kind in ("train", "eval"):
        assert set(column(runner.folder, f"{kind}/return_sum")) == {-75.0}
        assert set(column(runner.folder, f"{kind}/return_mean")) == {-25.0}
        assert set(column(runner.folder, f"{kind}/episode_length")) == {25.0}
    assert set(column(runner.folder, "train/return/agent_2")) == {-25.0}
    assert {(line["return_sum"], line["return_mean"]) for line in evaluations(runner.folder)} == {(-75.0, -25.0)}
    done = json.loads((runner.folder.path / "COMPLETED").read_text(encoding="utf-8"))
    assert done["last_return"] == -75.0


# What is learned from.


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize(
    ("choice", "expected"),
    [("shared_sum", [111.0]), ("shared_mean", [37.0]), ("individual", [1.0, 10.0, 100.0])],
)
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_rewards_that_differ_by_agent_are_never_dropped(
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


def test_individual_rewards_give_each_agent_a_value_of_its_own(tmp_path: Path) -> None:
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


# Seeds.


@pytest.fixture
def copies() -> Iterator[list[Logged]]:
    Logged.copies.clear()
    yield Logged.copies
    Logged.copies.clear()


def test_sed_03_and_sed_04_and_sed_07_every_copy_and_every_episode_is_its_own(
    tmp_path: Path, copies: list[Logged]
) -> None:
    def firsts(seed: int) -> list[list[tuple[int, ...]]]:
        copies.clear()
        run(tmp_path, *world("Logged"), "train.n_rollout_threads=4", "train.num_env_steps=120", f"seed={seed}", *QUICK)
        assert len(copies) == 4
        for copy in copies:
            # The first reset, which only looks at the shapes, and the later ones are not seeded.
            seeds = [value for value in copy.seeds if value is not None]
            assert len(seeds) == 1
        assert len({seed for copy in copies for seed in copy.seeds if seed is not None}) == 4
        return [copy.first[copy.seeds.index(next(s for s in copy.seeds if s is not None)) :] for copy in copies]

    seven = firsts(7)
    assert len({episodes[0] for episodes in seven}) == 4, "four copies, four first observations"
    for episodes in seven:
        assert len(episodes) >= 5
        assert len(set(episodes)) == len(episodes), "no episode repeats another one"
    assert firsts(7) == seven
    assert {episodes[0] for episodes in firsts(8)}.isdisjoint({episodes[0] for episodes in seven})


def test_evaluation_has_seeds_of_its_own(tmp_path: Path, copies: list[Logged]) -> None:
    runner = run(tmp_path, *world("Logged"))
    training, evaluating = copies[:2], copies[2:]
    own = {seed for copy in training for seed in copy.seeds if seed is not None}
    theirs = {seed for copy in evaluating for seed in copy.seeds if seed is not None}
    assert len(own) == 2
    assert len(theirs) == 2
    assert own.isdisjoint(theirs)
    assert len({line["seed"] for line in evaluations(runner.folder)}) == 2


def test_log_11_evaluation_episodes_differ_and_come_again(tmp_path: Path) -> None:
    runner = make(tmp_path, "env=mpe", "eval.eval_episodes=10", "eval.interval=40", "algo.lr=0", "algo.critic_lr=0")
    runner.run()
    lines = evaluations(runner.folder)
    by_step = [[line["returns"] for line in lines if line["env_steps"] == step] for step in (0, 40, 80)]
    assert [len(returns) for returns in by_step] == [10, 10, 10]
    # The policy has not changed, so equal episodes have equal returns.
    assert by_step[0] == by_step[1] == by_step[2]
    assert len({json.dumps(returns) for returns in by_step[0]}) == 10
    assert min(column(runner.folder, "eval/return_sum_std")) > 0


def test_equal_quota_of_episodes_for_each_environment(tmp_path: Path) -> None:
    runner = run(tmp_path, "env=mpe", "eval.eval_episodes=12", "eval.n_eval_rollout_threads=4", "eval.interval=80")
    lines = [line for line in evaluations(runner.folder) if line["env_steps"] == 0]
    assert sorted((line["env"], line["episode"]) for line in lines) == [(n, k) for n in range(4) for k in range(3)]


def test_steps_of_evaluations_go_to_a_table_where_it_is_asked_for(tmp_path: Path) -> None:
    runner = run(tmp_path, *world("Hetero"), *LOCAL, "eval.dump_metrics=true", "eval.interval=80")
    files = sorted((runner.folder.path / "evaluation_data").iterdir())
    assert [file.name for file in files] == [f"all_agents_episode_2_step_{step}.csv" for step in (0, 80)]
    with files[0].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 10
    assert {"agent_0/reward", "agent_2/action_1", "agent_3/action_1"} <= rows[0].keys()
    assert "agent_0/action_1" not in rows[0]
    total = sum(float(row[f"agent_{i}/reward"]) for row in rows for i in range(4))
    lines = [line for line in evaluations(runner.folder) if line["env_steps"] == 0]
    assert total == pytest.approx(sum(line["return_sum"] for line in lines))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("norm", "update"), [(True, "iteration"), (True, "minibatch"), (False, "iteration")])
@pytest.mark.parametrize("algo", ALGOS)
def test_cfg_12_every_accepted_combination_trains_saves_and_loads(
    tmp_path: Path, algo: str, norm: bool, update: str, share: bool
) -> None:
    flags = [f"algo.share_param={share}", f"algo.use_valuenorm={norm}", f"algo.valuenorm_update={update}"]
    overrides = [f"algo={algo}", *flags, *world("Identity"), "checkpoint.interval=1", "checkpoint.keep_last=1"]
    if algo == "happo" and share:
        with pytest.raises(ConfigError, match=r"algo\.share_param=true does not go with algo=happo"):
            make(tmp_path, *overrides)
        return
    runner = make(tmp_path, *overrides, *QUICK)
    stop_at(runner, 46)
    before = parts_of(checkpoint(runner.folder), "learners")
    assert any("value_normalizer" in place for place in before) is norm
    again = resume(runner.folder)
    assert again.env_steps == 80
    obs = np.eye(4, dtype=np.float32)[[0, 1]]
    action = harl.load(runner.folder.path).act(obs)
    assert isinstance(action, np.ndarray)
    assert action.shape == (2, 1)
