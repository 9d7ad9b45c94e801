"""The state-value critic of on-policy algorithms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harl.algorithms.base import FlatOptimizer, Metrics, minibatches, pieces_of
from harl.buffers.rollout import CriticData
from harl.config import OnPolicyAlgoConfig
from harl.models.flat import FlatParameters, separate_weights
from harl.models.value import VNet
from harl.models.value_norm import ValueNorm


class VCritic:
    """V(s) of the team (EP) or of each agent (FP), with optional normalisation of its targets.

    Args:
        network: the value network.
        config: the `algo` section.
        generator: source of the order of minibatches.
    """

    def __init__(self, network: VNet, config: OnPolicyAlgoConfig, generator: torch.Generator) -> None:
        self.network, self.config, self.generator = network, config, generator
        self.value_normalizer: ValueNorm | None = None
        if config.use_valuenorm:
            self.value_normalizer = ValueNorm().to(network.v_out.weight.device)
        self.optimizer = FlatOptimizer(
            FlatParameters([network]).vector(0),
            config.critic_lr,
            config.opti_eps,
            config.weight_decay,
            config.max_grad_norm if config.use_max_grad_norm else None,
        )

    @torch.no_grad()
    def get_values(self, share_obs: Tensor) -> Tensor:
        """Network outputs (M, 1) for states (M, share_obs_dim), in the normaliser's units."""
        return torch.cat([self.network(share_obs[piece]) for piece in pieces_of(share_obs)])

    @torch.no_grad()
    def get_sequence_values(self, share_obs: Tensor, hidden: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Network outputs (S, L, 1) for sequences (S, L, …), and hidden states after each step (S, L, layers, width).

        Args:
            share_obs: the states.
            hidden: (S, layers, width) hidden states before the sequences.
            masks: (S, L, 1), 0 where the episode ended before the step.
        """
        parts = [
            self.network.values_and_memory(share_obs[piece], hidden[piece], masks[piece])
            for piece in pieces_of(share_obs)
        ]
        values, after = zip(*parts, strict=True)
        return torch.cat(values), torch.cat(after)

    def denormalize(self, values: Tensor) -> Tensor:
        """Network outputs on the scale of rewards."""
        return values if self.value_normalizer is None else self.value_normalizer.denormalize(values)

    def train(self, data: CriticData) -> dict[str, float]:
        """`critic_epoch` passes over the rollout in `critic_num_mini_batch` parts, of rows, or with memory of chunks.

        The normaliser takes the returns in once before the first pass (`algo.valuenorm_update: iteration`), or each
        minibatch again (`minibatch`, as the original does).

        Returns:
            value_loss and critic_grad_norm, each the mean over the gradient steps.
        """
        metrics = Metrics()
        data = data.chunks()
        every_minibatch = self.config.valuenorm_update == "minibatch"
        if self.value_normalizer is not None and not every_minibatch:
            self.value_normalizer.update(data.returns, data.weights)
        for _ in range(self.config.critic_epoch):
            for index in minibatches(
                len(data.returns), self.config.critic_num_mini_batch, self.generator, data.returns.device
            ):
                batch = data.rows(index)
                if self.value_normalizer is not None and every_minibatch:
                    self.value_normalizer.update(batch.returns, batch.weights)
                self._step(batch, metrics)
        return metrics.means("critic")

    def _step(self, batch: CriticData, metrics: Metrics) -> None:
        targets = batch.returns
        if self.value_normalizer is not None:
            targets = self.value_normalizer.normalize(targets)
        count = float(targets.numel()) if batch.weights is None else batch.weights.sum().clamp(min=1.0)
        self.optimizer.zero_grad()
        loss = torch.zeros((), device=targets.device)
        for piece in pieces_of(batch.share_obs):
            values = self.network(*batch.rows(piece).inputs)
            losses = self.value_loss(values, batch.value_preds[piece], targets[piece])
            if batch.weights is not None:
                losses = losses * batch.weights[piece]
            piece_loss = losses.sum() / count
            torch.autograd.backward(piece_loss * self.config.value_loss_coef)
            loss = loss + piece_loss.detach()
        metrics.add(value_loss=loss, critic_grad_norm=self.optimizer.step())

    def value_loss(self, values: Tensor, old_values: Tensor, targets: Tensor) -> Tensor:
        """Loss of each row, all arguments (M, 1) in the normaliser's units.

        Huber with `huber_delta`, or half the squared error. With `use_clipped_value_loss` the larger one of the losses
        of v and of v_old + clip(v − v_old, ±clip_param), where v_old is what the network said during the rollout.
        """
        losses = self._error(values, targets)
        if not self.config.use_clipped_value_loss:
            return losses
        clip = self.config.clip_param
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        return torch.max(losses, self._error(clipped, targets))

    def _error(self, values: Tensor, targets: Tensor) -> Tensor:
        if self.config.use_huber_loss:
            return functional.huber_loss(values, targets, reduction="none", delta=self.config.huber_delta)
        return 0.5 * (targets - values).square()

    def set_lr_fraction(self, fraction: float) -> None:
        """Learn at a fraction of `critic_lr`."""
        self.optimizer.set_lr_fraction(fraction)

    def get_state(self) -> dict[str, Any]:
        """Weights, normaliser and optimiser, free of shared memory."""
        state: dict[str, Any] = {
            "network": separate_weights(self.network),
            "optimizer": self.optimizer.adam.state_dict(),
        }
        if self.value_normalizer is not None:
            state["value_normalizer"] = self.value_normalizer.state_dict()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights and normaliser, and the optimiser where it is there."""
        self.network.load_state_dict(state["network"])
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])
        if self.value_normalizer is not None:
            self.value_normalizer.load_state_dict(state["value_normalizer"])
