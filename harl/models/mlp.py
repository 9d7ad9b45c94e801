"""The multi-layer perceptron that actors and critics on-policy are built on, and what else they consist of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from harl.models.forward_mode import LayerNorm
from harl.models.init import ACTIVATIONS, init_linear


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """What the layers before the head look like."""

    hidden_sizes: tuple[int, ...]
    """Width of each hidden layer."""
    activation: str
    """A key of `harl.models.init.ACTIVATIONS`."""
    feature_normalization: bool
    """Whether the input goes through a LayerNorm first."""
    initialization: str
    """Name of a function in torch.nn.init, ending in an underscore."""
    recurrent_layers: int = 0
    """GRU layers after the hidden ones; 0 for networks without memory."""
    kernel_size: int = 3
    """Side of the convolution's kernel, for images."""
    stride: int = 1
    """Step of the convolution's kernel, for images."""


class MLPLayers(nn.Module):
    """Linear, activation, LayerNorm for each hidden layer."""

    def __init__(self, input_dim: int, spec: MLPSpec) -> None:
        super().__init__()
        gain = nn.init.calculate_gain(spec.activation)  # type: ignore[arg-type]
        layers: list[nn.Module] = []
        for width in spec.hidden_sizes:
            linear = init_linear(nn.Linear(input_dim, width), spec.initialization, gain)
            layers += [linear, ACTIVATIONS[spec.activation](), LayerNorm(width)]
            input_dim = width
        self.fc = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)  # type: ignore[no-any-return]


class MLPBase(nn.Module):
    """Features (…, hidden_sizes[-1]) of vector observations (…, input_dim)."""

    def __init__(self, input_dim: int, spec: MLPSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_dim = input_dim
        self.output_dim = spec.hidden_sizes[-1]
        self.feature_norm = LayerNorm(input_dim) if spec.feature_normalization else None
        self.mlp = MLPLayers(input_dim, spec)

    def forward(self, x: Tensor) -> Tensor:
        if self.feature_norm is not None:
            x = self.feature_norm(x)
        return self.mlp(x)  # type: ignore[no-any-return]
