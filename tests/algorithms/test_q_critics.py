"""Losses of all critics, their slow networks, and what they keep."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from tests.algorithms.learners import (
    ALGORITHMS,
    changed,
    feed,
    learners,
    parameters,
    random_batch,
    team_layout,
)
from tests.algorithms.scripted import team

Q_CRITICS = ("haddpg", "hatd3", "hasac", "maddpg", "matd3")


@pytest.mark.parametrize("huber", [False, True])
def test_loss_of_hasac(huber: bool) -> None:
    runner = learners(
        "hasac", team("hasac"), algo__use_huber_loss=huber, algo__huber_delta=2.0, algo__use_valuenorm=False
    )
    batch = random_batch(runner.layout)
    batch.discounts.zero_()
    batch.rewards *= 5.0
    entries = runner.critic.encode(batch)
    values = [network(batch.share_obs, torch.cat(entries, -1)) for network in runner.critic.networks]
    if huber:
        each = [functional.huber_loss(value, batch.rewards, delta=2.0).item() for value in values]
    else:
        each = [functional.mse_loss(value, batch.rewards).item() for value in values]
    info = runner.critic.train(batch, entries, [torch.zeros(32, 1)] * 2)
    assert info["value_loss"].item() == pytest.approx(sum(each) / 2, rel=1e-5)


@pytest.mark.parametrize("algo", Q_CRITICS)
def test_both_networks_learn_by_the_sum_of_their_losses(algo: str) -> None:
    runner = learners(algo, team(algo), **({"algo__use_valuenorm": False} if algo == "hasac" else {}))
    critic, batch = runner.critic, random_batch(runner.layout)
    batch.discounts.zero_()
    entries = critic.encode(batch)
    critic.train(batch, entries, [torch.zeros(32, 1)] * 2)
    gradient = critic.optimizer.gradient.view(critic.count, -1)
    assert critic.count == (1 if algo.endswith("ddpg") else 2)
    assert all(row.abs().max() > 0 for row in gradient)
    twin = learners(algo, team(algo), **({"algo__use_valuenorm": False} if algo == "hasac" else {})).critic
    for k, network in enumerate(twin.networks):
        value = network(batch.share_obs, torch.cat(entries, -1))
        network.zero_grad(set_to_none=True)
        twin.error(value, batch.rewards).mean().backward()
        own = torch.cat([p.grad.flatten() for p in network.parameters()])
        torch.testing.assert_close(gradient[k], own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_slow_networks_move_once_in_an_update(algo: str) -> None:
    runner = learners(algo, team(algo, agents=3), algo__polyak=0.1, algo__policy_freq=1)
    before = parameters(runner)
    feed(runner, random_batch(runner.layout))
    runner.train()
    after = parameters(runner)
    slow = [name for name in before if name.startswith("slow ")]
    assert len(slow) == (1 if algo == "hasac" else 4)
    for name in slow:
        expected = before[name] + 0.1 * (after[name.removeprefix("slow ")] - before[name])
        torch.testing.assert_close(after[name], expected)
        assert not torch.equal(before[name], after[name])


@pytest.mark.parametrize("kind", ["box", "discrete"])
@pytest.mark.parametrize("algo", ["maddpg", "matd3"])
def test_D_10_one_network_for_all_is_stepped_and_followed_once(algo: str, kind: str) -> None:
    runner = learners(algo, team_layout(kind), algo__share_param=True, algo__polyak=0.1, algo__policy_freq=1)
    (actor,) = runner.team.own
    assert runner.team.actors == [actor] * 3
    before = parameters(runner)
    feed(runner, random_batch(runner.layout))
    runner.train()
    after = parameters(runner)
    (state,) = actor.optimizer.adam.state.values()
    assert state["step"].item() == 1
    name = "the shared policy"
    expected = before[f"slow {name}"] + 0.1 * (after[name] - before[f"slow {name}"])
    torch.testing.assert_close(after[f"slow {name}"], expected)


def test_D_10_the_one_network_learns_from_the_mean_of_all_agents() -> None:
    runner = learners("maddpg", team_layout("box"), algo__share_param=True)
    batch, (actor,) = random_batch(runner.layout), runner.team.own
    runner.critic.look_at(batch)
    taken, gradients = runner.critic.encode(batch), []
    for i in range(3):
        actor.optimizer.zero_grad()
        actor.objective(i, batch, taken, runner.critic).backward()
        gradients.append(actor.optimizer.gradient.clone())
    actor.improve(range(3), batch, taken, runner.critic)
    torch.testing.assert_close(actor.optimizer.gradient, sum(gradients) / 3)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_policy_freq_counts_updates_of_the_critic(algo: str) -> None:
    runner = learners(algo, team(algo), algo__policy_freq=3)
    feed(runner, random_batch(runner.layout))
    moved = []
    for _ in range(7):
        before = parameters(runner)
        runner.train()
        moved.append(changed(before, parameters(runner)))
    for step, names in enumerate(moved, 1):
        assert "critic" in names
        assert ({"agent_0", "agent_1", "slow critic"} <= names) is (step % 3 == 0)
        assert ("agent_0" in names) is ("slow critic" in names)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_state_of_all_learners_goes_round(algo: str) -> None:
    overrides = {"algo__auto_alpha": True} if algo == "hasac" else {}
    one, other = (learners(algo, team(algo), **overrides) for _ in range(2))
    batches = [random_batch(one.layout, seed=seed) for seed in range(3)]
    feed(one, *batches)
    for _ in range(4):
        one.train()
    other.load_learners(copy.deepcopy(one.learner_state()))
    assert not changed(parameters(one), parameters(other))
    other.total_it = one.total_it
    feed(other, *batches)
    for runner in (one, other):
        runner.exploration.manual_seed(1)
        runner.agent_order.manual_seed(1)
        runner.train()
        runner.train()
    assert not changed(parameters(one), parameters(other)), "optimisers went along"
