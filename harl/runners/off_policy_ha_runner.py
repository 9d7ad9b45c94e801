"""Improving agents one after the other on what is remembered."""

from __future__ import annotations

import torch

from harl.runners.off_policy_base_runner import OffPolicyBaseRunner


class OffPolicyHARunner(OffPolicyBaseRunner):
    """Sequential updates (Zhong et al. 2024): each agent is improved against what the agents before it have become."""

    def train(self) -> None:
        """One step of the critic; when it is their turn, one of each actor in order, then of the slow networks."""
        batch = self.train_critic()
        if not self.actors_turn:
            return
        actors, order = self.team.actors, self.update_order()
        self.critic.look_at(batch)
        # Nobody looks at what the first one did before, or at what the last one does afterwards.
        entries = [batch.actions[i] for i in range(len(actors))]
        for i in order[1:]:
            entries[i] = actors[i].entry_before(i, batch)
        for i in order:
            actor = actors[i]
            self.report(i, actor.improve([i], batch, entries, self.critic))
            self.report(i, actor.adapt(i, batch))
            if i != order[-1]:
                entries[i] = actor.entry_for_others(i, batch, entries, self.critic)
        self.report("critic", self.critic.adapt(batch, actors))
        self.follow()

    def update_order(self) -> list[int]:
        """Indices of the agents in the order of this update; `algo.fixed_order` keeps 0 … A − 1."""
        if self.algo.fixed_order:
            return list(range(self.layout.num_agents))
        order: list[int] = torch.randperm(self.layout.num_agents, generator=self.agent_order).tolist()
        return order
