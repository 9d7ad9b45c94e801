"""The weight of entropy in the objective."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harl.algorithms.entries import ActionCode


class Temperature:
    """α: fixed, or learned so that the policy's entropy comes to a target (Haarnoja et al. 2018b, eq. 18).

    Args:
        alpha: the fixed value.
        auto: whether it is learned, from 1.
        lr: learning rate.
        ratio: target entropy of discrete choices, as a fraction of the entropy of choosing evenly among legal ones.
        device: where it lives.
    """

    def __init__(self, alpha: float, auto: bool, lr: float, ratio: float, device: torch.device) -> None:
        self.ratio = ratio
        start = 0.0 if auto else math.log(alpha)
        self.log_alpha = torch.full((), start, device=device, requires_grad=auto)
        self.adam = torch.optim.Adam([self.log_alpha], lr=lr) if auto else None

    @property
    def alpha(self) -> Tensor:
        """The current weight, () without gradient."""
        return self.log_alpha.detach().exp()

    def target(self, code: ActionCode, available_actions: Tensor | None) -> float | Tensor:
        """Entropy that is asked for: −(number of dimensions) for a Box; for discrete choices a fraction of the
        log of the number of *legal* ones, summed over components, (B, 1) where there are masks."""
        if code.nvec is None:
            return -float(code.width)
        if available_actions is None:
            return self.ratio * sum(math.log(n) for n in code.nvec)
        parts = torch.split(available_actions, list(code.nvec), dim=-1)
        legal = torch.stack([part.sum(-1, keepdim=True).clamp(min=1.0).log() for part in parts]).sum(0)
        return self.ratio * legal

    def adapt(self, log_probs: Tensor, target: float | Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """One step on −log α · (log π + target), averaged over rows (B, 1) that count."""
        if self.adam is None:
            return {"alpha": self.alpha}
        gap = (log_probs + target).detach()
        mean = gap.mean() if weights is None else (gap * weights).sum() / weights.sum().clamp(min=1.0)
        self.adam.zero_grad()
        torch.autograd.backward(-self.log_alpha * mean)
        self.adam.step()
        return {"alpha": self.alpha}

    def get_state(self) -> dict[str, Any]:
        """Value and optimiser."""
        state: dict[str, Any] = {"log_alpha": self.log_alpha.detach().clone()}
        if self.adam is not None:
            state["optimizer"] = self.adam.state_dict()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        if self.adam is not None and "optimizer" in state:
            self.adam.load_state_dict(state["optimizer"])
