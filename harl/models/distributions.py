"""Action distributions of stochastic policies.

Leading axes are free: parameters may be (B, …) for one network or (A, N, …) for a stack of them. `log_prob` keeps one
number per factor of the distribution (a component of a MultiDiscrete, a dimension of a Box), so that ratios can be
aggregated over factors in one place and never be broadcast (fault D-01 of the original).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

MASKED_LOGIT: Final = -1e10
"""Finite, so that 0 · log 0 is 0 and not NaN; its probability is exactly 0 in float32."""
_TINY: Final = 1e-20
_LOG_SQRT_2PI: Final = 0.5 * math.log(2 * math.pi)


def mask_logits(logits: Tensor, available_actions: Tensor | None) -> Tensor:
    """Give actions that are not available (mask 0) a probability of exactly 0."""
    if available_actions is None:
        return logits
    return logits.masked_fill(available_actions == 0, MASKED_LOGIT)


class Distribution(ABC):
    """A distribution over actions (…, action_dim) float32."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions (…, action_dim)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The most likely action (…, action_dim); ties go to the lowest index."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability or log-density (…, factors) of actions (…, action_dim)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy (…, 1) in nats, summed over factors."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """KL(self ‖ other) (…, 1) float64 in nats, exact, summed over factors; both of one kind.

        In float64, since it is the small rest of terms that nearly cancel, and a limit on it decides about a step.
        """

    @abstractmethod
    def coordinates(self) -> Tensor:
        """Numbers (…, c) that determine the distribution, in which its Fisher information is diagonal."""

    @abstractmethod
    def information(self) -> Tensor:
        """The diagonal (…, c) of the Fisher information in `coordinates`."""


class Categorical(Distribution):
    """One choice out of n from unnormalised logits (…, n)."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = torch.log_softmax(logits, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # Gumbel-max: log p plus independent Gumbel noise is largest at i with probability p_i. The clamp keeps a zero
        # draw from turning into infinite noise that could lift a masked action.
        noise = torch.empty_like(self.log_probs).exponential_(generator=generator).clamp_(min=_TINY).log_()
        return torch.argmax(self.log_probs - noise, dim=-1, keepdim=True).to(torch.float32)

    def mode(self) -> Tensor:
        return torch.argmax(self.log_probs, dim=-1, keepdim=True).to(torch.float32)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long())

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1, keepdim=True)

    def kl(self, other: Categorical) -> Tensor:
        # Normalised again: in float32 the probabilities add up to 1 within 1e-7 only, which is a KL of that size.
        ours, theirs = (torch.log_softmax(each.log_probs.double(), dim=-1) for each in (self, other))
        return (ours.exp() * (ours - theirs)).sum(-1, keepdim=True)

    def coordinates(self) -> Tensor:
        return self.log_probs

    def information(self) -> Tensor:
        # Σ_a p(a) ∇log p(a) ∇log p(a)ᵀ is diagonal in the log p(a).
        return self.log_probs.exp()


class MultiCategorical(Distribution):
    """Independent choices, one per component of a MultiDiscrete, from concatenated logits (…, sum of nvec)."""

    def __init__(self, logits: Tensor, nvec: Sequence[int]) -> None:
        self.components = [Categorical(part) for part in torch.split(logits, list(nvec), dim=-1)]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.cat([component.sample(generator) for component in self.components], dim=-1)

    def mode(self) -> Tensor:
        return torch.cat([component.mode() for component in self.components], dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        parts = torch.split(actions, 1, dim=-1)
        return torch.cat([c.log_prob(part) for c, part in zip(self.components, parts, strict=True)], dim=-1)

    def entropy(self) -> Tensor:
        return torch.stack([component.entropy() for component in self.components]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        return torch.stack(
            [ours.kl(theirs) for ours, theirs in zip(self.components, other.components, strict=True)]
        ).sum(0)

    def coordinates(self) -> Tensor:
        return torch.cat([component.coordinates() for component in self.components], dim=-1)

    def information(self) -> Tensor:
        return torch.cat([component.information() for component in self.components], dim=-1)


class DiagGaussian(Distribution):
    """Independent normals with means (…, k) and standard deviations broadcastable to them; not squashed or clipped."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean = mean
        self.std = std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, self.std, noise)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        scaled = (actions - self.mean) / self.std
        return -0.5 * scaled.square() - self.std.log() - _LOG_SQRT_2PI

    def entropy(self) -> Tensor:
        per_dimension = 0.5 + _LOG_SQRT_2PI + self.std.log()
        return per_dimension.expand_as(self.mean).sum(-1, keepdim=True)

    def kl(self, other: DiagGaussian) -> Tensor:
        std, other_std = self.std.double(), other.std.double()
        variances = (std / other_std).square()
        shift = ((self.mean.double() - other.mean.double()) / other_std).square()
        return (0.5 * (variances + shift - 1.0 - variances.log())).sum(-1, keepdim=True)

    def coordinates(self) -> Tensor:
        return torch.cat([self.mean, self.std.expand_as(self.mean)], dim=-1)

    def information(self) -> Tensor:
        of_mean = self.std.square().reciprocal().expand_as(self.mean)
        return torch.cat([of_mean, 2.0 * of_mean], dim=-1)


def aggregate_ratio(log_ratio: Tensor, how: str) -> Tensor:
    """Importance ratio (…, 1) of an action from per-factor log-ratios (…, factors).

    `prod`: the exact ratio of the joint action, exp of the sum. `mean`: the mean of the factors' ratios, a heuristic of
    the original implementation (`algo.action_aggregation`).
    """
    if how == "mean":
        return log_ratio.exp().mean(-1, keepdim=True)
    return log_ratio.sum(-1, keepdim=True).exp()
