"""Acting with several equal policies in one batched product a layer.

Weights are read from the storage of `FlatParameters`, so nothing is copied between learning and acting. The affine
part of each LayerNorm is folded into the linear layer after it, once a rollout: γ scales the columns of the weight,
β goes through it into the bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from harl.models.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, mask_logits
from harl.models.flat import FlatParameters
from harl.models.init import ACTIVATIONS
from harl.models.policy import GaussianHead, StochasticPolicy


class StackedPolicies:
    """Networks of G agents with equal shapes, seen as one network with a leading axis.

    Args:
        policies: the agents' policies; from here on their parameters live in `parameters`.
    """

    def __init__(self, policies: Sequence[StochasticPolicy]) -> None:
        self.parameters = FlatParameters(policies)
        self._stack = self.parameters.stacked()
        self._policy = policies[0]
        self._activation = ACTIVATIONS[self._policy.base.spec.activation]()
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._std: Tensor | None = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the current weights; to be called after they have changed and before acting."""
        base, act = self._policy.base, self._policy.act
        norms = ["base.feature_norm"] if base.feature_norm is not None else [""]
        linears = []
        for i in range(0, 3 * len(base.spec.hidden_sizes), 3):
            linears.append([f"base.mlp.fc.{i}"])
            norms.append(f"base.mlp.fc.{i + 2}")
        if act.nvec is not None:
            linears.append([f"act.action_outs.{k}.linear" for k in range(len(act.nvec))])
        elif isinstance(act.action_out, GaussianHead):
            linears.append(["act.action_out.fc_mean"])
            self._std = act.action_out.std(self._stack["act.action_out.log_std"]).unsqueeze(1)
        else:
            linears.append(["act.action_out.linear"])
        self._layers = [self._folded(names, norm) for names, norm in zip(linears, norms, strict=True)]

    def _folded(self, linears: list[str], norm: str) -> tuple[Tensor, Tensor]:
        weight = torch.cat([self._stack[f"{name}.weight"] for name in linears], dim=1)
        bias = torch.cat([self._stack[f"{name}.bias"] for name in linears], dim=1).unsqueeze(1)
        if not norm:
            return weight.mT.contiguous(), bias
        gamma, beta = self._stack[f"{norm}.weight"], self._stack[f"{norm}.bias"]
        bias = bias + torch.bmm(beta.unsqueeze(1), weight.mT)
        return (weight * gamma.unsqueeze(1)).mT.contiguous(), bias

    @torch.no_grad()
    def distribution(self, obs: Tensor, available_actions: Tensor | None = None) -> Distribution:
        """Distributions (G, N, …) for observations (G, N, obs_dim) and masks (G, N, number of actions)."""
        x = obs
        if self._policy.base.feature_norm is not None:
            x = functional.layer_norm(x, x.shape[-1:])
        for weight, bias in self._layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
            x = functional.layer_norm(x, x.shape[-1:])
        weight, bias = self._layers[-1]
        x = torch.baddbmm(bias, x, weight)
        if self._std is not None:
            return DiagGaussian(x, self._std)
        logits = mask_logits(x, available_actions)
        return Categorical(logits) if self._policy.act.nvec is None else MultiCategorical(logits, self._policy.act.nvec)


def equal_networks(first: nn.Module, second: nn.Module) -> bool:
    """Whether two networks have the same structure, so that they can be stacked."""
    return str(first) == str(second) and [p.shape for p in first.parameters()] == [p.shape for p in second.parameters()]
