"""Differentiation in forward mode: how an output changes with the parameters along one direction.

torch's own, with types, and a layer normalisation for which it is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call


def moving(value: Tensor, change: Tensor) -> Tensor:
    """A number that changes at this rate; within `forward_ad.dual_level()`."""
    return cast(Tensor, forward_ad.make_dual(value, change))  # type: ignore[no-untyped-call]


def value_and_change(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """What `moving` was given, or what a computation has made of it; no change where the tensor does not move."""
    value, change = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return value, change


@torch.no_grad()
def change_along(
    network: nn.Module, direction: Mapping[str, Tensor], inputs: tuple[Any, ...], read: Callable[[Any], Tensor]
) -> Tensor:
    """The change of `read(network(*inputs))` while the named parameters move in this direction: a product J v."""
    with forward_ad.dual_level():
        parameters = dict(network.named_parameters())
        moved = {name: moving(parameters[name], change) for name, change in direction.items()}
        _, change = value_and_change(read(functional_call(network, moved, inputs)))
    assert change is not None
    return change


class LayerNorm(nn.LayerNorm):
    """torch's layer normalisation, with a forward mode of its own.

    The Jacobian of the normalisation is symmetric, so that its product with a change is what the backward pass computes
    in one go; torch's own forward mode takes several times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight, weight_change = value_and_change(self.weight)
        bias, bias_change = value_and_change(self.bias)
        if weight_change is None or bias_change is None:
            return super().forward(x)
        x, change = value_and_change(x)
        shape = self.normalized_shape
        normal, mean, inverse_std = torch.native_layer_norm(x, shape, None, None, self.eps)
        result = torch.addcmul(bias_change, normal, weight_change)
        if change is not None:
            backward = torch.ops.aten.native_layer_norm_backward
            change = backward(change, x, shape, mean, inverse_std, None, None, [True, False, False])[0]
            result.addcmul_(change, weight)
        return moving(torch.addcmul(bias, normal, weight), result)
