"""Critics of the joint action as it is: Q and twin Q."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harl.algorithms.base import FlatOptimizer
from harl.algorithms.critics.q_base import Critic
from harl.algorithms.entries import ActionCode, joint
from harl.buffers.replay import ReplayBatch
from harl.config import OffPolicyAlgoConfig, OffPolicyModelConfig
from harl.envs.api import Layout
from harl.models.flat import FlatParameters, separate_weights
from harl.models.plain import QNet


class QCritic(Critic):
    """Q(s, a_1, …, a_A), mean squared error.

    Args:
        layout: agents and spaces.
        model: the `model` section.
        config: the `algo` section.
        device: where it lives.
    """

    count = 1
    """Networks: with two, targets take the smaller one (Fujimoto et al. 2018)."""
    asked = 1
    """How many of them actors are told of; of two, the smaller one."""

    def __init__(
        self, layout: Layout, model: OffPolicyModelConfig, config: OffPolicyAlgoConfig, device: torch.device
    ) -> None:
        self.config, self.polyak = config, config.polyak
        self.codes = [ActionCode(space) for space in layout.action_spaces]
        width = layout.share_obs_shape[0] + sum(code.width for code in self.codes)
        self.networks = [QNet(width, model.hidden_sizes, model.activation_func).to(device) for _ in range(self.count)]
        self.target_networks = [copy.deepcopy(network).requires_grad_(False) for network in self.networks]
        self.flat, self.target_flat = FlatParameters(self.networks), FlatParameters(self.target_networks)
        self.optimizer = FlatOptimizer(self.flat.whole(), config.critic_lr, config.opti_eps, 0.0, None)
        self._state_parts: list[Tensor] = []

    def encode(self, batch: ReplayBatch) -> list[Tensor]:
        return [code.encode(batch.actions[i]) for i, code in enumerate(self.codes)]

    def train(
        self, batch: ReplayBatch, entries: Sequence[Tensor], log_probs: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            following = self._spread(batch.next_share_obs, joint(entries))
            smallest = torch.stack([network(*following) for network in self.target_networks]).amin(0)
            targets = self.targets(batch, smallest, log_probs)
        taken = self._spread(batch.share_obs, joint(self.encode(batch)))
        self.optimizer.zero_grad()
        values = [network(*taken) for network in self.networks]
        weights = batch.valid if batch.share_obs.dim() == 3 else None
        losses = torch.stack([self._mean(self.error(value, targets), weights) for value in values])
        torch.autograd.backward(losses.sum())
        norm = self.optimizer.step()
        return {"value_loss": losses.mean(), "critic_grad_norm": norm, "q": values[0].mean()}

    def targets(self, batch: ReplayBatch, following: Tensor, log_probs: Sequence[Tensor | None]) -> Tensor:
        """What the networks learn towards, like `batch.rewards`."""
        return batch.rewards + batch.discounts * following

    def error(self, values: Tensor, targets: Tensor) -> Tensor:
        """Loss of each row."""
        return (values - targets).square()

    @torch.no_grad()
    def look_at(self, batch: ReplayBatch) -> None:
        self._state_parts = [network.state_part(batch.share_obs) for network in self.networks[: self.asked]]

    def value_for(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor]) -> Tensor:
        actions = joint(entries)
        parts = [part[i] if part.dim() == 3 else part for part in self._state_parts]
        values = [network.of_actions(part, actions) for network, part in zip(self.networks, parts, strict=False)]
        return values[0] if len(values) == 1 else torch.minimum(*values)

    @staticmethod
    def _spread(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The same joint actions beside the states of each agent (FP), or beside the one state (EP)."""
        return states, actions.expand(*states.shape[:-1], -1)

    @staticmethod
    def _mean(rows: Tensor, weights: Tensor | None) -> Tensor:
        return rows.mean() if weights is None else (rows * weights).sum() / weights.sum().clamp(min=1.0)

    def get_state(self) -> dict[str, Any]:
        return {
            "networks": [separate_weights(network) for network in self.networks],
            "target_networks": [separate_weights(network) for network in self.target_networks],
            "optimizer": self.optimizer.adam.state_dict(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        for network, weights in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(weights)
        for network, weights in zip(self.target_networks, state["target_networks"], strict=True):
            network.load_state_dict(weights)
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])


class TwinQCritic(QCritic):
    """Two networks; targets take the smaller one, actors the first one (Fujimoto et al. 2018, algorithm 1)."""

    count = 2
