"""Updating agents one after the other."""

from __future__ import annotations

import torch

from harl.models.distributions import aggregate_ratio
from harl.runners.advantages import normalised
from harl.runners.on_policy_base_runner import OnPolicyBaseRunner


class OnPolicyHARunner(OnPolicyBaseRunner):
    """Sequential updates of heterogeneous agents (Kuba et al. 2022; Zhong et al. 2024).

    By the advantage decomposition lemma the joint advantage of a team is the sum of each agent's advantage given what
    the agents before it do. So agent i_m learns from M · Â with M = ∏_{j<m} π_new(a_j | o_j) / π_old(a_j | o_j), the
    product of the exact ratios of the agents that were updated before it.
    """

    def train(self) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Update every agent in a random (or fixed) order, carrying the factor M, then the critic."""
        buffer = self.buffer
        advantages = normalised(self.advantages, buffer.weights())
        factor = buffer.arranged(torch.ones(buffer.episode_length, buffer.num_envs, 1, device=self.device))
        infos: dict[str, dict[str, float]] = {}
        order = self.update_order()
        for agent in order:
            actor = self.actors[agent]
            data = buffer.actor_data(agent, advantages, factor)
            infos[self.layout.agents[agent]] = actor.train(data, self.lesson(agent))
            if agent == order[-1]:  # nobody comes after it
                break
            ratio = aggregate_ratio(actor.log_probs(data) - data.log_probs, self.algo.action_aggregation)
            # Where the agent was not there, or a person decided, its policy had no part in what happened.
            factor = factor * torch.where(data.weights > 0, ratio, 1.0)
        return {agent: infos[agent] for agent in self.layout.agents}, self.critic.train(buffer.critic_data())

    def update_order(self) -> list[int]:
        """Indices of the agents in the order of this update; `algo.fixed_order` keeps 0 … A − 1."""
        if self.algo.fixed_order:
            return list(range(self.layout.num_agents))
        order: list[int] = torch.randperm(self.layout.num_agents, generator=self.agent_order).tolist()
        return order
