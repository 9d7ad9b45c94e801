"""Networks that see images."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.algorithms.inputs import central_state, observed
from harl.envs.api import Layout
from harl.models.cnn import PIXEL_SCALE, CNNBase, Images, output_side
from harl.models.mlp import MLPSpec
from harl.models.policy import StochasticPolicy
from harl.models.stacked import StackedPolicies
from harl.models.value import VNet
from tests.models.test_stacked import numbers

SHAPE = (3, 9, 12)
SEEN = Images(SHAPE, (PIXEL_SCALE,) * 3)


def spec(kernel: int = 3, stride: int = 1, layers: int = 0) -> MLPSpec:
    return MLPSpec((16, 8), "relu", True, "orthogonal_", layers, kernel, stride)


def pictures(*axes: int) -> torch.Tensor:
    return torch.randint(0, 256, (*axes, *SHAPE), dtype=torch.uint8)


def image_layout(high: int = 255, state_type: str = "EP", agents: int = 2) -> Layout:
    """Agents that see images of 8 x 8 pixels."""
    box = spaces.Box(0, high, (8, 8, 1), np.uint8)
    planes = agents + (agents if state_type == "FP" else 0)
    return Layout(
        agents=tuple(f"agent_{i}" for i in range(agents)),
        observation_spaces=(box,) * agents,
        action_spaces=(spaces.Discrete(4),) * agents,
        obs_shape=(1, 8, 8),
        share_obs_shape=(planes, 8, 8),
        state_type=state_type,
        has_masks=False,
    )


@pytest.mark.parametrize(("kernel", "stride"), list(itertools.product([1, 2, 3, 5, 9], [1, 2, 3, 7])))
def test_D_52_size_is_right_for_any_kernel_and_stride(kernel: int, stride: int) -> None:
    base = CNNBase(SEEN, spec(kernel, stride))
    expected = 8 * output_side(9, kernel, stride) * output_side(12, kernel, stride)
    assert base.mlp.fc[0].in_features == expected  # type: ignore[union-attr]
    assert base(pictures(5)).shape == (5, 8)


def test_kernel_larger_than_the_image_is_refused_with_the_sizes() -> None:
    with pytest.raises(ValueError, match="a kernel of 10 does not fit into images of 9 x 12"):
        CNNBase(SEEN, spec(kernel=10))


def test_pixels_are_scaled_once() -> None:
    base, images = CNNBase(SEEN, spec()), pictures(5)
    by_hand = base.mlp(base.cnn(images.float() / 255.0))
    torch.testing.assert_close(base(images), by_hand)
    torch.testing.assert_close(base(images.float()), by_hand)


def test_only_bytes_are_scaled_and_ids_of_agents_are_not() -> None:
    assert observed(image_layout(), 0) == Images((1, 8, 8), (PIXEL_SCALE,))
    assert observed(image_layout(high=1), 1) == Images((1, 8, 8), (1.0,))
    assert central_state(image_layout()) == Images((2, 8, 8), (PIXEL_SCALE,) * 2)
    assert central_state(image_layout(state_type="FP")) == Images((4, 8, 8), (PIXEL_SCALE, PIXEL_SCALE, 1.0, 1.0))


def test_sequences_of_images_are_rows_of_images() -> None:
    base, images = CNNBase(SEEN, spec()), pictures(4, 6)
    torch.testing.assert_close(base(images)[2, 3], base(images[2, 3].unsqueeze(0))[0])


def test_names_and_sizes_of_parameters() -> None:
    network = VNet(SEEN, spec())
    shapes = {name: tuple(parameter.shape) for name, parameter in network.state_dict().items()}
    assert shapes["base.cnn.0.weight"] == (8, 3, 3, 3)
    assert shapes["base.mlp.fc.0.weight"] == (16, 8 * 7 * 10)
    assert {name.split(".")[1] for name in shapes if name.startswith("base.")} == {"cnn", "mlp"}


@pytest.mark.parametrize("layers", [0, 1])
def test_stacked_policies_equal_each_policy(layers: int) -> None:
    torch.manual_seed(0)
    made = [StochasticPolicy(SEEN, spaces.Discrete(5), spec(layers=layers), 1.0, 1.0, 0.5) for _ in range(3)]
    with torch.no_grad():
        for policy in made:
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    stacked, images = StackedPolicies(made), pictures(3, 7)
    hidden = torch.randn(3, 7, 1, 8)
    together = stacked.remembering(images, None, hidden)[0] if layers else stacked.distribution(images)
    for i, policy in enumerate(made):
        memory = (hidden[i], torch.ones(7, 1, 1)) if layers else ()
        alone = policy(images[i].unsqueeze(1) if layers else images[i], None, *memory)
        torch.testing.assert_close(numbers(together)[i], numbers(alone).detach().view(7, 5), rtol=1e-4, atol=1e-5)
