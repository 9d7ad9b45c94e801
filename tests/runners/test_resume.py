"""A run that is stopped and goes on is the run that was never stopped."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import harl
from harl.experiment.checkpoint import CheckpointError
from harl.experiment.run_folder import RunFolderError
from harl.runners.job import configure
from tests.runners.runs import (
    QUICK,
    TINY,
    assert_same_run,
    checkpoint,
    column,
    evaluations,
    make,
    metrics,
    parts_of,
    resume,
    run,
    scalars,
    stop_at,
    weights,
    world,
)

CRITIC = ["algo.critic_num_mini_batch=3", "train.use_linear_lr_decay=true"]
MINIBATCHES = ["algo.actor_num_mini_batch=2", *CRITIC]
SPEAKER = ["env=mpe", "env.scenario=simple_speaker_listener"]
KINDS = {
    "happo": ["algo=happo", "env=mpe", *MINIBATCHES],
    "mappo": ["algo=mappo", "env=mpe", "env.continuous_actions=true", *MINIBATCHES],
    "mappo_unshared": ["algo=mappo", "algo.share_param=false", *SPEAKER, *MINIBATCHES],
    "haa2c": ["algo=haa2c", *SPEAKER, *MINIBATCHES],
    "hatrpo": ["algo=hatrpo", *SPEAKER, "env.continuous_actions=true", *CRITIC],
    "happo_fp": ["algo=happo", "env=mpe", "env.state_type=FP", *MINIBATCHES],
    "global_generator": ["algo=happo", *world("GlobalDice"), *MINIBATCHES],
}


@pytest.mark.parametrize(("stop", "number"), [(46, signal.SIGTERM), (40, signal.SIGINT)], ids=["within", "between"])
@pytest.mark.parametrize("kind", KINDS)
def test_G_8_and_D_44_and_res_04_stopped_and_resumed_equals_straight_through(
    tmp_path: Path, kind: str, stop: int, number: signal.Signals
) -> None:
    """Also RES-01: counters and schedules go on where they were."""
    overrides = KINDS[kind]
    straight = run(tmp_path, *overrides)
    stopped = make(tmp_path, *overrides)
    assert stop_at(stopped, stop, number) == 128 + number
    assert stopped.env_steps == stop
    assert stopped.folder.status["status"] == "interrupted"
    assert not stopped.folder.completed
    resumed = resume(stopped.folder)
    assert resumed.folder.path == stopped.folder.path
    assert (resumed.env_steps, resumed.iteration) == (straight.env_steps, straight.iteration) == (80, 4)
    assert resumed.folder.completed
    assert_same_run(straight.folder, resumed.folder)


def test_res_04_stopped_three_times(tmp_path: Path) -> None:
    straight = run(tmp_path, *KINDS["happo"])
    runner = make(tmp_path, *KINDS["happo"])
    for stop in (6, 28, 74):
        stop_at(runner, stop)
        runner = harl.make_runner([f"resume={runner.folder.path}"])  # type: ignore[assignment]
    runner.run()
    assert_same_run(straight.folder, runner.folder)
    assert len(json.loads(runner.folder.meta.read_text(encoding="utf-8"))["resumes"]) == 3


def test_res_01_a_resumed_run_takes_only_the_steps_that_are_left(tmp_path: Path) -> None:
    runner = make(tmp_path, "train.num_env_steps=200", *QUICK)
    stop_at(runner, 120)
    resumed = harl.make_runner([f"resume={runner.folder.path}"])
    steps = 0
    step = resumed.envs.step

    def counting(actions: object) -> object:
        nonlocal steps
        steps += resumed.envs.num_envs
        return step(actions)  # type: ignore[arg-type]

    resumed.envs.step = counting  # type: ignore[method-assign,assignment]
    resumed.run()
    assert (steps, resumed.env_steps) == (80, 200)


def test_metrics_that_the_environment_reports_survive_a_stop(tmp_path: Path) -> None:
    overrides = [*world("Reports"), "train.log_interval=40"]
    straight = run(tmp_path, *overrides)
    stopped = make(tmp_path, *overrides)
    stop_at(stopped, 26)
    resume(stopped.folder)
    assert column(straight.folder, "env/height")
    assert_same_run(straight.folder, stopped.folder)


def test_res_05_every_series_rises_after_a_resume_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    straight = run(tmp_path, "checkpoint.interval=20", "checkpoint.keep_last=9")
    shutil.copytree(straight.folder.path, tmp_path / "copy")
    resumed = harl.make_runner([f"resume={tmp_path / 'copy' / 'checkpoints' / '40'}"])
    assert resumed.env_steps == 40
    assert [row["env_steps"] for row in metrics(resumed.folder)] == ["0", "20", "40"]
    resumed.run()
    assert_same_run(straight.folder, resumed.folder)
    series = scalars(resumed.folder)
    assert "train/return_sum" in series
    for tag, points in series.items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), tag
    assert [row["env_steps"] for row in metrics(resumed.folder)] == ["0", "20", "40", "60", "80"]


def test_res_06_and_res_09_what_is_loaded_acts_and_normalises_as_what_was_saved(tmp_path: Path) -> None:
    runner = run(tmp_path, "env=mpe", "eval.interval=80")
    before = checkpoint(runner.folder)
    last = [episode for episode in evaluations(runner.folder) if episode["env_steps"] == 80]
    again = harl.make_runner([f"resume={runner.folder.path}"])
    assert torch.equal(weights(again), weights(runner))  # type: ignore[arg-type]
    for _ in range(2):
        episodes = again.eval()
        assert episodes is not None
        assert [episode.returns for episode in episodes] == [line["returns"] for line in last]
    obs = runner.buffer.obs[0]
    assert torch.equal(again.team.act(obs, deterministic=True)[0], runner.team.act(obs, deterministic=True)[0])
    again.save()
    again.close()
    after = checkpoint(runner.folder)
    assert parts_of(before, "learners") == parts_of(after, "learners")
    assert any("value_normalizer" in place for place in before)


def test_res_07_a_moved_run_goes_on_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = run(tmp_path / "old")
    stopped = make(tmp_path / "old")
    stop_at(stopped, 46)
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "moved"
    shutil.move(stopped.folder.path, moved)
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = resume(Path("moved"))
    assert resumed.folder.path == moved
    assert_same_run(straight.folder, resumed.folder)
    assert not stopped.folder.path.exists()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["moved"]


def test_res_11_the_last_checkpoint_is_there_beside_the_best(tmp_path: Path) -> None:
    runner = make(tmp_path, *world("ConstReward"), "checkpoint.interval=20", "checkpoint.keep_last=1")
    # The first evaluation is as good as any later one, so that it stays the best.
    stop_at(runner, 70)
    folder = runner.folder.checkpoints
    assert (folder / "latest").read_text(encoding="utf-8").strip() == "70"
    assert (folder / "best").read_text(encoding="utf-8").strip() == "0"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["0", "70"]


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_a_completed_run_can_be_extended(tmp_path: Path, algo: str) -> None:
    long = run(tmp_path, f"algo={algo}", "train.num_env_steps=160")
    short = run(tmp_path, f"algo={algo}")
    assert short.folder.completed
    extended = resume(short.folder, "train.num_env_steps=160")
    assert extended.folder.completed
    assert extended.env_steps == 160
    assert_same_run(long.folder, extended.folder)
    assert json.loads((extended.folder.path / "COMPLETED").read_text(encoding="utf-8"))["env_steps"] == 160


def test_a_completed_run_that_is_resumed_as_it_is_stays_complete(tmp_path: Path) -> None:
    runner = run(tmp_path)
    before = checkpoint(runner.folder), metrics(runner.folder), evaluations(runner.folder)
    result = resume(runner.folder)
    assert result.folder.completed
    assert (checkpoint(runner.folder), metrics(runner.folder), evaluations(runner.folder)) == before


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = run(tmp_path, "checkpoint.interval=20", "checkpoint.keep_last=9")
    damaged = run(tmp_path, "checkpoint.interval=20", "checkpoint.keep_last=9")
    file = damaged.folder.checkpoints / "80" / "learners.pt"
    file.write_bytes(file.read_bytes()[:-100])
    capsys.readouterr()
    resume(damaged.folder)
    said = capsys.readouterr().out
    assert "checkpoint 80 is damaged" in said
    assert "using 60 instead" in said
    assert_same_run(straight.folder, damaged.folder)


def test_without_any_whole_checkpoint_the_error_says_what_was_looked_for(tmp_path: Path) -> None:
    runner = run(tmp_path, *QUICK, "checkpoint.keep_last=1")
    shutil.rmtree(runner.folder.checkpoints / "80")
    with pytest.raises(CheckpointError, match="no checkpoint in") as error:
        harl.make_runner([f"resume={runner.folder.path}"])
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        harl.load(runner.folder.path)


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_an_environment_that_cannot_save_its_state_is_reset_and_the_log_says_so(
    tmp_path: Path, algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = make(tmp_path, f"algo={algo}", *world("Identity"))
    assert not runner.envs.can_save_state
    stop_at(runner, 46)
    capsys.readouterr()
    resumed = resume(runner.folder)
    said = capsys.readouterr().out
    assert "the environments were reset" in said
    assert "3 steps of an unfinished rollout are taken again" in said
    assert resumed.env_steps == 80
    assert [row["env_steps"] for row in metrics(runner.folder)] == ["0", "20", "40", "60", "80"]
    assert [line["env_steps"] for line in evaluations(runner.folder)] == [0, 0, 40, 40, 80, 80]


def test_a_run_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    runner = make(tmp_path, *QUICK)
    stop_at(runner, 40)
    with runner.folder.lock(), pytest.raises(RunFolderError, match="being written by another process"):
        resume(runner.folder)
    assert resume(runner.folder).env_steps == 80


def test_resume_is_the_same_with_the_file_of_the_command_line(tmp_path: Path) -> None:
    """What `resume` reads is config.yaml of the run, not today's defaults."""
    runner = make(tmp_path, *QUICK, "algo.lr=1e-3")
    stop_at(runner, 40)
    config = configure([f"resume={runner.folder.path}", *[o for o in TINY if o.startswith("logger")]])
    assert config.algo.algo.lr == 1e-3
