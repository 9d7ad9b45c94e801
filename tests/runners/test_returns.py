"""How a runner turns a rollout with ends of all kinds into returns and advantages, by hand and by brute force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harl.runners import OnPolicyBaseRunner
from harl.runners.advantages import normalised
from tests.algorithms.rollouts import fill, small_runner, team_layout

HALVES = {"algo__gamma": 0.5, "algo__gae_lambda": 0.5, "algo__use_valuenorm": False}


def runner_with_values(steps: int, envs: int, agents: int, state_type: str, **overrides: Any) -> OnPolicyBaseRunner:
    """A runner whose critic says the first number of the state, so that values can be laid down."""
    options = HALVES | {"train__episode_length": steps, "train__n_rollout_threads": envs} | overrides
    runner = small_runner(team_layout(agents=agents, state_type=state_type), **options)
    runner.critic.get_values = lambda states: states[:, :1].clone()  # type: ignore[method-assign]
    return runner


def add_final(runner: OnPolicyBaseRunner, t: int, env: int, *values: float) -> None:
    """The last state of an episode that ended at step t, with its value (EP) or one for each agent (FP)."""
    rows = torch.zeros(1, *runner.buffer.share_obs.shape[2:])
    rows[0, ..., 0] = torch.tensor(values) if runner.buffer.per_agent_values else values[0]
    runner.buffer.final_share_obs.append((t, torch.tensor([env]), rows))


def team_of_two(state_type: str, **overrides: Any) -> OnPolicyBaseRunner:
    """Three steps of one environment, two agents: values 1, 2, 3, 4, rewards of the team 1, 1, 3."""
    runner = runner_with_values(3, 1, 2, state_type, **{"env__reward": "shared_sum"} | overrides)
    buffer = runner.buffer
    buffer.share_obs[:, 0, ..., 0] = torch.arange(1.0, 5.0).view(4, *[1] * (buffer.share_obs.dim() - 3))
    buffer.rewards[:, 0, :, 0] = torch.tensor([[1.0, 0.0], [0.25, 0.75], [1.0, 2.0]])
    return runner


def end(runner: OnPolicyBaseRunner, t: int, terminated: list[bool], truncated: list[bool]) -> None:
    buffer = runner.buffer
    buffer.terminated[t, 0], buffer.truncated[t, 0] = torch.tensor(terminated), torch.tensor(truncated)
    buffer.ended[t, 0] = True


def advantages(runner: OnPolicyBaseRunner) -> list[Any]:
    runner.compute()
    return runner.advantages[:, 0, ..., 0].tolist()


def test_rollout_that_ends_within_an_episode() -> None:
    assert advantages(team_of_two("EP")) == [1.25, 1.0, 2.0]
    assert advantages(team_of_two("FP")) == [[1.25, 1.25], [1.0, 1.0], [2.0, 2.0]]


def test_team_that_terminates() -> None:
    runner = team_of_two("EP")
    end(runner, 1, [True, True], [False, False])
    add_final(runner, 1, 0, 10.0)
    assert advantages(runner) == [0.75, -1.0, 2.0]


def test_D_14_team_that_is_cut_is_bootstrapped_from_the_final_state() -> None:
    runner = team_of_two("EP")
    end(runner, 1, [False, False], [True, True])
    add_final(runner, 1, 0, 10.0)
    # 1 + 10/2 - 2 = 4, with the value of the final state and not the 3 of the reset one.
    assert advantages(runner) == [2.0, 4.0, 2.0]
    assert runner.buffer.returns[:, 0, 0].tolist() == [3.0, 6.0, 5.0]


def test_team_in_which_one_terminated_and_the_other_was_cut_is_bootstrapped() -> None:
    runner = team_of_two("EP")
    end(runner, 1, [True, False], [False, True])
    add_final(runner, 1, 0, 10.0)
    assert advantages(runner) == [2.0, 4.0, 2.0]


def test_agents_of_one_end_are_bootstrapped_each_by_its_own_flag() -> None:
    runner = team_of_two("FP")
    end(runner, 1, [True, False], [False, True])
    add_final(runner, 1, 0, 10.0, 20.0)
    # The first as a terminated team; the second with 1 + 20/2 - 2 = 9, and 1 + 9/4 before it.
    assert advantages(runner) == [[0.75, 3.25], [-1.0, 9.0], [2.0, 2.0]]


def test_terminated_and_truncated_at_once_is_terminated() -> None:
    for state_type, expected in (("EP", [0.75, -1.0, 2.0]), ("FP", [[0.75, 0.75], [-1.0, -1.0], [2.0, 2.0]])):
        runner = team_of_two(state_type)
        end(runner, 1, [True, True], [True, True])
        add_final(runner, 1, 0, 10.0, 10.0)
        assert advantages(runner) == expected


def test_cut_of_an_agent_that_had_left_before_does_not_cut_the_team() -> None:
    runner = team_of_two("EP")
    runner.buffer.active[1, 0, 1] = 0.0
    end(runner, 1, [True, False], [False, True])
    add_final(runner, 1, 0, 10.0)
    assert advantages(runner) == [0.75, -1.0, 2.0]


def test_DED_06_recursion_of_an_agent_stops_at_its_own_end() -> None:
    runner = team_of_two("FP", env__reward="individual")
    buffer = runner.buffer
    # The second agent terminates after the first step and is away for the rest of the episode.
    buffer.terminated[0, 0, 1] = True
    buffer.active[1:, 0, 1] = 0.0
    result = advantages(runner)
    # Its only step: 0 - 1. The first goes on: 0.25 + 1.5 - 2, 1 + 2 - 3.
    assert result[0][1] == -1.0
    assert [row[0] for row in result] == [1.0 - 0.0625, -0.25, 0.0]
    assert buffer.actor_data(1, runner.advantages).weights.flatten().tolist() == [1.0, 0.0, 0.0]
    assert buffer.critic_data().weights is not None
    assert buffer.critic_data().weights.flatten().tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]


def test_DED_06_two_lives_of_an_agent_are_not_glued_together() -> None:
    runner = team_of_two("FP", env__reward="individual")
    buffer = runner.buffer
    # Away in slot 1, back in slot 2, where the next episode begins.
    buffer.terminated[0, 0, 1] = True
    buffer.active[1, 0, 1] = 0.0
    end(runner, 1, [True, False], [False, False])
    add_final(runner, 1, 0, 10.0, 10.0)
    result = advantages(runner)
    assert [row[1] for row in result][::2] == [-1.0, 2.0 + 2.0 - 3.0]


def test_reward_of_the_team_is_the_sum_or_the_mean() -> None:
    for how, expected in (("shared_sum", [1.0, 1.0, 3.0]), ("shared_mean", [0.5, 0.5, 1.5])):
        runner = team_of_two("EP", env__reward=how)
        assert runner.learning_rewards().flatten().tolist() == expected


def test_individual_rewards_stay_with_their_agents() -> None:
    runner = team_of_two("FP", env__reward="individual")
    assert torch.equal(runner.learning_rewards(), runner.buffer.rewards)


def test_G_4_and_D_16_returns_without_gae_are_bootstrapped_on_the_scale_of_rewards() -> None:
    runner = runner_with_values(1, 1, 2, "EP", algo__use_gae=False, algo__use_valuenorm=True)
    assert runner.critic.value_normalizer is not None
    runner.critic.value_normalizer.update(torch.tensor([[90.0], [110.0]]))
    runner.buffer.share_obs[..., 0] = 0.5
    runner.buffer.rewards[0, 0, :, 0] = torch.tensor([1.0, 0.0])
    runner.compute()
    # 1 + (0.5 * 10 + 100) / 2; the value of the state itself is 105.
    assert runner.buffer.returns.item() == pytest.approx(53.5, abs=0.02)
    assert runner.advantages.item() == pytest.approx(53.5 - 105, abs=0.02)


def rollout_with_cuts(time_limit: str) -> OnPolicyBaseRunner:
    """The case bank's F1: reward 1 in each of 20 steps, cut every 5; a critic with its initial weights."""
    runner = small_runner(team_layout(agents=2), algo__time_limit=time_limit, train__episode_length=20)
    fill(runner)
    buffer = runner.buffer
    buffer.rewards.fill_(0.5)
    random = torch.Generator().manual_seed(7)
    for t in range(4, 20, 5):
        buffer.ended[t], buffer.truncated[t] = True, True
        buffer.final_share_obs.append((t, torch.arange(4), torch.randn(4, 6, generator=random)))
    return runner


def test_TLB_10_no_cut_step_is_thrown_away() -> None:
    runner = rollout_with_cuts("bootstrap")
    runner.compute()
    buffer, critic = runner.buffer, runner.critic
    for t, _, states in buffer.final_share_obs:
        final = critic.denormalize(critic.get_values(states))
        torch.testing.assert_close(buffer.returns[t], 1.0 + 0.99 * final, rtol=1e-5, atol=1e-5)
        assert (runner.advantages[t].abs() > 1e-3).all()
        old = critic.denormalize(buffer.value_preds[t])
        assert ((buffer.returns[t] - old).abs() > 1e-3).all()


def test_TLB_10_first_observation_of_the_next_episode_has_no_part_in_it() -> None:
    results = []
    for other in (False, True):
        runner = rollout_with_cuts("bootstrap")
        if other:
            runner.buffer.share_obs[5] += 100.0
        runner.compute()
        results.append(runner.advantages[:5].clone())
    assert torch.equal(*results)


def test_TLB_10_zeroing_is_the_documented_legacy_option() -> None:
    runner = rollout_with_cuts("mask")
    runner.compute()
    for t in range(4, 20, 5):
        assert not runner.advantages[t].any()
        assert torch.equal(runner.buffer.returns[t], runner.critic.denormalize(runner.buffer.value_preds[t]))


def settled_value(time_limit: str) -> float:
    """What the critic says of the one observation there is, after 60 rollouts of a rewarded episode of 25 steps."""
    runner = small_runner(
        team_layout(agents=2),
        train__episode_length=25,
        model__hidden_sizes=[16],
        env__reward="shared_mean",
        algo__time_limit=time_limit,
        algo__critic_lr=5e-3,
        algo__critic_epoch=10,
    )
    buffer, state = runner.buffer, torch.full((4, 6), 0.5)
    buffer.share_obs.fill_(0.5)
    buffer.rewards.fill_(1.0)
    buffer.ended[-1], buffer.truncated[-1] = True, True
    buffer.final_share_obs.append((24, torch.arange(4), state))
    for _ in range(60):
        runner.compute()
        runner.critic.train(buffer.critic_data())
    return runner.critic.denormalize(runner.critic.get_values(state))[0].item()


def test_TLB_02_value_of_a_task_that_is_only_cut_is_that_of_going_on_for_ever() -> None:
    # 1 / (1 - 0.99) = 100; who takes the cut for an end cannot get beyond the sum of 25 steps, 22.2.
    assert settled_value("bootstrap") == pytest.approx(100.0, abs=10.0)
    assert settled_value("ignore") < 22.2


@dataclass
class Life:
    """Steps start … stop - 1 of one environment, which belong together for the team or for one agent."""

    start: int
    stop: int
    cut: bool
    final_value: float
    """Value of the state after the last step, if it was cut."""


def random_ends(runner: OnPolicyBaseRunner, random: np.random.Generator) -> list[list[list[Life]]]:
    """Lay random episodes, in which agents leave early, into the buffer; lives of each agent (FP) or of the team."""
    buffer = runner.buffer
    T, N, A = buffer.rewards.shape[:3]
    lives: list[list[list[Life]]] = []
    for n in range(N):
        agents: list[list[Life]] = [[] for _ in range(A if buffer.per_agent_values else 1)]
        start = 0
        while start < T:
            own = random.integers(1, 6, A)
            stop = start + int(own.max())
            terminates, truncates = random.random(A) < 0.5, np.zeros(A, bool)
            truncates = ~terminates | (random.random(A) < 0.3)
            final = random.normal(size=A if buffer.per_agent_values else 1)
            for a in range(A):
                left = start + int(own[a])
                buffer.active[left : min(stop, T + 1), n, a] = 0.0
                if left <= T:
                    buffer.terminated[left - 1, n, a] = bool(terminates[a])
                    buffer.truncated[left - 1, n, a] = bool(truncates[a])
                buffer.rewards[left : min(stop, T), n, a] = 0.0
            if stop <= T:
                buffer.ended[stop - 1, n] = True
                add_final(runner, stop - 1, n, *final.tolist())
            cut = truncates & ~terminates
            if buffer.per_agent_values:
                for a in range(A):
                    left = start + int(own[a])
                    # One who leaves before the others is valued by the state after its last step.
                    value = float(final[a]) if left == stop else float(buffer.share_obs[min(left, T), n, a, 0])
                    agents[a].append(Life(start, left, bool(cut[a]), value))
            else:
                agents[0].append(Life(start, stop, bool((cut & (own == own.max())).any()), float(final[0])))
            start = stop
        lives.append(agents)
    return lives


def brute_force(life: Life, t: int, rewards: Tensor, values: Tensor, time_limit: str, use_gae: bool) -> float:
    """Advantage of step t of a life by its definition: a sum to the end of the life or of the rollout; γ = λ = ½."""
    T = len(rewards)
    total, weight = 0.0, 1.0
    for step in range(t, min(life.stop, T)):
        last = step == life.stop - 1
        if last and life.cut and time_limit == "mask":
            # Plain returns stop at the value of the cut state, which weighs γ^k; a trace just stops.
            return total if use_gae else total + weight * float(values[step]) - float(values[t])
        following = float(values[step + 1])
        if last:
            following = life.final_value if life.cut and time_limit == "bootstrap" else 0.0
        reward = float(rewards[step])
        if use_gae:
            total += weight * (reward + 0.5 * following - float(values[step]))
            weight *= 0.25
        else:
            total += weight * reward
            weight *= 0.5
            if last or step == T - 1:
                total += weight * following
    return total if use_gae else total - float(values[t])


@pytest.mark.parametrize("use_gae", [True, False])
@pytest.mark.parametrize("time_limit", ["bootstrap", "mask", "ignore"])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_G_4_and_D_14_random_ends_equal_brute_force(state_type: str, time_limit: str, use_gae: bool) -> None:
    how: dict[str, Any] = {"algo__time_limit": time_limit, "algo__use_gae": use_gae, "env__reward": "shared_sum"}
    if state_type == "FP":
        how["env__reward"] = "individual"
    runner = runner_with_values(25, 6, 3, state_type, **how)
    buffer = runner.buffer
    buffer.share_obs.normal_(generator=torch.Generator().manual_seed(1))
    buffer.rewards.normal_(generator=torch.Generator().manual_seed(2))
    lives = random_ends(runner, np.random.default_rng(3))
    runner.compute()
    checked = {True: 0, False: 0}
    for n, agents in enumerate(lives):
        for a, own in enumerate(agents):
            column = (slice(None), n, a, 0)
            rewards = buffer.rewards[column] if state_type == "FP" else buffer.rewards[:, n].sum(1)[:, 0]
            values = buffer.share_obs[column] if state_type == "FP" else buffer.share_obs[:, n, 0]
            found = runner.advantages[column] if state_type == "FP" else runner.advantages[:, n, 0]
            for life in own:
                for t in range(life.start, min(life.stop, 25)):
                    expected = brute_force(life, t, rewards, values, time_limit, use_gae)
                    assert found[t].item() == pytest.approx(expected, abs=1e-5), (n, a, t, life)
                    checked[life.cut] += 1
    assert min(checked.values()) > 20


# Advantages as the policies see them.


def test_advantages_are_standardised_over_the_steps_that_count() -> None:
    weights = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).view(3, 1, 2, 1)
    result = normalised(torch.tensor([1.0, 3.0, 7.0]).view(3, 1, 1), weights)[:, 0, :, 0]
    # Agent 0 over 1 and 3: -1, 1; agent 1 over 1 and 7: -1, 1.
    torch.testing.assert_close(result[:2, 0], torch.tensor([-1.0, 1.0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(result[::2, 1], torch.tensor([-1.0, 1.0]), rtol=0, atol=1e-4)


def test_advantages_of_one_network_are_standardised_together() -> None:
    weights = torch.ones(2, 1, 2, 1)
    weights[1, 0, 1] = 0.0
    result = normalised(torch.tensor([0.0, 3.0]).view(2, 1, 1), weights, together=True)[:, 0, :, 0]
    # 0, 0 and 3 count: mean 1, population variance 2.
    torch.testing.assert_close(result[:, 0], torch.tensor([-1.0, 2.0]) / 2**0.5, rtol=0, atol=1e-4)


def test_advantages_of_each_agents_own_value_have_one_mean_and_spread() -> None:
    each = torch.tensor([0.0, 2.0, 4.0, 6.0]).view(2, 1, 2, 1)
    result = normalised(each, torch.ones(2, 1, 2, 1)).flatten()
    torch.testing.assert_close(result, torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5, rtol=0, atol=1e-4)


def test_noise_where_nobody_decided_has_no_part_in_the_statistics() -> None:
    each = torch.randn(5, 4, 3, 1, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(5, 4, 3, 1)
    weights[2:, 1, 2] = 0.0
    noisy = torch.where(weights > 0, each, 1e4)
    counted = weights > 0
    assert torch.equal(normalised(each, weights)[counted], normalised(noisy, weights)[counted])


@pytest.mark.parametrize("together", [True, False])
def test_NUM_04_single_element_gives_zero(together: bool) -> None:
    assert normalised(torch.full((1, 1, 1), 5.5), torch.ones(1, 1, 1, 1), together).tolist() == [[[[0.0]]]]


@pytest.mark.parametrize("together", [True, False])
def test_NUM_04_nobody_left_gives_no_nan(together: bool) -> None:
    assert normalised(torch.randn(4, 3, 1), torch.zeros(4, 3, 2, 1), together).isfinite().all()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -53.3, 1234.567, 100_000.1])
def test_NUM_06_equal_advantages_give_zero(value: float, together: bool) -> None:
    weights = torch.ones(200, 20, 3, 1)
    assert not normalised(torch.full((200, 20, 1), value), weights, together).any()
    assert not normalised(torch.full((200, 20, 3, 1), value), weights, together).any()


def test_NUM_23_advantage_that_is_no_number_stays_one_that_is_none() -> None:
    broken = torch.ones(4, 1, 1)
    broken[2] = float("nan")
    assert normalised(broken, torch.ones(4, 1, 2, 1)).isnan().any()
