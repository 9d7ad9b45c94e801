"""How an agent's action enters a critic: a Box as it is, discrete choices one-hot, component after component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from harl.envs.api import action_width, mask_width
from harl.models.distributions import MultiCategorical, mask_logits


class ActionCode:
    """Between an agent's stored actions (B, action_dim) and their entries for a critic (B, width).

    Attributes:
        width: columns of the entry.
        nvec: sizes of the choices, None for a Box.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self.columns = action_width(space)
        self.nvec: tuple[int, ...] | None = None
        if isinstance(space, spaces.Discrete):
            self.nvec = (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec = tuple(int(n) for n in space.nvec)
        self.width = self.columns if self.nvec is None else mask_width(space)

    def encode(self, actions: Tensor) -> Tensor:
        """Entries of stored actions (…, ≥ action_dim)."""
        if self.nvec is None:
            return actions[..., : self.columns]
        choices = actions[..., : self.columns].long()
        return torch.cat([functional.one_hot(choices[..., k], n) for k, n in enumerate(self.nvec)], dim=-1).float()

    def decode(self, entries: Tensor) -> Tensor:
        """Actions (…, action_dim) of entries."""
        if self.nvec is None:
            return entries
        parts = torch.split(entries, list(self.nvec), dim=-1)
        return torch.stack([part.argmax(-1) for part in parts], dim=-1).float()

    def greedy(self, logits: Tensor, available_actions: Tensor | None) -> Tensor:
        """Entries of the most likely choices."""
        assert self.nvec is not None
        parts = torch.split(mask_logits(logits, available_actions), list(self.nvec), dim=-1)
        return torch.cat([functional.one_hot(p.argmax(-1), p.shape[-1]) for p in parts], dim=-1).to(logits.dtype)

    def log_prob(self, logits: Tensor, available_actions: Tensor | None, actions: Tensor) -> Tensor:
        """Log-probabilities (…, 1) of choices (…, action_dim), summed over components."""
        assert self.nvec is not None
        choices = MultiCategorical(mask_logits(logits, available_actions), self.nvec)
        return choices.log_prob(actions).sum(-1, keepdim=True)

    def straight_through(
        self, logits: Tensor, available_actions: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Sampled choices, and the gradient of a softmax behind them (Jang et al. 2017, straight-through, τ = 1).

        Returns:
            Entries (…, width), exactly one-hot in each component and never a masked one, and the log-probability of
            what was chosen (…, 1), summed over components, with the same gradient behind the choice.
        """
        assert self.nvec is not None
        entries, log_probs = [], []
        for part in torch.split(mask_logits(logits, available_actions), list(self.nvec), dim=-1):
            log_p = torch.log_softmax(part, dim=-1)
            gumbel = -torch.empty_like(log_p).exponential_(generator=generator).clamp_(min=1e-20).log()
            soft = torch.softmax(log_p + gumbel, dim=-1)
            hard = functional.one_hot(soft.argmax(-1), part.shape[-1]).to(soft.dtype)
            entries.append(hard + (soft - soft.detach()))  # in this order exactly one-hot
            # Through the entry: the gradient of log p of a fixed choice has a mean of 0 and would raise no entropy.
            log_probs.append((entries[-1] * log_p).sum(-1, keepdim=True))
        return torch.cat(entries, dim=-1), torch.stack(log_probs).sum(0)


def joint(entries: Sequence[Tensor]) -> Tensor:
    """Entries of all agents side by side."""
    return torch.cat(list(entries), dim=-1)


def replaced(entries: Sequence[Tensor], i: int, entry: Tensor) -> list[Tensor]:
    """The entries with agent i's exchanged."""
    return [entry if k == i else other for k, other in enumerate(entries)]
