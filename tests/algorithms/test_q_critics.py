"""Targets of all critics along the whole way from a step to the loss, masks, and slow networks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from harl.envs.api import EnvStep, Layout
from harl.runners.seen import Seen
from tests.algorithms.learners import (
    ALGORITHMS,
    changed,
    feed,
    kind_for,
    learners,
    parameters,
    random_batch,
    team_layout,
)

Q_CRITICS = ("haddpg", "hatd3", "hasac", "maddpg", "matd3")
STEPS = ("terminated", "truncated")


class Script:
    """Environments that return given records."""

    def __init__(self, steps: list[EnvStep]) -> None:
        self.steps = steps

    def step(self, actions: np.ndarray[Any, Any]) -> EnvStep:
        return self.steps.pop(0)


def record(layout: Layout, state: float, reward: float = 1.0, final: float | None = None, **flags: Any) -> EnvStep:
    """One environment's step: the state is one number everywhere, which is what the slow critics say of it.

    `final` is the last state of an episode that ends here; flags are lists of one entry an agent.
    """
    agents = layout.num_agents

    def filled(shape: tuple[int, ...], value: float) -> np.ndarray[Any, Any]:
        return np.full((1, agents, *shape), value, np.float32)

    ends = {name: np.array([flags.get(name, [False] * agents)]) for name in STEPS}
    return EnvStep(
        obs=filled(layout.obs_shape, 0.0),
        share_obs=filled(layout.share_obs_shape, state),
        available_actions=None,
        active=np.array(flags.get("active", [1.0] * agents), np.float32).reshape(1, agents, 1),
        rewards=np.array(flags.get("rewards", [reward / agents] * agents), np.float32).reshape(1, agents, 1),
        ended=np.array([final is not None]),
        final_obs=None if final is None else filled(layout.obs_shape, 0.0),
        final_share_obs=None if final is None else filled(layout.share_obs_shape, final),
        **ends,
    )


def of_state(share_obs: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return share_obs[..., :1]


def prepared(algo: str, layout: Layout, **overrides: Any) -> Any:
    """Learners whose slow critic says of each state what it shows, whose critic says 0, without entropy."""
    given: dict[str, Any] = {"train__n_rollout_threads": 1, "algo__n_step": 1, "algo__gamma": 0.99} | overrides
    if algo == "hasac":
        given = {"algo__alpha": 1e-12, "algo__use_valuenorm": False, "algo__use_huber_loss": False} | given
    runner = learners(algo, layout, **given)
    critic = runner.critic
    if algo == "had3qn":
        width = critic.network.dueling_a.mlp[-2].out_features
        critic.target_network.forward = lambda share_obs: of_state(share_obs).expand(*share_obs.shape[:-1], width)
    else:
        for network in critic.target_networks:
            network.forward = of_state
    critic.flat.values.zero_()
    return runner


def play(runner: Any, *steps: EnvStep) -> None:
    """Take these steps; the first one is what the environments begin with."""
    runner.now = Seen.of(steps[0])
    runner.envs = Script(list(steps[1:]))
    for _ in steps[1:]:
        runner.step(runner.sample_actions())


def targets(runner: Any) -> list[float]:
    """What the critic learns towards in each transition: with a Q of 0, the root of its loss, signed by its step."""
    found, critic = [], runner.critic
    network = critic.network.dueling_v if hasattr(critic, "network") else critic.networks[0]
    bias = list(network.parameters())[-1]
    for row in range(len(runner.buffer)):
        batch = runner.buffer.gather(torch.tensor([row]))
        runner.buffer.sample = lambda size, batch=batch: batch
        critic.flat.values.zero_()
        critic.optimizer.adam.state.clear()
        runner.train_critic()
        loss = runner.reports._values[runner.reports._labels.index(("critic", "critic", "value_loss"))].item()
        runner.reports.drain()
        found.append(loss**0.5 if bias.item() > 0 else -(loss**0.5))
    return found


def target(algo: str, *steps: EnvStep, layout: Layout, **overrides: Any) -> float:
    runner = prepared(algo, layout, **overrides)
    play(runner, *steps)
    return targets(runner)[0]


def team(algo: str, agents: int = 2, state_type: str = "EP") -> Layout:
    return team_layout(kind_for(algo), agents, state_type)


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


# What is not there must not teach.


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


# Losses and slow networks.


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
