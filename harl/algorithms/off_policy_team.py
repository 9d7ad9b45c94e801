"""The actors of an off-policy team, acting together."""

from __future__ import annotations

import torch
from torch import Tensor

from harl.algorithms.actors.off_policy import OffPolicyActor
from harl.algorithms.team import TeamMemory
from harl.config import AlgoArgs, OffPolicyAlgoConfig
from harl.envs.api import Layout


class OffPolicyTeam:
    """One actor an agent, or one for all of them.

    Args:
        layout: agents, spaces and widths.
        args: the sections model and algo.
        actor: class of the actors.
        device: where the networks live.
        generator: source of exploration and of sampled actions, on that device.
    """

    def __init__(
        self,
        layout: Layout,
        args: AlgoArgs,
        actor: type[OffPolicyActor],
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        algo = args.algo
        assert isinstance(algo, OffPolicyAlgoConfig)
        self.layout, self.device, self.shared = layout, device, algo.share_param
        names = ["the shared policy"] if self.shared else list(layout.agents)
        self.own = [
            actor(
                name,
                layout.action_spaces[i],
                actor.build(layout.obs_dims[i], layout.action_spaces[i], args.model).to(device),
                algo,
                generator,
            )
            for i, name in enumerate(names)
        ]
        self.actors = self.own * layout.num_agents if self.shared else self.own
        """The actor of each agent."""
        self.networks = [actor.network for actor in self.own]

    def refresh(self) -> None:
        """Take over changed weights before acting: there is nothing to take over, the networks act themselves."""

    def new_memory(self, num_envs: int) -> None:
        """None: these policies remember nothing."""

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        available_actions: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
        *,
        memory: TeamMemory | None = None,
    ) -> tuple[Tensor, None]:
        """Actions (N, A, action_dim) for observations (N, A, obs_dim), explored unless `deterministic`.

        `generator`, where it is given, is the source of exploration in place of the team's own. `memory` is None, as
        `new_memory` makes it.
        """
        assert memory is None
        actions = obs.new_zeros((*obs.shape[:2], self.layout.action_dim))
        for i, actor in enumerate(self.actors):
            kept = actor.generator
            actor.generator = generator or kept
            own = obs[:, i, : self.layout.obs_dims[i]]
            width = self.layout.action_numbers[i]
            mask = None if available_actions is None or not width else available_actions[:, i, :width]
            actions[:, i, : self.layout.action_dims[i]] = actor.act(own, mask, explore=not deterministic)
            actor.generator = kept
        return actions, None

    @torch.no_grad()
    def log_probs(
        self, obs: Tensor, available_actions: Tensor | None, actions: Tensor, hidden: Tensor | None = None
    ) -> Tensor | None:
        """Log-probabilities (N, A, action_dim), in the first column; None where the policies are not random."""
        assert hidden is None
        result = torch.zeros_like(actions)
        for i, actor in enumerate(self.actors):
            width = self.layout.action_numbers[i]
            mask = None if available_actions is None or not width else available_actions[:, i, :width]
            own = actor.log_prob(
                obs[:, i, : self.layout.obs_dims[i]], mask, actions[:, i, : self.layout.action_dims[i]]
            )
            if own is None:
                return None
            result[:, i, :1] = own
        return result
