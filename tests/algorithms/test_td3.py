"""Smoothed next actions: NUM-18."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.algorithms.learners import UNEVEN, learners, random_batch, team_layout
from tests.runners.bare import layout_of

NARROW = spaces.Box(-0.4, 0.4, (2,), np.float32)


def rows_of_noise(algo: str, rows: int, **overrides: float) -> torch.Tensor:
    """What is added to next actions that lie in the middle of the box."""
    runner = learners(algo, layout_of(2, 4, 6, NARROW), **overrides)
    actor = runner.team.own[0]
    for parameter in actor.target_network.parameters():
        torch.nn.init.zeros_(parameter)
    entries, log_probs = actor.following(torch.zeros(rows, 4), None)
    assert log_probs is None
    return entries


@pytest.mark.parametrize("algo", ["hatd3", "matd3"])
def test_NUM_18_noise_is_drawn_for_each_row_and_scaled_to_the_range(algo: str) -> None:
    noise = rows_of_noise(algo, 256)
    assert len(noise.unique(dim=0)) == 256
    assert noise.abs().max() <= 0.2 + 1e-6
    many = rows_of_noise(algo, 20_000, algo__noise_clip=10.0)
    assert many.std().item() == pytest.approx(0.08, rel=0.02)
    assert many.mean().item() == pytest.approx(0.0, abs=0.002)


def test_NUM_18_noise_is_clipped_in_half_ranges() -> None:
    noise = rows_of_noise("hatd3", 20_000, algo__policy_noise=0.5, algo__noise_clip=0.5)
    assert noise.abs().max().item() == pytest.approx(0.2)
    assert (noise.abs() > 0.199).float().mean() > 0.2


def test_NUM_18_noise_of_an_uneven_box_is_scaled_by_dimension() -> None:
    runner = learners("matd3", team_layout("box"), algo__noise_clip=10.0, algo__policy_noise=0.1)
    actor = runner.team.own[0]
    for parameter in actor.target_network.parameters():
        torch.nn.init.zeros_(parameter)
    entries, _ = actor.following(torch.zeros(20_000, 4), None)
    torch.testing.assert_close(entries.std(0), torch.tensor([0.1, 0.5]), rtol=0.03, atol=0)
    torch.testing.assert_close(entries.mean(0), torch.tensor([0.0, 5.0]), rtol=0, atol=0.02)


@pytest.mark.parametrize("algo", ["hatd3", "matd3"])
def test_NUM_18_next_actions_stay_inside(algo: str) -> None:
    runner = learners(algo, team_layout("box"), algo__policy_noise=2.0, algo__noise_clip=3.0)
    actor = runner.team.own[1]
    entries = actor.following(torch.randn(10_000, 4), None)[0].numpy()
    assert (entries >= UNEVEN.low).all()
    assert (entries <= UNEVEN.high).all()
    assert (entries == UNEVEN.high).any()


def test_next_actions_come_from_the_slow_network() -> None:
    runner = learners("hatd3", team_layout("box"), algo__policy_noise=0.0)
    actor, obs = runner.team.own[0], torch.randn(8, 4)
    for parameter in actor.network.parameters():
        torch.nn.init.zeros_(parameter)
    entries, _ = actor.following(obs, None)
    torch.testing.assert_close(entries, actor.target_network(obs))
    assert not torch.equal(entries, actor.network(obs))


def test_discrete_next_choices_need_no_noise() -> None:
    runner = learners("matd3", team_layout("multidiscrete"), algo__policy_noise=5.0)
    actor, obs = runner.team.own[0], torch.randn(500, 4)
    before = runner.exploration.get_state()
    entries, _ = actor.following(obs, None)
    assert torch.equal(entries, actor.code.greedy(actor.target_network(obs), None))
    assert torch.equal(before, runner.exploration.get_state())


@pytest.mark.parametrize(("algo", "value"), [("hatd3", 3.0), ("matd3", 3.0), ("hasac", 2.0), ("haddpg", 3.0)])
def test_actors_are_told_the_first_value_by_td3_and_the_smaller_one_by_sac(algo: str, value: float) -> None:
    overrides = {"algo__use_valuenorm": False} if algo == "hasac" else {}
    runner = learners(algo, team_layout("box"), **overrides)
    for network, said in zip(runner.critic.networks, (3.0, 2.0), strict=False):
        for parameter in network.parameters():
            torch.nn.init.zeros_(parameter)
        list(network.parameters())[-1].data.fill_(said)
    batch = random_batch(runner.layout, rows=5)
    runner.critic.look_at(batch)
    assert runner.critic.value_for(1, batch, runner.critic.encode(batch)).tolist() == [[value]] * 5
