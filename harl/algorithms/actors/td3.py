"""Deterministic policies with smoothed targets: HATD3 and MATD3."""

from __future__ import annotations

import torch
from torch import Tensor

from harl.algorithms.actors.ddpg import DDPG
from harl.config import TD3Config


class TD3(DDPG):
    """Twin delayed DDPG (Fujimoto et al. 2018): next actions get clipped noise, a draw for each row.

    The noise is `policy_noise` half-ranges wide and at most `noise_clip` half-ranges large. Discrete choices need no
    smoothing: there is nothing next to a choice.
    """

    config: TD3Config

    @torch.no_grad()
    def following(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        entries, _ = super().following(obs, available_actions)
        if self.code.nvec is not None:
            return entries, None
        return self.noisy(entries, self.config.policy_noise, self.config.noise_clip), None
