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
        self.critic.look_at(batch)
        taken, agents = self.critic.encode(batch), range(self.layout.num_agents)
        if self.team.shared:
            info = self.team.own[0].improve(agents, batch, taken, self.critic)
            for i in agents:
                self.report(i, info)
        else:
            for i in agents:
                self.report(i, self.team.own[i].improve([i], batch, taken, self.critic))
        self.follow()
