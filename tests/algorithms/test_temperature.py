"""Target entropies, and how the temperature comes to them; D-04, D-17, D-30."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.entries import ActionCode
from harl.algorithms.temperature import Temperature
from tests.algorithms.learners import feed, learners, random_batch, team_layout

CPU = torch.device("cpu")


def temperature(ratio: float = 0.98, alpha: float = 0.2, auto: bool = True, lr: float = 0.01) -> Temperature:
    return Temperature(alpha, auto, lr, ratio, CPU)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(5), 1.577),
        (spaces.MultiDiscrete([3, 4, 5]), 4.012),
        (spaces.Discrete(2), 0.98 * math.log(2)),
        (spaces.Box(-1.0, 1.0, (3,)), -3.0),
        (spaces.Box(0.0, 9.0, (1,)), -1.0),
    ],
    ids=str,
)
def test_G_6_and_D_04_target_entropy(space: spaces.Space[Any], expected: float) -> None:
    assert temperature().target(ActionCode(space), None) == pytest.approx(expected, abs=5e-4)


def test_D_04_target_entropy_is_of_the_legal_choices() -> None:
    masks = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    target = temperature().target(ActionCode(spaces.Discrete(5)), masks)
    assert isinstance(target, Tensor)
    torch.testing.assert_close(target, torch.tensor([[0.98 * math.log(5)], [0.98 * math.log(2)], [0.0]]))


def test_D_04_target_entropy_of_legal_parts_is_their_sum() -> None:
    masks = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0, 1.0]])
    target = temperature(ratio=0.5).target(ActionCode(spaces.MultiDiscrete([3, 2])), masks)
    assert isinstance(target, Tensor)
    torch.testing.assert_close(target, torch.tensor([[0.5 * 2 * math.log(2)], [0.5 * math.log(3)]]))


def test_ratio_is_configurable_and_reaches_the_actor() -> None:
    runner = learners("hasac", team_layout("discrete"), algo__auto_alpha=True, algo__target_entropy_ratio=0.5)
    actor = runner.team.actors[0]
    assert actor.temperature.target(actor.code, None) == pytest.approx(0.5 * math.log(5))


@pytest.mark.parametrize("ratio", [0.98, 0.5])
def test_G_6_and_D_04_temperature_brings_a_bandit_to_the_requested_entropy(ratio: float) -> None:
    """The best policy at temperature α is softmax(reward / α), so α settles where that has the target entropy."""
    rewards, alpha, code = (
        torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0]),
        temperature(ratio, lr=0.02),
        ActionCode(spaces.Discrete(5)),
    )
    random = torch.Generator().manual_seed(0)
    for _ in range(800):
        log_p = torch.log_softmax(rewards / alpha.alpha, 0)
        drawn = torch.multinomial(log_p.exp(), 512, replacement=True, generator=random)
        alpha.adapt(log_p[drawn].unsqueeze(1), alpha.target(code, None))
    log_p = torch.log_softmax(rewards / alpha.alpha, 0)
    assert -(log_p.exp() * log_p).sum().item() == pytest.approx(ratio * math.log(5), abs=0.02)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_D_04_an_actor_on_a_bandit_learns_the_requested_entropy(masked: bool) -> None:
    runner = learners(
        "hasac",
        team_layout("discrete", agents=1, has_masks=masked),
        algo__auto_alpha=True,
        algo__target_entropy_ratio=0.7,
        algo__alpha_lr=0.01,
        algo__lr=0.01,
    )
    actor, batch = runner.team.actors[0], random_batch(runner.layout, rows=256)
    if masked:
        batch.available_actions = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]).expand(1, 256, 5)
    masks = actor.own_mask(batch.available_actions, 0)
    worth = torch.tensor([0.0, 3.0, 1.0, 2.0, 1.5])
    runner.critic.value_for = lambda i, batch, entries: (entries[i] * worth).sum(-1, keepdim=True)
    for _ in range(500):
        actor.improve([0], batch, [batch.actions[0]], runner.critic)
        actor.adapt(0, batch)
    entropy = actor.network(batch.obs[0], masks).entropy().mean().item()
    assert entropy == pytest.approx(0.7 * math.log(3 if masked else 5), abs=0.05)
    assert actor.temperature.alpha.item() != pytest.approx(1.0, abs=0.1)


def test_a_box_policy_learns_the_requested_entropy() -> None:
    runner = learners("hasac", team_layout("box", agents=1), algo__auto_alpha=True, algo__alpha_lr=0.03, algo__lr=0.01)
    actor, batch = runner.team.actors[0], random_batch(runner.layout, rows=256)
    runner.critic.value_for = lambda i, batch, entries: -entries[i].square().sum(-1, keepdim=True)
    for _ in range(500):
        actor.improve([0], batch, [batch.actions[0]], runner.critic)
        actor.adapt(0, batch)
    _, log_probs = actor.current(batch.obs[0].repeat(20, 1), None)
    assert -log_probs.mean().item() == pytest.approx(-2.0, abs=0.08)


def test_fixed_temperature_stays_and_learned_one_starts_at_one() -> None:
    fixed = temperature(alpha=0.2, auto=False)
    assert fixed.alpha.item() == pytest.approx(0.2)
    assert fixed.adapt(torch.full((4, 1), -9.0), 1.0)["alpha"].item() == pytest.approx(0.2)
    assert fixed.alpha.item() == pytest.approx(0.2)
    assert temperature(alpha=0.2, auto=True).alpha.item() == 1.0


@pytest.mark.parametrize(("log_prob", "rises"), [(-0.5, True), (-2.0, False)])
def test_temperature_rises_where_the_entropy_is_too_low(log_prob: float, rises: bool) -> None:
    learned = temperature()
    learned.adapt(torch.full((4, 1), log_prob), 1.0)
    assert (learned.alpha.item() > 1.0) is rises


def test_rows_that_do_not_count_do_not_move_the_temperature() -> None:
    one, other = temperature(), temperature()
    log_probs, weights = torch.tensor([[-0.5], [-0.7], [3.0]]), torch.tensor([[1.0], [1.0], [0.0]])
    for _ in range(3):
        one.adapt(log_probs, 1.0, weights)
        other.adapt(log_probs * weights + 77.0 * (1 - weights), 1.0, weights)
    assert one.alpha == other.alpha
    alone = temperature()
    alone.adam = torch.optim.SGD([alone.log_alpha], lr=1.0)
    alone.adapt(log_probs, 1.0, weights)
    assert alone.log_alpha.item() == pytest.approx((0.5 + 0.3) / 2)


def test_nobody_in_the_batch_leaves_the_temperature_finite() -> None:
    learned = temperature()
    learned.adapt(torch.full((4, 1), 5.0), 1.0, torch.zeros(4, 1))
    assert learned.alpha.item() == 1.0


def with_plain_steps(alpha: Temperature) -> None:
    """Let one step move log α by minus its gradient."""
    alpha.adam = torch.optim.SGD([alpha.log_alpha], lr=1.0)


def test_the_critics_own_temperature_follows_the_entropy_of_the_team() -> None:
    runner = learners("hasac", team_layout("discrete", agents=2), algo__auto_alpha=True)
    batch = random_batch(runner.layout, rows=4)
    batch.valid[1, 3] = 0.0
    with_plain_steps(runner.critic.temperature)
    first, second = runner.team.actors
    first.last_log_probs = torch.tensor([[1.0], [0.5], [0.0], [-1.0]])
    second.last_log_probs = torch.tensor([[-3.0], [-2.0], [-1.0], [50.0]])
    runner.critic.adapt(batch, runner.team.actors)
    target = 0.98 * math.log(5)
    # Sums over the agents that were there: -2, -1.5, -1, and -1 of the first alone.
    expected = ((-2.0 + 2 * target) + (-1.5 + 2 * target) + (-1.0 + 2 * target) + (-1.0 + target)) / 4
    assert runner.critic.temperature.log_alpha.item() == pytest.approx(expected, rel=1e-5)


def test_every_agent_has_a_temperature_of_its_own_and_the_critic_another() -> None:
    runner = learners("hasac", team_layout("box"), algo__auto_alpha=True, algo__alpha_lr=0.1)
    feed(runner, random_batch(runner.layout))
    runner.train()
    alphas = [actor.temperature.alpha.item() for actor in runner.team.own] + [runner.critic.temperature.alpha.item()]
    assert all(alpha != 1.0 for alpha in alphas)
    assert len({id(actor.temperature) for actor in runner.team.own} | {id(runner.critic.temperature)}) == 4
    fixed = learners("hasac", team_layout("box"), algo__auto_alpha=False, algo__alpha=0.3)
    feed(fixed, random_batch(fixed.layout))
    fixed.train()
    assert [actor.temperature.alpha.item() for actor in fixed.team.own] == pytest.approx([0.3] * 3)
    assert fixed.critic.temperature.alpha.item() == pytest.approx(0.3)


def normalised(runner: Any, mean: float, std: float) -> None:
    """Set the statistics of the targets, and keep them."""
    normalizer = runner.critic.value_normalizer
    normalizer.running_mean.fill_(mean)
    normalizer.running_mean_sq.fill_(mean**2 + std**2)
    normalizer.debiasing_term.fill_(1.0)
    normalizer.update = lambda returns, weights=None: None


def constant(network: torch.nn.Module, value: float) -> None:
    """Let a Q network say the same everywhere."""
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    list(network.parameters())[-1].data.fill_(value)


def test_D_17_actor_weighs_entropy_against_values_on_the_scale_of_rewards() -> None:
    runner = learners("hasac", team_layout("box"), algo__use_valuenorm=True, algo__alpha=0.25)
    normalised(runner, mean=10.0, std=4.0)
    for network, value in zip(runner.critic.networks, (2.0, 1.5), strict=True):
        constant(network, value)
    batch, actor = random_batch(runner.layout), runner.team.actors[1]
    runner.critic.look_at(batch)
    loss = actor.objective(1, batch, runner.critic.encode(batch), runner.critic)
    # min(2, 1.5) · 4 + 10 = 16.
    assert loss.item() == pytest.approx((0.25 * actor.last_log_probs - 16.0).mean().item(), rel=1e-5)


def test_D_17_gradient_of_the_actor_does_not_depend_on_the_normaliser() -> None:
    """The same values on the scale of rewards, said by networks with and without normalised outputs."""
    gradients = []
    for norm in (False, True):
        runner = learners("hasac", team_layout("box"), algo__use_valuenorm=norm, algo__alpha=0.25)
        if norm:
            normalised(runner, mean=10.0, std=4.0)
        else:
            for network in runner.critic.networks:
                last = network.mlp.mlp[-2]
                last.weight.data.mul_(4.0)
                last.bias.data.mul_(4.0).add_(10.0)
        batch, actor = random_batch(runner.layout), runner.team.actors[0]
        runner.exploration.manual_seed(5)
        runner.critic.look_at(batch)
        actor.optimizer.zero_grad()
        actor.objective(0, batch, runner.critic.encode(batch), runner.critic).backward()
        gradients.append(actor.optimizer.gradient.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    assert gradients[0].abs().max() > 1e-3


def test_D_17_critic_puts_its_target_together_on_the_scale_of_rewards() -> None:
    runner = learners("hasac", team_layout("box"), algo__use_valuenorm=True, algo__alpha=0.25)
    normalised(runner, mean=10.0, std=4.0)
    batch = random_batch(runner.layout, rows=3)
    log_probs = [torch.tensor([[1.0], [0.0], [-2.0]]) * (i + 1) for i in range(3)]
    targets = runner.critic.targets(batch, torch.full((3, 1), 1.5), log_probs)
    total = torch.tensor([[6.0], [0.0], [-12.0]])
    y = batch.rewards + batch.discounts * (1.5 * 4 + 10 - 0.25 * total)
    torch.testing.assert_close(targets, (y - 10) / 4)


def test_entropy_of_agents_that_are_not_there_next_is_left_out() -> None:
    runner = learners("hasac", team_layout("box"), algo__use_valuenorm=False, algo__alpha=0.5)
    batch = random_batch(runner.layout, rows=3)
    batch.next_valid[2] = 0.0
    log_probs: list[Tensor | None] = [torch.full((3, 1), value) for value in (1.0, 2.0, 40.0)]
    targets = runner.critic.targets(batch, torch.zeros(3, 1), log_probs)
    torch.testing.assert_close(targets, batch.rewards - batch.discounts * 0.5 * 3.0)
