"""Every algorithm x kind of team x memory x sharing x kind of state: it trains, or is refused before any work.

What must be refused stands here once more, by hand: the registry and the schemas are not asked.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pytest
import torch

from harl.config import ALGO_SCHEMAS, Config, ConfigError, from_dict
from harl.runners import OffPolicyBaseRunner, OnPolicyBaseRunner
from harl.runners.job import runner_for
from harl.runners.runner import Runner
from tests.algorithms.learners import all_finite, sizes
from tests.runners.off_policy_runs import defaults, env_defaults, fixture

ON_POLICY = ("happo", "mappo", "haa2c", "hatrpo")
OFF_POLICY = ("haddpg", "hatd3", "hasac", "had3qn", "maddpg", "matd3")
SHAREABLE = ("mappo", "maddpg", "matd3")
WORLDS = "tests.runners.off_policy_worlds"
TEAMS = {
    "box": fixture("IdentityBox"),
    "discrete": fixture("Identity"),
    "multidiscrete": fixture("Parts", WORLDS),
    "other_widths": fixture("Widths", WORLDS),
    "other_kinds": fixture("Hetero"),
    "masks": fixture("MaskOnly", legal=2),
    "dying": fixture("Deaths"),
}
NOT_DISCRETE = ("box", "multidiscrete", "other_kinds")
DIFFERING = ("other_widths", "other_kinds")
Memory = Literal["feed_forward", "recurrent"]
State = Literal["EP", "FP"]


class Case(NamedTuple):
    """One cell of the table."""

    algo: str
    team: str
    memory: Memory
    shared: bool
    state: State

    def __str__(self) -> str:
        return "-".join([*self[:3], "shared" if self.shared else "own", self.state])


CASES = [
    Case(*cell)
    for cell in itertools.product(ALGO_SCHEMAS, TEAMS, get_args(Memory), (False, True), get_args(State))
]  # fmt: skip


def refusals(case: Case) -> list[tuple[str, ...]]:
    """What each refusal must say: what does not fit, and what would do. Empty where it trains."""
    typed: list[tuple[str, ...]] = []
    if case.memory == "recurrent" and case.algo in OFF_POLICY:
        typed.append(("model.use_recurrent_policy", "happo, mappo, haa2c and hatrpo have it"))
    if case.shared and case.algo not in SHAREABLE:
        instead = {"happo": "mappo", "haa2c": "mappo", "hatrpo": "mappo", "haddpg": "maddpg", "hatd3": "matd3"}
        allowed = f"use algo={instead[case.algo]}" if case.algo in instead else "leave it false"
        typed.append((f"algo.share_param=true does not go with algo={case.algo}", allowed))
    if typed:  # the agents are not looked at before what was typed makes sense
        return typed
    found: list[tuple[str, ...]] = []
    if case.algo == "had3qn" and case.team in NOT_DISCRETE:
        found.append(("algo.name=had3qn cannot handle", "allowed: Discrete", "happo", "hasac", "maddpg"))
    if case.shared and case.team in DIFFERING:
        found.append(("one network needs equal spaces", "agent_1", "algo.share_param=false"))
    return found


def configured(case: Case, folder: Path) -> Config:
    """A run of two iterations, or of two bouts of six updates, below `folder`."""
    changes: dict[str, Any] = {
        "output_dir": str(folder),
        "train.n_rollout_threads": 2,
        "train.num_env_steps": 40,
        "train.log_interval": 20,
        "algo.share_param": case.shared,
        "env.state_type": case.state,
        "eval.use_eval": False,
        "logger.tensorboard": False,
        "logger.progress": "off",
        **sizes(case.algo, 8),
    }
    if case.algo in OFF_POLICY:
        changes |= {"train.warmup_steps": 16, "train.train_interval": 6, "algo.policy_freq": 1}
        changes |= {"algo.batch_size": 8, "algo.buffer_size": 48}
    else:
        changes |= {"train.episode_length": 10, "model.data_chunk_length": 5}
    if case.memory == "recurrent":
        changes["model.use_recurrent_policy"] = True
    data = json.loads(defaults(case.algo))
    data["env"] = json.loads(env_defaults(TEAMS[case.team]))
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        (data[section] if section else data)[name] = value
    return from_dict(data)


def numbers(runner: Runner) -> dict[str, float]:
    """The last number of each name in the log."""
    with runner.folder.metrics_csv.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: float(cell) for row in rows for name, cell in row.items() if cell}


def test_the_table_is_whole() -> None:
    assert {case.algo for case in CASES} == {*ON_POLICY, *OFF_POLICY}
    assert len(set(CASES)) == len(CASES) == 10 * 7 * 2 * 2 * 2
    assert sum(not refusals(case) for case in CASES) == 3 * 28 + 48 + 3 * 14 + 8 + 2 * 24


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not refusals(case)], ids=str)
def test_it_trains_two_iterations_with_finite_losses(tmp_path: Path, case: Case) -> None:
    runner = runner_for(configured(case, tmp_path))
    before = [p.detach().clone() for network in runner.team.networks for p in network.parameters()]
    runner.run()
    assert runner.env_steps == 40
    if case.algo in OFF_POLICY:
        assert isinstance(runner, OffPolicyBaseRunner)
        assert runner.total_it == 12
        assert all_finite(runner)
    else:
        assert isinstance(runner, OnPolicyBaseRunner)
        assert runner.iteration == 2
    after = [p for network in runner.team.networks for p in network.parameters()]
    assert all(p.isfinite().all() for p in after)
    assert not all(torch.equal(now, then) for now, then in zip(after, before, strict=True))
    logged = numbers(runner)
    losses = {name for name in logged if "loss" in name}
    assert "critic/value_loss" in losses
    assert sum(name.startswith("agent/") for name in losses) == len(runner.layout.agents)
    assert all(map(math.isfinite, logged.values()))
    assert len(runner.team.networks) == (1 if case.shared else len(runner.layout.agents))
    assert runner.layout.state_type == case.state


@pytest.mark.parametrize("case", [case for case in CASES if refusals(case)], ids=str)
def test_it_is_refused_before_any_work_with_what_would_do(tmp_path: Path, case: Case) -> None:
    with pytest.raises(ConfigError) as refused:
        runner_for(configured(case, tmp_path)).close()
    for reason in refusals(case):
        assert any(all(words in error for words in reason) for error in refused.value.errors), reason
    assert list(tmp_path.iterdir()) == []
