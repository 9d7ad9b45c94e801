"""The off-policy networks against closed forms: bounds, densities, dueling streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.models.plain import ActionBounds, DeterministicPolicy, DuelingQNet, QNet, SquashedGaussianPolicy

UNEVEN = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))


def box(low: float, high: float, dims: int = 1) -> spaces.Box:
    return spaces.Box(low, high, (dims,), np.float32)


def gaussian(space: spaces.Box, mean: list[float], log_std: list[float]) -> SquashedGaussianPolicy:
    """A policy whose mean and spread do not depend on what it sees."""
    policy = SquashedGaussianPolicy(3, space, [4], "relu", "tanh")
    with torch.no_grad():
        for layer, value in ((policy.mu_layer, mean), (policy.log_std_layer, log_std)):
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor(value))
    return policy


def log_density(space: spaces.Box, before_squashing: float) -> float:
    policy = gaussian(space, [0.0], [0.0])
    return policy(torch.zeros(1, 3), torch.tensor([[before_squashing]]))[1].item()


def test_NUM_13_density_within_bounds_wider_than_one() -> None:
    assert log_density(box(-2.0, 2.0), 0.5) == pytest.approx(-1.49686, abs=1e-5)
    u = 0.6
    expected = -0.5 * u**2 - 0.5 * math.log(2 * math.pi) - math.log(2 * (1 - math.tanh(u) ** 2))
    assert log_density(box(-2.0, 2.0), u) == pytest.approx(expected, abs=1e-5)


def test_NUM_14_density_of_saturated_actions() -> None:
    assert log_density(box(-1.0, 1.0), 10.0) == pytest.approx(-32.305, abs=0.01)
    assert log_density(box(-1.0, 1.0), -10.0) == pytest.approx(-32.305, abs=0.01)
    for u in (50.0, -50.0):
        exact = -0.5 * u**2 - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(u))
        assert log_density(box(-1.0, 1.0), u) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("u", [0.0, 10.0, -50.0])
def test_NUM_14_gradients_of_saturated_actions_are_finite(u: float) -> None:
    policy = gaussian(UNEVEN, [0.0, 0.0], [0.0, 0.0])
    actions, log_probs = policy(torch.ones(2, 3), torch.full((2, 2), u))
    (actions.sum() + log_probs.sum()).backward()
    gradients = [parameter.grad for parameter in policy.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().max() > 0 for gradient in gradients if gradient is not None)
    assert (actions[0].detach().numpy() <= UNEVEN.high).all()
    assert (actions[0].detach().numpy() >= UNEVEN.low).all()


def test_D_27_density_over_an_uneven_box_integrates_to_one() -> None:
    mean, log_std = torch.tensor([0.3, -0.5]), torch.tensor([-0.7, -0.9])
    policy = gaussian(UNEVEN, mean.tolist(), log_std.tolist())
    cells = 600
    middles = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    x, y = torch.meshgrid(-1 + 2 * middles, 10 * middles, indexing="ij")
    actions = torch.stack([x.flatten(), y.flatten()], dim=-1)
    unit = torch.stack([actions[:, 0], (actions[:, 1] - 5) / 5], dim=-1)
    noise = ((torch.atanh(unit) - mean) / log_std.exp()).float()
    with torch.no_grad():
        reached, log_probs = policy(torch.zeros(len(noise), 3), noise)
    torch.testing.assert_close(reached.double(), actions, rtol=1e-4, atol=1e-4)
    area = (2 / cells) * (10 / cells)
    assert float(log_probs.double().exp().sum() * area) == pytest.approx(1.0, abs=1e-3)


def test_D_27_a_wider_dimension_has_a_lower_density_by_its_scale() -> None:
    noise = torch.tensor([[0.4, -1.3]])
    uneven = gaussian(UNEVEN, [0.1, 0.2], [-0.3, 0.2])
    even = gaussian(box(-1.0, 1.0, 2), [0.1, 0.2], [-0.3, 0.2])
    difference = uneven(torch.zeros(1, 3), noise)[1] - even(torch.zeros(1, 3), noise)[1]
    assert difference.item() == pytest.approx(-math.log(5.0), abs=1e-5)


def test_D_27_samples_cover_the_box_and_their_mode_is_the_squashed_mean() -> None:
    policy = gaussian(UNEVEN, [0.0, 0.0], [1.0, 1.0])
    actions, _ = policy(torch.zeros(20_000, 3), torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0)))
    clamped = policy.bounds.clamp(actions).detach().numpy()
    assert (clamped >= UNEVEN.low).all()
    assert (clamped <= UNEVEN.high).all()
    assert actions[:, 1].min() < 0.1
    assert actions[:, 1].max() > 9.9
    assert actions.detach().mean(0).tolist() == pytest.approx([0.0, 5.0], abs=0.1)
    assert policy(torch.zeros(1, 3), None)[0].tolist() == [[0.0, 5.0]]


def test_a_dimension_with_one_value_only_has_a_finite_density() -> None:
    space = spaces.Box(np.array([2.0, -1.0], np.float32), np.array([2.0, 1.0], np.float32))
    actions, log_probs = gaussian(space, [0.3, 0.3], [0.0, 0.0])(torch.zeros(4, 3), torch.randn(4, 2))
    assert log_probs.isfinite().all()
    assert (actions[:, 0] == 2.0).all()


def test_spread_is_limited_both_ways() -> None:
    for log_std, limited in ((9.0, 2.0), (-90.0, -20.0)):
        wide, expected = (gaussian(box(-1.0, 1.0), [0.0], [value]) for value in (log_std, limited))
        noise = torch.tensor([[0.01]])
        assert wide(torch.zeros(1, 3), noise)[1].item() == expected(torch.zeros(1, 3), noise)[1].item()


def test_NUM_19_output_is_mapped_dimension_by_dimension() -> None:
    policy = DeterministicPolicy(3, UNEVEN, [4], "relu", "tanh")
    for parameter in policy.parameters():
        torch.nn.init.zeros_(parameter)
    assert policy(torch.randn(2, 3)).tolist() == [[0.0, 5.0], [0.0, 5.0]]
    assert policy.bounds is not None
    assert policy.bounds(torch.tensor([-1.0, -1.0])).tolist() == [-1.0, 0.0]
    assert policy.bounds(torch.tensor([1.0, 1.0])).tolist() == [1.0, 10.0]
    assert policy.bounds.scale.tolist() == [1.0, 5.0]


def test_NUM_19_clamped_actions_are_inside_any_box_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(-3, 3, 5000).astype(np.float32)
    space = spaces.Box(low, low + rng.uniform(0.01, 9, 5000).astype(np.float32))
    bounds = ActionBounds(space)
    extremes = [bounds(torch.full((5000,), unit)) for unit in (-1.0, 1.0)]
    outside = sum(int(((e.numpy() < space.low) | (e.numpy() > space.high)).sum()) for e in extremes)
    assert outside > 0, "the map alone rounds some extremes to the outside"
    for extreme in extremes:
        assert space.contains(bounds.clamp(extreme).numpy())


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0)], ids=["free", "no_top", "no_bottom"]
)
def test_DTY_04_there_is_no_map_into_an_unbounded_box(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="is unbounded"):
        DeterministicPolicy(3, spaces.Box(low, high, (2,), np.float32), [4], "relu", "tanh")


def test_discrete_policies_give_plain_logits() -> None:
    policy = DeterministicPolicy(3, spaces.MultiDiscrete([3, 2]), [4], "relu", "tanh")
    assert policy.bounds is None
    logits = policy(torch.full((1, 3), 1e3))
    assert logits.shape == (1, 5)
    assert logits.abs().max() > 1.0, "a final tanh would keep them within one"


def test_q_of_several_actions_in_the_same_states_is_the_same_q() -> None:
    network = QNet(5 + 4, [8, 8], "relu")
    states, joint = torch.randn(7, 5), torch.randn(7, 4)
    torch.testing.assert_close(network.of_actions(network.state_part(states), joint), network(states, joint))


def test_dueling_values_are_centred_on_the_value_stream() -> None:
    network = DuelingQNet(5, 6, [8], [4], [4], ("relu", "hardswish", "hardswish"))
    x = torch.randn(9, 5)
    q, features = network(x), network.base(x)
    torch.testing.assert_close(q.mean(-1, keepdim=True), network.dueling_v(features))
    advantages = network.dueling_a(features)
    torch.testing.assert_close(q - q[:, :1], advantages - advantages[:, :1])
