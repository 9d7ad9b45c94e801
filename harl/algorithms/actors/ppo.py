"""The clipped surrogate of HAPPO and MAPPO."""

from __future__ import annotations

import torch
from torch import Tensor

from harl.algorithms.actors.on_policy import MinibatchActor
from harl.config import PPOConfig


class PPO(MinibatchActor):
    """Proximal policy optimisation of one agent (Schulman et al. 2017, eq. 7), weighted by the factor M.

    The surrogate of a row is min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â). With M the product of the ratios of the agents updated
    before (Kuba et al. 2022, HAPPO, eq. 11) this is HAPPO; with M = 1 it is MAPPO (Yu et al. 2022). Only ρ is clipped,
    M never is; M > 0, so it may stand outside the minimum.
    """

    config: PPOConfig

    @property
    def epochs(self) -> int:
        return self.config.ppo_epoch

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        clip = self.config.clip_param
        return torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
