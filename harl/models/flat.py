"""Parameters of several networks of one shape in one tensor.

Row i of the storage is network i's parameters, one after the other: one optimiser step and one gradient norm touch a
single vector, and the same storage seen from the side is a stack of weights for one batched product for all agents.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def separate_weights(network: nn.Module) -> dict[str, Tensor]:
    """A network's `state_dict` on the CPU in memory of its own: saving a view would save all that it is a view of."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


class FlatParameters:
    """Moves the parameters and gradients of equal networks into one tensor each; the modules keep working on views.

    Args:
        networks: modules with the same parameter names and shapes, on one device.

    Attributes:
        values: (number of networks, parameters of one) storage of the values.
        grads: the same shape, storage of the gradients.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        first = dict(networks[0].named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in first.items()}
        for network in networks[1:]:
            if {name: p.shape for name, p in network.named_parameters()} != self._shapes:
                raise ValueError("only networks with the same parameter names and shapes can be stacked")
        example = next(iter(first.values()))
        size = sum(parameter.numel() for parameter in first.values())
        self.values = torch.empty(len(networks), size, device=example.device, dtype=example.dtype)
        self.grads = torch.zeros_like(self.values)
        for i, network in enumerate(networks):
            values, grads = self._views(self.values[i : i + 1]), self._views(self.grads[i : i + 1])
            for name, parameter in network.named_parameters():
                values[name][0].copy_(parameter.data)
                parameter.data = values[name][0]
                parameter.grad = grads[name][0]

    def _views(self, storage: Tensor) -> dict[str, Tensor]:
        views, start = {}, 0
        for name, shape in self._shapes.items():
            views[name] = storage[:, start : start + shape.numel()].view(-1, *shape)
            start += shape.numel()
        return views

    def stacked(self) -> dict[str, Tensor]:
        """Every parameter with a leading axis over the networks, as views of the storage (no copy, no gradient)."""
        return self._views(self.values)

    def vector(self, i: int) -> nn.Parameter:
        """Network i's parameters as one vector that an optimiser can step; its gradient is the row of `grads`."""
        parameter = nn.Parameter(self.values[i])
        parameter.grad = self.grads[i]
        return parameter

    def whole(self) -> nn.Parameter:
        """All networks' parameters as one vector, for networks that are always stepped together."""
        parameter = nn.Parameter(self.values.view(-1))
        parameter.grad = self.grads.view(-1)
        return parameter

    @torch.no_grad()
    def follow(self, other: FlatParameters, polyak: float) -> None:
        """Move towards other networks of the same shapes: θ ← (1 − polyak) θ + polyak θ_other."""
        self.values.lerp_(other.values, polyak)
