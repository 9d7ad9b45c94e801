"""Action distributions against closed forms, torch.distributions, and many samples."""

from __future__ import annotations

import math

import pytest
import torch

from harl.models.distributions import (
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    aggregate_ratio,
    mask_logits,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_MSK_01_no_illegal_action_in_two_million_samples_with_huge_logits() -> None:
    rows, draws = 20_000, 100
    logits = torch.randn(rows, 30, generator=generator()) * 1e3
    legal = torch.randint(30, (rows, 1), generator=generator(1))
    masks = torch.zeros(rows, 30).scatter_(1, legal, 1.0)
    distribution = Categorical(mask_logits(logits, masks))
    probabilities = distribution.log_probs.exp()
    assert (probabilities[masks == 0] == 0.0).all()
    assert (probabilities[masks == 1] == 1.0).all()
    source = generator(2)
    wrong = sum(int((distribution.sample(source) != legal).sum()) for _ in range(draws))
    assert wrong == 0
    assert torch.equal(distribution.mode(), legal.float())


@pytest.mark.parametrize("number", [1400, 7830])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_MSK_03_large_masked_action_sets_stay_on_the_simplex(number: int, scale: float) -> None:
    rows = 64
    masks = torch.bernoulli(torch.full((rows, number), 0.3), generator=generator(3))
    masks[:, 5] = 1.0
    distribution = Categorical(mask_logits(torch.randn(rows, number, generator=generator()) * scale, masks))
    probabilities = distribution.log_probs.exp()
    assert (probabilities[masks == 0] == 0.0).all()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(rows), rtol=0, atol=1e-5)
    for seed in range(20):
        assert (masks.gather(1, distribution.sample(generator(seed)).long()) == 1).all()
    assert distribution.entropy().isfinite().all()


def test_MSK_05_mask_of_a_multi_part_action_is_applied_to_each_part() -> None:
    masks = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])
    distribution = MultiCategorical(mask_logits(torch.zeros(1, 5), masks), [3, 2])
    samples = torch.cat([distribution.sample(generator(seed)) for seed in range(200)])
    assert set(samples[:, 0].tolist()) == {1.0, 2.0}
    assert set(samples[:, 1].tolist()) == {0.0}
    # Uniform over two actions in the first part, certain in the second.
    torch.testing.assert_close(distribution.log_prob(torch.tensor([[2.0, 0.0]])), torch.tensor([[-math.log(2), 0.0]]))
    torch.testing.assert_close(distribution.entropy(), torch.tensor([[math.log(2)]]))


def test_MSK_07_masked_logits_are_no_ordinary_logits() -> None:
    logits = torch.tensor([0.5, 0.5, 0.5, 9.0, 0.0, 50.0]).expand(100_000, 6)
    masks = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]).expand(100_000, 6)
    samples = Categorical(mask_logits(logits, masks)).sample(generator())
    counts = torch.bincount(samples.flatten().long(), minlength=6)
    assert counts[3:].tolist() == [0, 0, 0]
    # Thirds within four standard deviations of a count: sqrt(1e5 * 1/3 * 2/3) = 149.
    assert ((counts[:3] - 100_000 / 3).abs() < 600).all()


def test_NUM_16_entropy_and_gradients_are_finite_where_one_action_is_left() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], requires_grad=True)
    distribution = Categorical(mask_logits(logits, torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])))
    entropy = distribution.entropy()
    assert entropy[0].item() == 0.0
    (entropy.sum() + distribution.log_prob(torch.tensor([[0.0], [1.0]])).sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[1, 2] == 0.0


def test_NUM_21_entropy_of_a_two_dimensional_unit_gaussian() -> None:
    distribution = DiagGaussian(torch.zeros(1, 2), torch.ones(2))
    assert distribution.entropy().shape == (1, 1)
    assert distribution.entropy().item() == pytest.approx(2.83788, abs=1e-5)


def test_NUM_21_entropy_of_a_uniform_multi_part_action() -> None:
    distribution = MultiCategorical(torch.zeros(1, 5), [3, 2])
    assert distribution.entropy().item() == pytest.approx(1.79176, abs=1e-5)


def test_NUM_21_entropy_does_not_depend_on_the_sample_and_has_a_row_each() -> None:
    logits = torch.randn(7, 5, generator=generator())
    distribution = MultiCategorical(logits, [3, 2])
    before = distribution.entropy()
    distribution.sample(generator())
    assert before.shape == (7, 1)
    assert torch.equal(distribution.entropy(), before)


def test_sampling_frequencies_match_the_probabilities() -> None:
    probabilities = torch.tensor([0.02, 0.5, 0.18, 0.3])
    number = 400_000
    samples = Categorical(probabilities.log().expand(number, 4)).sample(generator())
    counts = torch.bincount(samples.flatten().long(), minlength=4)
    spread = (number * probabilities * (1 - probabilities)).sqrt()
    assert ((counts - number * probabilities).abs() < 4 * spread).all()


def test_gaussian_samples_have_the_mean_and_the_spread() -> None:
    mean, std = torch.tensor([[3.0, -1.0]]).expand(100_000, 2), torch.tensor([0.5, 2.0])
    samples = DiagGaussian(mean, std).sample(generator())
    torch.testing.assert_close(samples.mean(0), torch.tensor([3.0, -1.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(samples.std(0), std, rtol=0.02, atol=0)


@pytest.mark.parametrize("kind", ["categorical", "multi", "gaussian"])
def test_same_generator_gives_the_same_actions(kind: str) -> None:
    logits = torch.randn(50, 5, generator=generator(9))
    distribution = {
        "categorical": Categorical(logits),
        "multi": MultiCategorical(logits, [3, 2]),
        "gaussian": DiagGaussian(logits, torch.ones(5)),
    }[kind]
    first, again, other = (distribution.sample(generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gaussian_log_density_equals_torchs_for_each_dimension() -> None:
    mean, std = torch.randn(20, 3, generator=generator()), torch.tensor([0.1, 1.0, 4.0])
    actions = torch.randn(20, 3, generator=generator(1)) * 3
    expected = torch.distributions.Normal(mean, std).log_prob(actions)
    torch.testing.assert_close(DiagGaussian(mean, std).log_prob(actions), expected)


def test_categorical_equals_torchs() -> None:
    logits = torch.randn(20, 6, generator=generator()) * 3
    reference = torch.distributions.Categorical(logits=logits)
    actions = torch.randint(6, (20, 1), generator=generator(1))
    ours = Categorical(logits)
    torch.testing.assert_close(ours.log_prob(actions.float()), reference.log_prob(actions[:, 0]).unsqueeze(1))
    torch.testing.assert_close(ours.entropy(), reference.entropy().unsqueeze(1))
    assert torch.equal(ours.mode()[:, 0].long(), logits.argmax(-1))


def test_HET_07_log_probability_has_one_column_a_part_and_their_sum_is_the_joint_one() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), math.log(3.0), 0.0, math.log(4.0)]])
    log_probs = MultiCategorical(logits, [3, 2]).log_prob(torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[2 / 6, 4 / 5]]))
    assert log_probs.sum().exp().item() == pytest.approx(8 / 30, rel=1e-5)


def test_D_03_kl_weighs_actions_by_the_old_probabilities() -> None:
    old, new = torch.tensor([[0.9, 0.07, 0.02, 0.01]]), torch.tensor([[0.88, 0.06, 0.03, 0.03]])
    exact = Categorical(old.log()).kl(Categorical(new.log()))
    by_hand = sum(p * math.log(p / q) for p, q in zip(old[0].tolist(), new[0].tolist(), strict=True))
    assert exact.dtype == torch.float64
    assert exact.item() == pytest.approx(by_hand, rel=1e-5)
    # The original adds e^Δ - 1 - Δ over all actions alike, with Δ = log p - log q: the rare ones count as much.
    change = old.log() - new.log()
    assert (change.exp() - 1 - change).sum().item() > 20 * exact.item()


@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_G_3_and_D_03_categorical_kl_equals_torchs(scale: float) -> None:
    logits = torch.randn(50, 7, generator=generator()).double() * 2
    moved = logits + scale * torch.randn(50, 7, generator=generator(1))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=moved)
    )
    kl = Categorical(logits).kl(Categorical(moved))
    torch.testing.assert_close(kl, expected.unsqueeze(1), rtol=1e-6, atol=0)
    # From float32 parameters, its mean is right to what their rounding leaves.
    single = Categorical(logits.float()).kl(Categorical(moved.float()))
    assert single.mean().item() == pytest.approx(expected.mean().item(), rel=1e-4, abs=1e-10)
    assert (single > -1e-15).all()


def test_D_03_kl_with_masked_actions() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    old = Categorical(mask_logits(torch.tensor([[0.3, 0.1, 9.0], [1.0, 2.0, 3.0]]), mask))
    new = Categorical(mask_logits(torch.tensor([[0.1, 0.3, -9.0], [5.0, 2.0, 0.0]]), mask))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=torch.tensor([0.3, 0.1])),
        torch.distributions.Categorical(logits=torch.tensor([0.1, 0.3])),
    ).item()
    assert old.kl(new).flatten().tolist() == pytest.approx([expected, 0.0], abs=1e-7)


def test_kl_of_a_multi_part_action_is_the_sum_over_its_parts() -> None:
    old, new = torch.randn(9, 5, generator=generator()), torch.randn(9, 5, generator=generator(1))
    parts = [Categorical(old[:, i:j]).kl(Categorical(new[:, i:j])) for i, j in ((0, 3), (3, 5))]
    assert torch.equal(MultiCategorical(old, [3, 2]).kl(MultiCategorical(new, [3, 2])), parts[0] + parts[1])


def test_G_3_gaussian_kl_equals_torchs_summed_over_dimensions() -> None:
    means = torch.randn(2, 20, 3, generator=generator()).double()
    stds = torch.rand(2, 3, generator=generator(1)).double() + 0.2
    normals = [torch.distributions.Normal(mean, std) for mean, std in zip(means, stds, strict=True)]
    expected = torch.distributions.kl_divergence(*normals).sum(-1, keepdim=True)
    old, new = (DiagGaussian(mean, std) for mean, std in zip(means, stds, strict=True))
    torch.testing.assert_close(old.kl(new), expected)
    assert old.kl(new).dtype == torch.float64
    assert DiagGaussian(means[0].float(), stds[0].float()).kl(new).dtype == torch.float64


def policies(kind: str, parameters: torch.Tensor) -> Distribution:
    """A distribution as a head makes it from what a network says, (B, 4)."""
    if kind == "gaussian":
        return DiagGaussian(parameters[:, :2], torch.sigmoid(parameters[0, 2:]))
    return Categorical(parameters) if kind == "categorical" else MultiCategorical(parameters, [3, 1])


@pytest.mark.parametrize("kind", ["categorical", "multi", "gaussian"])
def test_information_in_coordinates_is_the_curvature_of_the_kl(kind: str) -> None:
    where = torch.randn(3, 4, generator=generator()).double()
    old = policies(kind, where)
    curvature = torch.autograd.functional.hessian(lambda at: old.kl(policies(kind, at)).sum(), where).view(12, 12)
    by_parameter = torch.autograd.functional.jacobian(lambda at: policies(kind, at).coordinates(), where)
    jacobian = by_parameter.reshape(-1, 12)
    information = old.information().flatten()
    torch.testing.assert_close(jacobian.T @ (information.unsqueeze(1) * jacobian), curvature, rtol=1e-6, atol=1e-9)


def test_D_01_ratio_of_several_factors_is_their_product_or_their_mean() -> None:
    log_ratio = torch.tensor([[0.1, -0.3], [0.0, 0.0]])
    torch.testing.assert_close(aggregate_ratio(log_ratio, "prod"), torch.tensor([[0.81873], [1.0]]), rtol=0, atol=1e-5)
    torch.testing.assert_close(aggregate_ratio(log_ratio, "mean"), torch.tensor([[0.92299], [1.0]]), rtol=0, atol=1e-5)
