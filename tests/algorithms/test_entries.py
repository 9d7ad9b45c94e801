"""How actions enter a critic, and sampling with a gradient behind it."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.entries import ActionCode, joint, replaced
from harl.models.distributions import MultiCategorical, mask_logits
from tests.algorithms.learners import SPACES, random_actions, random_masks, team_layout

DISCRETE = ("discrete", "multidiscrete")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def softmaxes(logits: Tensor, masks: Tensor | None, code: ActionCode, seed: int) -> Tensor:
    """The relaxed sample that a straight-through draw from this seed rounds."""
    source, parts = generator(seed), []
    assert code.nvec is not None
    for part in torch.split(mask_logits(logits, masks), list(code.nvec), dim=-1):
        gumbel = -torch.empty_like(part).exponential_(generator=source).log()
        parts.append(torch.softmax(torch.log_softmax(part, dim=-1) + gumbel, dim=-1))
    return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("kind", SPACES)
def test_decoding_undoes_encoding(kind: str) -> None:
    layout, code = team_layout(kind), ActionCode(SPACES[kind])
    actions = random_actions(layout, 500, generator())[0]
    entries = code.encode(actions)
    assert entries.shape == (500, code.width)
    assert torch.equal(code.decode(entries), actions)


def test_choices_are_one_hot_component_after_component() -> None:
    code = ActionCode(spaces.MultiDiscrete([3, 2]))
    assert code.encode(torch.tensor([[2.0, 0.0], [1.0, 1.0]])).tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]]


def test_columns_beyond_an_agents_width_are_left_out() -> None:
    padded = torch.tensor([[1.0, 7.0, 7.0]])
    assert ActionCode(spaces.Discrete(3)).encode(padded).tolist() == [[0, 1, 0]]
    assert ActionCode(spaces.Box(0.0, 2.0, (1,))).encode(padded).tolist() == [[1.0]]


@pytest.mark.parametrize("kind", DISCRETE)
def test_MSK_no_illegal_choice_in_many_draws(kind: str) -> None:
    code, masks = ActionCode(SPACES[kind]), random_masks(team_layout(kind), 20_000, generator(1))[0]
    logits = torch.randn(20_000, code.width, generator=generator(2)) * 1e3
    source = generator(3)
    for entries in (code.greedy(logits, masks), code.straight_through(logits, masks, source)[0]):
        assert (entries * (1 - masks)).abs().max() == 0.0
        # Exactly one-hot in each component.
        assert set(entries.unique().tolist()) == {0.0, 1.0}
        assert (entries.sum(-1) == code.columns).all()


@pytest.mark.parametrize("kind", DISCRETE)
def test_MSK_illegal_choices_get_no_gradient(kind: str) -> None:
    code, masks = ActionCode(SPACES[kind]), random_masks(team_layout(kind), 64, generator(1))[0]
    logits = torch.randn(64, code.width, generator=generator(2), requires_grad=True)
    entries, log_probs = code.straight_through(logits, masks, generator(3))
    ((entries * torch.randn(64, code.width)).sum() + log_probs.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad * (1 - masks)).abs().max() == 0.0
    assert logits.grad.abs().max() > 0.0


def test_greedy_takes_the_most_likely_legal_choice() -> None:
    code = ActionCode(spaces.MultiDiscrete([3, 2]))
    logits = torch.tensor([[5.0, 1.0, 3.0, 0.0, 9.0]])
    assert code.greedy(logits, None).tolist() == [[1, 0, 0, 0, 1]]
    assert code.greedy(logits, torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])).tolist() == [[0, 0, 1, 1, 0]]


@pytest.mark.parametrize("kind", DISCRETE)
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_straight_through_has_the_gradient_of_the_softmax(kind: str, masked: bool) -> None:
    code = ActionCode(SPACES[kind])
    masks = random_masks(team_layout(kind), 40, generator(1))[0] if masked else None
    weights = torch.randn(40, code.width, generator=generator(2))
    gradients = []
    for relaxed in (False, True):
        logits = torch.randn(40, code.width, generator=generator(4), requires_grad=True)
        drawn = softmaxes(logits, masks, code, 7) if relaxed else code.straight_through(logits, masks, generator(7))[0]
        (drawn * weights).sum().backward()
        assert logits.grad is not None
        gradients.append(logits.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0.01


def test_samples_are_as_likely_as_the_softmax_says() -> None:
    code = ActionCode(spaces.MultiDiscrete([3, 2]))
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5, -0.5])
    entries, _ = code.straight_through(logits.expand(200_000, 5), None, generator())
    expected = torch.cat([torch.softmax(logits[:3], 0), torch.softmax(logits[3:], 0)])
    torch.testing.assert_close(entries.mean(0), expected, rtol=0, atol=0.005)


def test_D_08_log_probability_of_several_components_is_their_sum() -> None:
    code, logits = ActionCode(spaces.MultiDiscrete([3, 2, 4])), torch.randn(50, 9, generator=generator(1))
    masks = random_masks(team_layout("multidiscrete"), 50, generator(2))[0]
    entries, log_probs = code.straight_through(logits, masks, generator(3))
    assert log_probs.shape == (50, 1)
    exact = MultiCategorical(mask_logits(logits, masks), [3, 2, 4]).log_prob(code.decode(entries))
    torch.testing.assert_close(log_probs, exact.sum(-1, keepdim=True))


def test_D_08_log_probability_by_hand() -> None:
    code = ActionCode(spaces.MultiDiscrete([3, 2]))
    _, log_probs = code.straight_through(torch.zeros(4, 5), None, generator())
    torch.testing.assert_close(log_probs, torch.full((4, 1), -math.log(3) - math.log(2)))


def test_NUM_16_the_only_legal_choice_is_certain() -> None:
    code = ActionCode(spaces.Discrete(3))
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    entries, log_probs = code.straight_through(logits, torch.tensor([[1.0, 0.0, 0.0]]), generator())
    assert entries.tolist() == [[1.0, 0.0, 0.0]]
    assert log_probs.item() == 0.0
    (entries.sum() + log_probs.sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_joint_entries_stand_side_by_side_and_one_can_be_exchanged() -> None:
    entries = [torch.full((2, width), float(width)) for width in (1, 2, 3)]
    assert joint(entries).tolist() == [[1, 2, 2, 3, 3, 3]] * 2
    other = replaced(entries, 1, torch.zeros(2, 2))
    assert joint(other).tolist() == [[1, 0, 0, 3, 3, 3]] * 2
    assert entries[1].tolist() == [[2, 2], [2, 2]]
