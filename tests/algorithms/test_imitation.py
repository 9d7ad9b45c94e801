"""Off-policy actors that imitate what people did: whose rows count, what their likelihood is, and at the bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harl.buffers.replay import ReplayBatch
from tests.algorithms.learners import DETERMINISTIC, UNEVEN, changed, feed, learners, parameters, random_batch
from tests.algorithms.learners import team_layout as layout_of

IMITATING = (*DETERMINISTIC, "hasac")
CHOICES = ("discrete", "multidiscrete")
ROWS, WEIGHTS = [3, 5, 8], [0.1, 0.2, 0.2]
"""Where a person drove agent 1, and what that weighs; nobody drove agent 0, and agent 2 was driven in row 1."""


def shown(kind: str, has_masks: bool = False) -> ReplayBatch:
    """Made-up transitions with what is to be imitated in them; actions are legal."""
    layout = layout_of(kind, has_masks=has_masks)
    batch = random_batch(layout, 12)
    if batch.available_actions is not None:  # the first choice of each component always is
        batch.actions.zero_()
        last = batch.available_actions[..., -1] > 0
        if kind == "discrete":
            batch.actions[..., 0] = torch.where(last, 4.0, 0.0)
    batch.imitate = torch.zeros(3, 12, 1)
    batch.imitate[1, ROWS, 0] = torch.tensor(WEIGHTS)
    batch.imitate[2, 1] = 0.5
    return batch


def gradient(actor: Any, i: int, batch: ReplayBatch, sharing: int = 1) -> tuple[Tensor, Tensor | None]:
    actor.optimizer.zero_grad()
    loss = actor.imitate(i, batch, sharing)
    found: Tensor = actor.optimizer.gradient.clone()
    actor.optimizer.zero_grad()
    return found, loss


def by_hand(algo: str, kind: str, actor: Any, obs: Tensor, mask: Tensor | None, actions: Tensor) -> Tensor:
    """Log-likelihood (B,) of what was done, from the outputs of the network."""
    if kind == "box":
        low, high = torch.from_numpy(UNEVEN.low), torch.from_numpy(UNEVEN.high)
        unit = (actions - (low + high) / 2) / ((high - low) / 2)
        if algo != "hasac":
            return -0.5 * ((actor.network(obs) - actions) / ((high - low) / 2)).square().sum(1)
        features = actor.network.net(obs)
        normal = torch.distributions.Normal(
            actor.network.mu_layer(features), actor.network.log_std_layer(features).exp()
        )
        densities = normal.log_prob(torch.atanh(unit)) - (1 - unit.square()).log() - ((high - low) / 2).log()
        return densities.sum(1)
    logits = actor.network.logits(obs) if algo == "hasac" else actor.network(obs)
    total, start = torch.zeros(len(obs)), 0
    for column, size in enumerate([5] if kind == "discrete" else [3, 2, 4]):
        odds = logits[:, start : start + size].exp()
        if mask is not None:
            odds = odds * mask[:, start : start + size]
        chosen = odds[range(len(obs)), actions[:, column].long()]
        total, start = total + (chosen / odds.sum(1)).log(), start + size
    return total


@pytest.mark.parametrize(
    ("kind", "has_masks"), [("box", False), *((kind, masks) for kind in CHOICES for masks in (False, True))]
)
@pytest.mark.parametrize("algo", IMITATING)
def test_gradient_is_that_of_the_weighted_likelihood_of_driven_rows(algo: str, kind: str, has_masks: bool) -> None:
    batch = shown(kind, has_masks)
    actor = learners(algo, layout_of(kind, has_masks=has_masks)).team.own[1]
    found, loss = gradient(actor, 1, batch)
    mask = None if batch.available_actions is None else batch.available_actions[1, ROWS]
    actions = batch.actions[1, ROWS]
    likelihood = by_hand(algo, kind, actor, batch.obs[1, ROWS], mask, actions)
    torch.autograd.backward(-(torch.tensor(WEIGHTS) * likelihood).sum(), inputs=actor.parameters)
    expected = actor.optimizer.gradient.clone()
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert loss is not None
    mean = -(torch.tensor(WEIGHTS) * likelihood.detach()).sum() / 0.5
    torch.testing.assert_close(loss, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", IMITATING)
def test_nothing_else_has_a_part_in_it(algo: str) -> None:
    """Nor may it, not even as 0 times infinity."""
    batch = shown("box")
    team = learners(algo, layout_of("box")).team.own
    found, _ = gradient(team[1], 1, batch)
    others = [row for row in range(12) if row not in ROWS]
    batch.obs[1, others] = batch.actions[1, others] = math.nan
    assert torch.equal(gradient(team[1], 1, batch)[0], found)
    nobody, loss = gradient(team[0], 0, batch)
    assert loss is None
    assert (nobody == 0).all()
    batch.imitate = None
    assert gradient(team[1], 1, batch)[1] is None


@pytest.mark.parametrize("algo", IMITATING)
def test_choices_that_were_not_available_are_neither_raised_nor_lowered(algo: str) -> None:
    layout = layout_of("discrete", has_masks=True)
    batch = shown("discrete", has_masks=True)
    batch.available_actions[1] = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])  # type: ignore[index]
    batch.actions[1] = 4.0
    actor = learners(algo, layout).team.own[1]
    gradient_of_bias = _last_bias(actor, batch)
    assert (gradient_of_bias[[1, 3]] == 0).all()
    assert gradient_of_bias[4] < 0
    assert (gradient_of_bias[[0, 2]] > 0).all()


def _last_bias(actor: Any, batch: ReplayBatch) -> Tensor:
    actor.optimizer.zero_grad()
    actor.imitate(1, batch)
    *_, (_, bias) = actor.network.named_parameters()
    assert bias.shape == (5,)
    found: Tensor = bias.grad.clone()
    return found


@pytest.mark.parametrize("algo", IMITATING)
def test_actions_on_the_bounds_of_a_box(algo: str) -> None:
    """Finite; HASAC takes them for a hundredth of a half-range inside, and does not say so of what people are told."""
    batch, runner = shown("box"), learners(algo, layout_of("box"))
    batch.actions[1] = torch.tensor([1.0, 0.0])
    actor = runner.team.own[1]
    found, loss = gradient(actor, 1, batch)
    assert found.isfinite().all()
    assert found.abs().max() > 0
    assert loss is not None
    assert loss.isfinite()
    if algo == "hasac":
        batch.actions[1] = torch.tensor([0.99, 0.05])
        torch.testing.assert_close(gradient(actor, 1, batch)[0], found, rtol=1e-3, atol=1e-4)
        told = [actor.log_prob(batch.obs[1], None, torch.tensor(a).expand(12, 2)) for a in ([1.0, 0.0], [0.99, 0.05])]
        assert (told[0] - told[1]).abs().min() > 1


@pytest.mark.parametrize("algo", IMITATING)
def test_a_step_of_everything_with_and_without(algo: str) -> None:
    """Without anything to imitate the update is the one that it was; with it only those who were driven differ."""
    layout = layout_of("box")
    found = {}
    for name in ("none", "nobody", "some"):
        batch = shown("box")
        if name == "none":
            batch.imitate = None
        elif name == "nobody":
            assert batch.imitate is not None
            batch.imitate.zero_()
        runner = learners(algo, layout, algo__policy_freq=1)
        feed(runner, batch)
        runner.train()
        told = runner.reports.drain()
        found[name] = parameters(runner)
        lessons = {key for key in told if key.endswith("bc_loss")}
        assert lessons == ({"agent/agent_1/bc_loss", "agent/agent_2/bc_loss"} if name == "some" else set())
    assert changed(found["none"], found["nobody"]) == set()
    different = changed(found["none"], found["some"])
    assert {"agent_1", "agent_2"} <= different
    if algo in ("maddpg", "matd3"):  # the others see no more of it than what was recorded
        assert different <= {"agent_1", "agent_2", "slow agent_1", "slow agent_2"}
    assert "critic" not in different


@pytest.mark.parametrize("algo", ["maddpg", "matd3"])
def test_agents_that_share_a_policy_share_its_loss(algo: str) -> None:
    """The mean of what they add to it; the log has the mean over those who were driven."""
    batch = shown("box")
    runner = learners(algo, layout_of("box"), algo__share_param=True, algo__policy_freq=1)
    actor = runner.team.own[0]
    whole = [gradient(actor, i, batch) for i in range(3)]
    parts = [gradient(actor, i, batch, 3)[0] for i in range(3)]
    torch.testing.assert_close(sum(parts), sum(each for each, _ in whole) / 3)
    feed(runner, batch)
    runner.train()
    losses = [float(loss) for _, loss in whole if loss is not None]
    assert runner.reports.drain()["agent/agent_0/bc_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_values_cannot_imitate() -> None:
    actor = learners("had3qn", layout_of("discrete")).team.own[0]
    with pytest.raises(TypeError, match="cannot imitate"):
        actor.imitate(1, shown("discrete"))
