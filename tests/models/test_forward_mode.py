"""Forward mode against differences, and the layer normalisation that has its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.autograd import forward_ad

from harl.models.forward_mode import LayerNorm, change_along, moving, value_and_change
from harl.models.mlp import MLPSpec
from harl.models.policy import StochasticPolicy
from tests.algorithms.rollouts import SPACES


def changed_by(norm: nn.LayerNorm, inputs: tuple[torch.Tensor, ...], changes: tuple[torch.Tensor | None, ...]) -> Any:
    """Output and its change, for (x, weight, bias) of which some move."""
    with torch.no_grad(), forward_ad.dual_level():
        x, weight, bias = (
            value if change is None else moving(value, change) for value, change in zip(inputs, changes, strict=True)
        )
        return value_and_change(torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,)))


@pytest.mark.parametrize("moves", [(True, True, True), (False, True, True), (True, False, False), (True, True, False)])
def test_layer_norm_equals_torchs_whatever_moves(moves: tuple[bool, ...]) -> None:
    source = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(*shape, generator=source).double() for shape in ((5, 7), (7,), (7,)))
    changes = tuple(
        torch.randn(x.shape, generator=source).double() if m else None for x, m in zip(inputs, moves, strict=True)
    )
    own = changed_by(LayerNorm(7).double(), inputs, changes)
    torchs = changed_by(nn.LayerNorm(7).double(), inputs, changes)
    for one, other in zip(own, torchs, strict=True):
        torch.testing.assert_close(one, other)


def test_layer_norm_that_does_not_move_is_torchs() -> None:
    x = torch.randn(4, 6)
    assert torch.equal(LayerNorm(6)(x), nn.LayerNorm(6)(x))
    assert str(LayerNorm(6)) == str(nn.LayerNorm(6))


@pytest.mark.parametrize("activation", ["relu", "tanh", "selu", "leaky_relu", "sigmoid"])
@pytest.mark.parametrize("kind", SPACES)
def test_change_of_a_policy_equals_differences(kind: str, activation: str) -> None:
    torch.manual_seed(0)
    spec = MLPSpec((9, 8), activation, True, "orthogonal_")
    policy = StochasticPolicy(4, SPACES[kind], spec, 1.0, 1.0, 0.5).double()
    width = 0 if kind == "box" else int(spaces.flatdim(SPACES[kind]))
    masks = torch.ones(6, width) if width else None
    if masks is not None:
        masks[:, 1] = 0.0
    inputs = (torch.randn(6, 4).double(), masks)
    direction = {name: torch.randn_like(parameter) for name, parameter in policy.named_parameters()}
    found = change_along(policy, direction, inputs, lambda distribution: distribution.coordinates())

    def at(shift: float) -> torch.Tensor:
        moved = {name: parameter + shift * direction[name] for name, parameter in policy.named_parameters()}
        return torch.func.functional_call(policy, moved, inputs).coordinates().detach()

    assert found.abs().max() > 0.1
    legal = at(0.0) > -1e9  # the change of -1e10 cannot be had by differences
    torch.testing.assert_close(found[legal], ((at(1e-6) - at(-1e-6)) / 2e-6)[legal], rtol=1e-5, atol=1e-6)
