"""What on-policy actors learn from people: nothing by the policy gradient, and by imitation their steps alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.algorithms.actors.on_policy import Lesson
from harl.buffers.demonstrations import Demonstration
from harl.buffers.human_steps import HumanSteps
from harl.config import ConfigError
from harl.hitl.bridge import Source
from harl.runners.advantages import normalised
from tests.buffers.transitions import layout_of
from tests.hitl.scripted import PEOPLE, Scripted, between, on_policy, parameters
from tests.hitl.test_learning_rollout import DRIVEN, IDENTITY, collect, driven_mask
from tests.runners.runs import column, world


def people_of(runner: Any) -> Any:
    assert runner.people is not None
    return runner.people


def gradient(actor: Any, data: Any) -> torch.Tensor:
    actor.gradient.zero_()
    actor.add_gradient(data, 0.01)
    found: torch.Tensor = actor.gradient.clone()
    actor.gradient.zero_()
    return found


@pytest.mark.parametrize("algo", ["happo", "haa2c", "hatrpo", "mappo"])
@pytest.mark.parametrize("env", ["Identity", "IdentityBox"])
def test_masked_steps_have_no_part_in_the_policy_gradient(tmp_path: Path, algo: str, env: str) -> None:
    """The same gradient as without those rows at all; what people did is far outside of what the policy would do."""
    action = 2 if env == "Identity" else [1.0, -1.0]
    bridge = Scripted(between(3, 6, {(0, 1): action, (1, 0): action}))
    runner = collect(tmp_path, bridge, f"algo={algo}", *world(env, T=7), "hitl.takeover.learn=mask")
    runner.compute()
    advantages = normalised(runner.advantages, runner.buffer.weights())
    for i, actor in enumerate(runner.actors):
        data = runner.buffer.actor_data(i, advantages, torch.ones(20, 1))
        left = data.rows(data.weights[:, 0] > 0)
        assert len(left.obs) == 17
        found = gradient(actor, data)
        assert found.abs().max() > 0
        torch.testing.assert_close(found, gradient(actor, left), rtol=1e-5, atol=1e-7)
        # Nor may anything about them matter, not even as 0 times infinity.
        wild = data.rows(slice(None))
        human = data.weights[:, 0] == 0
        wild.log_probs = torch.where(human.unsqueeze(1), -1e4, data.log_probs)
        torch.testing.assert_close(gradient(actor, wild), found)


def test_advantages_are_normalised_without_masked_steps(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.learn=mask")
    runner.compute()
    found = normalised(runner.advantages, runner.buffer.weights())
    alone = ~driven_mask()
    for agent in range(2):
        own = runner.advantages[..., 0].numpy()[alone[..., agent]]
        np.testing.assert_allclose(
            found[..., agent, 0].numpy()[alone[..., agent]], (own - own.mean()) / own.std(), rtol=1e-3, atol=1e-4
        )


def test_factor_is_one_where_a_person_decided(tmp_path: Path) -> None:
    """The second agent must not be told of a change of the first one's policy that had no part in what happened."""
    runner = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.learn=mask", "algo.fixed_order=true", "algo.lr=0.01")
    factors: list[torch.Tensor] = []
    actor_data = runner.buffer.actor_data

    def noting(agent: int, advantages: torch.Tensor, factor: torch.Tensor | None = None) -> Any:
        assert factor is not None
        factors.append(factor.clone())
        return actor_data(agent, advantages, factor)

    runner.buffer.actor_data = noting  # type: ignore[method-assign]
    runner.update()
    second = factors[1].view(10, 2).numpy()
    human = driven_mask()[..., 0]
    assert (second[human] == 1).all()
    assert (second[~human] != 1).all()


@pytest.mark.parametrize("mode", ["mask", "mask_bc"])
@pytest.mark.parametrize("algo", ["happo", "mappo", "hatrpo", "haa2c"])
def test_all_steps_human(tmp_path: Path, algo: str, mode: str) -> None:
    """No step is left for the policy gradient: nothing is NaN, and only imitation moves the policies."""
    everybody = {(env, agent): 2 for env in range(2) for agent in range(2)}
    runner = collect(
        tmp_path,
        Scripted(between(0, 10, everybody)),
        f"algo={algo}",
        f"hitl.takeover.learn={mode}",
        "hitl.takeover.bc_coef=1.0",
        "algo.critic_epoch=10",
        *(["algo.lr=0.01"] if algo != "hatrpo" else ["algo.critic_lr=0.01"]),
    )
    before = [actor.vector.detach().clone() for actor in runner.actors]
    actor_infos, critic_info = runner.update()
    assert np.isfinite([value for info in (*actor_infos.values(), critic_info) for value in info.values()]).all()
    for actor, old in zip(runner.actors, before, strict=True):
        assert torch.isfinite(actor.vector).all()
        assert torch.equal(actor.vector, old) == (mode == "mask")
    if mode == "mask_bc":
        for i, actor in enumerate(runner.actors):
            data = runner.buffer.actor_data(i, torch.zeros(10, 2, 1))
            assert actor.log_probs(data).mean() > data.log_probs.mean() + 0.1
        assert all("bc_loss" in info for info in actor_infos.values())


def test_only_human_steps_are_imitated_by_the_agent_that_was_driven(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN))
    people = people_of(runner)
    runner.compute()
    people.prepare(runner.advantages)
    human = driven_mask()
    assert len(people.human_steps) == human.sum() == 6
    for agent in range(2):
        rows = people.lesson(agent).draw()
        t, n = np.nonzero(human[..., agent])
        np.testing.assert_array_equal(rows.obs, runner.buffer.obs[t, n, agent])
        np.testing.assert_array_equal(rows.actions, runner.buffer.actions[t, n, agent])
    everyone = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.bc_agents=all")
    everyone.compute()
    people_of(everyone).prepare(everyone.advantages)
    assert len(people_of(everyone).lesson(0).draw().obs) == 6


@pytest.mark.parametrize(("limit", "kept"), [("null", 6), ("2", 6), ("1", 4), ("0", 2)])
def test_what_was_done_without_having_seen_it_is_not_imitated(tmp_path: Path, limit: str, kept: int) -> None:
    """A key that was held on while steps passed unseen: 0, 1 and 2 of them. It is no step of the policy either way."""
    bridge = Scripted(DRIVEN, seen_ago={4: 1, 5: 2})
    runner = collect(tmp_path, bridge, f"hitl.takeover.bc_max_age={limit}")
    runner.compute()
    people = people_of(runner)
    people.prepare(runner.advantages)
    assert len(people.human_steps) == kept
    np.testing.assert_array_equal(runner.buffer.policy_mask[..., 0] == 0, driven_mask())
    state = people.overrides.get_state(10)
    people.overrides.clear()
    assert not people.overrides.unseen.any()
    people.overrides.set_state(state)
    assert people.overrides.unseen.sum() == 6 - kept
    people.overrides.set_state({key: value for key, value in state.items() if key != "unseen"})
    assert not people.overrides.unseen.any()


def test_recorded_steps_that_were_not_seen_are_not_imitated(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(), "hitl.takeover.bc_max_age=0")
    episode = recorded()
    ago = np.zeros_like(episode.actions[..., 0], np.int64)
    ago[3] = 1
    assert people_of(runner).teach([dataclasses.replace(episode, seen_ago=ago)]) == 2
    assert people_of(runner).teach([episode]) == 3, "where it is not known, all are"


def test_gradient_of_imitation_is_that_of_the_mean_log_probability(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN))
    people, actor = people_of(runner), runner.actors[1]
    runner.compute()
    people.prepare(runner.advantages)
    rows = people.lesson(1).draw()
    actor.gradient.zero_()
    loss = actor.imitate(rows, 0.3)
    found = actor.gradient.clone()
    actor.gradient.zero_()
    expected = -actor.policy(rows.obs, None).log_prob(rows.actions).mean()
    torch.autograd.backward(0.3 * expected)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(found, actor.gradient)
    assert found.abs().max() > 0


def test_other_modes_imitate_nothing(tmp_path: Path) -> None:
    for mode in ("mask", "executed"):
        runner = collect(tmp_path, Scripted(DRIVEN), f"hitl.takeover.learn={mode}")
        infos, _ = runner.update()
        assert people_of(runner).lesson(0) is None
        assert not any("bc_loss" in info for info in infos.values())


def test_filter_keeps_what_went_better_than_expected(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), "hitl.takeover.bc_filter=advantage")
    people = people_of(runner)
    advantages = torch.full((10, 2, 1), -1.0)
    advantages[4, 0] = advantages[3, 1] = advantages[9] = 1.0
    people.prepare(advantages)
    assert len(people.human_steps) == 2
    rows = people.lesson(1).draw()
    np.testing.assert_array_equal(rows.obs, runner.buffer.obs[4:5, 0, 1])


def test_weight_falls_to_zero_over_the_run_and_steps_are_kept(tmp_path: Path) -> None:
    """Iterations 0 to 3 of 4: weights 0.5, 0.375, 0.25, 0.125."""
    runner = on_policy(tmp_path, Scripted(between(2, 4, {(0, 0): 1})), "algo=happo", *IDENTITY, PEOPLE)
    runner.run()
    assert column(runner.folder, "people/bc_coef") == [0.5, 0.375, 0.25, 0.125]
    assert column(runner.folder, "people/imitated_steps") == [2.0] * 4
    assert len(column(runner.folder, "agent/agent_0/bc_loss")) == 4
    assert column(runner.folder, "agent/agent_1/bc_loss") == []
    assert column(runner.folder, "people/masked_fraction") == [pytest.approx(2 / 40)]
    assert column(runner.folder, "people/intervention_rate") == [2 / 40, 0.0, 0.0, 0.0]
    assert column(runner.folder, "people/interventions") == [1.0, 0.0, 0.0, 0.0]
    (agreement,) = column(runner.folder, "people/agreement")
    assert 0.1 < agreement < 0.5


def test_shared_parameters_learn_from_everybody_and_the_log_says_so(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), "algo=mappo", "algo.share_param=true")
    assert any("share one policy" in notice for notice in runner.notices)
    runner.compute()
    people_of(runner).prepare(runner.advantages)
    assert len(people_of(runner).lesson(0).draw().obs) == 6


@pytest.mark.parametrize("kind", [world("Recall"), world("Quadrants"), world("Hetero")])
def test_memory_images_and_uneven_agents(tmp_path: Path, kind: list[str]) -> None:
    actions = {(0, 0): 1, (1, 1): 1}
    memory = ["model.use_recurrent_policy=true", "model.data_chunk_length=5"] if "Recall" in str(kind) else []
    if "Hetero" in str(kind):
        actions |= {(0, 2): [2, 1], (1, 3): [0.5, 9.0]}  # type: ignore[dict-item]
    runner = on_policy(tmp_path, Scripted(between(2, 5, actions)), "algo=happo", *kind, *memory, PEOPLE)
    runner.run()
    assert len(people_of(runner).human_steps) == 3 * len(actions)
    assert torch.isfinite(parameters(runner)).all()
    assert len(column(runner.folder, "agent/agent_0/bc_loss")) == 4


def test_memory_of_the_moment_is_kept_with_the_step(tmp_path: Path) -> None:
    memory = ["model.use_recurrent_policy=true", "model.data_chunk_length=5", *world("Recall", T=7)]
    runner = collect(tmp_path, Scripted(between(3, 5, {(0, 1): 1})), *memory)
    people = people_of(runner)
    runner.compute()
    people.prepare(runner.advantages)
    rows = people.lesson(1).draw()
    assert runner.buffer.hidden is not None
    assert (rows.hidden != 0).all()
    torch.testing.assert_close(rows.hidden[:, 0], runner.buffer.hidden[3:5, 0, 1])
    log_probs = runner.actors[1].policy(*rows.inputs).log_prob(rows.actions)
    torch.testing.assert_close(log_probs[:, 0], runner.buffer.action_log_probs[3:5, 0, 1])


def test_value_mask_leaves_human_steps_out_of_the_value_loss(tmp_path: Path) -> None:
    human = driven_mask()
    for state_type in ("EP", "FP"):
        for option in ("true", "false"):
            runner = collect(
                tmp_path, Scripted(DRIVEN), f"hitl.takeover.value_mask={option}", f"env.state_type={state_type}"
            )
            runner.compute()
            people_of(runner).prepare(runner.advantages)
            weights = runner.buffer.critic_data().weights
            expected = (~human if state_type == "FP" else ~human.any(2)).reshape(-1, 1)
            if option == "true":
                assert weights is not None
                np.testing.assert_array_equal(weights, expected)
            else:
                assert weights is None if state_type == "EP" else bool((weights == 1).all())


# Discarded episodes.


@pytest.mark.usefixtures("no_restart")
def test_discarded_episode_is_learned_from_by_nobody(tmp_path: Path) -> None:
    """Episodes of 7 steps; that of environment 0 which began at step 7 is discarded at step 9, in the next rollout
    (13) at last it is over. Environment 1 is discarded at step 2."""
    bridge = Scripted(between(1, 12, {(0, 1): 2}), discards={9: [0], 2: [1]})
    runner = collect(tmp_path, bridge)
    discarded = np.zeros((10, 2), np.bool_)
    discarded[7:, 0] = discarded[:7, 1] = True
    runner.update()
    np.testing.assert_array_equal(runner.buffer.weights()[..., 0, 0] == 0, discarded)
    weights = runner.buffer.critic_data().weights
    assert weights is not None
    np.testing.assert_array_equal(weights.view(10, 2) == 0, discarded)
    assert len(people_of(runner).human_steps) == 6
    runner.after_update()
    runner.prep_rollout()
    runner.rollout()
    # Steps 10 to 13 belong to the discarded episode.
    np.testing.assert_array_equal(runner.buffer.weights()[:, 0, 0, 0] == 0, np.arange(10) < 4)
    assert (runner.buffer.weights()[:, 1] == 1).all()
    runner.update()
    assert len(people_of(runner).human_steps) == 6
    episodes = runner.tracker.drain()
    # Environment 0: one with people (0 to 6), one discarded; environment 1: one discarded, one alone (7 to 13).
    assert episodes["people/episodes"] == 1
    assert episodes["train/episodes"] == 1


def test_steps_of_an_episode_that_is_discarded_later_are_imitated_no_more(tmp_path: Path) -> None:
    bridge = Scripted(between(5, 10, {(0, 1): 2}), discards={12: [0]})
    runner = collect(tmp_path, bridge, rollouts=1)
    runner.update()
    runner.after_update()
    assert len(people_of(runner).human_steps) == 5
    runner.prep_rollout()
    runner.rollout()
    # Steps 5 and 6 were of the episode before.
    assert len(people_of(runner).human_steps) == 2


def test_episodes_with_people_are_reported_apart(tmp_path: Path) -> None:
    bridge = Scripted(between(2, 3, {(0, 1): (1, Source.HUMAN)}))
    runner = on_policy(tmp_path, bridge, "algo=happo", *world("OwnRewards", T=5), PEOPLE, "train.num_env_steps=20")
    runner.run()
    assert column(runner.folder, "people/episodes") == [1.0]
    assert column(runner.folder, "train/episodes") == [3.0]
    assert column(runner.folder, "people/return_sum") == column(runner.folder, "train/return_sum") == [555.0]


# Recordings.


def recorded(steps: int = 6, agents: int = 2, **changes: Any) -> Demonstration:
    rng = np.random.default_rng(0)
    obs = rng.random((steps + 1, agents, 4)).astype(np.float32)
    state = obs.reshape(steps + 1, 1, -1).repeat(agents, 1)
    human = np.zeros((steps, agents), np.bool_)
    human[2:5, 1] = True
    no = np.zeros_like(human)
    values: dict[str, Any] = {
        "source": "people/ep1",
        "obs": obs[:-1],
        "share_obs": state[:-1],
        "available_actions": None,
        "active": ~no,
        "actions": rng.integers(4, size=(steps, agents, 1)).astype(np.float32),
        "rewards": rng.random((steps, agents)).astype(np.float32),
        "terminated": no,
        "truncated": no,
        "next_obs": obs[1:],
        "next_share_obs": state[1:],
        "next_available_actions": None,
        "human": human,
        "ended": False,
    }
    return Demonstration(**{**values, **changes})


def test_recorded_steps_are_imitated_from_the_first_update_on(tmp_path: Path) -> None:
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *IDENTITY, PEOPLE)
    episode = recorded()
    assert runner.teach([episode, episode]) == 6
    rows = people_of(runner).lesson(1).draw()
    np.testing.assert_array_equal(rows.obs[:3], episode.obs[2:5, 1])
    np.testing.assert_array_equal(rows.actions[:3], episode.actions[2:5, 1])
    assert people_of(runner).lesson(0) is None
    runner.run()
    assert len(column(runner.folder, "agent/agent_1/bc_loss")) == 4


def test_recordings_of_other_agents_are_refused(tmp_path: Path) -> None:
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *IDENTITY, PEOPLE)
    with pytest.raises(ConfigError, match=r"people/ep1: obs has the shape \(6, 3, 4\); these agents need \(6, 2, 4\)"):
        runner.teach([recorded(agents=3)])
    bad = recorded()
    bad.rewards[3, 0] = np.nan
    with pytest.raises(ConfigError, match="rewards has numbers that are NaN"):
        runner.teach([bad])
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *IDENTITY, PEOPLE, "hitl.takeover.learn=mask")
    with pytest.raises(ConfigError, match="mask learns nothing from them"):
        runner.teach([recorded()])
    with pytest.raises(ConfigError, match="hitl=off"):
        on_policy(tmp_path, None, "algo=happo", *IDENTITY).teach([recorded()])


def test_actions_that_were_not_available_are_left_out() -> None:
    layout = layout_of(has_masks=True)
    steps = HumanSteps(layout, 10, torch.Generator())
    masks = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    actions = torch.tensor([[1.0], [2.0], [3.0], [0.5]])
    number = torch.arange(4)
    steps.add(torch.zeros(4, 4), actions, masks, None, number * 0, number, number)
    assert len(steps) == 1
    assert steps.draw(steps.of([0]), 5, 0).actions.tolist() == [[2.0]]


def test_draws_are_no_larger_than_asked_for() -> None:
    layout = layout_of()
    steps = HumanSteps(layout, 100, torch.Generator().manual_seed(0))
    number = torch.arange(50)
    steps.add(torch.zeros(50, 4), torch.zeros(50, 1), None, None, number % 3, number, number)
    assert len(steps.draw(steps.of([0]), 7, 0).obs) == 7
    assert len(steps.draw(steps.of([0, 1]), 1000, 0).obs) == 34
    assert Lesson(lambda: steps.draw(steps.of([2]), 1, 2), 0.1).draw().obs.shape == (1, 4)
