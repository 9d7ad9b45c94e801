"""Updates of whole teams: ratios, the factor M, the order of agents, and numbers that must stay finite."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from harl.algorithms.base import NonFiniteError
from harl.buffers.rollout import ActorData
from harl.config.schema import config_leaves
from harl.models.distributions import aggregate_ratio
from harl.runners import OnPolicyBaseRunner, OnPolicyHARunner
from tests.algorithms.rollouts import (
    ALGOS,
    SPACES,
    all_finite,
    fill,
    hetero_layout,
    learn,
    parameters,
    small_runner,
    team_layout,
)
from tests.runners.bare import layout_of

WAYS = {**ALGOS, "mappo-shared": {"algo__share_param": True}}
STEPPED = [way for way in WAYS if way != "hatrpo"]
"""Those whose actors take steps of an optimiser."""


def runner_for(way: str, layout: Any, **overrides: Any) -> OnPolicyBaseRunner:
    """A runner; keys that the algorithm does not have are left out."""
    algo = way.removesuffix("-shared")
    known = config_leaves(algo, "mpe", "off")
    values = {key: value for key, value in (WAYS[way] | overrides).items() if key.replace("__", ".") in known}
    return small_runner(layout, algo, **values)


EXPECTED = "ignore::harl.algorithms.actors.trpo.SkippedUpdateWarning"
"""HATRPO says that it has no direction to step in where all advantages are equal."""
REPORTED = {"policy_loss", "dist_entropy", "actor_grad_norm", "ratio"}
REPORTED_BY_TRPO = {"kl", "dist_entropy", "loss_improve", "expected_improve", "ratio", "step_fraction"}
ONE_PASS = {"algo__ppo_epoch": 1, "algo__a2c_epoch": 1}


def is_one(ratio: Tensor) -> bool:
    """Whether ratios are 1 up to float32: acting multiplies LayerNorm's weights and the next layer's beforehand, so a
    single row may be off by what rounding of a mean does to (a - mean)² / std²."""
    return bool((ratio - 1).abs().max() < 1e-5) and abs(ratio.mean().item() - 1) < 1e-6


def nothing_happened(data: ActorData, lesson: Any) -> dict[str, float]:
    return {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SPACES)
def test_G_1_and_D_01_ratio_is_one_before_the_first_update(kind: str, way: str) -> None:
    runner = runner_for(way, team_layout(kind, has_masks=kind != "box"))
    fill(runner)
    zero = torch.zeros(6, 4, 1)
    for i in range(3):
        data = runner.buffer.actor_data(i, zero)
        actor = runner.actors[0 if way == "mappo-shared" else i]
        ratio = aggregate_ratio(actor.log_probs(data) - data.log_probs, "prod")
        assert is_one(ratio)


@pytest.mark.parametrize("way", STEPPED)
def test_ratio_reported_by_a_first_step_is_one(way: str) -> None:
    runner = runner_for(way, team_layout("box"), **ONE_PASS)
    fill(runner)
    infos, _ = learn(runner)
    # Under HA and MA alike: nobody's policy depends on another's.
    assert all(info["ratio"] == pytest.approx(1.0, abs=1e-6) for info in infos.values())


def test_ratio_is_one_for_agents_that_differ() -> None:
    runner = small_runner(hetero_layout())
    fill(runner)
    for i in range(4):
        data = runner.buffer.actor_data(i, torch.zeros(6, 4, 1))
        ratio = aggregate_ratio(runner.actors[i].log_probs(data) - data.log_probs, "prod")
        assert is_one(ratio)


# The factor M of sequential updates.


def factors_given(runner: OnPolicyBaseRunner) -> dict[int, Tensor]:
    """The factor that each actor is trained with, noted when it happens."""
    seen: dict[int, Tensor] = {}

    def noting(i: int, train: Any) -> Any:
        def wrapped(data: ActorData, lesson: Any) -> Any:
            assert data.factor is not None
            seen[i] = data.factor.clone()
            return train(data, lesson)

        return wrapped

    for i, actor in enumerate(runner.actors):
        actor.train = noting(i, actor.train)  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("kind", SPACES)
def test_G_2_factor_is_the_product_of_the_earlier_agents_exact_ratios(kind: str) -> None:
    runner = small_runner(team_layout(kind), algo__lr=0.01)
    fill(runner)
    before = [copy.deepcopy(actor.policy) for actor in runner.actors]
    seen = factors_given(runner)
    learn(runner)
    order = list(seen)
    expected = torch.ones(24, 1)
    for i in order:
        torch.testing.assert_close(seen[i], expected, rtol=1e-4, atol=1e-5)
        obs, actions = runner.buffer.obs[:-1, :, i].flatten(0, 1), runner.buffer.actions[:, :, i].flatten(0, 1)
        old, new = (policy(obs).log_prob(actions).sum(1) for policy in (before[i], runner.actors[i].policy))
        expected = expected * (new - old).exp().unsqueeze(1).detach()
    assert (expected - 1).abs().max() > 0.01


def changes(runner: OnPolicyBaseRunner, per_agent: list[list[float]]) -> dict[int, Tensor]:
    """Let each actor's training change the log-probabilities of all rows by given amounts, one for each factor."""
    for actor, change in zip(runner.actors, per_agent, strict=True):
        actor.train = nothing_happened  # type: ignore[method-assign]
        actor.log_probs = lambda data, by=change: data.log_probs + torch.tensor(by)  # type: ignore[method-assign]
    return factors_given(runner)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("prod", [1.0, 0.81873, 0.86071]), ("mean", [1.0, 0.92299, 0.92299 * (1.05127 + 1) / 2])],
)
def test_NUM_10_factor_by_its_numbers(aggregation: str, expected: list[float]) -> None:
    runner = small_runner(team_layout("box"), algo__fixed_order=True, algo__action_aggregation=aggregation)
    fill(runner)
    seen = changes(runner, [[0.1, -0.3], [0.05, 0.0], [0.7, 0.7]])
    learn(runner)
    assert list(seen) == [0, 1, 2]
    for i, value in enumerate(expected):
        torch.testing.assert_close(seen[i], torch.full((24, 1), value), rtol=0, atol=2e-5)


def test_NUM_10_agent_has_no_part_in_the_factor_where_it_was_not_there_or_did_not_decide() -> None:
    runner = small_runner(team_layout("box"), algo__fixed_order=True)
    fill(runner)
    runner.buffer.active[2, 1, 0] = 0.0
    runner.buffer.policy_mask[3, 2, 0] = 0.0
    seen = changes(runner, [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]])
    learn(runner)
    by_step = seen[1].view(6, 4)
    assert by_step[2, 1] == 1.0
    assert by_step[3, 2] == 1.0
    assert by_step.sum().item() == pytest.approx(22 * 2.71828 + 2, rel=1e-5)


def test_NUM_10_factor_is_recomputed_after_the_last_epoch() -> None:
    runner = small_runner(team_layout(), algo__fixed_order=True, algo__ppo_epoch=3, algo__lr=0.01)
    fill(runner)
    seen = factors_given(runner)
    data = runner.buffer.actor_data(0, torch.zeros(6, 4, 1))
    learn(runner)
    exact = aggregate_ratio(runner.actors[0].log_probs(data) - data.log_probs, "prod")
    assert torch.equal(seen[1], exact)


def orders(**overrides: Any) -> list[tuple[int, ...]]:
    runner = small_runner(team_layout(), **overrides)
    assert isinstance(runner, OnPolicyHARunner)
    return [tuple(runner.update_order()) for _ in range(60)]


def test_G_2_and_NUM_10_order_of_updates_is_random_and_comes_from_the_seed() -> None:
    drawn = orders()
    assert set(drawn) == set(itertools.permutations(range(3)))
    assert drawn == orders()
    assert set(orders(algo__fixed_order=True)) == {(0, 1, 2)}


def test_G_2_and_D_22_numbers_of_an_agent_carry_its_name_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = small_runner(team_layout())
    fill(runner)
    monkeypatch.setattr(runner, "update_order", lambda: [2, 0, 1])
    for i, actor in enumerate(runner.actors):
        actor.train = lambda data, lesson, i=i: {"policy_loss": float(i)}  # type: ignore[method-assign]
    infos, _ = learn(runner)
    assert list(infos.items()) == [(f"agent_{i}", {"policy_loss": float(i)}) for i in range(3)]


def test_agents_of_mappo_do_not_depend_on_each_other() -> None:
    results = []
    for frozen in (False, True):
        runner = runner_for("mappo", team_layout())
        fill(runner)
        if frozen:
            runner.actors[0].train = nothing_happened  # type: ignore[method-assign]
        learn(runner)
        results.append(parameters(runner))
    assert not torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(one, two) for one, two in zip(results[0][1:], results[1][1:], strict=True))


def test_shared_policy_learns_from_the_rows_of_all_agents() -> None:
    runner = runner_for("mappo-shared", team_layout())
    fill(runner)
    seen: list[ActorData] = []
    runner.actors[0].train = lambda data, lesson: seen.append(data) or {"ratio": 1.0}  # type: ignore[method-assign,func-returns-value]
    infos, _ = learn(runner)
    assert len(seen[0].obs) == 3 * 24
    assert torch.equal(seen[0].obs[24:48], runner.buffer.obs[:-1, :, 1].flatten(0, 1))
    assert list(infos) == ["agent_0", "agent_1", "agent_2"]


# Finite numbers.


@pytest.mark.filterwarnings(EXPECTED)
@pytest.mark.parametrize("way", WAYS)
def test_NUM_04_rollout_of_one_step_in_one_environment(way: str) -> None:
    runner = runner_for(way, team_layout(agents=1), train__episode_length=1, train__n_rollout_threads=1)
    for seed in range(3):
        fill(runner, seed)
        learn(runner)
        assert all_finite(runner)


@pytest.mark.filterwarnings(EXPECTED)
@pytest.mark.parametrize("reward", [0.0, -53.3])
@pytest.mark.parametrize("way", WAYS)
def test_NUM_06_equal_advantages_leave_the_actors_where_they_are(way: str, reward: float) -> None:
    # With no discount and a critic that says 0, each advantage is the reward.
    runner = runner_for(way, team_layout(), algo__entropy_coef=0.0, algo__gamma=0.0, algo__critic_lr=0.0)
    runner.critic.get_values = lambda states: torch.zeros(len(states), 1)  # type: ignore[method-assign]
    runner.critic.denormalize = lambda values: values  # type: ignore[method-assign]
    before = parameters(runner)[: len(runner.actors)]
    for seed in range(5):
        fill(runner, seed)
        runner.buffer.rewards.zero_()
        runner.buffer.rewards[:, :, 0] = reward
        learn(runner)
        assert all_finite(runner)
    assert all(torch.equal(now, then) for now, then in zip(parameters(runner), before, strict=False))


@pytest.mark.parametrize("way", STEPPED)
def test_NUM_23_two_hundred_updates_without_any_reward_stay_finite(way: str) -> None:
    tiny = {"train__episode_length": 3, "train__n_rollout_threads": 2, "model__hidden_sizes": [4]}
    runner = runner_for(way, team_layout(agents=2), **tiny, **ONE_PASS, algo__critic_epoch=1)
    fill(runner)
    runner.buffer.rewards.zero_()
    for _ in range(200):
        runner.team.refresh()
        for t in range(3):
            runner.collect(t)
        learn(runner)
    assert all_finite(runner)


@pytest.mark.parametrize("way", ALGOS)
def test_NUM_23_gradient_that_is_no_number_stops_the_update_and_names_the_agent(way: str) -> None:
    runner = runner_for(way, team_layout())
    fill(runner)
    next(runner.actors[1].policy.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteError, match=r"actor of agent_1: .*grad.* NaN or infinite in this update"):
        learn(runner)


def test_NUM_23_infinite_gradient_is_found_too() -> None:
    runner = small_runner(team_layout())
    fill(runner)
    next(runner.actors[2].policy.parameters()).register_hook(lambda gradient: gradient / 0.0 + float("inf"))
    with pytest.raises(NonFiniteError, match="actor of agent_2"):
        learn(runner)


def test_NUM_23_critic_is_named() -> None:
    runner = small_runner(team_layout())
    fill(runner)
    next(runner.critic.network.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteError, match=r"critic: .*critic_grad_norm"):
        learn(runner)


@pytest.mark.parametrize("way", WAYS)
def test_NUM_23_advantage_that_is_no_number_stops_the_update(way: str) -> None:
    runner = runner_for(way, team_layout())
    fill(runner)
    runner.compute()
    runner.advantages[2, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"actor of (agent_\d|the shared policy): (policy_loss|the gradient)"):
        runner.train()


@pytest.mark.parametrize("number", [1400, 7830])
def test_MSK_03_updates_with_large_masked_action_sets(number: int) -> None:
    layout = layout_of(1, 4, 6, spaces.Discrete(number), has_masks=True)
    runner = small_runner(layout, algo__lr=0.01, algo__ppo_epoch=2, algo__critic_epoch=1)
    for seed in range(5):
        fill(runner, seed)
        assert runner.buffer.available_actions is not None
        chosen = runner.buffer.available_actions[:-1].gather(-1, runner.buffer.actions.long())
        assert (chosen == 1.0).all()
        learn(runner)
        assert all_finite(runner)


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("way", ALGOS)
def test_G_9_and_D_05_and_HET_02_agents_of_all_kinds_learn_together(way: str, state_type: str) -> None:
    runner = runner_for(way, hetero_layout(state_type))
    fill(runner)
    before = parameters(runner)
    infos, critic = learn(runner)
    assert all_finite(runner)
    assert list(infos) == ["three", "five", "parts", "point"]
    assert set(infos["point"]) == (REPORTED_BY_TRPO if way == "hatrpo" else REPORTED)
    assert set(critic) == {"value_loss", "critic_grad_norm"}
    assert not any(torch.equal(now, then) for now, then in zip(parameters(runner)[:5], before, strict=False))


def test_HET_07_actions_of_several_parts_stay_in_range_over_many_updates() -> None:
    runner = small_runner(hetero_layout(), algo__ppo_epoch=1, algo__critic_epoch=1, algo__lr=0.01)
    for seed in range(30):
        fill(runner, seed)
        parts = runner.buffer.actions[:, :, 2]
        assert parts.amax((0, 1)).le(torch.tensor([2.0, 1.0])).all()
        assert torch.equal(parts, parts.floor().clamp(min=0))
        learn(runner)
    assert all_finite(runner)


def test_learning_rate_falls_linearly_over_the_iterations() -> None:
    runner = small_runner(team_layout(), train__use_linear_lr_decay=True, train__num_env_steps=96)
    rates = []
    for iteration in range(runner.iterations):
        runner.iteration = iteration
        runner.decay_learning_rates()
        rates.append(runner.actors[0].optimizer.adam.param_groups[0]["lr"])
    assert rates == pytest.approx([5e-4, 3.75e-4, 2.5e-4, 1.25e-4])
