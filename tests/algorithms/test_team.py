"""Agents acting together, equal or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.envs.api import Layout
from harl.runners.evaluation import ActionClipper
from tests.algorithms.rollouts import ALGOS, SPACES, fill, hetero_layout, parameters, small_runner, team_layout


def test_HET_02_columns_beyond_an_agents_own_width_are_zero() -> None:
    team = small_runner(hetero_layout()).team
    obs, masks = torch.randn(50, 4, 11), torch.ones(50, 4, 5)
    actions, log_probs = team.act(obs, masks, generator=torch.Generator().manual_seed(0))
    assert actions.shape == log_probs.shape == (50, 4, 2)
    assert not actions[:, :2, 1].any()
    assert not log_probs[:, :2, 1].any()
    assert actions[:, 2:].abs().sum(0).all()
    assert (log_probs[:, :2, 0] < 0).all()


def test_D_37_and_HET_05_padded_actions_can_never_be_chosen() -> None:
    team = small_runner(hetero_layout()).team
    # The mask claims that every column is allowed, also those that are no action of the agent.
    obs, masks = torch.randn(100_000, 4, 11), torch.ones(100_000, 4, 5)
    actions, _ = team.act(obs, masks, generator=torch.Generator().manual_seed(0))
    highest = actions.amax(0)
    assert highest[0, 0] == 2.0
    assert highest[1, 0] == 4.0
    assert highest[2].tolist() == [2.0, 1.0]


def test_HET_05_agents_with_few_and_many_actions_do_not_share_indices() -> None:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    layout = Layout(
        agents=("small", "large"),
        observation_spaces=(box, box),
        action_spaces=(spaces.Discrete(16), spaces.Discrete(48)),
        obs_shape=(4,),
        share_obs_shape=(6,),
        state_type="EP",
        has_masks=True,
    )
    actions, _ = small_runner(layout).team.act(torch.randn(20_000, 2, 4), torch.ones(20_000, 2, 48))
    assert actions[:, 0].max() == 15.0
    assert actions[:, 1].max() == 47.0


@pytest.mark.parametrize("algo", ALGOS)
def test_D_05_padding_of_observations_never_reaches_a_network(algo: str) -> None:
    results = []
    for padding in (0.0, 1e6):
        runner = small_runner(hetero_layout(), algo, **ALGOS[algo])
        fill(runner)
        for i, width in enumerate(runner.layout.obs_dims):
            runner.buffer.obs[:, :, i, width:] = padding
        for t in range(runner.buffer.episode_length):
            runner.collect(t)
        runner.compute()
        runner.train()
        results.append([runner.buffer.actions.clone(), *parameters(runner)])
    assert all(torch.equal(zeros, noise) for zeros, noise in zip(*results, strict=True))


def test_agents_of_one_kind_that_are_no_neighbours_get_their_own_actions() -> None:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    layout = Layout(
        agents=("first", "other", "second"),
        observation_spaces=(box,) * 3,
        action_spaces=(spaces.Discrete(5), spaces.Discrete(2), spaces.Discrete(5)),
        obs_shape=(4,),
        share_obs_shape=(6,),
        state_type="EP",
        has_masks=False,
    )
    team = small_runner(layout).team
    obs = torch.randn(40, 3, 4)
    actions, log_probs = team.act(obs, deterministic=True)
    for i, network in enumerate(team.networks):
        distribution = network(obs[:, i])
        assert torch.equal(actions[:, i], distribution.mode())
        torch.testing.assert_close(log_probs[:, i], distribution.log_prob(actions[:, i]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", SPACES)
def test_each_agent_acts_by_its_own_policy_on_its_own_row(kind: str, shared: bool) -> None:
    team = small_runner(team_layout(kind), "mappo", algo__share_param=shared).team
    obs = torch.randn(7, 3, 4)
    actions, _ = team.act(obs, deterministic=True)
    for i in range(3):
        expected = team.networks[0 if shared else i](obs[:, i]).mode().detach()
        torch.testing.assert_close(actions[:, i], expected, rtol=1e-5, atol=1e-5)


def test_D_28_actions_for_the_environment_stay_within_each_agents_bounds() -> None:
    layout = hetero_layout()
    clip = ActionClipper(layout)
    clipped = clip(torch.full((1, 4, 2), 100.0))
    assert clipped[0, 3].tolist() == [1.0, 10.0]
    assert clip(torch.full((1, 4, 2), -100.0))[0, 3].tolist() == [-1.0, 0.0]
    # Indices are no numbers to be clipped.
    assert clip(torch.full((1, 4, 2), 4.0))[0, :3].max() == 4.0


def test_DTY_04_unbounded_and_half_bounded_actions_of_a_gaussian_policy() -> None:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    layout = Layout(
        agents=("free", "positive"),
        observation_spaces=(box, box),
        action_spaces=(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(0.0, np.inf, (2,), np.float32)),
        obs_shape=(4,),
        share_obs_shape=(6,),
        state_type="EP",
        has_masks=False,
    )
    actions, log_probs = small_runner(layout).team.act(torch.randn(500, 2, 4))
    assert actions.isfinite().all()
    assert log_probs.isfinite().all()
    sent = ActionClipper(layout)(actions)
    assert np.array_equal(sent[:, 0], actions[:, 0].numpy())
    assert np.array_equal(sent[:, 1], np.maximum(actions[:, 1].numpy(), 0.0))
    assert (actions[:, 1] < 0).any()


def test_same_generator_same_team_same_actions() -> None:
    team = small_runner(hetero_layout()).team
    obs = torch.randn(9, 4, 11)
    one, two, other = (team.act(obs, generator=torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
