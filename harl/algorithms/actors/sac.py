"""Random policies that are paid for being random: HASAC."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.actors.off_policy import OffPolicyActor
from harl.algorithms.temperature import Temperature
from harl.buffers.replay import ReplayBatch
from harl.config import SACConfig, SACModelConfig
from harl.models.mlp import MLPSpec
from harl.models.plain import SquashedGaussianPolicy
from harl.models.policy import StochasticPolicy

IMITATED_EDGE = 0.99
"""Half-ranges from the middle of a Box beyond which a person's action is imitated as if it were there. Keys push to the
very bounds, where tanh is flat: a policy that has gone there gets no gradient from its critic any more."""


class SAC(OffPolicyActor):
    """Soft actor-critic of one agent (Haarnoja et al. 2018; Liu et al. 2024 for teams, HASAC).

    Maximises mean min(Q1, Q2)(s, …, a, …) − α log π(a | o). A Box has a squashed Gaussian; discrete choices are sampled
    by a straight-through Gumbel-softmax, whose log-probability is that of the choice.
    """

    has_target = False
    config: SACConfig
    network: SquashedGaussianPolicy | StochasticPolicy
    temperature: Temperature

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        self.temperature = Temperature(
            config.alpha, config.auto_alpha, config.alpha_lr, config.target_entropy_ratio, self.parameters[0].device
        )

    @staticmethod
    def build(
        obs_dim: int, space: spaces.Space[Any], model: SACModelConfig
    ) -> SquashedGaussianPolicy | StochasticPolicy:
        if isinstance(space, spaces.Box):
            return SquashedGaussianPolicy(
                obs_dim, space, model.hidden_sizes, model.activation_func, model.final_activation_func
            )
        spec = MLPSpec(
            model.hidden_sizes, model.activation_func, model.use_feature_normalization, model.initialization_method
        )
        return StochasticPolicy(obs_dim, space, spec, model.gain, 1.0, 0.5)

    @torch.no_grad()
    def act(self, obs: Tensor, available_actions: Tensor | None, explore: bool) -> Tensor:
        if isinstance(self.network, SquashedGaussianPolicy):
            actions, _ = self.network(obs, self._noise(obs) if explore else None)
            return self.network.bounds.clamp(actions)
        distribution = self.network(obs, available_actions)
        return distribution.sample(self.generator) if explore else distribution.mode()  # type: ignore[no-any-return]

    def current(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if isinstance(self.network, SquashedGaussianPolicy):
            entries, log_probs = self.network(obs, self._noise(obs))
            return entries, log_probs
        return self.code.straight_through(self.network.logits(obs), available_actions, self.generator)

    @torch.no_grad()
    def following(self, obs: Tensor, available_actions: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.current(obs, available_actions)

    @torch.no_grad()
    def log_prob(self, obs: Tensor, available_actions: Tensor | None, actions: Tensor) -> Tensor:
        return self.likelihood(obs, available_actions, actions, SquashedGaussianPolicy.JUST_INSIDE)

    def likelihood(
        self, obs: Tensor, available_actions: Tensor | None, actions: Tensor, edge: float = IMITATED_EDGE
    ) -> Tensor:
        if isinstance(self.network, SquashedGaussianPolicy):
            return self.network.log_prob(obs, actions, edge)
        distribution = self.network(obs, available_actions)
        return distribution.log_prob(actions).sum(-1, keepdim=True)  # type: ignore[no-any-return]

    def loss(self, values: Tensor, log_probs: Tensor | None) -> Tensor:
        assert log_probs is not None
        self.last_log_probs = log_probs.detach()
        return self.temperature.alpha * log_probs - values

    def adapt(self, i: int, batch: ReplayBatch) -> dict[str, Tensor]:
        """Move the temperature towards the entropy that is asked for; after `improve`."""
        masks = self.own_mask(batch.available_actions, i)
        return self.temperature.adapt(self.last_log_probs, self.temperature.target(self.code, masks), batch.valid[i])

    def _noise(self, obs: Tensor) -> Tensor:
        return torch.empty(len(obs), self.code.width, device=obs.device).normal_(generator=self.generator)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "temperature": self.temperature.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if "temperature" in state:
            self.temperature.set_state(state["temperature"])
