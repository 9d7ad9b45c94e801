"""Bringing advantages to zero mean and unit spread."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-5
ROUNDING = 1e-6
"""Spread, as a fraction of the mean, that is left of equal numbers by the rounding of float32: it is none."""


def normalised(advantages: Tensor, weights: Tensor, together: bool = False) -> Tensor:
    """Advantages of each agent, (T, N, A, 1), standardised over the steps in which the policies decided.

    Args:
        advantages: (T, N, 1) of the team, or (T, N, A, 1) of each agent.
        weights: (T, N, A, 1), 0 where an agent was not there or a person decided.
        together: one mean and spread for all agents. Advantages of each agent's own value always have that; those of
            a team value are standardised for each agent over its own steps, or together where one network learns.

    The spread is the population's. Where nothing or all the same is left, the result is 0; what is not finite stays so.
    """
    each = advantages.unsqueeze(2).expand_as(weights) if advantages.dim() == 3 else advantages
    axes = (0, 1, 2) if together or advantages.dim() == 4 else (0, 1)
    count = weights.sum(axes, keepdim=True).clamp(min=1.0)
    mean = (each * weights).sum(axes, keepdim=True) / count
    spread = (((each - mean).square() * weights).sum(axes, keepdim=True) / count).sqrt()
    return torch.where(spread <= ROUNDING * mean.abs(), 0.0, (each - mean) / (spread + EPSILON))
