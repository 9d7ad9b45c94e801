"""Updating agents at the same time."""

from __future__ import annotations

from harl.buffers.rollout import ActorData
from harl.runners.advantages import normalised
from harl.runners.on_policy_base_runner import OnPolicyBaseRunner


class OnPolicyMARunner(OnPolicyBaseRunner):
    """Simultaneous updates (Yu et al. 2022): each agent learns as if the others stayed as they were."""

    def train(self) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Update every agent from its own rows, or the shared policy from all rows, then the critic."""
        buffer, agents = self.buffer, self.layout.agents
        shared = self.algo.share_param
        advantages = normalised(self.advantages, buffer.weights(), together=shared)
        data = [buffer.actor_data(i, advantages) for i in range(len(agents))]
        if shared:
            info = self.actors[0].train(ActorData.concatenate(data), self.lesson(0))
            infos = dict.fromkeys(agents, info)
        else:
            infos = {
                agent: actor.train(rows, self.lesson(i))
                for i, (agent, actor, rows) in enumerate(zip(agents, self.actors, data, strict=True))
            }
        return infos, self.critic.train(buffer.critic_data())
