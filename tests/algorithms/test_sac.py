"""Random policies that are paid for being random: masks, densities, the direction in which entropy pulls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.algorithms.learners import (
    UNEVEN,
    all_finite,
    changed,
    feed,
    learners,
    parameters,
    random_batch,
    random_masks,
    team_layout,
)
from tests.algorithms.rollouts import hetero_layout

DISCRETE = ("discrete", "multidiscrete")


def test_D_27_actions_are_inside_an_uneven_box_and_reach_its_ends() -> None:
    runner = learners("hasac", team_layout("box"))
    for actor in runner.team.own:
        for parameter in actor.network.parameters():
            parameter.data.mul_(3.0)
    obs = torch.randn(10_000, 3, 4)
    for deterministic in (False, True):
        actions = runner.team.act(obs, deterministic=deterministic)[0].numpy()
        assert (actions >= UNEVEN.low).all()
        assert (actions <= UNEVEN.high).all()
    sampled = runner.team.act(obs)[0]
    assert sampled[..., 1].min() < 0.1
    assert sampled[..., 1].max() > 9.9


def test_samples_are_drawn_for_each_environment_and_agent() -> None:
    runner = learners("hasac", team_layout("box"))
    obs = torch.randn(1, 3, 4).expand(1000, 3, 4)
    actions = runner.team.act(obs)[0]
    assert all(len(actions[:, i].unique(dim=0)) == 1000 for i in range(3))
    mode = runner.team.act(obs, deterministic=True)[0]
    assert len(mode.unique(dim=0)) == 1


@pytest.mark.parametrize("kind", DISCRETE)
def test_D_11_actions_obey_masks(kind: str) -> None:
    layout = team_layout(kind, has_masks=True)
    runner = learners("hasac", layout, model__gain=5.0)
    masks = random_masks(layout, 5000, torch.Generator().manual_seed(1)).transpose(0, 1).contiguous()
    obs, code = torch.randn(5000, 3, 4), runner.team.own[0].code
    for deterministic in (False, True):
        actions = runner.team.act(obs, masks, deterministic)[0]
        assert (code.encode(actions) * (1 - masks)).abs().max() == 0.0
    entries, log_probs = runner.team.own[0].following(obs[:, 0], masks[:, 0])
    assert (entries * (1 - masks[:, 0])).abs().max() == 0.0
    assert log_probs.isfinite().all()


@pytest.mark.parametrize("kind", DISCRETE)
def test_what_the_critic_is_told_and_what_is_acted_have_one_distribution(kind: str) -> None:
    runner = learners("hasac", team_layout(kind), model__gain=2.0)
    actor, obs = runner.team.own[0], torch.randn(1, 4).expand(100_000, 4)
    drawn = actor.code.encode(actor.act(obs, None, explore=True)).mean(0)
    told = actor.current(obs, None)[0].detach().mean(0)
    torch.testing.assert_close(drawn, told, rtol=0, atol=0.01)


def test_NUM_16_masked_rows_give_finite_losses_gradients_and_temperatures() -> None:
    layout = team_layout("discrete", has_masks=True)
    runner = learners("hasac", layout, algo__auto_alpha=True)
    batch = random_batch(layout)
    assert batch.available_actions is not None
    batch.available_actions[:, ::2] = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    feed(runner, batch)
    for _ in range(20):
        runner.train()
    assert all_finite(runner)
    actor = runner.team.own[0]
    only = batch.available_actions[0, ::2]
    distribution = actor.network(batch.obs[0, ::2], only)
    assert distribution.entropy().abs().max().item() == 0.0
    _, log_probs = actor.current(batch.obs[0, ::2], only)
    assert log_probs.abs().max().item() == 0.0


@pytest.mark.parametrize("kind", DISCRETE)
def test_D_04_entropy_of_discrete_choices_has_a_gradient(kind: str) -> None:
    """Where all choices are worth the same, the policy becomes more random and not less."""
    runner = learners("hasac", team_layout(kind, agents=1), model__gain=3.0, algo__alpha=0.5, algo__lr=0.01)
    actor, batch = runner.team.own[0], random_batch(runner.layout, rows=128)
    runner.critic.value_for = lambda i, batch, entries: 0.0 * entries[i].sum(-1, keepdim=True)
    before = actor.network(batch.obs[0]).entropy().mean().item()
    for _ in range(100):
        actor.improve([0], batch, [batch.actions[0]], runner.critic)
    after = actor.network(batch.obs[0]).entropy().mean().item()
    assert after > before + 0.3


def test_policy_comes_to_the_softmax_of_the_values() -> None:
    """The best policy at a fixed temperature: π ∝ exp(Q / α)."""
    runner = learners("hasac", team_layout("discrete", agents=1), algo__alpha=0.5, algo__lr=0.01)
    actor, batch, worth = (
        runner.team.own[0],
        random_batch(runner.layout, rows=512),
        torch.tensor([0.0, 0.3, 0.6, 0.9, 0.2]),
    )
    runner.critic.value_for = lambda i, batch, entries: (entries[i] * worth).sum(-1, keepdim=True)
    for step in range(400):
        actor.optimizer.set_lr_fraction(1.0 if step < 250 else 0.1)
        actor.improve([0], batch, [batch.actions[0]], runner.critic)
    probabilities = torch.softmax(actor.network.logits(batch.obs[0]), -1).mean(0)
    torch.testing.assert_close(probabilities, torch.softmax(worth / 0.5, 0), rtol=0, atol=0.03)


def test_D_08_components_weigh_as_one_in_actor_and_critic() -> None:
    runner = learners("hasac", team_layout("multidiscrete", agents=1), algo__alpha=0.5, algo__use_valuenorm=False)
    actor, batch = runner.team.own[0], random_batch(runner.layout, rows=16)
    runner.critic.look_at(batch)
    loss = actor.objective(0, batch, [batch.actions[0]], runner.critic)
    assert actor.last_log_probs.shape == (16, 1)
    values = runner.critic.value_for(0, batch, [torch.zeros(16, 9)])
    assert values.shape == (16, 1)
    assert loss.dim() == 0
    exact: list[Tensor] = []
    runner.exploration.manual_seed(3)
    entry, log_prob = actor.current(batch.obs[0], None)
    exact.append(actor.network(batch.obs[0]).log_prob(actor.code.decode(entry)).sum(-1, keepdim=True))
    torch.testing.assert_close(log_prob, exact[0])


def test_it_has_no_slow_policy() -> None:
    runner = learners("hasac", team_layout("box"))
    assert not any(actor.has_target for actor in runner.team.own)
    assert "target" not in runner.team.own[0].get_state()


def test_NUM_13_two_hundred_updates_stay_finite() -> None:
    runner = learners("hasac", hetero_layout(), algo__auto_alpha=True, algo__lr=0.01, algo__critic_lr=0.01)
    feed(runner, *(random_batch(runner.layout, rows=16, seed=seed) for seed in range(5)))
    before = parameters(runner)
    for _ in range(200):
        runner.train()
    assert all_finite(runner)
    assert changed(before, parameters(runner)) == set(before)
