"""A run that is continued may have other people, or none."""

from __future__ import annotations

from pathlib import Path

from harl.config import Config, build_config, save_yaml
from harl.experiment.run_folder import RunFolder
from harl.runners.job import configure


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
