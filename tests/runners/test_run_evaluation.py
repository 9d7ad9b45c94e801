"""Seeds of training and evaluation, and what evaluations are like."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import harl
from harl.config import ConfigError
from tests.runners.runs import (
    QUICK,
    checkpoint,
    column,
    evaluations,
    make,
    parts_of,
    resume,
    run,
    stop_at,
    world,
)
from tests.runners.worlds import Logged

ALGOS = ["happo", "mappo"]
LOCAL = ["algo.share_param=false"]
FAST_CRITIC = ["algo.critic_lr=3e-2", "algo.critic_epoch=20", "algo.ppo_epoch=1", "algo.use_clipped_value_loss=false"]
"""So that the value settles within a second."""


@pytest.fixture
def copies() -> Iterator[list[Logged]]:
    Logged.copies.clear()
    yield Logged.copies
    Logged.copies.clear()


def test_sed_03_and_sed_04_and_sed_07_every_copy_and_every_episode_is_its_own(
    tmp_path: Path, copies: list[Logged]
) -> None:
    def firsts(seed: int) -> list[list[tuple[int, ...]]]:
        copies.clear()
        run(tmp_path, *world("Logged"), "train.n_rollout_threads=4", "train.num_env_steps=120", f"seed={seed}", *QUICK)
        assert len(copies) == 4
        for copy in copies:
            # The first reset, which only looks at the shapes, and the later ones are not seeded.
            seeds = [value for value in copy.seeds if value is not None]
            assert len(seeds) == 1
        assert len({seed for copy in copies for seed in copy.seeds if seed is not None}) == 4
        return [copy.first[copy.seeds.index(next(s for s in copy.seeds if s is not None)) :] for copy in copies]

    seven = firsts(7)
    assert len({episodes[0] for episodes in seven}) == 4, "four copies, four first observations"
    for episodes in seven:
        assert len(episodes) >= 5
        assert len(set(episodes)) == len(episodes), "no episode repeats another one"
    assert firsts(7) == seven
    assert {episodes[0] for episodes in firsts(8)}.isdisjoint({episodes[0] for episodes in seven})


def test_evaluation_has_seeds_of_its_own(tmp_path: Path, copies: list[Logged]) -> None:
    runner = run(tmp_path, *world("Logged"))
    training, evaluating = copies[:2], copies[2:]
    own = {seed for copy in training for seed in copy.seeds if seed is not None}
    theirs = {seed for copy in evaluating for seed in copy.seeds if seed is not None}
    assert len(own) == 2
    assert len(theirs) == 2
    assert own.isdisjoint(theirs)
    assert len({line["seed"] for line in evaluations(runner.folder)}) == 2


def test_log_11_evaluation_episodes_differ_and_come_again(tmp_path: Path) -> None:
    runner = make(tmp_path, "env=mpe", "eval.eval_episodes=10", "eval.interval=40", "algo.lr=0", "algo.critic_lr=0")
    runner.run()
    lines = evaluations(runner.folder)
    by_step = [[line["returns"] for line in lines if line["env_steps"] == step] for step in (0, 40, 80)]
    assert [len(returns) for returns in by_step] == [10, 10, 10]
    # The policy has not changed, so equal episodes have equal returns.
    assert by_step[0] == by_step[1] == by_step[2]
    assert len({json.dumps(returns) for returns in by_step[0]}) == 10
    assert min(column(runner.folder, "eval/return_sum_std")) > 0


def test_D_33_equal_quota_of_episodes_for_each_environment(tmp_path: Path) -> None:
    runner = run(tmp_path, "env=mpe", "eval.eval_episodes=12", "eval.n_eval_rollout_threads=4", "eval.interval=80")
    lines = [line for line in evaluations(runner.folder) if line["env_steps"] == 0]
    assert sorted((line["env"], line["episode"]) for line in lines) == [(n, k) for n in range(4) for k in range(3)]


def test_steps_of_evaluations_go_to_a_table_where_it_is_asked_for(tmp_path: Path) -> None:
    runner = run(tmp_path, *world("Hetero"), *LOCAL, "eval.dump_metrics=true", "eval.interval=80")
    files = sorted((runner.folder.path / "evaluation_data").iterdir())
    assert [file.name for file in files] == [f"all_agents_episode_2_step_{step}.csv" for step in (0, 80)]
    with files[0].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 10
    assert {"agent_0/reward", "agent_2/action_1", "agent_3/action_1"} <= rows[0].keys()
    assert "agent_0/action_1" not in rows[0]
    total = sum(float(row[f"agent_{i}/reward"]) for row in rows for i in range(4))
    lines = [line for line in evaluations(runner.folder) if line["env_steps"] == 0]
    assert total == pytest.approx(sum(line["return_sum"] for line in lines))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(("norm", "update"), [(True, "iteration"), (True, "minibatch"), (False, "iteration")])
@pytest.mark.parametrize("algo", ALGOS)
def test_cfg_12_every_accepted_combination_trains_saves_and_loads(
    tmp_path: Path, algo: str, norm: bool, update: str, share: bool
) -> None:
    flags = [f"algo.share_param={share}", f"algo.use_valuenorm={norm}", f"algo.valuenorm_update={update}"]
    overrides = [f"algo={algo}", *flags, *world("Identity"), "checkpoint.interval=1", "checkpoint.keep_last=1"]
    if algo == "happo" and share:
        with pytest.raises(ConfigError, match=r"algo\.share_param=true does not go with algo=happo"):
            make(tmp_path, *overrides)
        return
    runner = make(tmp_path, *overrides, *QUICK)
    stop_at(runner, 46)
    before = parts_of(checkpoint(runner.folder), "learners")
    assert any("value_normalizer" in place for place in before) is norm
    again = resume(runner.folder)
    assert again.env_steps == 80
    obs = np.eye(4, dtype=np.float32)[[0, 1]]
    action = harl.load(runner.folder.path).act(obs)
    assert isinstance(action, np.ndarray)
    assert action.shape == (2, 1)
