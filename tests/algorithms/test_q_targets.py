"""Targets of all critics along the whole way from a step to the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.algorithms.learners import ALGORITHMS, feed, learners, random_batch
from tests.algorithms.scripted import of_state, play, prepared, record, target, targets, team


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_TLB_04_a_truncated_transition_is_bootstrapped_from_its_final_state(algo: str) -> None:
    layout = team(algo)
    cut = record(layout, 5.0, final=50.0, truncated=[True, True])
    over = record(layout, 5.0, final=50.0, terminated=[True, True])
    start = record(layout, 0.0)
    assert target(algo, start, cut, layout=layout) == pytest.approx(50.5)
    assert target(algo, start, over, layout=layout) == pytest.approx(1.0)
    assert target(algo, start, record(layout, 5.0), layout=layout) == pytest.approx(5.95)
    assert target(algo, start, cut, layout=layout, algo__time_limit="ignore") == pytest.approx(1.0)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_D_09_and_TLB_04_with_a_state_for_each_agent(algo: str) -> None:
    layout = team(algo, state_type="FP")
    cut = record(layout, 5.0, final=50.0, truncated=[True, True])
    assert target(algo, record(layout, 0.0), cut, layout=layout) == pytest.approx(50.5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_TLB_06_the_next_episodes_first_state_is_never_a_next_state(algo: str) -> None:
    """Two episodes of three steps in a row, at 0 1 2 (final 3) and 100 101 102 (final 103)."""
    layout = team(algo)
    states = [0.0, 1.0, 2.0, 100.0, 101.0, 102.0, 200.0]
    steps = [record(layout, states[0])]
    for state in states[1:]:
        last = {100.0: 3.0, 200.0: 103.0}.get(state)
        steps.append(record(layout, state, final=last, truncated=[last is not None] * 2))
    runner = prepared(algo, layout)
    play(runner, *steps)
    expected = [1 + 0.99 * after for after in (1, 2, 3, 101, 102, 103)]
    assert targets(runner) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_team_in_which_one_terminated_and_the_other_was_cut_is_bootstrapped(algo: str) -> None:
    layout = team(algo)
    end = record(layout, 5.0, final=50.0, terminated=[True, False], truncated=[False, True])
    assert target(algo, record(layout, 0.0), end, layout=layout) == pytest.approx(50.5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_agents_of_one_end_are_bootstrapped_each_by_its_own_flag_from_its_own_reward(algo: str) -> None:
    layout = team(algo, state_type="FP")
    runner = prepared(algo, layout, env__reward="individual")
    end = record(layout, 5.0, final=50.0, terminated=[True, False], truncated=[False, True], rewards=[1.0, 7.0])
    play(runner, record(layout, 0.0), end)
    batch = runner.buffer.gather(torch.tensor([0]))
    y = batch.rewards + batch.discounts * of_state(batch.next_share_obs)
    assert y.flatten().tolist() == pytest.approx([1.0, 7.0 + 0.99 * 50.0])
    # The mean of both squares is what the critic's loss must be.
    assert targets(runner)[0] == pytest.approx(((1.0 + 56.5**2) / 2) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_agent_that_had_left_does_not_count_in_the_loss(algo: str) -> None:
    layout = team(algo, state_type="FP")
    runner = prepared(algo, layout, env__reward="individual")
    start = record(layout, 0.0, active=[1.0, 0.0])
    play(runner, start, record(layout, 5.0, active=[1.0, 0.0], rewards=[2.0, 0.0]))
    assert targets(runner)[0] == pytest.approx(2.0 + 0.99 * 5.0)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_n_steps_end_with_the_episode(algo: str) -> None:
    layout = team(algo)
    steps = [
        record(layout, 0.0),
        record(layout, 1.0, reward=1.0),
        record(layout, 5.0, reward=2.0, final=50.0, truncated=[True, True]),
        record(layout, 6.0, reward=4.0),
        record(layout, 7.0, reward=8.0),
        record(layout, 9.0, reward=16.0),
    ]
    runner = prepared(algo, layout, algo__n_step=3, algo__gamma=0.5)
    play(runner, *steps)
    expected = [
        1 + 0.5 * 2 + 0.25 * 50,
        2 + 0.5 * 50,
        4 + 0.5 * 8 + 0.25 * 16 + 0.125 * 9,
        8 + 0.5 * 16 + 0.25 * 9,
        16 + 0.5 * 9,
    ]
    assert targets(runner) == pytest.approx(expected, rel=1e-5)


def test_D_30_entropy_enters_where_the_values_are_bootstrapped_and_nowhere_else() -> None:
    layout = team("hasac")
    runner = prepared("hasac", layout, algo__n_step=3, algo__gamma=0.5, algo__alpha=0.25)
    for i, actor in enumerate(runner.team.own):
        entry = torch.zeros(1, 2)
        actor.following = lambda obs, masks, lp=float(i + 1), entry=entry: (entry, torch.full((1, 1), lp))
    play(
        runner,
        record(layout, 0.0),
        record(layout, 1.0, reward=1.0),
        record(layout, 2.0, reward=2.0),
        record(layout, 40.0, reward=4.0),
        record(layout, 5.0, reward=8.0, final=9.0, terminated=[True, True]),
    )
    first, *_, last = targets(runner)
    # Three rewards, then the value less the weighted sum of the two log-probabilities.
    assert first == pytest.approx(1 + 0.5 * 2 + 0.25 * 4 + 0.125 * (40 - 0.25 * (1 + 2)), rel=1e-5)
    assert last == pytest.approx(8.0, rel=1e-5), "behind a terminal state there is no entropy either"


@pytest.mark.parametrize("algo", ["hatd3", "hasac", "matd3"])
def test_targets_take_the_smaller_one_of_two(algo: str) -> None:
    layout = team(algo)
    for smaller in (0, 1):
        runner = prepared(algo, layout)
        for k, network in enumerate(runner.critic.target_networks):
            said = 40.0 if k == smaller else 50.0
            network.forward = lambda share_obs, _, said=said: torch.full((len(share_obs), 1), said)
        play(runner, record(layout, 0.0), record(layout, 5.0))
        assert targets(runner)[0] == pytest.approx(1 + 0.99 * 40.0, rel=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_next_actions_of_all_agents_enter_the_target(algo: str) -> None:
    runner = learners(algo, team(algo, agents=3), **({"algo__use_valuenorm": False} if algo == "hasac" else {}))
    batch, given = random_batch(runner.layout, rows=8), []
    train = runner.critic.train

    def noting(batch: Any, entries: Any, log_probs: Any) -> Any:
        given.append((entries, log_probs))
        return train(batch, entries, log_probs)

    runner.critic.train = noting
    feed(runner, batch)
    runner.exploration.manual_seed(9)
    runner.train_critic()
    runner.exploration.manual_seed(9)
    ((entries, log_probs),) = given
    for i, actor in enumerate(runner.team.actors):
        entry, log_prob = actor.following(batch.next_obs[i], None)
        assert torch.equal(entries[i], entry)
        assert (log_probs[i] is None) == (algo != "hasac")
        assert log_prob is None or torch.equal(log_probs[i], log_prob)
