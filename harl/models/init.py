"""Initial weights, and the activations with their gains."""

from __future__ import annotations

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "selu": nn.SELU,
}
"""Activations for which torch knows a gain."""

PLAIN_ACTIVATIONS: dict[str, type[nn.Module]] = {**ACTIVATIONS, "hardswish": nn.Hardswish, "identity": nn.Identity}
"""Activations of networks that are initialised without a gain."""


def init_weight(weight: Tensor, method: str, gain: float) -> None:
    """Initialise weights in place by `torch.nn.init.<method>`.

    `gain` scales the weights where the method has a gain of its own (orthogonal and Xavier); the Kaiming methods derive
    theirs, so their result is scaled by `gain` relative to the linear gain of 1.
    """
    initialise = getattr(nn.init, method)
    if method.startswith("kaiming"):
        initialise(weight, nonlinearity="linear")
        weight.data.mul_(gain)
    else:
        initialise(weight, gain=gain)


def init_linear(layer: nn.Linear, method: str, gain: float) -> nn.Linear:
    """Initialise a layer in place: weights by `init_weight`, biases 0."""
    init_weight(layer.weight, method, gain)
    nn.init.zeros_(layer.bias)
    return layer
