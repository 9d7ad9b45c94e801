"""What the actors of on-policy algorithms share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from harl.algorithms.base import FlatOptimizer, pieces
from harl.buffers.rollout import ActorData
from harl.config import OnPolicyAlgoConfig
from harl.models.flat import FlatParameters
from harl.models.policy import StochasticPolicy


class OnPolicyActor(ABC):
    """One agent's policy and how it learns from a rollout.

    Args:
        name: the agent's name, for messages.
        policy: the network.
        parameters, index: where the network's parameters live.
        config: the `algo` section.
        generator: source of the order of minibatches.
    """

    def __init__(
        self,
        name: str,
        policy: StochasticPolicy,
        parameters: FlatParameters,
        index: int,
        config: OnPolicyAlgoConfig,
        generator: torch.Generator,
    ) -> None:
        self.name, self.policy, self.config, self.generator = name, policy, config, generator
        self.optimizer = FlatOptimizer(
            parameters.vector(index),
            config.lr,
            config.opti_eps,
            config.weight_decay,
            config.max_grad_norm if config.use_max_grad_norm else None,
        )

    @abstractmethod
    def train(self, data: ActorData) -> dict[str, float]:
        """Improve the policy on one rollout; returns numbers to report."""

    @torch.no_grad()
    def log_probs(self, data: ActorData) -> Tensor:
        """Log-probabilities (M, factors) of the rollout's actions under the current policy."""
        parts = [data.rows(piece) for piece in pieces(len(data.obs))]
        return torch.cat([self.policy(part.obs, part.available_actions).log_prob(part.actions) for part in parts])

    def mask(self, data: ActorData) -> Tensor:
        """Weights (M, 1) of the rows in the loss and the entropy."""
        return data.weights if self.config.use_policy_active_masks else data.decided

    def get_state(self) -> dict[str, Any]:
        """Weights and optimiser, free of shared memory."""
        weights = {name: value.detach().cpu().clone() for name, value in self.policy.state_dict().items()}
        return {"policy": weights, "optimizer": self.optimizer.adam.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights, and the optimiser where it is there."""
        self.policy.load_state_dict(state["policy"])
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])
