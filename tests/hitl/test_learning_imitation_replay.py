"""`rlpd_bc`: off-policy policies become those of the people who drive them, and nothing else changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.config import ConfigError
from harl.runners import OffPolicyBaseRunner
from tests.hitl.scripted import PEOPLE, Scripted, off_policy, parameters
from tests.hitl.test_learning_imitation import people_of, recorded
from tests.hitl.test_learning_nobody import env_of
from tests.hitl.test_learning_replay import DRIVEN, IDENTITY, collect
from tests.runners.runs import column, world

IMITATE = "hitl.takeover.learn=rlpd_bc"
IMITATING = ["hasac", "haddpg", "hatd3", "maddpg", "matd3"]
TEACH = [
    *("algo.lr=0.01", "algo.critic_lr=0.003", "algo.gamma=0.5", "algo.batch_size=32", "algo.buffer_size=2000"),
    *("algo.n_step=1", "algo.policy_freq=1", "train.n_rollout_threads=4", "train.warmup_steps=80"),
    *("train.num_env_steps=800", "train.train_interval=4", "train.update_per_train=1", "train.log_interval=400"),
    *("model.hidden_sizes=[16]", "checkpoint.interval=100000", "hitl.takeover.bc_coef=2"),
]


def taught(folder: Path, algo: str, env: str, *overrides: str) -> OffPolicyBaseRunner:
    """A run without rewards, in which someone drives agent 0 in every other step.

    Discrete: she does the choice after the one that is seen; in a Box the opposite of what is seen.
    """

    def drive(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
        done = (obs[:, 0].argmax(1, keepdims=True) + 1) % 4 if env == "Identity" else -obs[:, 0]
        return {(n, 0): done[n] for n in range(len(obs))} if step % 2 else {}

    bridge = Scripted(drive, rewards=lambda step, rewards: rewards * 0)
    runner = off_policy(folder, bridge, algo, *world(env), PEOPLE, IMITATE, *TEACH, *overrides)
    runner.run()
    return runner


def distance(runner: OffPolicyBaseRunner, env: str, agent: int = 0) -> float:
    """How far the policy alone is from the person's: share of wrong choices, or mean distance in the Box."""
    if env == "Identity":
        obs = torch.eye(4).unsqueeze(1).expand(4, 2, 4)
        right = (torch.arange(4) + 1) % 4
        actions = runner.team.act(obs, deterministic=True)[0][:, agent, 0]
        return (actions != right).float().mean().item()
    obs = torch.rand(100, 2, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    actions = runner.team.act(obs, deterministic=True)[0][:, agent]
    return (actions + obs[:, agent]).abs().mean().item()


@pytest.mark.parametrize("algo", IMITATING)
def test_policy_becomes_that_of_the_person_without_any_reward(tmp_path: Path, algo: str) -> None:
    runner = taught(tmp_path, algo, "Identity")
    assert distance(runner, "Identity") == 0.0
    assert distance(runner, "Identity", agent=1) > 0.0
    losses = column(runner.folder, "agent/agent_0/bc_loss")
    assert losses[-1] < losses[0]
    assert column(runner.folder, "agent/agent_1/bc_loss") == []


@pytest.mark.parametrize("algo", IMITATING)
def test_policy_becomes_that_of_the_person_in_a_box(tmp_path: Path, algo: str) -> None:
    """A constant 0 is 0.5 away."""
    assert distance(taught(tmp_path, algo, "IdentityBox"), "IdentityBox") < 0.15


def test_without_the_term_nothing_is_learned_there(tmp_path: Path) -> None:
    assert distance(taught(tmp_path, "hasac", "Identity", "hitl.takeover.bc_coef=0"), "Identity") > 0.0
    assert distance(taught(tmp_path, "haddpg", "IdentityBox", "hitl.takeover.bc_coef=0"), "IdentityBox") > 0.3


def test_values_of_each_agent_and_shared_policies(tmp_path: Path) -> None:
    runner = taught(tmp_path / "fp", "hasac", "Identity", "env.state_type=FP")
    assert distance(runner, "Identity") == 0.0
    shared = taught(tmp_path / "shared", "maddpg", "Identity", "algo.share_param=true", "hitl.takeover.bc_coef=4")
    assert distance(shared, "Identity") == distance(shared, "Identity", agent=1) == 0.0
    assert any("share one policy" in notice for notice in shared.notices)


@pytest.mark.parametrize("algo", IMITATING)
def test_agents_of_equal_spaces_can_all_become_what_one_was_shown(tmp_path: Path, algo: str) -> None:
    runner = taught(tmp_path, algo, "Identity", "hitl.takeover.bc_agents=all", "hitl.takeover.bc_coef=4")
    assert distance(runner, "Identity") == distance(runner, "Identity", agent=1) == 0.0


def test_what_all_imitate_is_the_mean_of_what_each_was_shown(tmp_path: Path) -> None:
    given = ("hitl.takeover.bc_agents=all", "hitl.takeover.bc_anneal=false", "algo.batch_size=8")
    runner = collect(tmp_path, Scripted(DRIVEN), IMITATE, *given)
    batch = people_of(runner).sample(8)
    assert batch.imitate is not None
    assert batch.teachers == [[0, 1], [0, 1]]
    actor = runner.team.own[0]
    found = {}
    for name, teachers in {"both": [0, 1], "first": [0], "second": [1]}.items():
        actor.optimizer.zero_grad()
        actor.imitate(0, dataclasses.replace(batch, teachers=[teachers, teachers]))
        found[name] = torch.cat([parameter.grad.flatten() for parameter in actor.parameters])
    assert found["first"].abs().max() > 0
    assert found["second"].abs().max() > 0
    torch.testing.assert_close(found["both"], (found["first"] + found["second"]) / 2)


def test_agents_of_other_spaces_do_not_imitate(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(), IMITATE, "hitl.takeover.bc_agents=all", *world("Hetero"))
    assert people_of(runner).sample(8).teachers is None  # nobody has driven yet
    assert people_of(runner).second.teachers == [[i] for i in range(runner.layout.num_agents)]


@pytest.mark.parametrize(("limit", "kept"), [("null", 6), ("1", 4), ("0", 2)])
def test_what_was_done_without_having_seen_it_is_replayed_but_not_imitated(
    tmp_path: Path, limit: str, kept: int
) -> None:
    bridge = Scripted(DRIVEN, seen_ago={4: 1, 5: 2})
    runner = collect(tmp_path, bridge, IMITATE, f"hitl.takeover.bc_max_age={limit}")
    second = people_of(runner).second
    assert len(second) == 6
    assert second.get_state()["rows"]["tensors"]["driven"].sum() == kept
    marks = runner.buffer.people
    assert marks is not None
    state = marks.get_state()
    assert state["unseen"].sum() == 6 - kept
    marks.set_state({key: value for key, value in state.items() if key != "unseen"})
    assert not marks.unseen.any()


def test_recorded_transitions_that_were_not_seen_are_not_imitated(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(), IMITATE, "hitl.takeover.bc_max_age=0")
    episode = recorded()
    ago = np.zeros_like(episode.actions[..., 0], np.int64)
    ago[3] = 1
    assert people_of(runner).teach([dataclasses.replace(episode, seen_ago=ago)]) == 3
    assert people_of(runner).second.get_state()["rows"]["tensors"]["driven"].sum() == 2


def test_options_that_imitation_cannot_have_here_are_refused_or_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bc_filter=advantage: hitl.takeover.learn=rlpd_bc .*allowed: none"):
        off_policy(tmp_path, Scripted(), "hasac", *IDENTITY, PEOPLE, IMITATE, "hitl.takeover.bc_filter=advantage")
    runner = off_policy(tmp_path, Scripted(), "hasac", *IDENTITY, PEOPLE, IMITATE, "hitl.takeover.bc_coef=0")
    assert "hitl.takeover.bc_coef=0: nothing is imitated" in runner.notices


def test_rows_of_the_second_buffer_are_imitated_by_those_who_were_driven(tmp_path: Path) -> None:
    runner = collect(tmp_path, Scripted(DRIVEN), IMITATE, "hitl.takeover.bc_anneal=false", "algo.batch_size=8")
    batch = people_of(runner).sample(8)
    assert batch.imitate is not None
    torch.testing.assert_close(batch.imitate.sum((1, 2)), torch.tensor([0.5, 0.5]))
    found = {agent: batch.imitate[agent, :, 0].nonzero()[:, 0] for agent in (0, 1)}
    assert sorted([*found[0].tolist(), *found[1].tolist()]) == [4, 5, 6, 7]
    # Agent 1 was driven in environment 0, with action 2, and agent 0 in environment 1, with action 3.
    for agent, env, action in ((1, 0, 2.0), (0, 1, 3.0)):
        rows = found[agent]
        assert (batch.actions[agent, rows] == action).all()
        seen = {tuple(step[env, agent]) for step in runner.people.bridge.obs[3:6]}  # type: ignore[union-attr, attr-defined]
        assert {tuple(row.tolist()) for row in batch.obs[agent, rows]} <= seen


def test_weight_falls_to_zero_over_the_run(tmp_path: Path) -> None:
    """0.5 · (1 − steps / 80), over bouts after 26, 32, 38 | 44, 50, 56 | 62, 68, 74 steps; after 80 there is none."""
    runner = off_policy(tmp_path, Scripted(DRIVEN), "hasac", *IDENTITY, PEOPLE, IMITATE, "algo.n_step=1")
    runner.run()
    assert column(runner.folder, "people/bc_coef") == pytest.approx([0.3, 0.1875, 0.075])
    assert people_of(runner).sample(8).imitate is None
    for agent in (0, 1):
        assert len(column(runner.folder, f"agent/agent_{agent}/bc_loss")) == 3


@pytest.mark.parametrize("algo", IMITATING)
def test_as_rlpd_to_the_bit_while_nobody_has_driven(tmp_path: Path, algo: str) -> None:
    found = []
    for mode in ("rlpd", "rlpd_bc"):
        runner = off_policy(tmp_path / mode, Scripted(), algo, *env_of(algo), PEOPLE, f"hitl.takeover.learn={mode}")
        runner.run()
        found.append(parameters(runner))
    assert torch.equal(*found)


def test_as_rlpd_to_the_bit_where_imitation_weighs_nothing(tmp_path: Path) -> None:
    found = {}
    for name, given in {
        "rlpd": ["hitl.takeover.learn=rlpd"],
        "none": [IMITATE, "hitl.takeover.bc_coef=0"],
        "some": [IMITATE],
    }.items():
        runner = off_policy(tmp_path / name, Scripted(DRIVEN), "hasac", *IDENTITY, PEOPLE, *given, "algo.n_step=1")
        runner.run()
        found[name] = parameters(runner)
    assert torch.equal(found["rlpd"], found["none"])
    assert not torch.equal(found["rlpd"], found["some"])


def test_values_are_refused_with_what_would_do_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        off_policy(tmp_path, Scripted(), "had3qn", *IDENTITY, PEOPLE, IMITATE, "hitl.env_index=2")
    told = str(refused.value)
    assert "hitl.takeover.learn=rlpd_bc: algo.name=had3qn" in told
    assert "allowed: auto, rlpd, replay, rlif, silent" in told
    assert "hitl.env_index=2" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["Hetero", "MaskedParts"])
def test_uneven_agents_and_masks(tmp_path: Path, kind: str) -> None:
    """Each agent has a kind of action space of its own; or choices of two parts, some of them forbidden in turn."""

    def drive(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
        if kind == "Hetero":
            return {(0, 0): 1, (0, 2): [2, 1], (1, 3): [0.5, 9.0]}
        return {(0, 1): [2 - (step % 6 % 3 == 2), 1 - step % 2]}

    env = world(kind) if kind == "Hetero" else parts_world()
    runner = off_policy(tmp_path, Scripted(drive), "hasac", *env, PEOPLE, IMITATE, "algo.n_step=1")
    runner.run()
    assert torch.isfinite(parameters(runner)).all()
    driven = {0, 2, 3} if kind == "Hetero" else {1}
    for agent in range(runner.layout.num_agents):
        losses = column(runner.folder, f"agent/agent_{agent}/bc_loss")
        assert len(losses) == (3 if agent in driven else 0)
        # A choice that was not available would cost 1e10.
        assert all(loss < 20 for loss in losses)


def parts_world() -> list[str]:
    """`tests.runners.off_policy_worlds:MaskedParts`."""
    return [
        "env=pettingzoo",
        "env.entry_point=tests.runners.off_policy_worlds:MaskedParts",
        "env.reward=shared_mean",
    ]


@pytest.mark.usefixtures("no_restart")
def test_discarded_steps_are_imitated_no_more(tmp_path: Path) -> None:
    """Episodes of 7 steps; environment 0's first one is discarded, in which agent 1 was driven."""
    runner = collect(tmp_path, Scripted(DRIVEN, discards={6: [0]}), IMITATE, "hitl.takeover.bc_anneal=false")
    batch = people_of(runner).sample(8)
    assert batch.imitate is not None
    torch.testing.assert_close(batch.imitate.sum((1, 2)), torch.tensor([0.5, 0.0]))


def test_recordings_are_imitated_from_the_first_update_on(tmp_path: Path) -> None:
    """Agent 1 was driven in three steps."""
    runner = off_policy(tmp_path, Scripted(), "hasac", *IDENTITY, PEOPLE, IMITATE, "algo.n_step=1")
    episode = recorded()
    assert runner.teach([episode]) == 3
    drawn = people_of(runner).second.sample(20, 0.5)
    assert (drawn.imitate[0] == 0).all()
    np.testing.assert_allclose(drawn.imitate[1], 0.5 / 20)
    runner.run()
    assert len(column(runner.folder, "agent/agent_1/bc_loss")) == 3
    assert column(runner.folder, "agent/agent_0/bc_loss") == []
