"""`python -m harl.train` as a user types it: what it says, what it writes, how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harl.config import ALGO_SCHEMAS, load_yaml
from harl.experiment.run_folder import find_runs
from harl.runners.job import runner_for
from tests.runners.runs import (
    assert_same_run,
    cli,
    cli_tiny,
    environment,
    make,
    metrics,
    only_run,
    run,
    stop_at,
    typed,
    world,
)

OWN_ENV = """
from tests.envs.fixtures import Identity


def make_env(size: int = 4):
    return Identity(actions=size)
"""


def nothing_written(folder: Path) -> bool:
    return not any(folder.iterdir())


@pytest.mark.slow
def test_from_any_directory_a_run_leaves_one_whole_folder(tmp_path: Path) -> None:
    """Also RND-04: no display is needed."""
    done = cli(tmp_path, "algo=happo", "env=mpe", "train.num_env_steps=8000", env={"DISPLAY": None})
    assert (done.returncode, done.stderr) == (0, "")
    folder = only_run(tmp_path / "outputs")
    parts = folder.path.relative_to(tmp_path / "outputs").parts
    assert parts[:4] == ("mpe", "simple_spread", "happo", "default")
    assert parts[4].startswith("seed-1_")
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml", "meta.json", "metrics.csv", "tensorboard", "evaluations.jsonl", "checkpoints", "status.json",
        "COMPLETED",
    }  # fmt: skip
    assert {"latest", "best"} <= {path.name for path in folder.checkpoints.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"], "Hydra leaves nothing of its own"
    assert str(folder.path) in done.stdout
    meta = json.loads(folder.meta.read_text(encoding="utf-8"))
    assert meta["command"].endswith("algo=happo env=mpe train.num_env_steps=8000")
    assert (done.stdout.count("%"), "100.0 %, 8,000/8,000 steps" in done.stdout) == (2, True)


def test_the_configuration_can_be_shown(tmp_path: Path) -> None:
    done = typed(tmp_path, "--cfg", "job", "algo=mappo", "algo.lr=1e-3", "train.num_env_steps=2e6")
    assert (done.code, done.err) == (0, "")
    shown = yaml.safe_load(done.out)
    assert (shown["algo"]["name"], shown["algo"]["lr"], shown["algo"]["share_param"]) == ("mappo", 0.001, True)
    assert nothing_written(tmp_path)


def test_help(tmp_path: Path) -> None:
    done = typed(tmp_path, "--help")
    assert done.code == 0
    for word in ("env: mpe, pettingzoo", "experiment:", "--multirun", "clip_param: 0.2"):
        assert word in done.out
    (algorithms,) = [line for line in done.out.splitlines() if line.startswith("  algo: ")]
    assert sorted(algorithms.removeprefix("  algo: ").split(", ")) == sorted(ALGO_SCHEMAS)
    assert nothing_written(tmp_path)


def test_help_shows_the_keys_of_what_is_chosen(tmp_path: Path) -> None:
    done = typed(tmp_path, "--help", "algo=hasac", "algo.lr=0.125")
    assert done.code == 0
    assert "auto_alpha: " in done.out
    assert "lr: 0.125" in done.out
    assert "clip_param" not in done.out
    assert typed(tmp_path, "--help", "algo=hasca").code == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="there is no such signal on Windows")
@pytest.mark.parametrize("asked", ["--help", "--cfg=job"])
def test_nobody_who_reads_on_is_no_error(tmp_path: Path, asked: str) -> None:
    """As with `python -m harl.train --help | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "harl.train", asked],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(timeout=60) == -signal.SIGPIPE
    assert said == ""


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["algo.lrr=1e-3"], ["algo.lrr is unknown", "algo.lr"]),
        (["algo.lr=fast"], ["algo.lr=fast", "number"]),
        (["algo=hapo"], ["algo=hapo", ", ".join(sorted(ALGO_SCHEMAS))]),
        (["env.scenario=simple_spread_v99"], ["simple_spread_v99", "simple_spread, simple_reference, simple_speaker"]),
        (["algo=happo", "algo.share_param=true"], ["algo.share_param=true", "algo=mappo"]),
        (["env=pettingzoo"], ["env.entry_point", "env.reward", "individual"]),
        (["algorithm=mappo", "task=vmas/balance", "algo.share_parm=false"], ["algorithm", "task", "algo.share_param"]),
        (["--algo=mappo"], ["algo"]),
        (["train.n_rollout_threads=0"], ["train.n_rollout_threads=0", "from 1 to"]),
        (["algo=mappo", "env.scenario=simple_speaker_listener"], ["speaker_0", "listener_0", "algo.share_param=false"]),
        (["env=pettingzoo", "env.entry_point=nowhere.at_all:env", "env.reward=shared_sum"], ["nowhere"]),
        (["+experiment=mpe_sprad"], ["mpe_sprad", "mpe_spread_happo"]),
        (["resume=missing"], ["missing", "does not exist"]),
        (["init_from=missing"], ["missing", "does not exist"]),
        (["device.name=cuda:99"], ["device.name=cuda:99", "allowed: auto, cpu"]),
    ],
    ids=lambda value: value[-1] if "=" in value[0] else "",
)  # fmt: skip
def test_usr_06_and_env_05_and_prc_07_what_is_wrong_is_said_before_anything_happens(
    tmp_path: Path, arguments: list[str], texts: list[str]
) -> None:
    done = typed(tmp_path, *arguments)
    assert done.code in (1, 2)
    assert done.err.startswith(("error: ", "usage: "))
    for text in texts:
        assert text in done.err
    assert "Traceback" not in done.err
    assert "HYDRA_FULL_ERROR" not in done.err
    assert done.out == ""
    assert nothing_written(tmp_path)


def test_G_11_and_D_47_and_cfg_01_everything_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    wrong = ["algo.lrr=1", "train.n_rollout_threads=x", "algo.gamma=1.5", "env.scenario=nope", "hydra.ouput_subdir=x"]
    done = typed(tmp_path, *wrong, "eval.eval_episodes=11")
    assert done.code == 2
    for text in ("algo.lrr", "train.n_rollout_threads=x", "algo.gamma=1.5", "env.scenario=nope", "hydra.ouput_subdir"):
        assert text in done.err
    assert "eval.eval_episodes=11" in done.err
    assert nothing_written(tmp_path)


@pytest.mark.parametrize("seed", ["2735729614", "4294967295"])
def test_sed_08_large_seeds_train(tmp_path: Path, seed: str) -> None:
    done = typed(tmp_path, *cli_tiny(f"seed={seed}", *world("SeedLog"), "train.num_env_steps=20"))
    assert done.code == 0
    assert only_run(tmp_path).path.name.startswith(f"seed-{seed}_")


@pytest.mark.parametrize("seed", ["4294967296", "-1", "1.5", "'abc'"])
def test_sed_08_seeds_that_cannot_be_are_refused_before_any_environment_starts(tmp_path: Path, seed: str) -> None:
    done = typed(
        tmp_path, f"seed={seed}", "env=pettingzoo", "env.entry_point=tests.nowhere:env", "env.reward=shared_sum"
    )
    assert done.code == 2
    assert "seed" in done.err
    assert "4294967295" in done.err
    assert "nowhere" not in done.err, "no environment was looked for"


def test_an_output_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    done = typed(tmp_path, *cli_tiny("output_dir=file/runs"))
    assert done.code == 1
    assert done.err.startswith("error: cannot create a run folder in ")
    assert "output_dir" in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("overrides", "code", "text"),
    [
        (world("NaNAt", k=5), 1, "returned nan in the observation of agent_0"),
        (world("WrongState"), 1, "(12,)"),
        (world("Raises", k=5), 1, "boom-5"),
    ],
    ids=["nan", "wrong_shape", "own_error"],
)
def test_prc_07_a_run_that_fails_ends_with_1(tmp_path: Path, overrides: list[str], code: int, text: str) -> None:
    done = typed(tmp_path, *cli_tiny(*overrides, "eval.use_eval=false"))
    assert done.code == code
    assert text in done.err


def test_prc_01_an_error_of_the_environments_own_shows_its_traceback_and_its_place(tmp_path: Path) -> None:
    done = typed(tmp_path, *cli_tiny(*world("Raises", k=5), "eval.use_eval=false"))
    assert "Traceback" in done.err
    assert 'raise ValueError(f"boom-{self.k}")' in done.err
    assert "ValueError: boom-5" in done.err
    assert "in pettingzoo Raises, environment 0, step 5 of episode" in done.err
    assert only_run(tmp_path).status["status"] == "failed"


def test_prc_07_a_refused_resume_ends_with_2_and_changes_nothing(tmp_path: Path) -> None:
    runner = make(tmp_path / "runs")
    stop_at(runner, 40)
    before = {path: path.stat().st_mtime_ns for path in runner.folder.path.rglob("*")}
    done = typed(tmp_path, f"resume={runner.folder.path}", "env.scenario=simple_reference", "algo.lr=1")
    assert done.code == 2
    assert "env.scenario=simple_reference" in done.err
    assert "algo.lr" in done.err
    assert {path: path.stat().st_mtime_ns for path in runner.folder.path.rglob("*")} == before


def test_cfg_08_and_res_07_paths_are_meant_from_where_the_command_is_typed(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", "env=mpe")
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    stopped = make(tmp_path / "here" / "runs", "env=mpe")
    stop_at(stopped, 46)
    relative = Path("..") / "here" / stopped.folder.path.relative_to(tmp_path / "here")
    done = typed(tmp_path / "there", f"resume={relative}")
    assert done.code == 0, done.err
    assert str(stopped.folder.path) in done.out, "shown as an absolute path"
    assert_same_run(straight.folder, stopped.folder)
    assert nothing_written(tmp_path / "there")
    done = typed(tmp_path / "there", *cli_tiny(f"init_from={relative}", "output_dir=../elsewhere"))
    assert done.code == 0, done.err
    assert f"started from the weights of {stopped.folder.path}" in done.out
    assert only_run(tmp_path / "elsewhere").completed
    assert nothing_written(tmp_path / "there")


def test_D_49_and_cfg_09_a_run_is_reproduced_from_its_saved_configuration(tmp_path: Path) -> None:
    first = run(tmp_path, "algo=mappo", "env=mpe", "model.hidden_sizes=[8,9]", "algo.lr=1e-3", "seed=11")
    plain = yaml.safe_load(first.folder.config.read_text(encoding="utf-8"))
    assert plain["model"]["hidden_sizes"] == [8, 9]
    assert plain["algo"]["lr"] == 0.001
    second = runner_for(load_yaml(first.folder.config))
    second.run()
    assert second.folder.path != first.folder.path
    assert_same_run(first.folder, second.folder)


@pytest.mark.parametrize("name", ["lbforaging:Foraging-8x8-2p-3f-v3", "a/b*c", "CON", "x" * 300, "trailing."])
def test_D_48_and_usr_11_and_cfg_06_any_name_makes_a_folder_and_is_recorded(tmp_path: Path, name: str) -> None:
    done = typed(tmp_path, *cli_tiny(f"exp_name='{name}'", "train.num_env_steps=20", "eval.use_eval=false"))
    assert done.code == 0, done.err
    folder = only_run(tmp_path)
    assert all(len(part) < 200 and not set(':*"<>|?') & set(part) for part in folder.path.relative_to(tmp_path).parts)
    assert load_yaml(folder.config).run.exp_name == name


def test_env_13_an_environment_of_the_users_own_trains_from_the_command_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_very_own_env.py").write_text(OWN_ENV, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    given = ["env=pettingzoo", "env.entry_point=my_very_own_env:make_env", "env.reward=individual"]
    done = typed(tmp_path, *cli_tiny(*given, "env.kwargs.size=6"))
    assert done.code == 0, done.err
    assert "agent_0 sees 6 and acts in Discrete(6)" in done.out
    assert only_run(tmp_path / "runs").completed
    done = typed(tmp_path, *cli_tiny(*given, "env.kwargs.sise=6"))
    assert done.code in (1, 2)
    assert "size" in done.err


def test_a_debug_run_passes_through_everything(tmp_path: Path) -> None:
    done = typed(tmp_path, "debug=default")
    assert (done.code, done.err) == (0, "")
    folder = only_run(tmp_path / "outputs")
    assert folder.completed
    assert [row["env_steps"] for row in metrics(folder)] == ["0", "200", "400"]


def test_a_run_goes_on_where_the_command_line_stopped_it_and_can_be_extended(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", "env=mpe", "train.num_env_steps=120")
    assert typed(tmp_path, *cli_tiny("env=mpe")).code == 0
    folder = only_run(tmp_path / "runs")
    done = typed(tmp_path, f"resume={folder.path}", "train.num_env_steps=120")
    assert done.code == 0, done.err
    assert_same_run(straight.folder, folder)


@pytest.mark.slow
def test_cfg_07_runs_that_start_together_get_folders_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harl.train", *cli_tiny("eval.use_eval=false")]
    processes = [
        subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
    folders = find_runs(tmp_path / "runs")
    assert len(folders) == 3
    for folder in folders:
        assert folder.completed
        assert len(list(folder.tensorboard.iterdir())) == 1
        assert [row["env_steps"] for row in metrics(folder)] == ["20", "40", "60", "80"]
        assert_same_run(folder, folders[0])


@pytest.mark.slow
def test_prc_07_and_usr_06_exit_codes_of_real_processes(tmp_path: Path) -> None:
    refused = cli(tmp_path, "algorithm=mappo", "algo.share_parm=false")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert nothing_written(tmp_path)
    failed = cli(tmp_path, *cli_tiny(*world("NaNAt", k=5), "eval.use_eval=false"))
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: environment 0 returned nan in the observation of agent_0 after 8 env")
    assert failed.stderr.count("\n") == 1
