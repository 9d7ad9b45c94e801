"""Heads, initial weights, and the spread of continuous actions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from harl.config.algo_schema import ACTIVATIONS as CONFIGURABLE
from harl.config.algo_schema import INITIALIZATIONS
from harl.models.distributions import DiagGaussian
from harl.models.init import ACTIVATIONS, init_linear
from harl.models.mlp import MLPSpec
from harl.models.policy import StochasticPolicy
from harl.models.value import VNet

SPEC = MLPSpec((8, 8), "relu", True, "orthogonal_")


def gaussian_policy() -> StochasticPolicy:
    torch.manual_seed(0)
    return StochasticPolicy(4, spaces.Box(-1, 1, (2,), np.float32), SPEC, 0.01, 1.0, 0.5)


def spread(policy: StochasticPolicy) -> torch.Tensor:
    distribution = policy(torch.randn(3, 4))
    assert isinstance(distribution, DiagGaussian)
    return distribution.std


def test_spread_starts_at_half_a_sigmoid_of_one() -> None:
    # 0.5 / (1 + exp(-1))
    torch.testing.assert_close(spread(gaussian_policy()), torch.full((2,), 0.36553), rtol=0, atol=1e-5)


def test_spread_never_exceeds_its_bound() -> None:
    policy = gaussian_policy()
    with torch.no_grad():
        policy.act.action_out.log_std.fill_(1e4)
    assert spread(policy).tolist() == [0.5, 0.5]
    with torch.no_grad():
        policy.act.action_out.log_std.fill_(-50.0)
    assert (spread(policy) > 0).all()


def test_spread_start_does_not_depend_on_the_coefficient_that_scales_the_parameter() -> None:
    policy = StochasticPolicy(4, spaces.Box(-1, 1, (2,), np.float32), SPEC, 0.01, 3.0, 0.5)
    torch.testing.assert_close(spread(policy), torch.full((2,), 0.36553), rtol=0, atol=1e-5)


def test_small_gain_makes_first_actions_nearly_equally_likely() -> None:
    torch.manual_seed(0)
    policy = StochasticPolicy(4, spaces.Discrete(5), SPEC, 0.01, 1.0, 0.5)
    probabilities = policy(torch.randn(50, 4)).log_probs.exp()
    torch.testing.assert_close(probabilities, torch.full((50, 5), 0.2), rtol=0, atol=0.02)


def test_D_50_every_configurable_activation_builds_a_network() -> None:
    assert set(CONFIGURABLE) == set(ACTIVATIONS)
    for name in CONFIGURABLE:
        network = VNet(4, MLPSpec((8,), name, False, "orthogonal_"))
        assert network(torch.randn(3, 4)).isfinite().all()


@pytest.mark.parametrize("method", INITIALIZATIONS)
def test_gain_scales_the_initial_weights_of_every_method(method: str) -> None:
    torch.manual_seed(0)
    one = init_linear(nn.Linear(64, 64), method, 1.0).weight.norm().item()
    torch.manual_seed(0)
    layer = init_linear(nn.Linear(64, 64), method, 3.0)
    assert layer.weight.norm().item() == pytest.approx(3 * one, rel=1e-4)
    assert not layer.bias.any()


def test_space_without_a_head_is_refused() -> None:
    with pytest.raises(TypeError, match="no policy head for the action space MultiBinary"):
        StochasticPolicy(4, spaces.MultiBinary(3), SPEC, 0.01, 1.0, 0.5)
