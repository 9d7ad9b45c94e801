"""A dueling critic with one output for each joint action: HAD3QN."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harl.algorithms.base import FlatOptimizer
from harl.algorithms.critics.q_base import Critic
from harl.buffers.replay import ReplayBatch
from harl.config import D3QNConfig, D3QNModelConfig
from harl.envs.api import Layout
from harl.models.flat import FlatParameters, separate_weights
from harl.models.plain import DuelingQNet

LARGEST_JOINT = 100_000
"""Joint actions above which the output layer alone would take gigabytes with its optimiser."""


def joint_actions(layout: Layout) -> int:
    """How many joint actions a team of Discrete agents has."""
    return math.prod(layout.action_numbers)


class JointQCritic(Critic):
    """Q(s, ·) over joint actions; index a_1 + n_1 a_2 + n_1 n_2 a_3 + …, the first agent fastest.

    Args:
        layout: agents and spaces, all Discrete.
        model: the `model` section.
        config: the `algo` section.
        device: where it lives.
    """

    def __init__(self, layout: Layout, model: D3QNModelConfig, config: D3QNConfig, device: torch.device) -> None:
        self.config, self.polyak = config, config.polyak
        self.sizes = layout.action_numbers
        self.strides = [math.prod(self.sizes[:i]) for i in range(len(self.sizes))]
        self.network = DuelingQNet(
            layout.share_obs_shape[0],
            joint_actions(layout),
            model.base_hidden_sizes,
            model.dueling_v_hidden_sizes,
            model.dueling_a_hidden_sizes,
            (model.base_activation_func, model.dueling_v_activation_func, model.dueling_a_activation_func),
        ).to(device)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.flat, self.target_flat = FlatParameters([self.network]), FlatParameters([self.target_network])
        self.optimizer = FlatOptimizer(self.flat.whole(), config.critic_lr, config.opti_eps, 0.0, None)
        self._values = torch.empty(0)

    def index(self, entries: Sequence[Tensor]) -> Tensor:
        """Index (B, 1) of the joint action of choices (B, 1) of all agents."""
        columns = [entry.long() * stride for entry, stride in zip(entries, self.strides, strict=True)]
        return torch.stack(columns).sum(0)

    def encode(self, batch: ReplayBatch) -> list[Tensor]:
        return [batch.actions[i, :, :1] for i in range(len(self.sizes))]

    def train(
        self, batch: ReplayBatch, entries: Sequence[Tensor], log_probs: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            following = self._pick(self.target_network(batch.next_share_obs), self.index(entries))
            targets = batch.rewards + batch.discounts * following
        self.optimizer.zero_grad()
        values = self._pick(self.network(batch.share_obs), self.index(self.encode(batch)))
        rows = (values - targets).square()
        if batch.share_obs.dim() == 3:
            loss = (rows * batch.valid).sum() / batch.valid.sum().clamp(min=1.0)
        else:
            loss = rows.mean()
        torch.autograd.backward(loss)
        return {"value_loss": loss, "critic_grad_norm": self.optimizer.step(), "q": values.mean()}

    @torch.no_grad()
    def look_at(self, batch: ReplayBatch) -> None:
        self._values = self.network(batch.share_obs)

    @torch.no_grad()
    def value_for(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor]) -> Tensor:
        return self._pick(self._seen_by(i), self.index(entries))

    @torch.no_grad()
    def values_of_choices(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor]) -> Tensor:
        """What each choice of agent i is worth, (B, its number of choices), given what the others do."""
        values = self._seen_by(i)
        others = self.index([entry * (k != i) for k, entry in enumerate(entries)])
        options = others + self.strides[i] * torch.arange(self.sizes[i], device=values.device)
        return values.gather(-1, options)

    def best_reply(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        """The choice (B, 1) of agent i, among the legal ones, that is worth most given what the others do."""
        worth = self.values_of_choices(i, batch, entries)
        if mask is not None:
            worth = worth.masked_fill(mask == 0, -torch.inf)
        return worth.argmax(-1, keepdim=True).float()

    def _seen_by(self, i: int) -> Tensor:
        """Values (B, joint actions) in the states that were looked at; with FP states, in agent i's."""
        return self._values[i] if self._values.dim() == 3 else self._values

    @staticmethod
    def _pick(values: Tensor, index: Tensor) -> Tensor:
        return values.gather(-1, index.expand(*values.shape[:-1], 1))

    def get_state(self) -> dict[str, Any]:
        return {
            "network": separate_weights(self.network),
            "target_network": separate_weights(self.target_network),
            "optimizer": self.optimizer.adam.state_dict(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target_network"])
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])
