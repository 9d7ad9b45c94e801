"""Deterministic policies: exploration within bounds and masks, and what a step of one actor touches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from harl.models.plain import DeterministicPolicy
from tests.algorithms.learners import (
    ALGORITHMS,
    DETERMINISTIC,
    UNEVEN,
    changed,
    feed,
    kind_for,
    learners,
    parameters,
    random_batch,
    random_masks,
    team_layout,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def saturate(network: DeterministicPolicy) -> None:
    """Let the actions lie at and near the bounds, where noise would push them outside."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(20.0)


def inside(actions: Tensor) -> bool:
    array = actions.detach().numpy()
    return bool((array >= UNEVEN.low).all() and (array <= UNEVEN.high).all())


@pytest.mark.parametrize("algo", DETERMINISTIC)
@pytest.mark.parametrize("saturated", [False, True], ids=["middle", "at_the_bounds"])
def test_NUM_19_every_explored_and_every_target_action_is_inside(algo: str, saturated: bool) -> None:
    runner = learners(algo, team_layout("box"), algo__expl_noise=0.5)
    obs = torch.randn(10_000, 3, 4, generator=generator())
    for actor in runner.team.own:
        if saturated:
            saturate(actor.network)
            saturate(actor.target_network)
        assert inside(actor.following(obs[:, 0], None)[0])
    explored = runner.team.act(obs)[0]
    greedy = runner.team.act(obs, deterministic=True)[0]
    assert inside(explored)
    assert inside(greedy)
    assert (explored != greedy).any(-1).float().mean() > 0.4


def test_noise_is_scaled_by_dimension_and_drawn_for_each_environment_and_agent() -> None:
    runner = learners("haddpg", team_layout("box"), algo__expl_noise=0.1)
    obs = torch.randn(1, 3, 4).expand(20_000, 3, 4)
    noise = runner.team.act(obs)[0] - runner.team.act(obs, deterministic=True)[0]
    # 0.1 half-ranges, and those are 1 and 5.
    torch.testing.assert_close(noise.std(0), torch.tensor([[0.1, 0.5]] * 3), rtol=0.05, atol=0)
    assert len(noise.unique(dim=0)) == 20_000
    correlation = torch.corrcoef(noise.flatten(1).T) - torch.eye(6)
    assert correlation.abs().max() < 0.05, "between agents and dimensions"


def test_without_exploration_the_policy_is_deterministic() -> None:
    runner = learners("haddpg", team_layout("box"))
    obs, before = torch.randn(5, 3, 4), runner.exploration.get_state()
    first = runner.team.act(obs, deterministic=True)[0]
    assert torch.equal(first, runner.team.act(obs, deterministic=True)[0])
    assert torch.equal(before, runner.exploration.get_state()), "nothing is drawn"
    for i in range(3):
        assert torch.equal(first[:, i], runner.team.own[i].network(obs[:, i]))


@pytest.mark.parametrize("algo", DETERMINISTIC)
@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_D_11_discrete_actions_obey_masks(algo: str, kind: str) -> None:
    layout = team_layout(kind, has_masks=True)
    runner = learners(algo, layout)
    masks = random_masks(layout, 4000, generator(1)).transpose(0, 1).contiguous()
    obs = torch.randn(4000, 3, 4, generator=generator(2))
    code = runner.team.own[0].code
    for deterministic in (False, True):
        actions = runner.team.act(obs, masks, deterministic)[0]
        assert (code.encode(actions) * (1 - masks)).abs().max() == 0.0
    for i, actor in enumerate(runner.team.own):
        for draw in (actor.following, actor.current):
            entries = draw(obs[:, i], masks[:, i])[0].detach()
            assert set(entries.unique().tolist()) == {0.0, 1.0}
            assert (entries * (1 - masks[:, i])).abs().max() == 0.0


def test_discrete_policies_explore_by_their_samples() -> None:
    runner = learners("maddpg", team_layout("discrete"))
    obs = torch.randn(1, 3, 4).expand(20_000, 3, 4)
    probabilities = torch.softmax(runner.team.own[1].network(obs[0, 1]), -1)
    drawn = runner.team.act(obs)[0][:, 1].long()
    counts = torch.bincount(drawn.flatten(), minlength=5) / 20_000
    torch.testing.assert_close(counts, probabilities.detach(), rtol=0, atol=0.015)
    assert runner.team.act(obs, deterministic=True)[0][:, 1].unique().tolist() == [float(probabilities.argmax())]


# What one step touches.


def improve(runner: Any, i: int, batch: Any) -> list[Tensor]:
    """One step of agent i's actor; returns what it saw of the others."""
    critic, actors = runner.critic, runner.team.actors
    critic.look_at(batch)
    sequential = runner.algo.name.startswith("ha")
    entries = [actor.entry_before(k, batch) for k, actor in enumerate(actors)] if sequential else critic.encode(batch)
    actors[i].improve([i], batch, entries, critic)
    return entries


@pytest.mark.parametrize(
    ("algo", "kind"),
    [(algo, kind) for algo in ALGORITHMS for kind in ("box", "discrete") if (algo, kind) != ("had3qn", "box")],
)
def test_NUM_20_improving_one_agent_touches_nothing_else(algo: str, kind: str) -> None:
    runner = learners(algo, team_layout(kind))
    before = parameters(runner)
    entries = improve(runner, 0, random_batch(runner.layout))
    assert changed(before, parameters(runner)) == {"agent_0"}
    assert all(not entry.requires_grad for entry in entries)
    for actor in runner.team.own[1:]:
        assert actor.optimizer.gradient.abs().max() == 0.0
        assert all(p.grad is None or p.grad.abs().max() == 0.0 for p in actor.network.parameters())
    assert runner.critic.optimizer.gradient.abs().max() == 0.0
    assert runner.team.own[0].optimizer.gradient.abs().max() > 0.0


@pytest.mark.parametrize("algo", ["maddpg", "matd3"])
def test_NUM_20_discrete_actions_of_others_are_one_hot(algo: str) -> None:
    runner = learners(algo, team_layout("discrete"))
    for entry in improve(runner, 0, random_batch(runner.layout))[1:]:
        assert set(entry.unique().tolist()) == {0.0, 1.0}
        assert (entry.sum(-1) == 1).all()


@pytest.mark.parametrize("algo", ["haddpg", "maddpg"])
def test_gradient_of_the_actor_is_that_of_the_critics_value(algo: str) -> None:
    runner = learners(algo, team_layout("box"))
    batch, actor = random_batch(runner.layout), runner.team.own[1]
    weights = {name: value.detach().clone().requires_grad_() for name, value in actor.network.named_parameters()}
    entries = improve(runner, 1, batch)
    action = torch.func.functional_call(actor.network, weights, (batch.obs[1],))
    joint = torch.cat([entries[0], action, entries[2]], dim=-1)
    (-runner.critic.networks[0](batch.share_obs, joint).mean()).backward()
    expected = torch.cat([value.grad.flatten() for value in weights.values()])  # type: ignore[union-attr]
    torch.testing.assert_close(actor.optimizer.gradient, expected, rtol=1e-4, atol=1e-7)


def test_HA_agents_that_come_later_see_what_the_earlier_ones_have_become() -> None:
    runner = learners("haddpg", team_layout("box"), algo__lr=0.05, algo__fixed_order=True)
    batch = random_batch(runner.layout)
    old = [actor.entry_before(i, batch) for i, actor in enumerate(runner.team.actors)]
    seen: dict[int, list[Tensor]] = {}
    for i, actor in enumerate(runner.team.actors):
        improve_alone = actor.improve

        def noting(agents: Any, batch: Any, entries: Any, critic: Any, i: int = i, improve: Any = improve_alone) -> Any:
            seen[i] = [entry.clone() for entry in entries]
            return improve(agents, batch, entries, critic)

        actor.improve = noting
    feed(runner, batch)
    runner.train()
    new = [actor.entry_before(i, batch) for i, actor in enumerate(runner.team.actors)]
    assert list(seen) == [0, 1, 2]
    assert torch.equal(seen[0][1], old[1])
    assert torch.equal(seen[0][2], old[2])
    assert torch.equal(seen[1][0], new[0])
    assert torch.equal(seen[1][2], old[2])
    assert torch.equal(seen[2][0], new[0])
    assert torch.equal(seen[2][1], new[1])
    assert not torch.equal(old[0], new[0])


def test_MA_agents_see_what_the_others_did_in_the_batch() -> None:
    runner = learners("maddpg", team_layout("box"))
    batch, seen = random_batch(runner.layout), []
    for actor in runner.team.own:
        actor.improve = lambda agents, batch, entries, critic: seen.append(entries) or {}  # type: ignore[func-returns-value]
    feed(runner, batch)
    runner.train()
    assert len(seen) == 3
    assert all(torch.equal(entry, batch.actions[k]) for entries in seen for k, entry in enumerate(entries))


def test_agents_that_were_not_there_do_not_enter_the_loss() -> None:
    results = []
    for noise in (0.0, 50.0):
        runner = learners("maddpg", team_layout("box"))
        batch = random_batch(runner.layout, absent=0.4)
        batch.obs += noise * (1 - batch.valid)
        improve(runner, 1, batch)
        results.append(parameters(runner))
    assert not changed(*results)


def test_G_7_and_D_35_nobody_in_the_batch_gives_no_gradient_and_no_nan() -> None:
    for algo in ALGORITHMS:
        runner = learners(algo, team_layout(kind_for(algo)))
        before = parameters(runner)
        batch = random_batch(runner.layout, absent=1.0)
        improve(runner, 0, batch)
        assert not changed(before, parameters(runner))
