"""Convolutional bases for observations and states that are images."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from harl.models.init import ACTIVATIONS, init_weight
from harl.models.mlp import MLPBase, MLPLayers, MLPSpec

PIXEL_SCALE: Final = 1.0 / 255.0
"""Brings the values of 8-bit pixels to 0 … 1."""


class Images(NamedTuple):
    """What a network sees that is no vector."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    scales: tuple[float, ...]
    """Factor for each channel: `PIXEL_SCALE` for 8-bit pixels, 1 for what is of that size already."""


def output_side(side: int, kernel: int, stride: int) -> int:
    """Positions of a kernel along a side of an image; below 1 where it does not fit."""
    return (side - kernel) // stride + 1


class CNNBase(nn.Module):
    """Features (…, hidden_sizes[-1]) of images (…, C, H, W): one convolution without padding, then the hidden layers.

    Raises:
        ValueError: the kernel is larger than the images.
    """

    scale: Tensor

    def __init__(self, images: Images, spec: MLPSpec) -> None:
        super().__init__()
        self.spec, self.shape = spec, images.shape
        self.output_dim = spec.hidden_sizes[-1]
        channels, height, width = images.shape
        if spec.kernel_size > min(height, width):
            raise ValueError(f"a kernel of {spec.kernel_size} does not fit into images of {height} x {width}")
        convolution = nn.Conv2d(channels, max(1, spec.hidden_sizes[0] // 2), spec.kernel_size, spec.stride)
        gain = nn.init.calculate_gain(spec.activation)  # type: ignore[arg-type]
        init_weight(convolution.weight, spec.initialization, gain)
        assert convolution.bias is not None
        nn.init.zeros_(convolution.bias)
        self.cnn = nn.Sequential(convolution, ACTIVATIONS[spec.activation](), nn.Flatten())
        with torch.no_grad():
            size = self.cnn(torch.zeros(1, *images.shape)).shape[1]
        self.mlp = MLPLayers(size, spec)
        self.register_buffer("scale", torch.tensor(images.scales).view(-1, 1, 1), persistent=False)

    def seen(self, images: Tensor) -> Tensor:
        """What goes into the hidden layers, (…, size), of images of whole numbers or floats (…, C, H, W)."""
        pixels = images.reshape(-1, *self.shape) * self.scale
        features: Tensor = self.cnn(pixels)
        return features.view(*images.shape[:-3], -1)

    def forward(self, images: Tensor) -> Tensor:
        return self.mlp(self.seen(images))  # type: ignore[no-any-return]


def make_base(observed: int | Images, spec: MLPSpec) -> MLPBase | CNNBase:
    """The base for vectors of that many numbers, or for images."""
    return CNNBase(observed, spec) if isinstance(observed, Images) else MLPBase(observed, spec)
