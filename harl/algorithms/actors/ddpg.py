"""Deterministic policies: HADDPG and MADDPG."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.actors.off_policy import OffPolicyActor
from harl.config import DDPGConfig, OffPolicyModelConfig
from harl.models.plain import DeterministicPolicy


class DDPG(OffPolicyActor):
    """Deterministic policy gradient (Lillicrap et al. 2016; Lowe et al. 2017 for teams).

    Maximises mean Q(s, …, μ(o), …). A Box is explored by normal noise of `expl_noise` half-ranges, clipped to the
    bounds. Discrete choices go through a straight-through Gumbel-softmax, as the experiments of Lowe et al. did; they
    are explored by their samples.
    """

    config: DDPGConfig
    network: DeterministicPolicy

    @staticmethod
    def build(obs_dim: int, space: spaces.Space[Any], model: OffPolicyModelConfig) -> DeterministicPolicy:
        return DeterministicPolicy(
            obs_dim, space, model.hidden_sizes, model.activation_func, model.final_activation_func
        )

    @torch.no_grad()
    def act(self, obs: Tensor, available_actions: Tensor | None, explore: bool) -> Tensor:
        output = self.network(obs)
        if self.code.nvec is not None:
            if explore:
                return self.code.decode(self.code.straight_through(output, available_actions, self.generator)[0])
            return self.code.decode(self.code.greedy(output, available_actions))
        if not explore:
            return self._inside(output)
        return self.noisy(output, self.config.expl_noise, None)

    def noisy(self, actions: Tensor, std: float, limit: float | None) -> Tensor:
        """Actions with normal noise, a draw for each row and dimension, clipped to the bounds.

        Args:
            actions: (B, k).
            std, limit: spread and largest size of the noise in half-ranges of each dimension.
        """
        bounds = self.network.bounds
        assert bounds is not None
        noise = torch.empty_like(actions).normal_(generator=self.generator) * std
        if limit is not None:
            noise = noise.clamp(-limit, limit)
        return bounds.clamp(actions + noise * bounds.scale)

    def current(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        output = self.network(obs)
        if self.code.nvec is None:
            return output, None
        return self.code.straight_through(output, available_actions, self.generator)[0], None

    @torch.no_grad()
    def following(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        output = self.target_network(obs)
        return (self._inside(output) if self.code.nvec is None else self.code.greedy(output, available_actions)), None

    def likelihood(self, obs: Tensor, available_actions: Tensor | None, actions: Tensor) -> Tensor:
        """Of a normal around μ(o) that is a half-range wide, up to a constant; of choices that of the sampled ones."""
        output = self.network(obs)
        if self.code.nvec is not None:
            return self.code.log_prob(output, available_actions, actions)
        bounds = self.network.bounds
        assert bounds is not None
        errors: Tensor = (output - actions) / torch.where(bounds.scale > 0, bounds.scale, 1.0)
        return -0.5 * errors.square().sum(-1, keepdim=True)

    def _inside(self, actions: Tensor) -> Tensor:
        bounds = self.network.bounds
        assert bounds is not None
        return bounds.clamp(actions)
