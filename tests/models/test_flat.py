"""Parameters of several networks in one tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harl.models.flat import FlatParameters


def networks(count: int = 3) -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(count)]


def test_values_stay_what_they_were() -> None:
    made = networks()
    before = [{name: value.clone() for name, value in network.state_dict().items()} for network in made]
    FlatParameters(made)
    for network, values in zip(made, before, strict=True):
        assert all(torch.equal(network.state_dict()[name], value) for name, value in values.items())


def test_gradients_of_the_modules_are_views_of_the_flat_gradient() -> None:
    made = networks()
    flat = FlatParameters(made)
    vector = flat.vector(1)
    made[1](torch.ones(3, 4)).sum().backward()
    assert vector.grad is not None
    pieces = [parameter.grad.flatten() for parameter in made[1].parameters() if parameter.grad is not None]
    assert torch.equal(torch.cat(pieces), vector.grad)
    assert vector.grad.abs().sum() > 0
    assert flat.grads[0].abs().sum() == flat.grads[2].abs().sum() == 0
    vector.grad.zero_()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in made[1].parameters())


def test_step_on_the_vector_moves_the_module() -> None:
    made = networks()
    flat = FlatParameters(made)
    vector = flat.vector(2)
    before = made[2](torch.ones(1, 4))
    with torch.no_grad():
        vector.add_(0.5)
    assert not torch.equal(made[2](torch.ones(1, 4)), before)
    assert torch.equal(flat.values[2], vector.detach())


def test_state_round_trip_keeps_the_sharing() -> None:
    made = networks()
    flat = FlatParameters(made)
    state = {name: value.clone() for name, value in made[0].state_dict().items()}
    with torch.no_grad():
        flat.values[0].zero_()
    made[0].load_state_dict(state)
    assert torch.equal(flat.stacked()["0.weight"][0], state["0.weight"])
    with torch.no_grad():
        flat.values[0].fill_(7.0)
    assert all(bool((parameter == 7.0).all()) for parameter in made[0].parameters())


def test_loading_one_network_leaves_the_others_bit_identical() -> None:
    made = networks()
    flat = FlatParameters(made)
    before = flat.values.clone()
    made[1].load_state_dict({name: value + 1.0 for name, value in made[1].state_dict().items()})
    assert torch.equal(flat.values[0], before[0])
    assert torch.equal(flat.values[2], before[2])
    assert torch.equal(flat.values[1], before[1] + 1.0)


def test_stack_is_a_view_with_a_leading_axis() -> None:
    made = networks()
    flat = FlatParameters(made)
    stacked = flat.stacked()
    assert stacked["0.weight"].shape == (3, 5, 4)
    assert stacked["0.weight"].data_ptr() == flat.values.data_ptr()
    assert torch.equal(stacked["2.bias"][1], made[1][2].bias)


def test_networks_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="same parameter names and shapes"):
        FlatParameters([nn.Linear(2, 3), nn.Linear(3, 3)])
