"""What the actors of off-policy algorithms share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from harl.algorithms.base import FlatOptimizer
from harl.algorithms.critics.q_base import Critic
from harl.algorithms.entries import ActionCode, replaced
from harl.buffers.replay import ReplayBatch
from harl.config import OffPolicyAlgoConfig
from harl.models.flat import FlatParameters, separate_weights


class OffPolicyActor(ABC):
    """One agent's policy and how it learns from a batch of transitions and a critic.

    Args:
        name: the agent's name, for messages.
        space: its action space.
        network: its policy.
        config: the `algo` section.
        generator: source of exploration and of sampled actions.
    """

    has_target = True
    """Whether next actions come from a network that follows slowly."""

    def __init__(
        self,
        name: str,
        space: spaces.Space[Any],
        network: nn.Module,
        config: OffPolicyAlgoConfig,
        generator: torch.Generator,
    ) -> None:
        self.name, self.space, self.network, self.config, self.generator = name, space, network, config, generator
        self.code = ActionCode(space)
        self.obs_dim = next(module for module in network.modules() if isinstance(module, nn.Linear)).in_features
        self.flat = FlatParameters([network])
        self.parameters = list(network.parameters())
        self.optimizer = FlatOptimizer(self.flat.vector(0), config.lr, config.opti_eps, 0.0, None)
        if self.has_target:
            self.target_network = copy.deepcopy(network).requires_grad_(False)
            self.target_flat = FlatParameters([self.target_network])

    @staticmethod
    @abstractmethod
    def build(obs_dim: int, space: spaces.Space[Any], model: Any) -> nn.Module:
        """The policy network for an agent's own widths, as the `model` section asks for."""

    @abstractmethod
    def act(self, obs: Tensor, available_actions: Tensor | None, explore: bool) -> Tensor:
        """Actions (B, action_dim) for observations (B, obs_dim), executable; with noise or samples if `explore`."""

    @abstractmethod
    def current(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Entries for the critic (B, width) of the current policy, and log-probabilities (B, 1) where it is random."""

    @abstractmethod
    def following(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Like `current` for the actions that targets are made of; without gradient."""

    def log_prob(self, obs: Tensor, available_actions: Tensor | None, actions: Tensor) -> Tensor | None:
        """Log-probabilities (B, 1) of actions (B, action_dim); None for policies that are not random."""
        return None

    def likelihood(self, obs: Tensor, available_actions: Tensor | None, actions: Tensor) -> Tensor:
        """What imitation makes larger, (B, 1) with gradient: log π(a | o) of actions (B, action_dim) that people did.

        Raises:
            TypeError: there is no policy to imitate with.
        """
        raise TypeError(f"{type(self).__name__} has values to act by and no policy: it cannot imitate")

    def loss(self, values: Tensor, log_probs: Tensor | None) -> Tensor:
        """What each row (B, 1) adds to the loss: minus the value of acting so."""
        return -values

    def objective(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor], critic: Critic) -> Tensor:
        """Loss () of agent i: what the critic says of its action among the others' entries, (B, width) each."""
        entry, log_probs = self.current(self.own(batch.obs, i), self.own_mask(batch.available_actions, i))
        rows = self.loss(critic.value_for(i, batch, replaced(entries, i, entry)), log_probs)
        weights = batch.valid[i]
        return (rows * weights).sum() / weights.sum().clamp(min=1.0)

    def improve(
        self, agents: Sequence[int], batch: ReplayBatch, entries: Sequence[Tensor], critic: Critic
    ) -> dict[str, Tensor]:
        """One gradient step; the critic gets no gradient.

        Args:
            agents: whose policy this is: one agent, or all that share it.
            batch: transitions.
            entries: entries of all agents, (B, width) each; those of the others are taken as they are.
            critic: the team's critic.

        Returns:
            Scalars to report.
        """
        self.optimizer.zero_grad()
        total = torch.zeros((), device=batch.obs.device)
        for i in agents:
            loss = self.objective(i, batch, entries, critic) / len(agents)
            # Naming the inputs keeps autograd from computing gradients of the critic's weights.
            torch.autograd.backward(loss, inputs=self.parameters)
            total = total + loss.detach()
        lessons = [lesson for i in agents if (lesson := self.imitate(i, batch, len(agents))) is not None]
        imitation = {"bc_loss": torch.stack(lessons).mean()} if lessons else {}
        return {"policy_loss": total, **imitation, "actor_grad_norm": self.optimizer.step()}

    def imitate(self, i: int, batch: ReplayBatch, sharing: int = 1) -> Tensor | None:
        """Add the gradient of −Σ weight · log π(a | o) over the rows in which a person drove agent i, or its teachers.

        With weights that add up to β it is β times a mean (with several teachers, the mean of their means): the
        behaviour cloning that Nair et al. (2018, arXiv 1709.10089) add to the loss of the actor, without their filter
        by Q; with a β that falls, as in DAPG (Rajeswaran et al. 2018, arXiv 1709.10087).

        Args:
            i: whose rows, and whose columns of the batch.
            batch: transitions, with the weights in `imitate`.
            sharing: how many agents use this policy, whose loss is the mean of theirs.

        Returns:
            The mean of −log π(a | o), (); None where there are no such rows.
        """
        if batch.imitate is None:
            return None
        losses, total = [], batch.imitate.new_zeros(())
        for teacher in (i,) if batch.teachers is None else batch.teachers[i]:
            rows = batch.imitate[teacher, :, 0].nonzero()[:, 0]
            if not len(rows):
                continue
            mask = self.own_mask(batch.available_actions, teacher)
            found = self.likelihood(
                self.own(batch.obs, teacher)[rows],
                None if mask is None else mask[rows],
                batch.actions[teacher, rows, : self.code.columns],
            )
            weights = batch.imitate[teacher, rows]
            losses.append(-(weights * found).sum())
            total = total + weights.sum()
        if not losses:
            return None
        loss = torch.stack(losses).sum()
        torch.autograd.backward(loss / (len(losses) * sharing), inputs=self.parameters)
        return loss.detach() / total

    @torch.no_grad()
    def entry_before(self, i: int, batch: ReplayBatch) -> Tensor:
        """What agents that are updated before this one see of it: its action under its current policy."""
        return self.current(self.own(batch.obs, i), self.own_mask(batch.available_actions, i))[0]

    def entry_for_others(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor], critic: Critic) -> Tensor:
        """What agents that are updated later see of this one: its action under the improved policy."""
        return self.entry_before(i, batch)

    def adapt(self, i: int, batch: ReplayBatch) -> dict[str, Tensor]:
        """What else is learned after `improve`; nothing here."""
        return {}

    def follow(self) -> None:
        """Move the slow network towards the current one."""
        if self.has_target:
            self.target_flat.follow(self.flat, self.config.polyak)

    def own(self, arrays: Tensor, i: int) -> Tensor:
        """Agent i's part of (A, B, width), at its own width."""
        return arrays[i, :, : self.obs_dim]

    def own_mask(self, masks: Tensor | None, i: int) -> Tensor | None:
        """Agent i's masks at their own width, None where it has none."""
        return None if masks is None or self.code.nvec is None else masks[i, :, : self.code.width]

    def get_state(self) -> dict[str, Any]:
        """Weights, slow weights and optimiser, free of shared memory."""
        state: dict[str, Any] = {
            "policy": separate_weights(self.network),
            "optimizer": self.optimizer.adam.state_dict(),
        }
        if self.has_target:
            state["target"] = separate_weights(self.target_network)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over weights, and the optimiser where it is there; slow weights start equal where they are not."""
        self.network.load_state_dict(state["policy"])
        if "optimizer" in state:
            self.optimizer.adam.load_state_dict(state["optimizer"])
        if self.has_target:
            self.target_network.load_state_dict(state.get("target", state["policy"]))
