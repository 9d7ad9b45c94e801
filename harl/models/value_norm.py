"""Running normalisation of value targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueNorm(nn.Module):
    """Exponential moving mean and variance of returns, debiased for its start at zero.

    mean = m / w and variance = max(s / w − mean², 0.01), where m, s and w are moving averages of x, x² and 1 with decay
    β. The statistics are buffers, so that they are part of every `state_dict` on every device.
    """

    running_mean: Tensor
    running_mean_sq: Tensor
    debiasing_term: Tensor

    def __init__(self, beta: float = 0.99999, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.beta, self.epsilon = beta, epsilon
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("running_mean_sq", torch.zeros(1))
        self.register_buffer("debiasing_term", torch.tensor(0.0))

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Current mean and standard deviation, (1,) each."""
        weight = self.debiasing_term.clamp(min=self.epsilon)
        mean = self.running_mean / weight
        variance = (self.running_mean_sq / weight - mean.square()).clamp(min=1e-2)
        return mean, variance.sqrt()

    @torch.no_grad()
    def update(self, returns: Tensor, weights: Tensor | None = None) -> None:
        """Take returns (B, 1) into the statistics; rows whose weight (B, 1) is 0 do not count."""
        if weights is None:
            mean, mean_sq = returns.mean(), returns.square().mean()
        else:
            total = weights.sum()
            if total == 0:
                return
            mean, mean_sq = (returns * weights).sum() / total, (returns.square() * weights).sum() / total
        self.running_mean.mul_(self.beta).add_(mean * (1 - self.beta))
        self.running_mean_sq.mul_(self.beta).add_(mean_sq * (1 - self.beta))
        self.debiasing_term.mul_(self.beta).add_(1 - self.beta)

    def normalize(self, returns: Tensor) -> Tensor:
        """Returns in units of the running standard deviation around the running mean."""
        mean, std = self.mean_and_std()
        return (returns - mean) / std

    def denormalize(self, values: Tensor) -> Tensor:
        """The inverse of `normalize`, on the scale of rewards."""
        mean, std = self.mean_and_std()
        return values * std + mean
