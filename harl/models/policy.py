"""Stochastic policies: a base, memory where it is asked for, and a head that fits the agent's action space."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from harl.models.cnn import Images, make_base
from harl.models.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, mask_logits
from harl.models.gru import GRU
from harl.models.init import init_linear
from harl.models.mlp import MLPSpec


class CategoricalHead(nn.Module):
    """Logits of a Discrete space."""

    def __init__(self, input_dim: int, space: spaces.Discrete, initialization: str, gain: float) -> None:
        super().__init__()
        self.linear = init_linear(nn.Linear(input_dim, int(space.n)), initialization, gain)

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (B, n)."""
        return self.linear(features)  # type: ignore[no-any-return]

    def forward(self, features: Tensor, available_actions: Tensor | None) -> Distribution:
        return Categorical(mask_logits(self.logits(features), available_actions))


class GaussianHead(nn.Module):
    """Means that depend on the state, standard deviations that do not.

    std = sigmoid(log_std / std_x_coef) · std_y_coef with one parameter a dimension that starts at std_x_coef: 0.3655
    at the start with the defaults, and never above std_y_coef.
    """

    def __init__(
        self, input_dim: int, space: spaces.Box, initialization: str, gain: float, std_x_coef: float, std_y_coef: float
    ) -> None:
        super().__init__()
        width = int(space.shape[0])
        self.fc_mean = init_linear(nn.Linear(input_dim, width), initialization, gain)
        self.log_std = nn.Parameter(torch.full((width,), float(std_x_coef)))
        self.std_x_coef, self.std_y_coef = std_x_coef, std_y_coef

    def std(self, log_std: Tensor) -> Tensor:
        """Standard deviations of the same shape as the parameter."""
        return torch.sigmoid(log_std / self.std_x_coef) * self.std_y_coef

    def forward(self, features: Tensor, available_actions: Tensor | None) -> Distribution:
        return DiagGaussian(self.fc_mean(features), self.std(self.log_std))


class ActionLayer(nn.Module):
    """The head of one agent; parameter names follow the original's, so that its checkpoints can be read."""

    def __init__(
        self,
        input_dim: int,
        space: spaces.Space[Any],
        initialization: str,
        gain: float,
        std_x_coef: float,
        std_y_coef: float,
    ) -> None:
        super().__init__()
        self.nvec: tuple[int, ...] | None = None
        if isinstance(space, spaces.Discrete):
            self.action_out: nn.Module = CategoricalHead(input_dim, space, initialization, gain)
        elif isinstance(space, spaces.Box):
            self.action_out = GaussianHead(input_dim, space, initialization, gain, std_x_coef, std_y_coef)
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec = tuple(int(n) for n in space.nvec)
            self.action_outs = nn.ModuleList(
                CategoricalHead(input_dim, spaces.Discrete(n), initialization, gain) for n in self.nvec
            )
        else:
            raise TypeError(f"no policy head for the action space {space}")

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities of discrete choices, component after component."""
        heads = [self.action_out] if self.nvec is None else self.action_outs
        return torch.cat([head.logits(features) for head in heads], dim=-1)  # type: ignore[operator]

    def forward(self, features: Tensor, available_actions: Tensor | None) -> Distribution:
        if self.nvec is None:
            return self.action_out(features, available_actions)  # type: ignore[no-any-return]
        return MultiCategorical(mask_logits(self.logits(features), available_actions), self.nvec)


class StochasticPolicy(nn.Module):
    """π(a | o) of one agent, built for the agent's own widths.

    Args:
        observed: the agent's own observation width, or what it sees where that is an image.
        action_space: Discrete, MultiDiscrete or one-dimensional Box.
        spec: the layers before the head.
        gain: scale of the initial weights of the output layer.
        std_x_coef, std_y_coef: see `GaussianHead`.
    """

    def __init__(
        self,
        observed: int | Images,
        action_space: spaces.Space[Any],
        spec: MLPSpec,
        gain: float,
        std_x_coef: float,
        std_y_coef: float,
    ) -> None:
        super().__init__()
        self.base = make_base(observed, spec)
        width = self.base.output_dim
        self.rnn = GRU(width, spec.recurrent_layers, spec.initialization) if spec.recurrent_layers else None
        self.act = ActionLayer(width, action_space, spec.initialization, gain, std_x_coef, std_y_coef)

    def forward(
        self,
        obs: Tensor,
        available_actions: Tensor | None = None,
        hidden: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> Distribution:
        """Distribution over actions for observations (B, …) and action masks (B, number of actions).

        With memory, for S sequences of L steps in place of B rows: observations (S, L, …), action masks (S, L, number
        of actions), and the hidden states before the sequences and the masks that cut them, see `GRU`.
        """
        features = self.base(obs)
        if self.rnn is not None:
            features, _ = self.rnn(features, hidden, masks)
        return self.act(features, available_actions)  # type: ignore[no-any-return]

    def logits(self, obs: Tensor) -> Tensor:
        """Unnormalised log-probabilities (B, number of actions) of discrete choices, of a policy without memory."""
        assert self.rnn is None
        return self.act.logits(self.base(obs))
