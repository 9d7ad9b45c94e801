"""Whole runs of teams with masks, with agents that leave, and with agents that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gymnasium import spaces

import harl
from harl.config import ConfigError
from tests.envs.fixtures import Hetero
from tests.runners.runs import (
    QUICK,
    column,
    evaluations,
    make,
    metrics,
    play_again,
    run,
    stop_at,
    weights,
    world,
)

ALGOS = ["happo", "mappo"]
LOCAL = ["algo.share_param=false"]
FAST_CRITIC = ["algo.critic_lr=3e-2", "algo.critic_epoch=20", "algo.ppo_epoch=1", "algo.use_clipped_value_loss=false"]
"""So that the value settles within a second."""


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


@pytest.mark.parametrize("algo", ALGOS)
def test_usr_08_three_environments_do_not_break_minibatches_or_masks(tmp_path: Path, algo: str) -> None:
    """30 rows in 4 and 7 parts."""
    slices = ["train.n_rollout_threads=3", "algo.actor_num_mini_batch=4", "algo.critic_num_mini_batch=7"]
    runner = run(tmp_path, f"algo={algo}", *world("MaskOnly", legal=2), *slices, "train.num_env_steps=120", *QUICK)
    assert (runner.env_steps, runner.iteration) == (120, 4)
    assert torch.isfinite(weights(runner)).all()


@pytest.mark.parametrize("algo", ALGOS)
def test_usr_07_simple_push_with_the_users_settings(tmp_path: Path, algo: str) -> None:
    """Unlike agents with rewards of their own, from the package, at a rollout that is cut into four episodes."""
    push = ["env=pettingzoo", "env.entry_point=mpe2.simple_push_v3:parallel_env", "env.reward=individual"]
    users = ["algo.gamma=0.999", "algo.entropy_coef=0.01", "algo.lr=2.5e-4", "algo.max_grad_norm=0.5"]
    shape = ["train.n_rollout_threads=4", "train.episode_length=100", "train.num_env_steps=800"]
    runner = run(tmp_path, f"algo={algo}", *LOCAL, *push, *users, "algo.ppo_epoch=4", *shape)
    assert runner.layout.obs_dims == (8, 19)
    assert runner.layout.state_type == "FP"
    assert torch.isfinite(weights(runner)).all()
    last = metrics(runner.folder)[-1]
    assert float(last["train/return/adversary_0"]) != float(last["train/return/agent_0"])
