"""What a run may start from: another run's weights, or its own folder, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import harl
from harl.config import ConfigError, load_yaml
from harl.experiment.run_folder import RunFolder, RunFolderError
from harl.runners import OnPolicyBaseRunner
from harl.runners.job import configure
from tests.runners.runs import (
    QUICK,
    checkpoint,
    leaves,
    make,
    metrics,
    run,
    stop_at,
    weights,
)


@pytest.mark.parametrize("algo", ["happo", "mappo"])
def test_res_10_a_new_run_starts_from_the_weights_of_another(
    tmp_path: Path, algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run(tmp_path, f"algo={algo}", "eval.use_eval=false")
    capsys.readouterr()
    runner = make(tmp_path, f"algo={algo}", f"init_from={source.folder.path}", "algo.lr=1e-3")
    assert torch.equal(weights(runner), weights(source))
    assert runner.env_steps == 0
    assert runner.folder.path != source.folder.path
    saved, own = checkpoint(source.folder), runner.critic.value_normalizer
    assert own is not None
    assert own.running_mean.tolist() == saved["/learners/critic/value_normalizer/running_mean"]
    runner.run()
    assert runner.env_steps == 80
    assert metrics(runner.folder)[0]["env_steps"] == "0"
    said = capsys.readouterr().out
    assert f"started from the weights of {source.folder.path}" in said


def test_init_from_takes_the_best_weights_or_the_named_checkpoint(tmp_path: Path) -> None:
    source = run(tmp_path, "env=mpe", "checkpoint.interval=20", "checkpoint.keep_last=9")
    best = (source.folder.checkpoints / "best").read_text(encoding="utf-8").strip()
    runner = make(tmp_path, "env=mpe", f"init_from={source.folder.path}")
    runner.close()
    expected = checkpoint(source.folder, int(best))
    assert policies(runner) == {place: value for place, value in expected.items() if "/policy/" in place}
    named = make(tmp_path, "env=mpe", f"init_from={source.folder.checkpoints / '20'}")
    named.close()
    expected = checkpoint(source.folder, 20)
    assert policies(named) == {place: value for place, value in expected.items() if "/policy/" in place}


def policies(runner: OnPolicyBaseRunner) -> dict[str, object]:
    state = leaves({"learners": runner.learner_state()})
    return {place: value for place, value in state if "/policy/" in place}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (["env.kwargs.N=4"], ["agents", "agent_3", "observation_spaces", "share_obs_shape"]),
        (["env.scenario=simple_speaker_listener"], ["speaker_0", "action_spaces", "Discrete(3)"]),
        (["env.continuous_actions=true"], ["action_spaces", "Box"]),
        (["model.hidden_sizes=[16]"], ["hidden_sizes", "[8]", "[16]"]),
        (["env.state_type=FP"], ["share_obs_shape"]),
        (["algo=mappo"], ["share_param"]),
    ],
    ids=lambda value: value[0] if "=" in value[0] else "",
)
def test_res_10_weights_of_another_team_are_refused_with_all_that_differs(
    tmp_path: Path, other: list[str], named: list[str]
) -> None:
    source = run(tmp_path / "source", "env=mpe", *QUICK)
    with pytest.raises(ConfigError) as refused:
        make(tmp_path / "new", "env=mpe", *QUICK, *other, f"init_from={source.folder.path}")
    for text in named:
        assert text in str(refused.value)
    assert not (tmp_path / "new").exists(), "a refused run leaves nothing behind"


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        (["env.scenario=simple_reference"], "env.scenario"),
        (["algo=mappo"], "algo.name"),
        (["env.kwargs.N=5"], "env.kwargs.N"),
        (["env.state_type=FP"], "env.state_type"),
        (["seed=2"], "seed"),
        (["model.hidden_sizes=[9]"], "model.hidden_sizes"),
        (["env=pettingzoo", "env.entry_point=tests.envs.fixtures:Identity", "env.reward=shared_sum"], "env.name"),
        (["+experiment=mpe_reference_discrete_happo"], "experiment"),
        (["+debug=default"], "debug"),
        (["exp_name=other"], "exp_name"),
        (["train.n_rollout_threads=3"], "train.n_rollout_threads"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_res_12_a_run_stays_what_it_is(stopped_run: RunFolder, typed: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configure([f"resume={stopped_run.path}", *typed])
    assert key in str(refused.value)


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    runner = make(tmp_path_factory.mktemp("stopped"), "env=mpe", *QUICK)
    stop_at(runner, 40)
    return runner.folder


def test_res_12_all_that_must_not_change_is_named_at_once(stopped_run: RunFolder) -> None:
    with pytest.raises(ConfigError) as refused:
        configure([f"resume={stopped_run.path}", "env.scenario=simple_reference", "algo.lr=1e-3", "seed=4"])
    assert len(refused.value.errors) == 3
    assert all("simple_spread" in text or "0.0005" in text or "1" in text for text in refused.value.errors)


def test_res_12_values_that_are_wrong_and_keys_that_must_not_change_come_in_one_list(stopped_run: RunFolder) -> None:
    wrong = [
        "algo.gamma=1.5",
        "train.log_intervall=3",
        "algo.lr=1e-3",
        "env.scenario=simple_reference",
        "+debug=default",
    ]
    with pytest.raises(ConfigError) as refused:
        configure([f"resume={stopped_run.path}", *wrong, "train.num_env_steps=400"])
    errors = refused.value.errors
    for key in ("algo.gamma=1.5", "train.log_intervall is unknown", "algo.lr=0.001", "env.scenario=", "debug: the run"):
        assert sum(text.startswith(key) for text in errors) == 1, key
    assert len(errors) == len(wrong)


def test_res_13_a_run_that_is_missing_is_told_with_what_else_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        configure([f"resume={tmp_path / 'missing'}", "algo.gamma=1.5", "algo.lr=1e-3"])
    assert len(refused.value.errors) == 2
    assert "algo.gamma=1.5" in refused.value.errors[0]
    assert "does not exist" in refused.value.errors[1]


def test_res_12_harmless_keys_may_change_and_the_rest_stays(stopped_run: RunFolder) -> None:
    config = configure(
        [f"resume={stopped_run.path}", "train.log_interval=7", "checkpoint.keep_last=9", "logger.tensorboard=true"]
    )
    assert config.algo.train.log_interval == 7
    assert config.run.checkpoint.keep_last == 9
    assert config.run.logger.tensorboard
    stored = load_yaml(stopped_run.config)
    assert config.algo.model == stored.algo.model
    assert config.algo.train.num_env_steps == stored.algo.train.num_env_steps == 80


def test_res_13_a_file_or_folder_within_the_run_will_do(tmp_path: Path) -> None:
    runner = make(tmp_path, *QUICK)
    stop_at(runner, 40)
    for part in ("", "config.yaml", "checkpoints", "checkpoints/40", "checkpoints/40/learners.pt"):
        assert configure([f"resume={runner.folder.path / part}"]).run.seed == 1


def test_res_13_what_is_not_a_run_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, text in ((tmp_path / "empty", "empty folder"), (tmp_path / "missing", "does not exist")):
        with pytest.raises(RunFolderError, match=text) as error:
            harl.make_runner([f"resume={path}"])
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        with pytest.raises(RunFolderError, match=text):
            make(tmp_path / "new", f"init_from={path}")
    assert not (tmp_path / "new").exists(), "a refused run leaves nothing behind"
