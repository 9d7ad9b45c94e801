"""Actions of off-policy runners: random ones, explored ones, for agents that differ, within spaces and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.config import ConfigError
from harl.registry import unsupported
from tests.algorithms.learners import ALGORITHMS, DETERMINISTIC, learners, team_layout
from tests.algorithms.rollouts import hetero_layout
from tests.runners.bare import layout_of
from tests.runners.off_policy_runs import config_for, fixture, make, run

WORLDS = "tests.runners.off_policy_worlds"
BOUNDED = (*DETERMINISTIC, "hasac")
"""Algorithms that take agents of all kinds; their Boxes need bounds."""


def many(algo: str, layout: Any, n: int = 3000) -> Any:
    return learners(algo, layout, train__n_rollout_threads=n, algo__buffer_size=n)


def rows_in(space: spaces.Space[Any], actions: np.ndarray[Any, Any]) -> bool:
    """Whether all rows (N, action_dim), at the space's own width, are in it, and what is beyond is 0."""
    width = 1 if isinstance(space, spaces.Discrete) else space.shape[0]  # type: ignore[index]
    if (actions[:, width:] != 0).any():
        return False
    own = actions[:, :width]
    if isinstance(space, spaces.Box):
        return bool((own >= space.low).all() and (own <= space.high).all())
    sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec  # type: ignore[attr-defined]
    return bool((own == np.floor(own)).all() and (own >= 0).all() and (own < sizes).all())


@pytest.mark.parametrize("algo", BOUNDED)
def test_D_12_defaults_give_legal_actions_for_agents_that_differ(algo: str) -> None:
    """Also D-05 and HET-02: each agent acts in its own space, at its own width."""
    runner = many(algo, hetero_layout(has_masks=False), 200)
    obs = np.zeros((200, 4, 11), np.float32)
    for actions in (runner.sample_actions(), runner.sample_actions(None), runner.get_actions(obs)):
        assert actions.shape == (200, 4, 2)
        assert actions.dtype == np.float32
        assert all(rows_in(space, actions[:, i]) for i, space in enumerate(runner.layout.action_spaces))
    assert len(np.unique(runner.get_actions(obs)[:, 3], axis=0)) == 200, "explored by default"
    greedy = runner.get_actions(obs, add_random=False)
    assert (greedy == greedy[:1]).all()


def test_D_12_had3qn_too() -> None:
    runner = many("had3qn", team_layout("discrete"), 200)
    obs = np.zeros((200, 3, 4), np.float32)
    for actions in (runner.sample_actions(), runner.get_actions(obs), runner.get_actions(obs, add_random=False)):
        assert actions.shape == (200, 3, 1)
        assert all(rows_in(spaces.Discrete(5), actions[:, i]) for i in range(3))


@pytest.mark.parametrize("algo", BOUNDED)
def test_D_11_random_and_chosen_actions_obey_masks_of_agents_that_differ(algo: str) -> None:
    layout = hetero_layout()
    runner = many(algo, layout)
    rng = np.random.default_rng(0)
    masks = np.zeros((3000, 4, layout.action_number), np.float32)
    for i, width in enumerate(layout.action_numbers):
        masks[:, i, :width] = rng.random((3000, width)) < 0.5
    masks[:, :3, 0] = masks[:, 2, 3] = 1.0
    obs = rng.standard_normal((3000, 4, 11)).astype(np.float32)
    parts = {0: [(0, 0)], 1: [(0, 0)], 2: [(0, 0), (1, 3)]}
    for actions in (
        runner.sample_actions(masks),
        runner.get_actions(obs, masks),
        runner.get_actions(obs, masks, False),
    ):
        for i, columns in parts.items():
            for column, start in columns:
                chosen = start + actions[:, i, column].astype(int)
                assert (masks[np.arange(3000), i, chosen] == 1).all()


def test_random_actions_are_even_and_independent() -> None:
    runner = many("hasac", hetero_layout(has_masks=False), 20_000)
    actions = runner.sample_actions()
    for i, n in ((0, 3), (1, 5)):
        shares = np.bincount(actions[:, i, 0].astype(int), minlength=n) / 20_000
        assert shares == pytest.approx(np.full(n, 1 / n), abs=0.015)
    box = actions[:, 3]
    assert box.mean(0) == pytest.approx([0.0, 5.0], abs=0.1)
    assert box.std(0) == pytest.approx([2 / 12**0.5, 10 / 12**0.5], rel=0.03)
    columns = np.concatenate([actions[:, :2, 0], actions[:, 2], box], axis=1)
    assert np.abs(np.corrcoef(columns.T) - np.eye(6)).max() < 0.04


def test_random_choices_are_even_among_the_legal_ones() -> None:
    runner = many("had3qn", team_layout("discrete", has_masks=True), 20_000)
    masks = np.zeros((20_000, 3, 5), np.float32)
    masks[:, :, [1, 4]] = 1.0
    actions = runner.sample_actions(masks)
    assert set(np.unique(actions)) == {1.0, 4.0}
    assert (actions == 1.0).mean() == pytest.approx(0.5, abs=0.01)


def test_random_actions_respect_what_bounds_there_are() -> None:
    low, high = [-np.inf, 2.0, -np.inf, -1.0], [np.inf, np.inf, 3.0, 1.0]
    runner = many("haddpg", team_layout("box", agents=1), 5000)
    box = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    runner.layout = layout_of(1, 4, 6, box)
    actions = runner.sample_actions()[:, 0]
    assert np.isfinite(actions).all()
    assert rows_in(box, actions)
    assert actions[:, 0].mean() == pytest.approx(0.0, abs=0.05)
    assert actions[:, 0].std() == pytest.approx(1.0, rel=0.05)
    assert (actions[:, 1].mean(), actions[:, 2].mean()) == pytest.approx((2.8, 2.2), abs=0.05)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("legal", [1, 2])
def test_D_11_no_illegal_action_in_a_whole_run(tmp_path: Any, algo: str, legal: int) -> None:
    """The environment raises at an illegal action: in the warm-up, while exploring, in evaluations."""
    assert run(tmp_path, algo, fixture("MaskOnly", legal=legal), logger__tensorboard=False).total_it == 30


@pytest.mark.parametrize("algo", BOUNDED)
def test_no_action_outside_of_its_space_in_a_whole_run(tmp_path: Any, algo: str) -> None:
    """NUM-19 and HET-07 along the whole way: the environment raises at an action outside of its agent's space."""
    extremes = {"algo__expl_noise": 2.0} if algo in DETERMINISTIC else {}
    assert run(tmp_path, algo, fixture("Hetero"), logger__tensorboard=False, **extremes).total_it == 30


@pytest.mark.parametrize("algo", BOUNDED)
def test_DTY_01_environments_in_double_precision(tmp_path: Any, algo: str) -> None:
    runner = run(tmp_path, algo, fixture("Doubles", WORLDS), logger__tensorboard=False, train__num_env_steps=300)
    assert runner.env_steps == 300
    assert {p.dtype for network in runner.team.networks for p in network.parameters()} == {torch.float32}
    assert runner.buffer.gather(torch.arange(4)).actions.dtype == torch.float32


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("low", [0.0, -np.inf], ids=["half_bounded", "free"])
def test_DTY_04_unbounded_actions_are_refused_before_work(tmp_path: Any, algo: str, low: float) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path, algo, fixture("Unbounded", WORLDS), env__kwargs={"low": str(low)} if low else {})
    text = str(refused.value)
    assert "agent_1" in text
    assert "happo" in text
    if algo != "had3qn":
        assert "dimension 1 of the actions of agent_1" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("agents", "actions", "refused"), [(4, 17, False), (5, 10, False), (4, 50, True), (60, 9, True)]
)
def test_D_29_joint_actions_are_counted_before_they_explode(agents: int, actions: int, refused: bool) -> None:
    layout = layout_of(agents, 4, 6, spaces.Discrete(actions))
    problems = unsupported(config_for("had3qn"), layout)
    assert bool(problems) is refused
    if refused:
        assert f"{actions**agents:,} joint actions" in problems[0]
        assert "100,000" in problems[0]
        assert "algo=hasac" in problems[0]


def test_D_29_a_run_with_too_many_joint_actions_leaves_nothing_behind(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"50 x 50 x 50 = 125,000 joint actions"):
        make(tmp_path, "had3qn", fixture("Identity", agents=3, actions=50))
    assert list(tmp_path.iterdir()) == []
