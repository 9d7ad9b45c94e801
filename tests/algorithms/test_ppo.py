"""The policy update: its loss by hand, and rows of agents that had left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harl.algorithms.actors.on_policy import OnPolicyActor
from harl.buffers.rollout import ActorData
from harl.runners import OnPolicyBaseRunner
from tests.algorithms.rollouts import ALGOS, SPACES, fill, learn, parameters, small_runner, team_layout

ONE_STEP = {"algo__ppo_epoch": 1, "algo__critic_epoch": 1}


def actor_and_rows(ratios: list[float], **overrides: Any) -> tuple[OnPolicyActor, ActorData]:
    """An actor, and rows whose stored log-probabilities make these ratios."""
    runner = small_runner(team_layout(), **ONE_STEP, **overrides)
    rows = len(ratios)
    data = ActorData(
        obs=torch.randn(rows, 4, generator=torch.Generator().manual_seed(0)),
        actions=torch.tensor([float(i % 5) for i in range(rows)]).unsqueeze(1),
        log_probs=torch.zeros(rows, 1),
        advantages=torch.ones(rows, 1),
        weights=torch.ones(rows, 1),
        decided=torch.ones(rows, 1),
        available_actions=None,
    )
    data.log_probs = runner.actors[0].log_probs(data) - torch.tensor(ratios).log().unsqueeze(1)
    return runner.actors[0], data


def test_surrogate_clips_the_ratio_on_the_side_that_would_pay() -> None:
    actor, data = actor_and_rows([1.5, 1.5, 0.5, 0.5, 1.1], algo__clip_param=0.2)
    data.advantages = torch.tensor([[1.0], [-1.0], [1.0], [-1.0], [2.0]])
    # min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8), 1.1 * 2.
    expected = -(1.2 - 1.5 + 0.5 - 0.8 + 2.2) / 5
    info = actor.train(data)
    assert info["policy_loss"] == pytest.approx(expected, abs=1e-5)
    assert info["ratio"] == pytest.approx((1.5 + 1.5 + 0.5 + 0.5 + 1.1) / 5, abs=1e-5)


def test_factor_multiplies_the_clipped_surrogate_and_is_not_clipped_itself() -> None:
    actor, data = actor_and_rows([1.5, 1.0], algo__clip_param=0.2)
    data.factor = torch.tensor([[10.0], [0.1]])
    assert actor.train(data)["policy_loss"] == pytest.approx(-(10 * 1.2 + 0.1 * 1.0) / 2, abs=1e-5)


def test_rows_of_weight_zero_do_not_count_in_any_mean() -> None:
    actor, data = actor_and_rows([1.0, 1.0, 1.0])
    data.advantages = torch.tensor([[1.0], [3.0], [1e4]])
    data.weights = torch.tensor([[1.0], [1.0], [0.0]])
    assert actor.train(data)["policy_loss"] == pytest.approx(-2.0, abs=1e-5)


def test_entropy_bonus_spreads_the_policy() -> None:
    actor, data = actor_and_rows([1.0] * 20, algo__entropy_coef=1.0, algo__lr=0.01)
    data.advantages = torch.zeros(20, 1)
    before = actor.policy(data.obs).entropy().mean().item()
    actor.train(data)
    assert before < actor.policy(data.obs).entropy().mean().item() <= math.log(5)


def noise_in(data: ActorData, dead: torch.Tensor) -> None:
    """Replace the rows in which the agent was not there by finite noise."""
    random = torch.Generator().manual_seed(9)
    for tensor in (data.obs, data.advantages):
        tensor[dead] = torch.randn(int(dead.sum()), tensor.shape[1], generator=random) * 50
    data.actions[dead] = torch.randint(2, (int(dead.sum()), data.actions.shape[1]), generator=random).float()


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("kind", SPACES)
def test_D_18_rows_of_a_dead_agent_change_neither_parameters_nor_entropy(kind: str, batches: int) -> None:
    results, entropies = [], []
    for noisy in (False, True):
        runner = small_runner(team_layout(kind), algo__actor_num_mini_batch=batches)
        fill(runner)
        runner.buffer.active[2:5, :3, 1] = 0.0
        data = runner.buffer.actor_data(1, torch.randn(6, 4, 1, generator=torch.Generator().manual_seed(3)))
        data = dataclasses.replace(data, obs=data.obs.clone(), actions=data.actions.clone())
        if noisy:
            noise_in(data, data.weights[:, 0] == 0)
        info = runner.actors[1].train(data)
        results.append(runner.actors[1].optimizer.vector.detach().clone())
        entropies.append((info["dist_entropy"], info["policy_loss"]))
    assert torch.equal(*results)
    assert entropies[0] == entropies[1]


def whole_update(disturb: Callable[[OnPolicyBaseRunner], None], algo: str, state_type: str) -> list[torch.Tensor]:
    """Parameters of the actors after an update with agent 1 away for a part of the rollout."""
    runner = small_runner(team_layout(state_type=state_type), algo, **ALGOS[algo])
    fill(runner)
    runner.buffer.active[2:5, :3, 1] = 0.0
    runner.compute()
    disturb(runner)
    runner.train()
    return parameters(runner)[: len(runner.actors)]


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("algo", ALGOS)
def test_G_7_and_D_07_noise_in_rows_of_a_dead_agent_changes_no_actor(algo: str, state_type: str) -> None:
    def disturb(runner: OnPolicyBaseRunner) -> None:
        gone = (runner.buffer.active[:-1] == 0).squeeze(-1)
        random = torch.Generator().manual_seed(9)
        runner.buffer.obs[:-1][gone] = torch.randn(9, 4, generator=random) * 50
        runner.buffer.actions[gone] = torch.randint(5, (9, 1), generator=random).float()
        if state_type == "FP":
            runner.advantages[gone] = torch.randn(9, 1, generator=random) * 50

    clean, noisy = whole_update(lambda runner: None, algo, state_type), whole_update(disturb, algo, state_type)
    assert all(torch.equal(one, other) for one, other in zip(clean, noisy, strict=True))


@pytest.mark.parametrize("algo", ALGOS)
def test_D_35_actor_of_an_agent_that_was_away_for_the_whole_rollout_is_left_alone(algo: str) -> None:
    runner = small_runner(team_layout(state_type="FP"), algo, **ALGOS[algo])
    fill(runner)
    runner.buffer.active[:, :, 1] = 0.0
    before = parameters(runner)
    infos, _ = learn(runner)
    after = parameters(runner)
    assert torch.equal(after[1], before[1])
    assert infos["agent_1"] == {}
    assert not torch.equal(after[0], before[0])
    assert all(bool(vector.isfinite().all()) for vector in after)


@pytest.mark.parametrize("algo", ALGOS)
def test_G_7_and_D_35_nobody_there_at_all(algo: str) -> None:
    runner = small_runner(team_layout(), algo)
    fill(runner)
    runner.buffer.active.zero_()
    before = parameters(runner)[: len(runner.actors)]
    infos, _ = learn(runner)
    after = parameters(runner)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=False))
    assert all(bool(vector.isfinite().all()) for vector in after)
    assert all(info == {} for info in infos.values())


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_D_35_minibatches_of_dead_rows_alone_stay_finite(algo: str) -> None:
    # One row a minibatch: those of agent 1 in the first half hold nothing to learn from.
    runner = small_runner(team_layout(agents=2), algo, algo__actor_num_mini_batch=24, algo__ppo_epoch=1)
    fill(runner)
    runner.buffer.active[:3, :, 1] = 0.0
    learn(runner)
    assert all(bool(vector.isfinite().all()) for vector in parameters(runner))


def test_optimiser_and_weights_come_back_from_the_state_of_an_actor() -> None:
    runner, other = small_runner(team_layout()), small_runner(team_layout())
    fill(runner)
    learn(runner)
    for source, target in zip(runner.actors, other.actors, strict=True):
        target.set_state(source.get_state())
    assert all(
        torch.equal(one.optimizer.vector, two.optimizer.vector)
        for one, two in zip(runner.actors, other.actors, strict=True)
    )
    first, second = (made.actors[1].optimizer.adam.state_dict()["state"][0] for made in (runner, other))
    assert torch.equal(first["exp_avg"], second["exp_avg"])
    assert torch.equal(first["exp_avg_sq"], second["exp_avg_sq"])


def test_rows_that_a_person_drove_do_not_count_even_where_dead_agents_do() -> None:
    def trained(advantage: float) -> torch.Tensor:
        actor, data = actor_and_rows([1.0] * 6, algo__use_policy_active_masks=False)
        data.advantages = torch.tensor([[1.0], [-1.0], [0.5], [2.0], [advantage], [advantage]])
        data.decided[4:] = data.weights[4:] = 0.0
        actor.train(data)
        return actor.optimizer.vector.detach().clone()

    assert torch.equal(trained(3.0), trained(-50.0))
