"""Plain multi-layer perceptrons and the off-policy networks made of them.

Names of parameters follow the original's, so that its checkpoints can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from harl.models.init import PLAIN_ACTIVATIONS


class PlainMLP(nn.Module):
    """Linear layers with an activation between them and another one at the end; torch's own initial weights.

    Args:
        sizes: widths, input first.
        activation, final_activation: keys of `PLAIN_ACTIVATIONS`.
    """

    def __init__(self, sizes: Sequence[int], activation: str, final_activation: str = "identity") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(len(sizes) - 1):
            last = i == len(sizes) - 2
            name = final_activation if last else activation
            layers += [nn.Linear(sizes[i], sizes[i + 1]), PLAIN_ACTIVATIONS[name]()]
        self.mlp = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)  # type: ignore[no-any-return]


class ActionBounds(nn.Module):
    """The affine map from [−1, 1] to a Box, dimension by dimension: low and high need not be symmetric or equal.

    Raises:
        ValueError: a dimension is unbounded.
    """

    low: Tensor
    high: Tensor
    scale: Tensor
    offset: Tensor
    log_scale: Tensor
    """What the map takes from a log-density; a dimension in which there is one value only takes nothing."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(f"{space} is unbounded: there is nothing to map a bounded action to")
        half = (high - low) / 2
        values = {
            "low": low,
            "high": high,
            "scale": half,
            "offset": (high + low) / 2,
            "log_scale": np.log(np.where(half > 0, half, 1.0)),
        }
        for name, value in values.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    def forward(self, unit: Tensor) -> Tensor:
        return unit * self.scale + self.offset

    def clamp(self, actions: Tensor) -> Tensor:
        """Actions moved to the nearest one inside; what `forward` gives may be outside by a rounding."""
        return torch.minimum(torch.maximum(actions, self.low), self.high)


class DeterministicPolicy(nn.Module):
    """μ(o): an action within the bounds of a Box, or logits (B, number of actions) for a discrete space."""

    def __init__(
        self,
        obs_dim: int,
        space: spaces.Space[Any],
        hidden_sizes: Sequence[int],
        activation: str,
        final_activation: str,
    ) -> None:
        super().__init__()
        bounded = isinstance(space, spaces.Box)
        width = spaces.flatdim(space)
        self.pi = PlainMLP([obs_dim, *hidden_sizes, width], activation, final_activation if bounded else "identity")
        self.bounds = ActionBounds(space) if isinstance(space, spaces.Box) else None

    def forward(self, obs: Tensor) -> Tensor:
        output = self.pi(obs)
        return output if self.bounds is None else self.bounds(output)  # type: ignore[no-any-return]


class SquashedGaussianPolicy(nn.Module):
    """A normal with mean and spread that depend on the observation, squashed by tanh into a Box."""

    LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
    JUST_INSIDE = 1.0 - torch.finfo(torch.float32).eps
    """The largest tanh of a finite number."""

    def __init__(
        self, obs_dim: int, space: spaces.Box, hidden_sizes: Sequence[int], activation: str, final_activation: str
    ) -> None:
        super().__init__()
        self.net = PlainMLP([obs_dim, *hidden_sizes], activation, final_activation)
        width = int(space.shape[0])
        self.mu_layer = nn.Linear(hidden_sizes[-1], width)
        self.log_std_layer = nn.Linear(hidden_sizes[-1], width)
        self.bounds = ActionBounds(space)

    def forward(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions (B, k) inside the Box and their log-densities (B, 1).

        Args:
            obs: (B, obs_dim).
            noise: (B, k) standard normal, or None for the squashed mean.
        """
        mean, log_std = self._normal(obs)
        noise = torch.zeros_like(mean) if noise is None else noise
        raw = mean + log_std.exp() * noise
        return self.bounds(torch.tanh(raw)), self._log_density(raw, noise, log_std)

    def log_prob(self, obs: Tensor, actions: Tensor, edge: float = JUST_INSIDE) -> Tensor:
        """Log-densities (B, 1) of actions (B, k).

        Those further than `edge` half-ranges from the middle, as on the bounds, are taken for points there.
        """
        mean, log_std = self._normal(obs)
        scale = torch.where(self.bounds.scale > 0, self.bounds.scale, 1.0)
        raw = torch.atanh(((actions - self.bounds.offset) / scale).clamp(-edge, edge))
        return self._log_density(raw, (raw - mean) / log_std.exp(), log_std)

    def _normal(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.net(obs)
        return self.mu_layer(features), self.log_std_layer(features).clamp(self.LOG_STD_MIN, self.LOG_STD_MAX)

    def _log_density(self, raw: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
        """Log-density (B, 1) of what is squashed from `raw`, `noise` spreads away from the mean."""
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 − tanh(u)²) in a form that neither overflows nor cancels (Haarnoja et al. 2018, appendix C).
        squash = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        log_density = gaussian - squash - self.bounds.log_scale
        return log_density.sum(-1, keepdim=True)


class QNet(nn.Module):
    """Q(s, a) (…, 1) of central states (…, share_obs_dim) and the actions of all agents side by side."""

    def __init__(self, input_dim: int, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        self.mlp = PlainMLP([input_dim, *hidden_sizes, 1], activation)

    def forward(self, share_obs: Tensor, joint: Tensor) -> Tensor:
        return self.mlp(torch.cat([share_obs, joint], dim=-1))  # type: ignore[no-any-return]

    def state_part(self, share_obs: Tensor) -> Tensor:
        """What the states contribute to the first layer, for several joint actions in the same states."""
        first = cast(nn.Linear, self.mlp.mlp[0])
        return functional.linear(share_obs, first.weight[:, : share_obs.shape[-1]], first.bias)

    def of_actions(self, state_part: Tensor, joint: Tensor) -> Tensor:
        """The rest of `forward`: Q of joint actions in the states that `state_part` is of."""
        first, *others = self.mlp.mlp
        x = state_part + functional.linear(joint, cast(nn.Linear, first).weight[:, -joint.shape[-1] :])
        for layer in others:
            x = layer(x)
        return x


class DuelingQNet(nn.Module):
    """Q(x, ·) (…, n) = V(x) + A(x, ·) − mean A(x, ·) (Wang et al. 2016, eq. 9)."""

    def __init__(
        self,
        input_dim: int,
        actions: int,
        base_sizes: Sequence[int],
        v_sizes: Sequence[int],
        a_sizes: Sequence[int],
        activations: tuple[str, str, str],
    ) -> None:
        super().__init__()
        base, v, a = activations
        self.base = PlainMLP([input_dim, *base_sizes], base, base)
        self.dueling_v = PlainMLP([base_sizes[-1], *v_sizes, 1], v)
        self.dueling_a = PlainMLP([base_sizes[-1], *a_sizes, actions], a)

    def forward(self, x: Tensor) -> Tensor:
        features = self.base(x)
        advantages = self.dueling_a(features)
        return self.dueling_v(features) + advantages - advantages.mean(-1, keepdim=True)  # type: ignore[no-any-return]
