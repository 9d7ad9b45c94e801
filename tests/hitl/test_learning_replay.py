"""What stands in the replay after people drove, by mode, and how batches are drawn from what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.config import ConfigError
from harl.hitl.bridge import Credit, Source
from harl.models.plain import SquashedGaussianPolicy
from harl.runners import OffPolicyBaseRunner
from tests.algorithms.learners import learners, team_layout
from tests.hitl.scripted import PEOPLE, Scripted, between, off_policy, parameters
from tests.hitl.test_learning_imitation import people_of, recorded
from tests.hitl.test_learning_nobody import env_of
from tests.runners.runs import column, world

IDENTITY = world("Identity", T=7)
DRIVEN = between(3, 6, {(0, 1): 2, (1, 0): 3})
"""Steps 3, 4 and 5: agent 1 of environment 0 and agent 0 of environment 1."""
LONG = ["algo.n_step=1", "algo.buffer_size=200", "train.warmup_steps=1000", "train.num_env_steps=40"]
"""A replay with room for everything, and nothing learned from it."""


def collect(folder: Path, bridge: Scripted, *overrides: str, algo: str = "hasac") -> OffPolicyBaseRunner:
    """A runner after 20 steps of 2 environments."""
    env = [] if "env=pettingzoo" in overrides else IDENTITY
    runner = off_policy(folder, bridge, algo, *env, PEOPLE, *LONG, *overrides)
    given: list[Any] = []
    step = runner.envs.step
    runner.envs.step = lambda actions: step(given.append(actions.copy()) or actions)  # type: ignore[method-assign]
    runner.given = given  # type: ignore[attr-defined]
    runner.run()
    return runner


def stored(runner: OffPolicyBaseRunner) -> Any:
    """All rows of the replay."""
    return runner.buffer.gather(torch.arange(runner.buffer.filled * 2))


def by_step(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """(A, 40, …) as (20, 2, A, …), or (40, …) as (20, 2, …)."""
    rows = tensor if tensor.dim() == 2 else tensor.transpose(0, 1)
    return rows.reshape(20, 2, *rows.shape[1:]).numpy()


def raw(bridge: Scripted) -> np.ndarray[Any, Any]:
    """(20, 2) mean over agents of what the environments gave."""
    result: np.ndarray[Any, Any] = np.stack([outcome.rewards[..., 0].mean(1) for outcome in bridge.outcomes])
    return result


@pytest.mark.parametrize("mode", ["rlpd", "rlpd_bc", "replay", "rlif", "silent"])
@pytest.mark.filterwarnings("ignore::harl.hitl.learning.PeopleWarning")
def test_stored_action_is_the_one_that_the_environment_saw_except_silently(tmp_path: Path, mode: str) -> None:
    bridge = Scripted(DRIVEN)
    runner = collect(tmp_path, bridge, f"hitl.takeover.learn={mode}")
    given, proposed = np.stack(runner.given), np.stack(bridge.proposed)  # type: ignore[attr-defined]
    human = np.stack(bridge.human)
    np.testing.assert_array_equal(given, np.stack(bridge.executed))
    assert human.sum() == 6
    assert (proposed[human] != given[human]).any()
    np.testing.assert_array_equal(by_step(stored(runner).actions), proposed if mode == "silent" else given)
    assert runner.buffer.people is not None
    marks = runner.buffer.people.driven[:20]
    np.testing.assert_array_equal(marks, human & (mode != "silent"))


def test_box_actions_are_clipped_to_the_bounds_for_everybody(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(between(2, 4, {(0, 0): [5.0, -0.5]})), *world("IdentityBox"))
    np.testing.assert_array_equal(runner.given[2][0, 0], [1.0, -0.5])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(by_step(stored(runner).actions)[2:4, 0, 0], [[1.0, -0.5]] * 2)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_second_buffer_has_every_human_transition_once_and_no_other(
    tmp_path: Path, state_type: str, n_step: int
) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), f"algo.n_step={n_step}", f"env.state_type={state_type}")
    second = people_of(runner).second
    assert len(second) == 6
    rows = torch.tensor([2 * t + env for t in (3, 4, 5) for env in (0, 1)])
    expected, found = runner.buffer.gather(rows), second.sample(200)
    for name in ("obs", "next_obs", "actions", "rewards", "discounts", "next_share_obs"):
        wanted, drawn = getattr(expected, name), getattr(found, name)
        batch_first = wanted.dim() == 3 and wanted.shape[0] == 2 and wanted.shape[1] == 6
        wanted = {tuple(row.flatten().tolist()) for row in (wanted.transpose(0, 1) if batch_first else wanted)}
        drawn = {tuple(row.flatten().tolist()) for row in (drawn.transpose(0, 1) if batch_first else drawn)}
        assert wanted == drawn, name


def test_share_of_each_batch_is_drawn_from_human_transitions(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), "algo.batch_size=8", "hitl.takeover.demo_fraction=0.5")
    batch = people_of(runner).sample(8)
    assert (batch.index == -1).sum() == 4
    assert batch.obs.shape[1] == batch.rewards.shape[0] == 8
    # Of a buffer with 6 rows at most 6 are drawn.
    assert (people_of(runner).sample(100).index == -1).sum() == 6
    whole = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.demo_fraction=1.0")
    assert (people_of(whole).sample(4).index == -1).all()
    none = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.demo_fraction=0.0")
    assert (people_of(none).sample(8).index >= 0).all()
    plain = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.learn=replay")
    assert people_of(plain).second is None
    assert (people_of(plain).sample(8).index >= 0).all()


def test_stand_ins_for_absent_drivers_are_no_human_transitions(tmp_path: Path) -> None:
    bridge = Scripted(between(3, 6, {(0, 1): (2, Source.DEFAULT)}))
    runner = collect(tmp_path, bridge)
    assert len(people_of(runner).second) == 0
    assert (by_step(stored(runner).actions)[3:6, 0, 1] == 2).all()


def test_sums_do_not_run_across_handovers(tmp_path: Path) -> None:
    """n_step 3; environment 0 changes hands before steps 3 and 6, its episodes end with steps 6 and 13."""
    runner = collect(tmp_path, Scripted(between(3, 6, {(0, 1): 2})), "algo.n_step=3")
    lengths = by_step(runner.buffer.lengths(torch.arange(40)).unsqueeze(1))[..., 0]
    assert lengths[:14, 0].tolist() == [3, 2, 1, 3, 2, 1, 1, 3, 3, 3, 3, 3, 2, 1]
    assert lengths[:7, 1].tolist() == [3, 3, 3, 3, 3, 2, 1]


def test_takeovers_alone_are_learned_from_with_rlif(tmp_path: Path) -> None:
    """-1 for the agent's step before; nothing before an episode's first step, nothing of the environment's rewards."""

    def drive(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
        own = {(0, 1): 2} if step in (3, 4, 8) else {}
        return {**own, **({(1, 0): 1} if step in (0, 1, 7) else {})}

    bridge = Scripted(drive, rewards=lambda step, rewards: rewards + 1.0, credits={9: [Credit(4, 0, 0, 5.0)]})
    runner = collect(tmp_path, bridge, "hitl.takeover.learn=rlif")
    expected = np.zeros((20, 2))
    expected[2, 0] = expected[7, 0] = -0.5  # the mean over two agents
    np.testing.assert_array_equal(by_step(stored(runner).rewards)[..., 0], expected)
    assert any("rlif" in notice for notice in runner.notices)


def test_penalty_is_on_the_step_before_each_takeover(tmp_path: Path) -> None:
    bridge = Scripted(DRIVEN)
    runner = collect(tmp_path, bridge, "hitl.takeover.takeover_penalty=0.5")
    expected = raw(bridge)
    expected[2] -= 0.25
    np.testing.assert_allclose(by_step(stored(runner).rewards)[..., 0], expected, rtol=1e-6)


@pytest.mark.parametrize("n_step", [1, 3])
def test_late_feedback_reaches_the_replay_and_the_second_buffer(tmp_path: Path, n_step: int) -> None:
    """As if the reward had been given at once; what names no step in the replay changes nothing."""
    late = {15: [Credit(8, 0, 1, 2.0), Credit(30, 1, 0, 1.0)], 16: [Credit(9, 0, 1, 2.0), Credit(60, 0, 1, 2.0)]}

    def at_once(step: int, rewards: Any) -> Any:
        changed = rewards.copy()
        if step == 4:
            changed[0, 1] += 2.0
        if step == 15:
            changed[1, 0] += 1.0
        return changed

    amended = collect(tmp_path, Scripted(DRIVEN, credits=late), f"algo.n_step={n_step}")
    right = collect(tmp_path, Scripted(DRIVEN, rewards=at_once), f"algo.n_step={n_step}")
    torch.testing.assert_close(stored(amended).rewards, stored(right).rewards)
    pairs = [people_of(runner).second.sample(100) for runner in (amended, right)]
    torch.testing.assert_close(pairs[0].rewards, pairs[1].rewards)
    assert column(amended.folder, "people/late_credits") == [2.0]
    episodes = [column(runner.folder, "train/return_sum") for runner in (amended, right)]
    assert episodes[0] == episodes[1]


@pytest.mark.usefixtures("no_restart")
def test_discarded_episode_is_never_drawn(tmp_path: Path) -> None:
    """Episodes of 7 steps; environment 0's second one (7 to 13) is discarded at step 10."""
    bridge = Scripted(between(1, 12, {(0, 1): 2}), discards={10: [0]})
    runner = collect(tmp_path, bridge)
    assert len(runner.buffer) == 40 - 7
    drawn = set(runner.buffer.sample(3000).index.tolist())
    assert drawn == set(range(40)) - {2 * t for t in range(7, 14)}
    assert len(people_of(runner).second) == 6
    assert column(runner.folder, "people/episodes") == [1.0]
    assert sum(column(runner.folder, "train/episodes")) == 2.0


@pytest.mark.usefixtures("no_restart")
def test_discarded_while_it_is_still_running_leaves_the_next_episode_alone(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(discards={18: [1]}))
    assert set(runner.buffer.sample(3000).index.tolist()) == set(range(40)) - {2 * t + 1 for t in range(14, 20)}


@pytest.mark.parametrize("algo", ["hasac", "hatd3", "haddpg", "had3qn", "maddpg", "matd3"])
@pytest.mark.parametrize("mode", ["rlpd", "rlif"])
def test_every_algorithm_learns_with_people(tmp_path: Path, algo: str, mode: str) -> None:
    action: Any = 2 if algo == "had3qn" else 0.5
    bridge = Scripted(lambda step, obs, proposed: {(0, 1): action, (1, 2): action} if step % 5 < 3 else {})
    runner = off_policy(tmp_path, bridge, algo, *env_of(algo), PEOPLE, f"hitl.takeover.learn={mode}")
    before = parameters(runner)
    runner.run()
    after = parameters(runner)
    assert torch.isfinite(after).all()
    assert len(before) != len(after) or (before != after).any()
    if mode == "rlpd":
        assert column(runner.folder, "people/human_transitions")
    (first, *_) = column(runner.folder, "people/intervention_rate")
    assert first == pytest.approx(2 / 6 * 0.6)


def test_people_are_told_log_probabilities_of_random_policies_alone(tmp_path: Path) -> None:
    bridge = Scripted()
    collect(tmp_path, bridge)
    found = bridge.stages[0].log_probs(bridge.obs[0], None, bridge.proposed[0])
    assert found is not None
    assert found.shape == (2, 2)
    assert (found < 0).all()
    greedy = Scripted()
    collect(tmp_path, greedy, algo="had3qn")
    assert greedy.stages[0].log_probs(greedy.obs[0], None, greedy.proposed[0]) is None


def test_log_density_of_given_actions_is_the_one_that_they_were_drawn_with() -> None:
    space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
    policy = SquashedGaussianPolicy(3, space, [8], "relu", "relu")
    obs, noise = torch.randn(50, 3), torch.randn(50, 2)
    with torch.no_grad():
        actions, log_probs = policy(obs, noise)
        torch.testing.assert_close(policy.log_prob(obs, actions), log_probs, rtol=1e-3, atol=1e-3)
        corner = torch.tensor([[1.0, 10.0]])
        assert torch.isfinite(policy.log_prob(obs[:1], corner)).all()


def test_log_probabilities_of_choices_add_up_to_one() -> None:
    runner = learners("hasac", team_layout("multidiscrete"))
    obs = torch.randn(2, 3, 4)
    total = torch.zeros(2, 3)
    for choice in np.ndindex(3, 2, 4):
        actions = torch.tensor(choice, dtype=torch.float32).expand(2, 3, 3)
        total += runner.team.log_probs(obs, None, actions).sum(-1).exp()
    torch.testing.assert_close(total, torch.ones(2, 3))


# Recordings.


@pytest.mark.parametrize("n_step", [1, 3])
def test_recorded_transitions_are_drawn_from_the_first_batch_on(tmp_path: Path, n_step: int) -> None:
    runner = off_policy(tmp_path, Scripted(), "hasac", *IDENTITY, PEOPLE, f"algo.n_step={n_step}")
    no = np.zeros((6, 2), np.bool_)
    ends = no.copy()
    ends[5] = True
    episode = recorded(truncated=ends, ended=True)
    assert runner.teach([episode]) == 3
    second = people_of(runner).second
    assert len(second) == 3
    drawn = second.sample(50)
    gamma, rewards = runner.algo.gamma, episode.rewards.mean(1)
    for t in (2, 3, 4):
        row = next(i for i in range(50) if np.array_equal(drawn.obs[1, i], episode.obs[t, 1]))
        last = min(t + n_step, 5)  # the person handed back before step 5
        expected = sum(gamma**k * rewards[t + k] for k in range(last - t))
        assert drawn.rewards[row].item() == pytest.approx(expected, rel=1e-5)
        assert drawn.discounts[row].item() == pytest.approx(gamma ** (last - t))
        np.testing.assert_array_equal(drawn.next_obs[0, row], episode.next_obs[last - 1, 0])
        np.testing.assert_array_equal(drawn.actions[1, row], episode.actions[t, 1])
    runner.run()


def test_recordings_are_refused_where_nothing_is_learned_from_them(tmp_path: Path) -> None:
    runner = off_policy(tmp_path, Scripted(), "hasac", *IDENTITY, PEOPLE, "hitl.takeover.learn=replay")
    with pytest.raises(ConfigError, match="replay learns nothing from them"):
        runner.teach([recorded()])
