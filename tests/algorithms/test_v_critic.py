"""Value losses against closed forms, scales, and when the normaliser moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harl.algorithms.critics.v_critic import VCritic
from harl.buffers.rollout import CriticData
from harl.models.value_norm import ValueNorm
from tests.algorithms.rollouts import fill, learn, parameters, small_runner, team_layout


def critic(**overrides: Any) -> VCritic:
    made = small_runner(team_layout(), "happo", **{f"algo__{key}": value for key, value in overrides.items()}).critic
    assert isinstance(made, VCritic)
    return made


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(1)


def test_NUM_01_huber_loss_is_even_and_linear_outside_delta() -> None:
    made = critic(use_clipped_value_loss=False, use_huber_loss=True, huber_delta=10.0)
    targets = column(-20.0, 20.0, 3.0)
    assert made.value_loss(torch.zeros(3, 1), torch.zeros(3, 1), targets).flatten().tolist() == [150.0, 150.0, 4.5]


def test_plain_loss_is_half_the_squared_error() -> None:
    made = critic(use_clipped_value_loss=False, use_huber_loss=False)
    assert made.value_loss(column(1.0, 7.0), column(0.0, 0.0), column(4.0, -3.0)).flatten().tolist() == [4.5, 50.0]


@pytest.mark.parametrize("huber", [False, True])
def test_NUM_22_clipped_loss_is_the_larger_one(huber: bool) -> None:
    made = critic(use_clipped_value_loss=True, use_huber_loss=huber, clip_param=0.2, huber_delta=10.0)
    # Old value 1, new 3, target 5: clipped value 1.2, losses 4/2 and 14.44/2.
    assert made.value_loss(column(3.0), column(1.0), column(5.0)).item() == pytest.approx(14.44 / 2, rel=1e-6)
    # Target 0: clipping would make the loss smaller (1.44/2), so that of the value itself counts (9/2).
    assert made.value_loss(column(3.0), column(1.0), column(0.0)).item() == pytest.approx(4.5, rel=1e-6)
    # Within the clip the two are one.
    assert made.value_loss(column(1.1), column(1.0), column(2.1)).item() == pytest.approx(0.5, rel=1e-5)


def test_NUM_22_old_values_are_those_of_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = small_runner(team_layout(), "happo", algo__critic_lr=0.05)
    fill(runner)
    seen: list[torch.Tensor] = []
    loss = runner.critic.value_loss

    def noting(values: torch.Tensor, old_values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(old_values)
        assert len(seen) == 1 or not torch.allclose(values, old_values, atol=1e-3)
        return loss(values, old_values, targets)

    runner.compute()
    before = runner.critic.get_values(runner.buffer.share_obs[:-1].flatten(0, 1)).clone()
    monkeypatch.setattr(runner.critic, "value_loss", noting)
    runner.train()
    assert len(seen) == runner.algo.critic_epoch
    for old in seen:
        torch.testing.assert_close(old, before)


def test_NUM_02_advantage_has_both_terms_on_the_scale_of_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    for use_valuenorm, expected in ((True, 5.0), (False, 109.5)):
        runner = small_runner(
            team_layout(), algo__use_valuenorm=use_valuenorm, algo__gamma=0.0, train__episode_length=1
        )
        if runner.critic.value_normalizer is not None:
            runner.critic.value_normalizer.update(column(90.0, 110.0))
        monkeypatch.setattr(runner.critic, "get_values", lambda states: torch.full((len(states), 1), 0.5))
        runner.buffer.rewards.zero_()
        runner.buffer.rewards[:, :, 0] = 110.0
        runner.compute()
        # 110 - (0.5 * 10 + 100), and 110 - 0.5 where nothing is normalised.
        torch.testing.assert_close(runner.advantages, torch.full((1, 4, 1), expected), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("when", "updates"), [("iteration", 1), ("minibatch", 10)])
def test_D_31_and_D_32_normaliser_moves_once_an_iteration_or_once_a_minibatch(when: str, updates: int) -> None:
    runner = small_runner(
        team_layout(), algo__valuenorm_update=when, algo__critic_epoch=5, algo__critic_num_mini_batch=2
    )
    fill(runner)
    learn(runner)
    assert isinstance(runner.critic.value_normalizer, ValueNorm)
    weight = runner.critic.value_normalizer.debiasing_term.item()
    assert weight == pytest.approx(1 - 0.99999**updates, rel=1e-4)


def test_targets_are_normalised_and_weighted_before_the_loss() -> None:
    made = critic(use_clipped_value_loss=False, use_huber_loss=False, critic_epoch=1, value_loss_coef=1.0)
    data = CriticData(torch.randn(3, 6), torch.zeros(3, 1), column(90.0, 110.0, 5e4), column(1.0, 1.0, 0.0))
    values = made.get_values(data.share_obs)
    info = made.train(data)
    # Mean 100 and spread 10 of the two rows that count: targets -1 and 1.
    expected = 0.5 * ((values[0] + 1) ** 2 + (values[1] - 1) ** 2) / 2
    assert info["value_loss"] == pytest.approx(expected.item(), rel=1e-3)


def test_gradient_is_scaled_down_to_the_limit() -> None:
    def run(limit: float) -> tuple[float, float]:
        made = critic(max_grad_norm=limit, critic_epoch=1, use_valuenorm=False)
        torch.manual_seed(0)
        data = CriticData(torch.randn(8, 6), torch.zeros(8, 1), torch.full((8, 1), 50.0), None)
        return made.train(data)["critic_grad_norm"], made.optimizer.gradient.norm().item()

    reported, left = run(0.5)
    assert reported > 0.5
    assert left == pytest.approx(0.5, rel=1e-4)
    reported, left = run(1e6)
    assert left == pytest.approx(reported, rel=1e-5)


def test_D_32_critic_and_normaliser_ignore_states_of_agents_that_have_left() -> None:
    results = []
    for noisy in (False, True):
        runner = small_runner(team_layout(state_type="FP"))
        fill(runner)
        buffer = runner.buffer
        buffer.active[2:, :2, 1] = 0.0
        runner.compute()
        if noisy:
            gone = buffer.active[:-1] == 0
            random = torch.Generator().manual_seed(5)
            buffer.share_obs[:-1][gone.squeeze(-1)] = torch.randn(int(gone.sum()), 6, generator=random) * 100
            buffer.returns[gone] = 1e3
            buffer.value_preds[:-1][gone] = -7.0
        runner.train()
        results.append(parameters(runner)[len(runner.actors) :])
    assert all(torch.equal(clean, noisy) for clean, noisy in zip(*results, strict=True))


def test_critic_of_a_rollout_in_which_nobody_was_there_stays_as_it_is() -> None:
    runner = small_runner(team_layout(state_type="FP"))
    fill(runner)
    runner.buffer.active.zero_()
    before = parameters(runner)
    learn(runner)
    assert all(torch.equal(now, then) for now, then in zip(parameters(runner), before, strict=True))


def test_D_19_state_of_the_critic_brings_the_statistics_back() -> None:
    runner = small_runner(team_layout())
    fill(runner)
    learn(runner)
    state, other = runner.critic.get_state(), critic()
    other.set_state(state)
    values = torch.linspace(-1, 1, 5).unsqueeze(1)
    assert torch.equal(other.denormalize(values), runner.critic.denormalize(values))
    assert not torch.equal(critic().denormalize(values), runner.critic.denormalize(values))
