"""What is not there must not teach a critic: agents that have left, states that are not an agent's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harl.envs.api import EnvStep
from tests.algorithms.learners import ALGORITHMS, changed, feed, learners, parameters, random_batch
from tests.algorithms.scripted import play, prepared, record, team


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_G_7_and_D_07_rows_of_absent_agents_may_hold_anything(algo: str) -> None:
    results = []
    for noise in (0.0, 30.0):
        runner = learners(algo, team(algo, agents=3, state_type="FP"))
        batch = random_batch(runner.layout, absent=0.4)
        for array in (batch.share_obs, batch.next_share_obs, batch.rewards, batch.discounts):
            array += noise * (1 - batch.valid)
        feed(runner, batch)
        for _ in range(3):
            runner.train_critic()
        results.append(parameters(runner))
    assert not changed(*results)


def test_D_07_statistics_of_targets_leave_absent_agents_out() -> None:
    runner = learners("hasac", team("hasac", agents=3, state_type="FP"), algo__alpha=1e-12)
    batch = random_batch(runner.layout, rows=500, absent=0.4)
    batch.rewards += 100.0 * batch.valid
    batch.discounts.zero_()
    feed(runner, batch)
    runner.train_critic()
    mean, _ = runner.critic.value_normalizer.mean_and_std()
    assert mean.item() == pytest.approx(batch.rewards[batch.valid > 0].mean().item(), rel=1e-4)


def test_D_07_loss_is_the_mean_over_those_who_were_there() -> None:
    runner = learners("matd3", team("matd3", agents=3, state_type="FP"))
    batch = random_batch(runner.layout, absent=0.4)
    batch.discounts.zero_()
    critic, there = runner.critic, batch.valid > 0
    taken = critic._spread(batch.share_obs, torch.cat(list(batch.actions), dim=-1))
    expected = [(network(*taken) - batch.rewards).square()[there].mean().item() for network in critic.networks]
    info = critic.train(batch, list(batch.actions), [None] * 3)
    assert info["value_loss"].item() == pytest.approx(sum(expected) / 2, rel=1e-5)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_D_38_an_agent_is_judged_in_its_own_state(algo: str) -> None:
    layout = team(algo, agents=3, state_type="FP")
    results = []
    for noise in (0.0, 30.0):
        runner = learners(algo, layout)
        batch = random_batch(layout)
        batch.share_obs[[0, 2]] += noise
        runner.critic.look_at(batch)
        entries = [actor.entry_before(i, batch) for i, actor in enumerate(runner.team.own)]
        runner.exploration.manual_seed(4)
        runner.team.own[1].improve([1], batch, entries, runner.critic)
        results.append(parameters(runner)["agent_1"])
    assert torch.equal(*results)
    runner = learners(algo, layout)
    batch.share_obs[1] += 1.0
    runner.critic.look_at(batch)
    runner.exploration.manual_seed(4)
    runner.team.own[1].improve([1], batch, entries, runner.critic)
    assert not torch.equal(results[0], parameters(runner)["agent_1"])


def test_D_21_only_the_environment_that_ended_has_all_its_agents_back() -> None:
    layout = team("maddpg", agents=3)
    runner = prepared("maddpg", layout, train__n_rollout_threads=2)

    def both(one: EnvStep, other: EnvStep) -> EnvStep:
        names = ("obs", "share_obs", "active", "rewards", "terminated", "truncated", "ended")
        joined = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names}
        finals = {name: np.concatenate([getattr(one, name)] * 2) for name in ("final_obs", "final_share_obs")}
        return EnvStep(available_actions=None, **joined, **finals)

    gone = {"active": [1.0, 0.0, 1.0]}
    over = record(layout, 5.0, final=50.0, terminated=[True] * 3)
    first, second = both(over, record(layout, 2.0, **gone)), both(over, record(layout, 3.0, **gone))
    start = both(over, record(layout, 1.0, **gone))
    start.active[0, 2] = 0.0
    play(runner, start, first, second)
    batch = runner.buffer.gather(torch.arange(4))
    assert batch.valid[:, :, 0].T.tolist() == [[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 0, 1]]
    assert batch.next_valid[:, 1::2, 0].T.tolist() == [[1, 0, 1], [1, 0, 1]]
