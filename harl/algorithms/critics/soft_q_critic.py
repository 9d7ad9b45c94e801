"""The twin critic that is paid for random actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from harl.algorithms.critics.q_critic import QCritic
from harl.algorithms.temperature import Temperature
from harl.buffers.replay import ReplayBatch
from harl.config import OffPolicyModelConfig, SACConfig
from harl.envs.api import Layout
from harl.models.value_norm import ValueNorm

if TYPE_CHECKING:
    from harl.algorithms.actors.sac import SAC


class SoftTwinQCritic(QCritic):
    """y = R + discount · [min Q̄(s', a') − α Σ_i log π_i(a'_i | o'_i)] (Haarnoja et al. 2018; HASAC).

    The entropy bonus enters at the state that is bootstrapped from, not at the steps between (`algo.n_step` > 1), as in
    the original. With `use_valuenorm` the networks work in the normaliser's units; targets are put together, and actors
    are told, on the scale of rewards, so that one temperature means the same to both.
    """

    count = 2
    asked = 2
    config: SACConfig

    def __init__(self, layout: Layout, model: OffPolicyModelConfig, config: SACConfig, device: torch.device) -> None:
        super().__init__(layout, model, config, device)
        self.temperature = Temperature(
            config.alpha, config.auto_alpha, config.alpha_lr, config.target_entropy_ratio, device
        )
        self.value_normalizer = ValueNorm().to(device) if config.use_valuenorm else None

    def train(
        self, batch: ReplayBatch, entries: Sequence[Tensor], log_probs: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        info = super().train(batch, entries, log_probs)
        return {**info, "alpha": self.temperature.alpha}

    def targets(self, batch: ReplayBatch, following: Tensor, log_probs: Sequence[Tensor | None]) -> Tensor:
        valid = batch.next_valid
        total = torch.stack([cast(Tensor, lp) * valid[i] for i, lp in enumerate(log_probs)]).sum(0)
        if self.value_normalizer is not None:
            following = self.value_normalizer.denormalize(following)
        targets = batch.rewards + batch.discounts * (following - self.temperature.alpha * total)
        if self.value_normalizer is None:
            return targets
        self.value_normalizer.update(targets, batch.valid if targets.dim() == 3 else None)
        return self.value_normalizer.normalize(targets)

    def error(self, values: Tensor, targets: Tensor) -> Tensor:
        if self.config.use_huber_loss:
            return functional.huber_loss(values, targets, reduction="none", delta=self.config.huber_delta)
        return (values - targets).square()

    def value_for(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor]) -> Tensor:
        values = super().value_for(i, batch, entries)
        return values if self.value_normalizer is None else self.value_normalizer.denormalize(values)

    def adapt(self, batch: ReplayBatch, actors: Sequence[SAC]) -> dict[str, Tensor]:
        """Move the critic's own temperature: the entropy of the team against the sum of the agents' targets."""
        totals = [actor.last_log_probs * batch.valid[i] for i, actor in enumerate(actors)]
        targets = [
            actor.temperature.target(actor.code, actor.own_mask(batch.available_actions, i)) * batch.valid[i]
            for i, actor in enumerate(actors)
        ]
        return self.temperature.adapt(torch.stack(totals).sum(0), torch.stack(targets).sum(0))

    def get_state(self) -> dict[str, Any]:
        state = {**super().get_state(), "temperature": self.temperature.get_state()}
        if self.value_normalizer is not None:
            state["value_normalizer"] = self.value_normalizer.state_dict()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if "temperature" in state:
            self.temperature.set_state(state["temperature"])
        if self.value_normalizer is not None:
            self.value_normalizer.load_state_dict(state["value_normalizer"])
