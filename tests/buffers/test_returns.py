"""Advantages and returns of short rollouts, worked out by hand with γ = λ = ½ (exact in float32)."""

from __future__ import annotations

import pytest
import torch

from harl.buffers.returns import discounted_returns, generalised_advantages

REWARDS = torch.tensor([1.0, 1.0, 3.0])
VALUES = torch.tensor([1.0, 2.0, 3.0, 4.0])
NOTHING = torch.zeros(3)


def gae(continues: list[float], end_values: list[float], cut: list[bool] | None = None) -> list[float]:
    mask = None if cut is None else torch.tensor(cut)
    continues_, ends = torch.tensor(continues), torch.tensor(end_values)
    return generalised_advantages(REWARDS, VALUES, continues_, ends, 0.5, 0.5, mask).tolist()


def plain(continues: list[float], end_values: list[float], cut: list[bool] | None = None) -> list[float]:
    mask = None if cut is None else torch.tensor(cut)
    continues_, ends = torch.tensor(continues), torch.tensor(end_values)
    return discounted_returns(REWARDS, VALUES, continues_, ends, 0.5, mask).tolist()


def test_rollout_that_stops_within_an_episode_is_bootstrapped_from_the_last_value() -> None:
    # δ = (1 + 1 - 1, 1 + 1.5 - 2, 3 + 2 - 3) = (1, 0.5, 2), weighted by (γλ)^k = 1, 1/4, 1/16.
    assert gae([1, 1, 1], [0, 0, 0]) == [1 + 0.125 + 0.125, 0.5 + 0.5, 2.0]


def test_termination_cuts_the_value_and_the_trace() -> None:
    # δ_1 = 1 - 2 = -1; nothing of the 2 that follows in the next episode comes back.
    assert gae([1, 0, 1], [0, 0, 0]) == [0.75, -1.0, 2.0]


def test_truncation_takes_the_final_value_and_cuts_the_trace() -> None:
    # δ_1 = 1 + 10/2 - 2 = 4, with the value 10 of the final state and not the 3 of the reset one.
    assert gae([1, 0, 1], [0, 10, 0]) == [2.0, 4.0, 2.0]


def test_masked_truncation_has_advantage_zero() -> None:
    assert gae([1, 0, 1], [0, 0, 0], [False, True, False]) == [1.0, 0.0, 2.0]


def test_both_kinds_of_end_side_by_side() -> None:
    rewards, values = REWARDS.unsqueeze(1).expand(3, 2), VALUES.unsqueeze(1).expand(4, 2)
    ends = torch.tensor([[0.0, 0.0], [0.0, 10.0], [0.0, 0.0]])
    continues = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    result = generalised_advantages(rewards, values, continues, ends, 0.5, 0.5)
    assert result.tolist() == [[0.75, 2.0], [-1.0, 4.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("continues", "ends", "cut", "expected"),
    [
        # To the end of the rollout: 3 + 4/2 = 5, 1 + 5/2 = 3.5, 1 + 3.5/2 = 2.75.
        ([1, 1, 1], [0, 0, 0], None, [2.75, 3.5, 5.0]),
        # Terminated after the second step.
        ([1, 0, 1], [0, 0, 0], None, [1.5, 1.0, 5.0]),
        # Cut there, with a final value of 10: 1 + 10/2 = 6, 1 + 6/2 = 4.
        ([1, 0, 1], [0, 10, 0], None, [4.0, 6.0, 5.0]),
        # The original's treatment of a cut: the return is the state's own value 2, so 1 + 2/2 = 2.
        ([1, 0, 1], [0, 0, 0], [False, True, False], [2.0, 2.0, 5.0]),
    ],
)
def test_discounted_returns(
    continues: list[float], ends: list[float], cut: list[bool] | None, expected: list[float]
) -> None:
    assert plain(continues, ends, cut) == expected


def test_TLB_08_only_the_flag_of_the_last_step_gates_the_bootstrap() -> None:
    continues, values = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 0.0, 7.0])
    nothing = torch.zeros(4)
    assert discounted_returns(nothing, values, continues, nothing, 1.0).tolist() == [0.0, 0.0, 7.0, 7.0]
    assert generalised_advantages(nothing, values, continues, nothing, 1.0, 1.0).tolist() == [0.0, 0.0, 7.0, 7.0]
