"""Cutting rows into minibatches, and minibatches into pieces that fit the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harl.algorithms import base
from harl.algorithms.base import minibatches, pieces
from harl.runners import OnPolicyBaseRunner
from tests.algorithms.rollouts import all_finite, fill, learn, small_runner, team_layout

CPU = torch.device("cpu")


def parts(rows: int, count: int, seed: int = 0) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.arange(rows)[index] for index in minibatches(rows, count, source, CPU)]


@pytest.mark.parametrize(("rows", "count"), [(65, 64), (65, 2), (65, 1), (64, 64), (7, 3), (1, 1)])
def test_NUM_05_every_row_is_used_once_in_a_pass(rows: int, count: int) -> None:
    cut = parts(rows, count)
    assert len(cut) == count
    assert torch.cat(cut).sort().values.tolist() == list(range(rows))
    sizes = [len(part) for part in cut]
    assert max(sizes) - min(sizes) <= 1


def test_order_of_rows_is_random_and_reproducible() -> None:
    assert all(torch.equal(one, two) for one, two in zip(parts(65, 4), parts(65, 4), strict=True))
    assert not torch.equal(torch.cat(parts(65, 4)), torch.cat(parts(65, 4, seed=1)))


@pytest.mark.parametrize("algo", ["happo", "mappo"])
@pytest.mark.parametrize("count", [64, 2])
def test_NUM_05_parameters_stay_finite_where_minibatches_do_not_divide_the_rows(algo: str, count: int) -> None:
    sizes: dict[str, Any] = {"train__episode_length": 13, "train__n_rollout_threads": 5}
    parts_of = {"algo__actor_num_mini_batch": count, "algo__critic_num_mini_batch": count}
    few = {"algo__ppo_epoch": 1, "algo__critic_epoch": 1}
    runner = small_runner(team_layout(agents=2), algo, **sizes, **parts_of, **few)
    for seed in range(3):
        fill(runner, seed)
        learn(runner)
        assert all_finite(runner)


@pytest.mark.parametrize("rows", [1, 4, 5, 10, 16])
def test_pieces_cover_the_rows_in_order_and_fit_the_cache(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CACHE_ROWS", 4)
    cut = [list(range(rows))[piece] for piece in pieces(rows)]
    assert [row for piece in cut for row in piece] == list(range(rows))
    assert all(0 < len(piece) <= 4 for piece in cut)


def one_step(algo: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> OnPolicyBaseRunner:
    monkeypatch.setattr(base, "CACHE_ROWS", rows_at_once)
    runner = small_runner(team_layout("box", state_type="FP"), algo, algo__ppo_epoch=1, algo__critic_epoch=1)
    fill(runner)
    runner.buffer.active[2:4, 1, 1] = 0.0
    learn(runner)
    return runner


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_gradient_of_a_minibatch_is_that_of_its_pieces(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = one_step(algo, 10_000, monkeypatch), one_step(algo, 5, monkeypatch)
    for one, other in zip((*whole.actors, whole.critic), (*cut.actors, cut.critic), strict=True):
        assert one.optimizer.gradient.abs().max() > 1e-3
        torch.testing.assert_close(other.optimizer.gradient, one.optimizer.gradient, rtol=1e-4, atol=1e-6)
