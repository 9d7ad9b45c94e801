"""Acting with several equal policies in one batched product a layer.

Weights are read from the storage of `FlatParameters`, so nothing is copied between learning and acting. The affine
part of each LayerNorm is folded into the linear layer after it, once a rollout: γ scales the columns of the weight,
β goes through it into the bias. Convolutions are the exception: they go through the networks one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from harl.models.cnn import CNNBase
from harl.models.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, mask_logits
from harl.models.flat import FlatParameters
from harl.models.gru import gru_cell
from harl.models.init import ACTIVATIONS
from harl.models.mlp import MLPBase
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
        self._image_bases = [policy.base for policy in policies if isinstance(policy.base, CNNBase)]
        self._activation = ACTIVATIONS[self._policy.base.spec.activation]()
        self._layers: list[tuple[Tensor, Tensor]] = []
        """Weights and biases of the hidden layers and the head."""
        self._memory: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        """Of each recurrent layer: weights and biases of its input and of its hidden state."""
        self._std: Tensor | None = None
        base = self._policy.base
        self._normalises_input = isinstance(base, MLPBase) and base.feature_norm is not None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the current weights; to be called after they have changed and before acting."""
        base, act = self._policy.base, self._policy.act
        norms = ["base.feature_norm"] if self._normalises_input else [""]
        linears = []
        for i in range(0, 3 * len(base.spec.hidden_sizes), 3):
            linears.append([f"base.mlp.fc.{i}.*"])
            norms.append(f"base.mlp.fc.{i + 2}")
        if self._policy.rnn is not None:
            self._memory = [
                (
                    *self._folded([f"rnn.rnn.*_ih_l{i}"], norms[-1] if i == 0 else ""),
                    *self._folded([f"rnn.rnn.*_hh_l{i}"]),
                )
                for i in range(self._policy.rnn.rnn.num_layers)
            ]
            norms[-1] = "rnn.norm"
        if act.nvec is not None:
            linears.append([f"act.action_outs.{k}.linear.*" for k in range(len(act.nvec))])
        elif isinstance(act.action_out, GaussianHead):
            linears.append(["act.action_out.fc_mean.*"])
            self._std = act.action_out.std(self._stack["act.action_out.log_std"]).unsqueeze(1)
        else:
            linears.append(["act.action_out.linear.*"])
        self._layers = [self._folded(names, norm) for names, norm in zip(linears, norms, strict=True)]

    def _folded(self, linears: list[str], norm: str = "") -> tuple[Tensor, Tensor]:
        """Weights (G, in, out) and biases (G, 1, out) of layers side by side; a star in a name stands for which."""
        weight = torch.cat([self._stack[name.replace("*", "weight")] for name in linears], dim=1)
        bias = torch.cat([self._stack[name.replace("*", "bias")] for name in linears], dim=1).unsqueeze(1)
        if not norm:
            return weight.mT.contiguous(), bias
        gamma, beta = self._stack[f"{norm}.weight"], self._stack[f"{norm}.bias"]
        bias = bias + torch.bmm(beta.unsqueeze(1), weight.mT)
        return (weight * gamma.unsqueeze(1)).mT.contiguous(), bias

    @torch.no_grad()
    def distribution(self, obs: Tensor, available_actions: Tensor | None = None) -> Distribution:
        """Distributions (G, N, …) for observations (G, N, obs_dim) and masks (G, N, number of actions)."""
        return self._head(self._features(obs), available_actions)

    @torch.no_grad()
    def remembering(self, obs: Tensor, available_actions: Tensor | None, hidden: Tensor) -> tuple[Distribution, Tensor]:
        """As `distribution`, with memory: hidden states (G, N, layers, width), before and after."""
        x, after = self._features(obs), []
        for i, (of_input, input_bias, of_hidden, hidden_bias) in enumerate(self._memory):
            before = hidden[:, :, i]
            width = before.shape[-1]
            gates, candidate = torch.split(torch.baddbmm(input_bias, x, of_input), [2 * width, width], dim=-1)
            x = gru_cell((gates, candidate), torch.baddbmm(hidden_bias, before, of_hidden), before)
            after.append(x)
        x = functional.layer_norm(x, x.shape[-1:])
        return self._head(x, available_actions), torch.stack(after, dim=2)

    def _features(self, obs: Tensor) -> Tensor:
        """Normalised features (G, N, width), less the affine part of the last LayerNorm."""
        x = obs
        if self._image_bases:
            x = torch.stack([base.seen(images) for base, images in zip(self._image_bases, obs, strict=True)])
        elif self._normalises_input:
            x = functional.layer_norm(x, x.shape[-1:])
        for weight, bias in self._layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
            x = functional.layer_norm(x, x.shape[-1:])
        return x

    def _head(self, x: Tensor, available_actions: Tensor | None) -> Distribution:
        weight, bias = self._layers[-1]
        x = torch.baddbmm(bias, x, weight)
        if self._std is not None:
            return DiagGaussian(x, self._std)
        logits = mask_logits(x, available_actions)
        return Categorical(logits) if self._policy.act.nvec is None else MultiCategorical(logits, self._policy.act.nvec)


def equal_networks(first: nn.Module, second: nn.Module) -> bool:
    """Whether two networks have the same structure, so that they can be stacked."""
    return str(first) == str(second) and [p.shape for p in first.parameters()] == [p.shape for p in second.parameters()]
