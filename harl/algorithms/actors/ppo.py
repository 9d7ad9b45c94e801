"""The clipped surrogate of HAPPO and MAPPO."""

from __future__ import annotations

import torch

from harl.algorithms.actors.on_policy import OnPolicyActor
from harl.algorithms.base import Metrics, minibatches, pieces
from harl.buffers.rollout import ActorData
from harl.config import PPOConfig
from harl.models.distributions import aggregate_ratio


class PPO(OnPolicyActor):
    """Proximal policy optimisation of one agent (Schulman et al. 2017, eq. 7), weighted by the factor M.

    Maximises the mean of M · min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â) + c_H H over the rows in which the agent acted, where
    ρ = π(a | o) / π_old(a | o). With M the product of the ratios of the agents updated before (Kuba et al. 2022, HAPPO,
    eq. 11) this is HAPPO; with M = 1 it is MAPPO (Yu et al. 2022). Only ρ is clipped, M never is; M > 0, so it may
    stand outside the minimum.
    """

    config: PPOConfig

    def train(self, data: ActorData) -> dict[str, float]:
        """`ppo_epoch` passes over the rollout in `actor_num_mini_batch` parts.

        Returns:
            policy_loss, dist_entropy, actor_grad_norm and ratio, each the mean over the gradient steps; nothing where
            the agent did not act at all in this rollout.
        """
        metrics = Metrics()
        if not bool((data.weights > 0).any()):
            return {}
        for _ in range(self.config.ppo_epoch):
            for index in minibatches(len(data.obs), self.config.actor_num_mini_batch, self.generator, data.obs.device):
                self._step(data.rows(index), metrics)
        return metrics.means(f"actor of {self.name}")

    def _step(self, batch: ActorData, metrics: Metrics) -> None:
        mask = self.mask(batch)
        total = mask.sum().clamp(min=1.0)
        clip = self.config.clip_param
        self.optimizer.zero_grad()
        loss = entropy = ratio_sum = torch.zeros((), device=mask.device)
        for piece in pieces(len(batch.obs)):
            rows, weight = batch.rows(piece), mask[piece]
            distribution = self.policy(rows.obs, rows.available_actions)
            log_ratio = distribution.log_prob(rows.actions) - rows.log_probs
            ratio = aggregate_ratio(log_ratio, self.config.action_aggregation)
            surrogate = torch.min(ratio * rows.advantages, ratio.clamp(1 - clip, 1 + clip) * rows.advantages)
            if rows.factor is not None:
                surrogate = rows.factor * surrogate
            policy_loss = -(surrogate * weight).sum() / total
            piece_entropy = (distribution.entropy() * weight).sum() / total
            torch.autograd.backward(policy_loss - self.config.entropy_coef * piece_entropy)
            loss, entropy = loss + policy_loss.detach(), entropy + piece_entropy.detach()
            ratio_sum = ratio_sum + ratio.detach().sum()
        norm = self.optimizer.step()
        metrics.add(policy_loss=loss, dist_entropy=entropy, actor_grad_norm=norm, ratio=ratio_sum / len(batch.obs))
