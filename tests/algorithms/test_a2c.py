"""The update of HAA2C: its loss by hand, its passes, and a team that it trains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from harl.algorithms.actors.a2c import A2C
from harl.buffers.rollout import ActorData
from tests.algorithms.rollouts import SPACES, all_finite, fill, hetero_layout, learn, small_runner, team_layout

ONE_STEP = {"algo__a2c_epoch": 1, "algo__critic_epoch": 1}


def actor_and_rows(kind: str = "discrete", **overrides: Any) -> tuple[A2C, ActorData]:
    """The actor of an agent that was away for some rows, and its rows with a factor and advantages."""
    runner = small_runner(team_layout(kind), "haa2c", **overrides)
    fill(runner)
    runner.buffer.active[2:4, :3, 0] = 0.0
    source = torch.Generator().manual_seed(3)
    factor = torch.rand(24, 1, generator=source) + 0.5
    data = runner.buffer.actor_data(0, torch.randn(6, 4, 1, generator=source), factor)
    actor = runner.actors[0]
    assert isinstance(actor, A2C)
    return actor, data


@pytest.mark.parametrize("kind", SPACES)
def test_gradient_of_the_first_step_is_the_policy_gradient(kind: str) -> None:
    actor, data = actor_and_rows(kind, **ONE_STEP, algo__entropy_coef=0.3, algo__max_grad_norm=1e4)
    policy = copy.deepcopy(actor.policy)
    distribution = policy(data.obs)
    log_probs = distribution.log_prob(data.actions).sum(1, keepdim=True)
    gain = data.weights * (data.factor * data.advantages * log_probs + 0.3 * distribution.entropy())
    (-gain.sum() / data.weights.sum()).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
    info = actor.train(data)
    norm = torch.linalg.vector_norm(expected).item()
    assert norm > 0.01
    assert info["actor_grad_norm"] == pytest.approx(norm, rel=1e-4)
    torch.testing.assert_close(actor.gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ratio", [0.1, 5.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_ratio_is_clipped_on_neither_side(ratio: float, advantage: float) -> None:
    actor, data = actor_and_rows(**ONE_STEP)
    data.factor = None
    data.advantages = torch.full((24, 1), advantage)
    data.log_probs = data.log_probs - torch.tensor(ratio).log()
    info = actor.train(data)
    assert info["policy_loss"] == pytest.approx(-ratio * advantage, rel=1e-4)
    assert info["ratio"] == pytest.approx(ratio, rel=1e-4)


def test_later_passes_use_the_importance_ratio() -> None:
    actor, data = actor_and_rows(algo__a2c_epoch=2, algo__lr=0.01)
    other, _ = actor_and_rows(algo__a2c_epoch=1, algo__lr=0.01)
    first = other.train(data)
    ratio = (other.log_probs(data) - data.log_probs).exp()
    second = -(ratio * data.factor * data.advantages * data.weights).sum() / data.weights.sum()
    info = actor.train(data)
    assert info["policy_loss"] == pytest.approx((first["policy_loss"] + second.item()) / 2, rel=1e-4)
    assert abs(ratio - 1).max() > 0.01


def test_clip_param_concerns_the_critic_alone() -> None:
    results = []
    for clip in (0.01, 1.0):
        actor, data = actor_and_rows(algo__clip_param=clip, algo__lr=0.05)
        actor.train(data)
        results.append(actor.vector.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_HET_02_agents_of_all_kinds_with_masks_learn_together(state_type: str) -> None:
    runner = small_runner(hetero_layout(state_type), "haa2c", algo__actor_num_mini_batch=3)
    for seed in range(3):
        fill(runner, seed)
        runner.buffer.active[2:4, :, 1] = 0.0
        infos, _ = learn(runner)
        assert all_finite(runner)
    assert set(infos["parts"]) == {"policy_loss", "dist_entropy", "actor_grad_norm", "ratio"}
