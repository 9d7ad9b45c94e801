"""Normalisation of value targets."""

from __future__ import annotations

import math

import pytest
import torch

from harl.models.value_norm import ValueNorm


def test_D_19_statistics_are_part_of_the_state() -> None:
    norm, other = ValueNorm(), ValueNorm()
    norm.update(torch.tensor([[2.0], [6.0]]))
    assert set(norm.state_dict()) == {"running_mean", "running_mean_sq", "debiasing_term"}
    assert list(norm.parameters()) == []
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other.normalize(torch.tensor([[7.0]])), norm.normalize(torch.tensor([[7.0]])))


def test_D_19_statistics_stay_registered_after_a_move() -> None:
    moved = ValueNorm().to(torch.float64)
    assert set(moved.state_dict()) == {"running_mean", "running_mean_sq", "debiasing_term"}


def test_debiased_mean_and_spread_by_hand() -> None:
    norm = ValueNorm(beta=0.5)
    norm.update(torch.tensor([[2.0], [6.0]]))
    # One update: exactly the batch, mean 4 and standard deviation 2.
    assert [x.item() for x in norm.mean_and_std()] == [4.0, 2.0]
    norm.update(torch.tensor([[10.0], [10.0]]))
    # Weights 1/4 and 1/2 of 3/4: mean (4 + 2*10)/3 = 8, mean square (20 + 2*100)/3, variance 220/3 - 64 = 28/3.
    mean, std = (x.item() for x in norm.mean_and_std())
    assert mean == pytest.approx(8.0, rel=1e-6)
    assert std == pytest.approx(math.sqrt(28 / 3), rel=1e-5)


def test_first_update_with_the_real_decay_is_the_batch() -> None:
    norm = ValueNorm()
    norm.update(torch.tensor([[90.0], [110.0]]))
    mean, std = (x.item() for x in norm.mean_and_std())
    assert mean == pytest.approx(100.0, rel=1e-5)
    assert std == pytest.approx(10.0, rel=1e-3)


def test_normalise_and_denormalise_are_inverse() -> None:
    norm = ValueNorm()
    norm.update(torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) * 7 - 40)
    values = torch.linspace(-60, 10, 15).unsqueeze(1)
    torch.testing.assert_close(norm.denormalize(norm.normalize(values)), values, rtol=1e-5, atol=1e-4)


def test_spread_never_falls_below_a_tenth() -> None:
    norm = ValueNorm()
    norm.update(torch.full((4, 1), 3.0))
    assert norm.normalize(torch.tensor([[3.5]])).item() == pytest.approx(5.0, rel=1e-3)


def test_rows_of_weight_zero_do_not_count() -> None:
    with_noise, without = ValueNorm(), ValueNorm()
    with_noise.update(torch.tensor([[2.0], [1e6], [6.0]]), torch.tensor([[1.0], [0.0], [1.0]]))
    without.update(torch.tensor([[2.0], [6.0]]))
    for name, value in without.state_dict().items():
        torch.testing.assert_close(with_noise.state_dict()[name], value)


def test_update_without_any_row_changes_nothing() -> None:
    norm = ValueNorm()
    norm.update(torch.tensor([[2.0], [6.0]]))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.update(torch.tensor([[5.0]]), torch.tensor([[0.0]]))
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())
