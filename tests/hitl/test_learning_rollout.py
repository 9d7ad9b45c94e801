"""What stands in the rollout after people drove, by mode: actions, log-probabilities, masks, rewards, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.buffers.overrides import Overrides
from harl.buffers.returns import discounted_returns, generalised_advantages
from harl.hitl.bridge import Credit, Source
from harl.hitl.learning import PeopleWarning
from harl.runners import OnPolicyBaseRunner
from tests.buffers.transitions import layout_of
from tests.hitl.scripted import PEOPLE, Scripted, between, on_policy
from tests.runners.runs import world

IDENTITY = world("Identity", T=7)
DRIVEN = between(3, 6, {(0, 1): 2, (1, 0): 3})
"""Steps 3, 4 and 5 of the rollout; agent 1 of environment 0 and agent 0 of environment 1."""


def collect(folder: Path, bridge: Scripted, *overrides: str, rollouts: int = 1) -> OnPolicyBaseRunner:
    """A runner after one rollout, before it is learned from; or after more, the earlier ones learned from."""
    env = [] if "env=pettingzoo" in overrides else IDENTITY
    runner = on_policy(folder, bridge, "algo=happo", *env, PEOPLE, *overrides)
    given: list[Any] = []
    step = runner.envs.step
    runner.envs.step = lambda actions: step(given.append(actions.copy()) or actions)  # type: ignore[method-assign]
    runner.given = given  # type: ignore[attr-defined]
    runner.warmup()
    runner.join_people()
    for i in range(rollouts):
        runner.prep_rollout()
        assert runner.rollout()
        if i < rollouts - 1:
            runner.update()
            runner.after_update()
    return runner


def driven_mask() -> np.ndarray[Any, Any]:
    mask = np.zeros((10, 2, 2), np.bool_)
    mask[3:6, 0, 1] = mask[3:6, 1, 0] = True
    return mask


@pytest.mark.parametrize("mode", ["mask_bc", "mask", "executed", "silent"])
@pytest.mark.filterwarnings("ignore::harl.hitl.learning.PeopleWarning")
def test_stored_action_is_the_one_that_the_environment_saw_except_silently(tmp_path: Path, mode: str) -> None:
    bridge = Scripted(DRIVEN)
    runner = collect(tmp_path, bridge, f"hitl.takeover.learn={mode}")
    given, human = np.stack(runner.given), driven_mask()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(given, np.stack(bridge.executed))
    assert (given[3:6, 0, 1, 0] == 2).all()
    assert (given[3:6, 1, 0, 0] == 3).all()
    proposed = np.stack(bridge.proposed)
    assert (proposed[human] != given[human]).any()
    np.testing.assert_array_equal(proposed[~human], given[~human])
    np.testing.assert_array_equal(runner.buffer.actions, proposed if mode == "silent" else given)
    masked = human if mode in ("mask_bc", "mask") else human & False
    np.testing.assert_array_equal(runner.buffer.policy_mask[..., 0] == 0, masked)
    assert runner.people is not None
    overrides = runner.people.overrides  # type: ignore[attr-defined]
    if mode != "silent":
        np.testing.assert_array_equal(overrides.source == Source.HUMAN, human)
        np.testing.assert_array_equal(overrides.proposals.numpy()[human], proposed[human])
        assert (overrides.proposals.numpy()[~human] == 0).all()


@pytest.mark.parametrize("mode", ["mask", "executed"])
def test_stored_log_prob_is_that_of_the_stored_action_under_the_policy_that_acted(tmp_path: Path, mode: str) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), f"hitl.takeover.learn={mode}")
    buffer = runner.buffer
    for i, actor in enumerate(runner.actors):
        data = buffer.actor_data(i, torch.zeros(10, 2, 1))
        torch.testing.assert_close(actor.log_probs(data), data.log_probs)
        _, _, ratio = actor.terms(data)
        torch.testing.assert_close(ratio, torch.ones_like(ratio))


def test_box_actions_are_clipped_to_the_bounds_for_everybody(tmp_path: Path) -> None:
    bridge = Scripted(between(2, 4, {(0, 0): [5.0, -0.5]}))
    runner = collect(tmp_path, bridge, *world("IdentityBox"), "hitl.takeover.learn=executed")
    given = np.stack(runner.given)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(given[2:4, 0, 0], [[1.0, -0.5]] * 2)
    np.testing.assert_array_equal(runner.buffer.actions[2:4, 0, 0], given[2:4, 0, 0])
    data = runner.buffer.actor_data(0, torch.zeros(10, 2, 1))
    torch.testing.assert_close(runner.actors[0].log_probs(data), data.log_probs)


def test_stand_ins_for_absent_drivers_are_never_learned_from(tmp_path: Path) -> None:
    """Nobody decided them: masked even where human steps are not, and no takeover."""
    bridge = Scripted(between(3, 6, {(0, 1): (2, Source.DEFAULT), (1, 0): (3, Source.PREVIOUS)}))
    runner = collect(tmp_path, bridge, "hitl.takeover.learn=executed", "hitl.takeover.takeover_penalty=1.0")
    np.testing.assert_array_equal(runner.buffer.policy_mask[..., 0] == 0, driven_mask())
    np.testing.assert_array_equal(
        runner.buffer.rewards[..., 0], [outcome.rewards[..., 0] for outcome in bridge.outcomes]
    )


def test_agents_that_have_left_cannot_be_driven(tmp_path: Path) -> None:
    bridge = Scripted(lambda step, obs, proposed: {(0, 0): 1} if step == 2 else {})
    runner = collect(tmp_path, bridge, *world("Deaths"), "hitl.takeover.learn=mask")
    assert runner.buffer.active[2, 0, 0, 0] == 0
    assert (runner.buffer.policy_mask == 1).all()
    assert runner.people is not None
    assert runner.people.counts.human == 0


def test_silent_warns_loudly(tmp_path: Path) -> None:
    with pytest.warns(PeopleWarning, match="ablation"):
        collect(tmp_path, Scripted(), "hitl.takeover.learn=silent")


# Rewards.


def test_rewards_of_people_are_learned_from_and_raw_ones_are_reported(tmp_path: Path) -> None:
    bridge = Scripted(rewards=lambda step, rewards: rewards + 5.0 if step == 4 else rewards)
    runner = collect(tmp_path, bridge)
    raw = np.stack([outcome.rewards for outcome in bridge.outcomes])
    expected = raw.copy()
    expected[4] += 5.0
    np.testing.assert_array_equal(runner.buffer.rewards, expected)
    episodes = runner.tracker.drain()
    assert episodes["train/episodes"] == 2
    assert episodes["train/return_sum"] == pytest.approx(raw[:7].sum() / 2)


def test_silence_is_no_reward(tmp_path: Path) -> None:
    bridge = Scripted(rewards=lambda step, rewards: rewards.copy())
    runner = collect(tmp_path, bridge, "hitl.reward.learn=replace")
    np.testing.assert_array_equal(runner.buffer.rewards, np.stack([outcome.rewards for outcome in bridge.outcomes]))


def test_late_feedback_reaches_its_step_as_long_as_that_is_in_the_rollout(tmp_path: Path) -> None:
    """Steps are named by environment steps: 2 environments, so step t of the second rollout is 20 + 2 t."""
    credits = {
        13: [Credit(20, 1, 0, 0.5), Credit(26, 0, 1, -0.25), Credit(26, 0, 1, 1.0)],
        15: [Credit(18, 0, 0, 9.0), Credit(21, 0, 0, 9.0), Credit(40, 0, 0, 9.0)],
    }
    bridge = Scripted(credits=credits)
    runner = collect(tmp_path, bridge, rollouts=2)
    expected = np.stack([outcome.rewards for outcome in bridge.outcomes[10:]])
    expected[0, 1, 0] += 0.5
    expected[3, 0, 1] += 0.75
    np.testing.assert_allclose(runner.buffer.rewards, expected, rtol=1e-6)
    assert runner.people is not None
    assert runner.people.counts.drain()["people/late_credits"] == 3


def test_penalty_is_on_the_agents_own_step_before_each_takeover(tmp_path: Path) -> None:
    """Takeovers at steps 3 and 8 of agent 1; at step 0 there is nothing before it, at step 7 an episode begins."""

    def drive(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
        own = {(0, 1): 2} if step in (3, 4, 8) else {}
        return {**own, **({(1, 0): 1} if step in (0, 1, 7) else {})}

    bridge = Scripted(drive)
    runner = collect(tmp_path, bridge, "hitl.takeover.takeover_penalty=0.5")
    expected = np.stack([outcome.rewards for outcome in bridge.outcomes])
    expected[2, 0, 1] -= 0.5
    expected[7, 0, 1] -= 0.5
    np.testing.assert_allclose(runner.buffer.rewards, expected, rtol=1e-6)
    assert runner.people is not None
    counts = runner.people.counts
    assert (counts.takeovers, counts.human) == (2, 6)  # the two that cost something


def test_penalty_of_a_step_in_the_rollout_before_is_dropped(tmp_path: Path) -> None:
    bridge = Scripted(between(10, 12, {(0, 1): 2}))
    runner = collect(tmp_path, bridge, "hitl.takeover.takeover_penalty=0.5", rollouts=2)
    np.testing.assert_array_equal(runner.buffer.rewards, np.stack([o.rewards for o in bridge.outcomes[10:]]))


# Traces.


def test_trace_ends_at_a_handover_and_the_value_does_not() -> None:
    """By hand: γ = 0.5, λ = 0.5, V = 1, 2, 3, 4, rewards 1; somebody else acts from step 2 on."""
    rewards, values = torch.ones(3, 1, 1), torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)
    ones, zeros = torch.ones(3, 1, 1), torch.zeros(3, 1, 1)
    trace = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1)
    deltas = [1 + 0.5 * 2 - 1, 1 + 0.5 * 3 - 2, 1 + 0.5 * 4 - 3]
    found = generalised_advantages(rewards, values, ones, zeros, 0.5, 0.5, trace=trace)
    expected = [deltas[0] + 0.25 * deltas[1], deltas[1], deltas[2]]
    torch.testing.assert_close(found.flatten(), torch.tensor(expected))
    plain = generalised_advantages(rewards, values, ones, zeros, 0.5, 0.5)
    torch.testing.assert_close(plain[1].item(), deltas[1] + 0.25 * deltas[2])
    sums = discounted_returns(rewards, values, ones, zeros, 0.5, trace=trace)
    torch.testing.assert_close(sums.flatten(), torch.tensor([1 + 0.5 * (1 + 0.5 * 3), 1 + 0.5 * 3, 1 + 0.5 * 4]))
    # With λ = 1 the two are the same.
    whole = generalised_advantages(rewards, values, ones, zeros, 0.5, 1.0, trace=trace) + values[:-1]
    torch.testing.assert_close(whole, sums)


def test_trace_of_the_team_ends_with_anybody_and_of_an_agent_with_its_own() -> None:
    overrides = Overrides(layout_of(2), 5, 2)
    assert overrides.trace(False) is None
    overrides.any = True
    overrides.source[1:3, 0, 1] = Source.HUMAN
    overrides.source[4, 1, 0] = Source.HUMAN
    overrides.source[3, 1, 1], overrides.source[4, 1, 1] = Source.DEFAULT, Source.PREVIOUS
    team, each = overrides.trace(False), overrides.trace(True)
    assert team is not None
    assert each is not None
    assert team[..., 0].tolist() == [[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]]
    assert each[..., 0].tolist() == [
        [[1, 0], [1, 1]],
        [[1, 1], [1, 1]],
        [[1, 0], [1, 0]],
        [[1, 1], [0, 1]],
        [[1, 1], [1, 1]],
    ]


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_advantages_of_a_rollout_follow_the_traces(tmp_path: Path, state_type: str, cut: bool) -> None:
    runner = collect(
        tmp_path, Scripted(DRIVEN), f"env.state_type={state_type}", f"hitl.takeover.cut_trace={str(cut).lower()}"
    )
    runner.compute()
    buffer, gamma, decay = runner.buffer, runner.algo.gamma, runner.algo.gae_lambda
    values = runner.critic.denormalize(buffer.value_preds)
    human = driven_mask()
    for env in range(2):
        for agent in range(2):
            where = (slice(None), env, agent, 0) if state_type == "FP" else (slice(None), env, 0)
            value = values[where].tolist()
            reward = buffer.rewards[:, env, :, 0].mean(1).tolist()
            flags = human[:, env, agent] if state_type == "FP" else human[:, env].any(1)
            following = 0.0
            for t in reversed(range(10)):
                end = bool(buffer.ended[t, env])
                # Identity is cut by its time limit: bootstrapped from the final state.
                next_value = _final_value(runner, t, env, agent) if end else value[t + 1]
                goes_on = not end and t < 9 and not (cut and flags[t] != flags[t + 1])
                following = reward[t] + gamma * next_value - value[t] + gamma * decay * goes_on * following
                assert runner.advantages[where][t].item() == pytest.approx(following, abs=1e-5)


def _final_value(runner: OnPolicyBaseRunner, t: int, env: int, agent: int) -> float:
    for step, envs, states in runner.buffer.final_share_obs:
        if step == t:
            state = states[envs.tolist().index(env)]
            state = state[agent] if runner.buffer.per_agent_values else state
            return float(runner.critic.denormalize(runner.critic.get_values(state.unsqueeze(0))))
    raise AssertionError("no episode ended there")


def test_memory_goes_on_through_human_steps(tmp_path: Path) -> None:
    """Policies that see the same remember the same, whoever acts."""
    memory = ["model.use_recurrent_policy=true", "model.data_chunk_length=5", *world("Recall", T=7)]
    driven = collect(tmp_path, Scripted(between(3, 6, {(0, 1): 1, (1, 0): 0})), *memory)
    alone = collect(tmp_path, Scripted(), *memory)
    assert driven.buffer.hidden is not None
    assert alone.buffer.hidden is not None
    assert (driven.buffer.hidden[1:] != 0).any()
    assert torch.equal(driven.buffer.hidden, alone.buffer.hidden)
    assert not torch.equal(driven.buffer.actions, alone.buffer.actions)
    for i, actor in enumerate(driven.actors):
        data = driven.buffer.actor_data(i, torch.zeros(10, 2, 1))
        torch.testing.assert_close(actor.log_probs(data), data.log_probs)


def test_people_are_told_log_probabilities_of_now(tmp_path: Path) -> None:
    bridge = Scripted()
    runner = collect(tmp_path, bridge)
    stage = bridge.stages[0]
    masks = None
    found = stage.log_probs(bridge.obs[9], masks, bridge.proposed[9])
    np.testing.assert_allclose(found, runner.buffer.action_log_probs[9, ..., 0], rtol=1e-5)
