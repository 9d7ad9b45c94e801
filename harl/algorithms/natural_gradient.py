"""Solving for the natural gradient of a policy without ever writing its Fisher information matrix down."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harl.algorithms.base import pieces_of
from harl.buffers.rollout import ActorData
from harl.models.distributions import Distribution
from harl.models.forward_mode import change_along
from harl.models.policy import StochasticPolicy


class FisherProduct:
    """The map v ↦ (F + damping · I) v, where F is the Fisher information of a policy, averaged over weighted rows.

    F is the Hessian of the mean KL(π_old ‖ π) at π = π_old, where the gradient of the KL vanishes. There it is
    Σ w Jᵀ D J over the rows: J is the derivative of the distribution's coordinates by the parameters, D the (diagonal)
    information in those coordinates. So one product is J v by differentiation in forward mode and Jᵀ (D J v) in reverse
    mode; what differentiating the KL twice yields, in two thirds of the time. The graph for Jᵀ is built once.

    Args:
        policy: the policy at which F is taken; its parameters must not change while products are made.
        data: the rollout, M rows, or S sequences of L steps.
        weights: (M, 1) or (S, L, 1) weight of each row in the mean; they add up to 1.
        damping: added to the diagonal.
    """

    def __init__(self, policy: StochasticPolicy, data: ActorData, weights: Tensor, damping: float) -> None:
        self._policy, self._damping = policy, damping
        self._parameters = dict(policy.named_parameters())
        self._pieces: list[tuple[ActorData, Tensor, Tensor]] = []
        for piece in pieces_of(data.obs):
            rows = data.rows(piece)
            distribution = policy(*rows.inputs)
            information = distribution.information().detach() * weights[piece]
            self._pieces.append((rows, distribution.coordinates(), information))

    def __call__(self, vector: Tensor) -> Tensor:
        """(F + damping · I) v for v of shape (P,) float64, in the order of the policy's parameters."""
        parameters = list(self._parameters.values())
        parts = torch.split(vector.to(parameters[0].dtype), [parameter.numel() for parameter in parameters])
        direction = {
            name: part.view_as(parameter)
            for (name, parameter), part in zip(self._parameters.items(), parts, strict=True)
        }
        result = vector * self._damping
        for rows, coordinates, information in self._pieces:
            change = change_along(self._policy, direction, rows.inputs, _coordinates)
            products = torch.autograd.grad(coordinates, parameters, information * change, retain_graph=True)
            result += torch.cat([product.reshape(-1) for product in products])
        return result


def _coordinates(distribution: Distribution) -> Tensor:
    return distribution.coordinates()


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, iterations: int, tolerance: float
) -> tuple[Tensor, float]:
    """Solve A x = b for a symmetric positive definite A (Hestenes & Stiefel 1952), starting at 0.

    A few iterations are far from the solution, and where they end depends on the directions being conjugate, which they
    are not for long in float32. So the vectors are float64, even where the product is made in float32.

    Args:
        product: the map v ↦ A v, float64.
        target: b, (P,) float64, not 0.
        iterations: the most products to make.
        tolerance: stop where the squared norm of the residual is below it.

    Returns:
        x and the curvature xᵀ A x. Where a direction v with vᵀ A v ≤ 0 (or NaN) turns up, the search stops with what x
        is then, and that number.
    """
    solution = torch.zeros_like(target)
    residual, direction = target.clone(), target.clone()
    squared = float(residual @ residual)
    for _ in range(iterations):
        image = product(direction)
        curvature = float(direction @ image)
        if not curvature > 0.0:
            return solution, curvature
        length = squared / curvature
        solution.add_(direction, alpha=length)
        residual.sub_(image, alpha=length)
        before, squared = squared, float(residual @ residual)
        if squared < tolerance:
            break
        direction.mul_(squared / before).add_(residual)
    # A x = b − residual, which saves a product.
    return solution, float(solution @ (target - residual))
