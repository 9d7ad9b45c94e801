"""Improving agents at the same time on what is remembered."""

from __future__ import annotations

from harl.runners.off_policy_base_runner import OffPolicyBaseRunner


class OffPolicyMARunner(OffPolicyBaseRunner):
    """Simultaneous updates (Lowe et al. 2017): each agent is improved against what the others did in the batch."""

    def train(self) -> None:
        """One step of the critic; when it is their turn, one of every actor, then of the slow networks."""
        batch = self.train_critic()
        if not self.actors_turn:
            return
        taken = self.critic.encode(batch)
        for i, (agent, actor) in enumerate(zip(self.layout.agents, self.team.actors, strict=True)):
            self.metrics[agent].add(**actor.improve(i, batch, taken, self.critic))
        self.follow()
