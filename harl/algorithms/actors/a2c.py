"""The plain surrogate of HAA2C."""

from __future__ import annotations

from harl.algorithms.actors.on_policy import MinibatchActor
from harl.config import A2CConfig


class A2C(MinibatchActor):
    """Advantage actor-critic of one agent (Zhong et al. 2024, HAA2C), weighted by the factor M.

    The surrogate of a row is ρ Â, bounded by nothing. In the first step after a rollout ρ = 1, and its gradient is the
    policy gradient Â ∇log π; in later passes over the same rollout the ratio accounts for the steps taken since.
    """

    config: A2CConfig

    @property
    def epochs(self) -> int:
        return self.config.a2c_epoch
