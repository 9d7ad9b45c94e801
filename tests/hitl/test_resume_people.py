"""A run that is continued may have other people, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harl.config import Config, ConfigError, build_config, load_yaml, save_yaml
from harl.experiment.run_folder import RunFolder
from harl.runners.job import configure
from tests.runners.runs import QUICK, cli_tiny, only_run, typed


def stored(tmp_path: Path, *overrides: str) -> str:
    """`resume=` of a run folder with this configuration."""
    config: Config = build_config([*overrides, f"output_dir={tmp_path}"])
    folder = RunFolder.create(str(tmp_path), "mpe", "simple_spread", "happo", "default", 1)
    save_yaml(folder.config, config)
    folder.write_meta({})
    return f"resume={folder.path}"


def test_without_a_word_it_has_the_people_that_it_had(tmp_path: Path) -> None:
    resume = stored(tmp_path, "hitl=web", "hitl.port=9000")
    assert configure([resume]).run.hitl.port == 9000


def test_people_may_be_left_out(tmp_path: Path) -> None:
    resume = stored(tmp_path, "hitl=web", "hitl.port=9000")
    assert configure([resume, "hitl=off"]).run.hitl.name == "off"


def test_keys_of_its_own_mode_may_be_changed_without_naming_the_mode(tmp_path: Path) -> None:
    resume = stored(tmp_path, "hitl=web", "hitl.port=9000", "hitl.fps=7")
    hitl = configure([resume, "hitl.port=9001"]).run.hitl
    assert (hitl.name, hitl.port, hitl.fps) == ("web", 9001, 7)


def test_people_may_come_to_a_run_that_had_none(tmp_path: Path) -> None:
    resume = stored(tmp_path)
    hitl = configure([resume, "hitl=web", "hitl.port=9001"]).run.hitl
    assert (hitl.name, hitl.port) == ("web", 9001)


LEARNING = ("hitl=web", "hitl.port=9000", "hitl.takeover.learn=rlpd_bc", "hitl.takeover.bc_coef=5")


def test_naming_the_mode_that_it_has_changes_nothing_but_what_else_is_typed(tmp_path: Path) -> None:
    resume = stored(tmp_path, "algo=hasac", *LEARNING, "hitl.demonstrations=runs/x")
    hitl = configure([resume, "hitl=web", "hitl.port=0"]).run.hitl
    assert (hitl.port, hitl.takeover.learn, hitl.takeover.bc_coef) == (0, "rlpd_bc", 5)
    assert hitl.demonstrations == "runs/x"


def test_another_mode_begins_with_its_own_values(tmp_path: Path) -> None:
    resume = stored(tmp_path, "algo=hasac", *LEARNING)
    hitl = configure([resume, "hitl=sharpie", "hitl.fps=7"]).run.hitl
    assert (hitl.name, hitl.port, hitl.fps, hitl.reward.credit) == ("sharpie", 8000, 7, "turn")
    assert hitl.takeover.learn == "auto"


def test_keys_of_its_own_algorithm_are_known_without_naming_it(tmp_path: Path) -> None:
    resume = stored(tmp_path, "algo=hasac", "algo.share_param=false")
    with pytest.raises(ConfigError) as refused:
        configure([resume, "algo.share_param=true"])
    assert "algo=hasac" in str(refused.value)
    assert "happo" not in str(refused.value)
    shared = stored(tmp_path, "algo=mappo", "algo.share_param=true")
    assert configure([shared, "algo.share_param=true"]).algo.algo.share_param


@pytest.mark.parametrize("typed_key", ["hitl.port=0", "hitl.pace=free", "hitl.takeover.bc_coef=1"])
def test_the_command_line_knows_the_keys_of_the_mode_and_the_algorithm(tmp_path: Path, typed_key: str) -> None:
    resume = stored(tmp_path, "algo=hasac", "algo.polyak=0.5", *LEARNING)
    done = typed(tmp_path, resume, typed_key, "algo.polyak=0.5", "--cfg", "job")
    assert (done.code, done.err) == (0, "")
    shown = yaml.safe_load(done.out)
    assert (shown["hitl"]["name"], shown["algo"]["name"]) == ("web", "hasac")


def test_a_run_goes_on_from_the_command_line_with_other_people(tmp_path: Path) -> None:
    begun = typed(tmp_path, *cli_tiny("hitl=web", "hitl.port=0", "hitl.takeover.bc_coef=5", *QUICK))
    assert begun.code == 0, begun.err
    folder = only_run(tmp_path / "runs")
    done = typed(tmp_path, f"resume={folder.path}", "train.num_env_steps=120", "hitl.pace=free")
    assert done.code == 0, done.err
    hitl = load_yaml(folder.config).run.hitl
    assert (hitl.pace, hitl.takeover.bc_coef) == ("free", 5)
