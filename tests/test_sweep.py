"""Sweeps: a run folder for each job, failures that stop nobody else, and a second start that takes up the first."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hydra._internal.core_plugins import basic_launcher

from harl.config import load_yaml
from harl.experiment.run_folder import RunFolder, find_runs
from harl.runners import OnPolicyBaseRunner
from tests.runners.runs import assert_same_run, cli, cli_tiny, evaluations, make, only_run, run, typed, world

SHORT = ["train.num_env_steps=40", "logger.tensorboard=false"]


def by_seed(folder: Path) -> dict[int | None, RunFolder]:
    return {load_yaml(found.config).run.seed: found for found in find_runs(folder)}


def table(out: str) -> list[str]:
    """The lines of the table of outcomes."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if " jobs, " in line)
    return lines[start:]


def test_every_job_has_a_run_folder_of_its_own(tmp_path: Path) -> None:
    done = typed(tmp_path, "-m", *cli_tiny("algo=happo,mappo", "seed=1,2", "env=mpe", *SHORT))
    assert done.code == 0, done.err
    runs = find_runs(tmp_path / "runs")
    jobs = {(load_yaml(found.config).algo.algo.name, load_yaml(found.config).run.seed) for found in runs}
    assert jobs == {(algo, seed) for algo in ("happo", "mappo") for seed in (1, 2)}
    assert all(found.completed for found in runs)
    assert not [path for found in runs for path in found.path.parts if "=" in path]
    lines = table(done.out)
    assert lines[0] == "4 jobs, 0 failed:"
    for line, (algo, seed) in zip(lines[1:], [("happo", 1), ("happo", 2), ("mappo", 1), ("mappo", 2)], strict=True):
        assert f"algo={algo}" in line
        assert f"seed={seed}" in line
        found = next(r for r in runs if algo in r.path.parts and f"seed-{seed}_" in r.path.name)
        result = json.loads((found.path / "COMPLETED").read_text(encoding="utf-8"))["last_return"]
        assert line.split()[0] == f"{result:.2f}"


def test_jobs_in_one_process_are_what_they_would_be_alone(tmp_path: Path) -> None:
    """Also where the environment draws from the global generators."""
    assert typed(tmp_path, "-m", *cli_tiny("algo=happo,mappo", *world("GlobalDice"))).code == 0
    runs = find_runs(tmp_path / "runs")
    assert len(runs) == 2
    for found in runs:
        algo = load_yaml(found.config).algo.algo.name
        assert_same_run(found, run(tmp_path / "alone", f"algo={algo}", *world("GlobalDice")).folder)


@pytest.mark.slow
def test_two_jobs_in_one_process_equal_two_processes(tmp_path: Path) -> None:
    overrides = cli_tiny("env=mpe", "algo=happo")
    assert cli(tmp_path, "-m", *overrides, "seed=3,4").returncode == 0
    together = by_seed(tmp_path / "runs")
    assert set(together) == {3, 4}
    for seed in (3, 4):
        alone = tmp_path / f"alone-{seed}"
        alone.mkdir()
        assert cli(alone, *overrides, f"seed={seed}").returncode == 0
        assert_same_run(together[seed], only_run(alone / "runs"))


def test_swp_01_a_job_that_fails_stops_nobody_else(tmp_path: Path) -> None:
    jobs = ["env.entry_point=tests.envs.fixtures:Identity,tests.runners.worlds:Raises,tests.envs.fixtures:SumOne"]
    done = typed(tmp_path, "-m", *cli_tiny("env=pettingzoo", "env.reward=shared_sum", *jobs, *SHORT))
    assert done.code == 1
    status = {found.path.parts[-4]: found.status["status"] for found in find_runs(tmp_path / "runs")}
    assert sorted(status.values()) == ["completed", "completed", "failed"]
    lines = table(done.out)
    assert lines[0] == "3 jobs, 1 failed:"
    assert [line.split()[0] == "failed" for line in lines[1:]] == [False, True, False]
    assert "ValueError: boom-7" in lines[2]
    assert done.err.count("Traceback") == 1
    assert "boom-7" in done.err
    assert "error in job" in done.err


def test_swp_02_a_result_that_is_no_number_marks_its_own_job(tmp_path: Path) -> None:
    """NaN fails, no evaluation is no result, a number is a number."""
    worlds = "env.entry_point=tests.envs.fixtures:NaNAt,tests.envs.fixtures:SumOne"
    given = ["env=pettingzoo", "env.reward=shared_sum", worlds, "eval.use_eval=true,false", *SHORT]
    done = typed(tmp_path, "-m", *cli_tiny(*given))
    assert done.code == 1
    lines = table(done.out)
    assert lines[0] == "4 jobs, 2 failed:"
    results = {("NaNAt" in line, "use_eval=true" in line.lower()): line.split()[0] for line in lines[1:]}
    assert results == {(True, True): "failed", (True, False): "failed", (False, True): "2.00", (False, False): "-"}
    assert "nan in the" in done.err
    assert "Traceback" not in done.err


def test_swp_03_the_same_sweep_again_skips_what_is_done_and_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ["-m", *cli_tiny("env=mpe", "seed=1,2,3,4", "logger.tensorboard=false")]
    straight = {seed: run(tmp_path / "straight", "env=mpe", f"seed={seed}").folder for seed in (1, 2, 3)}
    insert, runs_begun = OnPolicyBaseRunner.insert, set()

    def inserting(self: OnPolicyBaseRunner, data: Any) -> None:
        insert(self, data)
        runs_begun.add(self.args.seed)
        if self.args.seed == 2 and self.env_steps == 46:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(OnPolicyBaseRunner, "insert", inserting)
        stopped = typed(tmp_path, *sweep)
    assert stopped.code == 130
    assert runs_begun == {1, 2}, "the sweep ends with the job that was stopped"
    first = by_seed(tmp_path / "runs")
    assert {seed: found.status["status"] for seed, found in first.items()} == {
        1: "completed", 2: "interrupted",
    }  # fmt: skip
    finished = {path: path.read_bytes() for path in first[1].path.rglob("*") if path.is_file()}

    again = typed(tmp_path, *sweep)
    assert again.code == 0, again.err
    second = by_seed(tmp_path / "runs")
    assert len(find_runs(tmp_path / "runs")) == 4
    assert {seed: second[seed].path for seed in first} == {seed: found.path for seed, found in first.items()}
    assert {path: path.read_bytes() for path in finished} == finished, "nothing is overwritten"
    assert all(found.completed for found in second.values())
    for seed, found in straight.items():
        assert_same_run(found, second[seed])
    lines = table(again.out)
    assert ["was completed already" in line for line in lines[1:]] == [True, False, False, False]
    assert ["continued" in line for line in lines[1:]] == [False, True, False, False]


def test_swp_03_a_job_that_failed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    sweep = ["-m", *cli_tiny(*world("NaNAt", k=3), "eval.use_eval=false", "seed=1", *SHORT)]
    assert typed(tmp_path, *sweep).code == 1
    before = {found.path for found in find_runs(tmp_path / "runs")}
    assert len(before) == 1
    assert typed(tmp_path, *sweep).code == 1
    assert before < {found.path for found in find_runs(tmp_path / "runs")}


def test_another_job_is_not_taken_for_the_same(tmp_path: Path) -> None:
    assert typed(tmp_path, "-m", *cli_tiny("seed=1", *SHORT)).code == 0
    assert typed(tmp_path, "-m", *cli_tiny("seed=1", "algo.lr=1e-3", *SHORT)).code == 0
    assert len(find_runs(tmp_path / "runs")) == 2
    # What only says how a run reports does not make it another one.
    assert typed(tmp_path, "-m", *cli_tiny("seed=1", *SHORT, "checkpoint.keep_last=2")).code == 0
    assert len(find_runs(tmp_path / "runs")) == 2


def test_all_jobs_are_checked_before_the_first_one_starts(tmp_path: Path) -> None:
    done = typed(tmp_path, "-m", *cli_tiny("algo=happo,mappo,hapo", "algo.gamma=0.9,1.5"))
    assert done.code == 2
    assert "hapo" in done.err
    assert "algo.gamma=1.5" in done.err
    assert not any(tmp_path.iterdir())


def test_a_sweep_leaves_what_was_swept_over(tmp_path: Path) -> None:
    assert typed(tmp_path, "-m", *cli_tiny("seed=1,2", *SHORT)).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    (record,) = (tmp_path / "runs" / "sweeps").rglob("multirun.yaml")
    assert "seed=1,2" in yaml.safe_load(record.read_text(encoding="utf-8"))["hydra"]["overrides"]["task"]


def test_swp_07_the_entry_point_returns_one_finite_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the caller of `run`, and to Hydra, whose sweepers look for the best one."""
    runner = make(tmp_path / "alone", *world("Identity"))
    result = runner.run()
    assert isinstance(result, float)
    assert math.isfinite(result)
    last = [line["return_sum"] for line in evaluations(runner.folder) if line["env_steps"] == 80]
    assert result == sum(last) / len(last)

    run_job, returned = basic_launcher.run_job, []

    def noting(*args: Any, **kwargs: Any) -> Any:
        done = run_job(*args, **kwargs)
        returned.append(done.return_value)
        return done

    monkeypatch.setattr(basic_launcher, "run_job", noting)
    assert typed(tmp_path, "-m", *cli_tiny(*world("Identity"), "seed=1")).code == 0
    # Once more: it is done already, and its result is still the same.
    assert typed(tmp_path, "-m", *cli_tiny(*world("Identity"), "seed=1")).code == 0
    assert returned == [result, result]


@pytest.mark.slow
def test_swp_05_memory_is_flat_over_ten_jobs_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, sizes, children = psutil.Process(), [], set()
    close = OnPolicyBaseRunner.close

    def closing(self: OnPolicyBaseRunner) -> None:
        close(self)
        sizes.append(process.memory_info().rss)
        children.update(process.children(recursive=True))

    monkeypatch.setattr(OnPolicyBaseRunner, "close", closing)
    jobs = ["env=mpe", "seed=range(1,11)", "train.n_rollout_threads=20", "train.episode_length=200"]
    done = typed(tmp_path, "-m", *cli_tiny(*jobs, "train.num_env_steps=8000", "model.hidden_sizes=[64]"))
    assert done.code == 0, done.err
    assert len(sizes) == 10
    assert not children
    assert sizes[-1] < 1.05 * sizes[1]
