"""Fisher products against differences of the KL's gradient and double backpropagation; conjugate gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from harl.algorithms import base
from harl.algorithms.natural_gradient import FisherProduct, conjugate_gradient
from harl.buffers.rollout import ActorData
from harl.models.policy import StochasticPolicy
from tests.algorithms.rollouts import SPACES, fill, small_runner, team_layout

DAMPING = 0.1


def policy_and_rows(kind: str) -> tuple[StochasticPolicy, ActorData, Tensor]:
    """A policy in float64, a rollout of it with masks and absent rows, and the weights of a mean over the others."""
    runner = small_runner(team_layout(kind, has_masks=kind != "box"), "hatrpo")
    fill(runner)
    runner.buffer.active[2:4, :3, 1] = 0.0
    data = runner.buffer.actor_data(1, torch.zeros(6, 4, 1))
    data.obs = data.obs.double()
    policy = copy.deepcopy(runner.actors[1].policy).double()
    return policy, data, data.weights.double() / data.weights.sum()


def mean_kl_gradient(policy: StochasticPolicy, old: StochasticPolicy, data: ActorData, weights: Tensor) -> Tensor:
    """The gradient of the mean KL(old ‖ policy) by the parameters of the policy, as a vector with a graph."""
    with torch.no_grad():
        was = old(data.obs, data.available_actions)
    kl = (was.kl(policy(data.obs, data.available_actions)) * weights).sum()
    return flat(torch.autograd.grad(kl, list(policy.parameters()), create_graph=True))


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def shifted(policy: StochasticPolicy, by: Tensor) -> StochasticPolicy:
    other = copy.deepcopy(policy)
    torch.nn.utils.vector_to_parameters(flat(policy.parameters()).detach() + by, other.parameters())
    return other


@pytest.mark.parametrize("kind", SPACES)
def test_G_3_fisher_product_equals_differences_of_the_gradient_of_the_kl(kind: str) -> None:
    policy, data, weights = policy_and_rows(kind)
    size = sum(parameter.numel() for parameter in policy.parameters())
    product = FisherProduct(policy, data, weights, DAMPING)
    for seed in range(3):
        vector = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
        ends = [mean_kl_gradient(shifted(policy, h * vector), policy, data, weights).detach() for h in (1e-5, -1e-5)]
        expected = (ends[0] - ends[1]) / 2e-5 + DAMPING * vector
        torch.testing.assert_close(product(vector), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", SPACES)
def test_fisher_product_equals_double_backpropagation(kind: str) -> None:
    policy, data, weights = policy_and_rows(kind)
    gradient = mean_kl_gradient(policy, policy, data, weights)
    assert gradient.abs().max() < 1e-12
    vector = torch.randn(len(gradient), generator=torch.Generator().manual_seed(0)).double()
    twice = flat(torch.autograd.grad(gradient @ vector, list(policy.parameters())))
    found = FisherProduct(policy, data, weights, DAMPING)(vector) - DAMPING * vector
    assert found.abs().max() > 1e-3
    torch.testing.assert_close(found, twice, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SPACES)
def test_fisher_product_does_not_depend_on_the_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, data, weights = policy_and_rows(kind)
    vector = torch.ones(sum(parameter.numel() for parameter in policy.parameters()), dtype=torch.float64)
    whole = FisherProduct(policy, data, weights, DAMPING)(vector)
    monkeypatch.setattr(base, "CACHE_ROWS", 5)
    torch.testing.assert_close(FisherProduct(policy, data, weights, DAMPING)(vector), whole)


def test_fisher_product_leaves_no_trace_in_the_network() -> None:
    policy, data, weights = policy_and_rows("discrete")
    before = [parameter.clone() for parameter in policy.parameters()]
    FisherProduct(policy, data, weights, DAMPING)(torch.ones(sum(len(x.flatten()) for x in before)).double())
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in policy.parameters())


def spd(size: int, seed: int = 0) -> Tensor:
    """A symmetric positive definite matrix, float64."""
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_equal_a_dense_solve() -> None:
    matrix, target = spd(12), torch.arange(1.0, 13.0).double()
    solution, curvature = conjugate_gradient(lambda v: matrix @ v, target, 100, 1e-24)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, target), rtol=1e-8, atol=1e-10)
    assert curvature == pytest.approx((solution @ matrix @ solution).item(), rel=1e-9)


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_conjugate_gradients_that_stop_early_are_the_best_of_their_subspace(iterations: int) -> None:
    matrix, target = spd(40), torch.randn(40, generator=torch.Generator().manual_seed(1)).double()
    solution, curvature = conjugate_gradient(lambda v: matrix @ v, target, iterations, 0.0)
    powers = [target]
    for _ in range(iterations - 1):
        powers.append(matrix @ powers[-1])
    basis = torch.linalg.qr(torch.stack(powers, 1))[0]
    best = basis @ torch.linalg.solve(basis.T @ matrix @ basis, basis.T @ target)
    torch.testing.assert_close(solution, best, rtol=1e-6, atol=1e-8)
    assert curvature == pytest.approx((solution @ matrix @ solution).item(), rel=1e-9)


def test_conjugate_gradients_stop_when_they_are_there() -> None:
    made = 0

    def product(vector: Tensor) -> Tensor:
        nonlocal made
        made += 1
        return 2.0 * vector

    solution, _ = conjugate_gradient(product, torch.ones(5).double(), 10, 1e-10)
    assert made == 1
    assert solution.tolist() == [0.5] * 5


@pytest.mark.parametrize("bad", [-1e-6, 0.0, float("nan")])
def test_NUM_09_curvature_that_is_not_positive_is_reported_as_it_is(bad: float) -> None:
    _, curvature = conjugate_gradient(lambda v: bad * v, torch.ones(4).double(), 10, 1e-10)
    assert curvature != curvature if bad != bad else curvature == pytest.approx(4 * bad)
