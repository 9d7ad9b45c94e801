"""Local dueling networks that learn from a critic of joint actions: HAD3QN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.actors.off_policy import OffPolicyActor
from harl.algorithms.critics.joint_q_critic import JointQCritic
from harl.algorithms.critics.q_base import Critic
from harl.algorithms.entries import replaced
from harl.buffers.replay import ReplayBatch
from harl.config import D3QNConfig, D3QNModelConfig
from harl.envs.api import mask_width
from harl.models.distributions import mask_logits
from harl.models.plain import DuelingQNet


class D3QN(OffPolicyActor):
    """Dueling double Q-learning of one agent within a team (HAD3QN, Zhong et al. 2024).

    The local Q_i(o_i, ·) is regressed on what the joint critic says of the agent's choices among the others'; agents
    that were updated before are taken to reply best by the critic. With `regress_at` "all" every legal choice is
    compared, with "greedy" its own greedy one alone, as in the original: then a choice that once looked worse is never
    looked at again. It acts greedily, and at random among the legal choices with probability `epsilon`, drawn for each
    environment.
    """

    config: D3QNConfig
    network: DuelingQNet

    @staticmethod
    def build(obs_dim: int, space: spaces.Space[Any], model: D3QNModelConfig) -> DuelingQNet:
        return DuelingQNet(
            obs_dim,
            mask_width(space),
            model.base_hidden_sizes,
            model.dueling_v_hidden_sizes,
            model.dueling_a_hidden_sizes,
            (model.base_activation_func, model.dueling_v_activation_func, model.dueling_a_activation_func),
        )

    @torch.no_grad()
    def act(self, obs: Tensor, available_actions: Tensor | None, explore: bool) -> Tensor:
        values = self.network(obs)
        greedy = mask_logits(values, available_actions).argmax(-1, keepdim=True)
        if not explore:
            return greedy.float()
        legal = torch.ones_like(values) if available_actions is None else available_actions
        anything = torch.multinomial(legal, 1, generator=self.generator)
        coin = torch.rand(len(obs), 1, generator=self.generator, device=obs.device) < self.config.epsilon
        return torch.where(coin, anything, greedy).float()

    @torch.no_grad()
    def current(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.act(obs, available_actions, explore=False), None

    @torch.no_grad()
    def following(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        network = self.network if self.config.double_q else self.target_network
        return mask_logits(network(obs), available_actions).argmax(-1, keepdim=True).float(), None

    def objective(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor], critic: Critic) -> Tensor:
        assert isinstance(critic, JointQCritic)
        values = self.network(self.own(batch.obs, i))
        mask = self.own_mask(batch.available_actions, i)
        weights = batch.valid[i]
        if self.config.regress_at == "greedy":
            choice = mask_logits(values.detach(), mask).argmax(-1, keepdim=True)
            targets = critic.value_for(i, batch, replaced(entries, i, choice.float()))
            rows: Tensor = (values.gather(-1, choice) - targets).square()
        else:
            legal = torch.ones_like(values) if mask is None else mask
            errors = (values - critic.values_of_choices(i, batch, entries)).square() * legal
            rows = errors.sum(-1, keepdim=True) / legal.sum(-1, keepdim=True).clamp(min=1.0)
        return (rows * weights).sum() / weights.sum().clamp(min=1.0)

    def entry_for_others(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor], critic: Critic) -> Tensor:
        assert isinstance(critic, JointQCritic)
        return critic.best_reply(i, batch, entries, self.own_mask(batch.available_actions, i))
