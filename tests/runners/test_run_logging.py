"""What a run says and writes while it goes on."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from harl.runners import runner as runner_module
from tests.runners.runs import QUICK, column, evaluations, make, metrics, run, scalars, world

ONE_PASS = ["algo.ppo_epoch=1", "algo.critic_epoch=1"]


def test_env_07_the_length_of_episodes_is_said_and_can_be_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "env=mpe", *QUICK)
    assert "episodes of 25 steps" in capsys.readouterr().out
    runner = run(tmp_path, "env=mpe", "env.kwargs.max_cycles=9", "eval.interval=80")
    assert "episodes of 9 steps" in capsys.readouterr().out
    assert {line["length"] for line in evaluations(runner.folder)} == {9}


@pytest.mark.parametrize("budget", [1, 19, 20])
def test_a_budget_below_one_iteration_is_one_iteration_and_it_says_so(
    tmp_path: Path, budget: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = run(tmp_path, f"train.num_env_steps={budget}", *QUICK)
    said = capsys.readouterr().out
    assert (runner.env_steps, runner.iteration) == (20, 1)
    assert ("this run ends at 20" in said) is (budget != 20)
    assert runner.folder.completed


def test_intervals_that_are_no_multiples_of_an_iteration_are_never_skipped(tmp_path: Path) -> None:
    intervals = ["train.log_interval=7", "eval.interval=33", "checkpoint.interval=50", "checkpoint.keep_last=9"]
    runner = run(tmp_path, "train.num_env_steps=190", *intervals)
    logged = [int(row["env_steps"]) for row in metrics(runner.folder) if "critic/value_loss" in row]
    assert logged == list(range(20, 201, 20))
    # Marks at 0, 33, 66, 99, 132, 165; the last one is the end, whose weights have not been evaluated yet.
    assert sorted({line["env_steps"] for line in evaluations(runner.folder)}) == [0, 40, 80, 100, 140, 180, 200]
    saved = {int(path.name) for path in runner.folder.checkpoints.iterdir() if path.is_dir()}
    assert {60, 100, 160, 200} <= saved


def test_plain_progress_is_one_line_for_each_log_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "logger.progress=plain", "train.num_env_steps=100", *QUICK)
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "steps/s" in line]
    assert [line.split(",")[0] for line in lines] == [f"{share}.0 %" for share in (20, 40, 60, 80, 100)]
    assert "\x1b" not in said
    assert "\r" not in said


def test_log_08_an_episode_that_is_longer_than_the_log_interval_gives_no_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = run(tmp_path, *world("ConstReward", T=30), "train.num_env_steps=100", "logger.progress=plain", *QUICK)
    rows = metrics(runner.folder)
    assert [int(row["env_steps"]) for row in rows] == [20, 40, 60, 80, 100]
    # Both environments end their first episode with step 60.
    assert [row.get("train/return_sum") for row in rows] == [None, None, "60.0", None, None]
    assert all(math.isfinite(float(cell)) for row in rows for cell in row.values())
    assert "nan" not in capsys.readouterr().out


def test_log_09_numbers_of_the_environment_arrive(tmp_path: Path) -> None:
    runner = run(tmp_path, *world("Reports", T=5), "eval.use_eval=false")
    assert column(runner.folder, "env/height") == [3.0] * 4
    assert [value for _, value in scalars(runner.folder)["env/height"]] == [3.0] * 4


def test_metrics_of_agents_are_keyed_by_agent_whatever_the_order(tmp_path: Path) -> None:
    runner = run(tmp_path, "algo=happo", "env=mpe", "algo.fixed_order=false", *QUICK)
    rows = metrics(runner.folder)
    for agent in ("agent_0", "agent_1", "agent_2"):
        assert all(f"agent/{agent}/policy_loss" in row for row in rows)
    order = make(tmp_path, "algo=happo", "env=mpe", *QUICK)
    visited: list[list[int]] = []
    update_order = order.update_order  # type: ignore[attr-defined]
    order.update_order = lambda: visited.append(update_order()) or visited[-1]  # type: ignore[attr-defined]
    order.run()
    assert len({tuple(agents) for agents in visited}) > 1
    assert all(sorted(agents) == [0, 1, 2] for agents in visited)
    assert metrics(order.folder) == rows


def test_prf_02_evaluation_is_timed_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = runner_module.play

    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.05)
        return play(*args, **kwargs)

    monkeypatch.setattr(runner_module, "play", slowly)
    runner = run(tmp_path, "eval.interval=20")
    with runner.folder.metrics_csv.open(encoding="utf-8") as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    assert len(rows) == 5
    assert all(row["time/evaluation_s"] >= 0.05 for row in rows)
    for row in rows[1:]:
        busy = row["time/collect_s"] + row["time/update_s"]
        assert row["time/steps_per_second"] == pytest.approx(20 / busy)
    # Cost of an evaluation: episodes x length.
    steps = 0
    counted = make(tmp_path, "env=mpe", "eval.eval_episodes=4")
    counted.eval()
    assert counted._eval_envs is not None
    stepping = counted._eval_envs.step

    def counting(actions: Any) -> Any:
        nonlocal steps
        steps += 2
        return stepping(actions)

    counted._eval_envs.step = counting  # type: ignore[method-assign]
    counted.eval()
    counted.close()
    assert steps == 4 * 25


def test_D_46_and_mem_01_nothing_that_is_kept_has_a_graph(tmp_path: Path) -> None:
    runner = run(tmp_path, "env=mpe", *QUICK)
    stored = [value for value in vars(runner.buffer).values() if isinstance(value, torch.Tensor)]
    assert len(stored) > 8
    assert not any(tensor.requires_grad for tensor in [*stored, runner.advantages])
    assert all(isinstance(value, float) for value in runner.means.drain().values())


def test_mem_04_and_log_07_no_process_is_started_and_files_stay_few(tmp_path: Path) -> None:
    runner = make(tmp_path, "env=mpe", "train.num_env_steps=500", "eval.interval=20", "checkpoint.interval=20")
    process, seen = psutil.Process(), []
    after_update = runner.after_update

    def watching() -> None:
        after_update()
        seen.append((len(process.children(recursive=True)), process.num_fds()))

    runner.after_update = watching  # type: ignore[method-assign]
    runner.run()
    assert len(seen) == 25
    assert {children for children, _ in seen} == {0}
    assert len({files for _, files in seen[1:]}) == 1, seen
    assert len(list(runner.folder.tensorboard.iterdir())) == 1
    assert len(evaluations(runner.folder)) == 26 * 2


@pytest.mark.slow
def test_D_48_and_log_07_five_hundred_updates_of_ten_agents_with_few_files(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits on open files are a thing of Unix")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        updates = ["train.num_env_steps=10000", "eval.interval=1000", "checkpoint.interval=1000", *ONE_PASS]
        runner = run(tmp_path, "env=mpe", "env.kwargs.N=10", *updates)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert runner.iteration == 500
    assert len(list(runner.folder.tensorboard.iterdir())) == 1
    assert len(column(runner.folder, "agent/agent_9/policy_loss")) == 500


def resident_at(folder: Path, iterations: tuple[int, int], *overrides: str) -> list[int]:
    """Resident size of this process at two moments of a run."""
    runner = make(folder, *overrides)
    process, sizes = psutil.Process(), []
    after_update = runner.after_update

    def measuring() -> None:
        after_update()
        if runner.iteration in iterations:
            sizes.append(process.memory_info().rss)

    runner.after_update = measuring  # type: ignore[method-assign]
    runner.run()
    assert len(sizes) == 2
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_D_46_and_mem_01_and_usr_09_memory_is_flat_from_update_300_to_1500(tmp_path: Path, algo: str) -> None:
    """Logged, evaluated and saved all the while."""
    overrides = [f"algo={algo}", "env=mpe", "train.episode_length=5", "train.num_env_steps=15000"]
    often = ["train.log_interval=1", "eval.interval=500", "checkpoint.interval=500", *ONE_PASS]
    early, late = resident_at(tmp_path, (300, 1500), *overrides, *often)
    assert late < 1.05 * early


@pytest.mark.slow
def test_mem_02_memory_is_flat_over_a_hundred_thousand_episodes_of_one_step(tmp_path: Path) -> None:
    shape = ["train.n_rollout_threads=10", "train.episode_length=100", "train.num_env_steps=100000"]
    runner_overrides = [*world("ConstReward", T=1), *shape, "train.log_interval=1000", "eval.use_eval=false"]
    early, late = resident_at(tmp_path, (10, 100), *runner_overrides)
    assert late < 1.05 * early
