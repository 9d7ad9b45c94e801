"""Several policies in one product a layer equal the policies one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harl.models.distributions import DiagGaussian, Distribution, MultiCategorical
from harl.models.init import ACTIVATIONS
from harl.models.mlp import MLPSpec
from harl.models.policy import StochasticPolicy
from harl.models.stacked import StackedPolicies, equal_networks
from tests.algorithms.rollouts import SPACES

AGENTS, ROWS, WIDTH = 3, 11, 6


def policies(
    kind: str, hidden: tuple[int, ...] = (16,), activation: str = "relu", norm: bool = True
) -> list[StochasticPolicy]:
    """Policies that have been away from their initial weights, so that LayerNorm's affine part matters."""
    torch.manual_seed(0)
    spec = MLPSpec(hidden, activation, norm, "orthogonal_")
    made = [StochasticPolicy(WIDTH, SPACES[kind], spec, 1.0, 1.0, 0.5) for _ in range(AGENTS)]
    with torch.no_grad():
        for policy in made:
            for parameter in policy.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def masks_for(kind: str) -> Tensor | None:
    if kind == "box":
        return None
    number = 5 if kind == "discrete" else 9
    masks = torch.bernoulli(torch.full((AGENTS, ROWS, number), 0.5))
    masks[..., [0, 3, 5] if kind == "multidiscrete" else [0]] = 1.0
    return masks


def numbers(distribution: Distribution) -> Tensor:
    """The parameters of a distribution side by side."""
    if isinstance(distribution, DiagGaussian):
        return torch.cat([distribution.mean, distribution.std.expand_as(distribution.mean)], -1)
    if isinstance(distribution, MultiCategorical):
        return torch.cat([part.log_probs.exp() for part in distribution.components], -1)
    return distribution.log_probs.exp()


def check(made: list[StochasticPolicy], stacked: StackedPolicies, kind: str) -> None:
    obs, masks = torch.randn(AGENTS, ROWS, WIDTH) * 3, masks_for(kind)
    together = numbers(stacked.distribution(obs, masks))
    for i, policy in enumerate(made):
        alone = numbers(policy(obs[i], None if masks is None else masks[i]))
        torch.testing.assert_close(together[i], alone.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("hidden", [(16,), (16, 8, 12)])
@pytest.mark.parametrize("norm", [True, False])
def test_equals_each_policy(kind: str, hidden: tuple[int, ...], norm: bool) -> None:
    made = policies(kind, hidden, norm=norm)
    check(made, StackedPolicies(made), kind)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_each_policy_with_every_activation(activation: str) -> None:
    made = policies("discrete", (16, 16), activation)
    check(made, StackedPolicies(made), "discrete")


@pytest.mark.parametrize("kind", SPACES)
def test_weights_of_an_optimiser_step_are_taken_over_by_refresh(kind: str) -> None:
    made = policies(kind)
    stacked = StackedPolicies(made)
    obs = torch.randn(AGENTS, ROWS, WIDTH)
    before = numbers(stacked.distribution(obs))
    for i, policy in enumerate(made):
        optimizer = torch.optim.Adam([stacked.parameters.vector(i)], lr=0.05)
        policy(obs[i]).entropy().mean().backward()
        optimizer.step()
    stacked.refresh()
    assert not torch.allclose(numbers(stacked.distribution(obs)), before, atol=1e-3)
    check(made, stacked, kind)


def test_policies_of_other_shapes_are_told_apart() -> None:
    first, second = policies("discrete", (16,)), policies("discrete", (16, 8))
    assert equal_networks(first[0], first[1])
    assert not equal_networks(first[0], second[0])
    assert not equal_networks(policies("box")[0], policies("multidiscrete")[0])
