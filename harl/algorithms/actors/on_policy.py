"""What the actors of on-policy algorithms share: the surrogate and its gradient, and steps in minibatches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from harl.algorithms.base import FlatOptimizer, Metrics, minibatches, pieces_of
from harl.buffers.human_steps import HumanRows
from harl.buffers.rollout import ActorData
from harl.config import MinibatchConfig, OnPolicyAlgoConfig
from harl.models.distributions import Distribution, aggregate_ratio
from harl.models.flat import FlatParameters, separate_weights
from harl.models.policy import StochasticPolicy


class Objective(NamedTuple):
    """What a policy is worth on some rows, () each."""

    surrogate: Tensor
    """Mean of M · surrogate over the rows that count."""
    entropy: Tensor
    """Mean entropy over the rows that count."""
    ratio: Tensor
    """Mean probability ratio to the policy that acted, over all rows."""


class Lesson(NamedTuple):
    """What a policy is taught by people in one update."""

    draw: Callable[[], HumanRows]
    """Steps that people drove, drawn anew for each gradient step."""
    weight: float
    """Weight β of the imitation loss."""


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
        self.vector = parameters.vector(index)
        """All parameters of the policy (P,); its `.grad` is their gradient."""

    @abstractmethod
    def train(self, data: ActorData, lesson: Lesson | None = None) -> dict[str, float]:
        """Improve the policy on one rollout, and where there is a lesson from people, by that.

        Returns:
            Numbers to report; none where the agent never acted in the rollout and there is no lesson.
        """

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """What each row adds to the objective, (M, 1) like its arguments: ρ Â, where nothing bounds it."""
        return ratio * advantages

    def terms(self, rows: ActorData) -> tuple[Distribution, Tensor, Tensor]:
        """The policy on some rows: its distribution, and M times the surrogate and the ratio of each row, (M, 1)."""
        distribution = self.policy(*rows.inputs)
        # Nothing that somebody else decided may reach the gradient, not even as 0 times infinity.
        log_ratio = (distribution.log_prob(rows.actions) - rows.log_probs) * rows.decided
        ratio = aggregate_ratio(log_ratio, self.config.action_aggregation)
        surrogate = self.surrogate(ratio, rows.advantages)
        return distribution, surrogate if rows.factor is None else rows.factor * surrogate, ratio

    def add_gradient(self, batch: ActorData, entropy_coef: float = 0.0) -> Objective:
        """Add the gradient of −(surrogate + entropy_coef · entropy), means over the batch, to that of `vector`."""
        mask = self.mask(batch)
        total = mask.sum().clamp(min=1.0)
        surrogate = entropy = ratio_sum = torch.zeros((), device=mask.device)
        for piece in pieces_of(batch.obs):
            distribution, weighted, ratio = self.terms(batch.rows(piece))
            piece_surrogate = (weighted * mask[piece]).sum() / total
            piece_entropy = (distribution.entropy() * mask[piece]).sum() / total
            torch.autograd.backward(-piece_surrogate - entropy_coef * piece_entropy)
            surrogate, entropy = surrogate + piece_surrogate.detach(), entropy + piece_entropy.detach()
            ratio_sum = ratio_sum + ratio.detach().sum()
        return Objective(surrogate, entropy, ratio_sum / mask.numel())

    def imitate(self, shown: HumanRows, weight: float) -> Tensor:
        """Add the gradient of weight · mean(−log π(a | o)), over what people did, to that of `vector`.

        Returns:
            The mean, ().
        """
        mean = torch.zeros((), device=shown.obs.device)
        for piece in pieces_of(shown.obs):
            rows = shown.rows(piece)
            loss = -self.policy(*rows.inputs).log_prob(rows.actions).sum() / len(shown.obs)
            torch.autograd.backward(weight * loss)
            mean = mean + loss.detach()
        return mean

    @torch.no_grad()
    def log_probs(self, data: ActorData) -> Tensor:
        """Log-probabilities (M, factors) of the rollout's actions under the current policy; with memory in one go from
        the first hidden states on, (S, L, factors)."""
        parts = [data.rows(piece) for piece in pieces_of(data.obs)]
        return torch.cat([self.policy(*part.inputs).log_prob(part.actions) for part in parts])

    def mask(self, data: ActorData) -> Tensor:
        """Weights (M, 1) of the rows in the loss and the entropy."""
        return data.weights if self.config.use_policy_active_masks else data.decided

    @property
    def gradient(self) -> Tensor:
        """The gradient of `vector`, (P,)."""
        return cast(Tensor, self.vector.grad)

    def set_lr_fraction(self, fraction: float) -> None:
        """Learn at a fraction of the configured rate; of no concern to a step whose length is found otherwise."""
        del fraction

    def get_state(self) -> dict[str, Any]:
        """Weights, and the optimiser where there is one, free of shared memory."""
        return {"policy": separate_weights(self.policy)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights, and the optimiser where it is there."""
        self.policy.load_state_dict(state["policy"])


class MinibatchActor(OnPolicyActor):
    """An actor that passes over the rollout several times and takes a step of Adam for each minibatch.

    Maximises the mean of M · surrogate(ρ, Â) + c_H H over the rows in which the agent acted, where
    ρ = π(a | o) / π_old(a | o); subclasses say what the surrogate is.
    """

    config: MinibatchConfig

    def __init__(
        self,
        name: str,
        policy: StochasticPolicy,
        parameters: FlatParameters,
        index: int,
        config: MinibatchConfig,
        generator: torch.Generator,
    ) -> None:
        super().__init__(name, policy, parameters, index, config, generator)
        limit = config.max_grad_norm if config.use_max_grad_norm else None
        self.optimizer = FlatOptimizer(self.vector, config.lr, config.opti_eps, config.weight_decay, limit)

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Passes over the rollout in one update."""

    def train(self, data: ActorData, lesson: Lesson | None = None) -> dict[str, float]:
        """`epochs` passes over the rollout in `actor_num_mini_batch` parts, of rows, or with memory of chunks.

        Returns:
            policy_loss, dist_entropy, actor_grad_norm and ratio, and with a lesson bc_loss, each the mean over the
            gradient steps; nothing where the agent did not act at all in this rollout and there is no lesson.
        """
        metrics = Metrics()
        if lesson is None and not bool((data.weights > 0).any()):
            return {}
        data = data.chunks()
        for _ in range(self.epochs):
            for index in minibatches(len(data.obs), self.config.actor_num_mini_batch, self.generator, data.obs.device):
                self.optimizer.zero_grad()
                found = self.add_gradient(data.rows(index), self.config.entropy_coef)
                if lesson is not None:
                    metrics.add(bc_loss=self.imitate(lesson.draw(), lesson.weight))
                metrics.add(
                    policy_loss=-found.surrogate,
                    dist_entropy=found.entropy,
                    actor_grad_norm=self.optimizer.step(),
                    ratio=found.ratio,
                )
        return metrics.means(f"actor of {self.name}")

    def set_lr_fraction(self, fraction: float) -> None:
        self.optimizer.set_lr_fraction(fraction)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "optimizer": self.optimizer.adam.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])
