"""Entry points: how an environment is found by name, and its arguments checked, before anything is built."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.envs.api import EnvError
from harl.envs.entry_point import EnvFactory, check_kwargs, factory_parameters, load_factory, scenario_name
from harl.envs.parallel import make_parallel_vector_env
from tests.envs.fixtures import ConstReward, Identity

SPREAD = "mpe2.simple_spread_v3:parallel_env"


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory outside of the source tree; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def test_env_13_an_environment_of_the_users_own_needs_no_edit(user_folder: Path) -> None:
    package = user_folder / "my_games"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tag.py").write_text(
        "from tests.envs.fixtures import ConstReward\n\n\ndef make_env(size: int, T: int = 4):\n"
        "    return ConstReward(T=T, agents=size)\n"
    )
    env = make_parallel_vector_env("my_games.tag:make_env", {"size": 3}, 2, "EP")
    assert (env.scenario, env.layout.num_agents, env.episode_limit) == ("tag", 3, 4)
    env.reset([1, 2])
    for _ in range(4):
        view = env.step(np.zeros((2, 3, 1), np.float32))
    assert view.truncated.all()
    with pytest.raises(EnvError, match=r"my_games\.tag:make_env needs the argument 'size'"):
        make_parallel_vector_env("my_games.tag:make_env", {}, 1, "EP")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mpe2.simple_spread_v3", "must have the form package.module:attribute"),
        (":parallel_env", "must have the form package.module:attribute"),
        ("mpe2.simple_spread_v99:parallel_env", r"no module 'simple_spread_v99', did you mean 'simple_spread_v3'\?.*"),
        ("mpe2.simple_spread_v99:parallel_env", "it has: .*simple_reference_v3, simple_speaker_listener_v4"),
        ("mpe2.simple_spread_v3:paralel_env", r"has no 'paralel_env', did you mean 'parallel_env'\?"),
        ("mpe2:__version__", "is a str; it must be a function or class"),
        ("smacv2.env:StarCraft2Env", r"no module smacv2 \(pip install .*smacv2"),
        ("mpe3.simple_spread_v3:parallel_env", r"no module mpe3, did you mean 'mpe2'\?"),
        ("my_broken:make", r"my_broken needs rware, which is missing \(pip install rware\)"),
        ("my_stale:make", "my_stale cannot be imported: cannot import name 'nothing'"),
    ],
)
def test_env_05_a_wrong_name_says_what_is_near_and_what_to_install(user_folder: Path, spec: str, message: str) -> None:
    (user_folder / "my_broken.py").write_text("import rware\n")
    (user_folder / "my_stale.py").write_text("from json import nothing\n")
    with pytest.raises(EnvError, match=message):
        load_factory(spec)


def test_env_05_a_package_that_is_hidden_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mpe2", None)  # what Python itself takes for "cannot be imported"
    with pytest.raises(EnvError, match=r"no module mpe2.* \(pip install mpe2\)"):
        load_factory(SPREAD)


def test_attributes_may_be_dotted_and_modules_attributes() -> None:
    assert load_factory("tests.envs.fixtures:ConstReward") is ConstReward
    assert load_factory("tests.envs:fixtures.Identity") is Identity
    assert load_factory("tests.envs.fixtures.ConstReward:observe") is ConstReward.observe


def test_cfg_01_unknown_arguments_are_refused_before_anything_is_built() -> None:
    with pytest.raises(
        EnvError, match=r"'max_cyclez', did you mean 'max_cycles'\?; allowed: N, local_ratio, max_cycles"
    ):
        make_parallel_vector_env(SPREAD, {"max_cyclez": 10}, 1, "EP")
    with pytest.raises(EnvError, match=r"no argument 'agent', did you mean 'agents'\?.*no argument 'zzz'; allowed"):
        check_kwargs(ConstReward, {"agent": 1, "zzz": 2, "T": 3})
    check_kwargs(load_factory(SPREAD), {"max_cycles": 10, "continuous_actions": True})


def test_a_factory_that_hides_its_arguments_decides_itself() -> None:
    def hidden(**kwargs: Any) -> ConstReward:
        return ConstReward(**kwargs)

    assert factory_parameters(hidden) == ({}, True)
    check_kwargs(hidden, {"anything": 1})


def test_a_refusal_by_the_environment_names_the_arguments() -> None:
    with pytest.raises(EnvError, match=r"could not be built with \{'local_ratio': 7\}: AssertionError: local_ratio"):
        make_parallel_vector_env(SPREAD, {"local_ratio": 7}, 1, "EP")


def test_a_factory_can_be_sent_to_a_process_and_asks_for_pictures_where_it_can() -> None:
    factory = pickle.loads(pickle.dumps(EnvFactory("tests.envs.fixtures:ConstReward", {"T": 3}, render=True)))
    env = factory()
    assert (env.max_cycles, env.render_mode) == (3, "rgb_array")
    assert EnvFactory("tests.envs.fixtures:Identity", {}, render=True)().render_mode is None


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (SPREAD, "simple_spread_v3"),
        ("my_pkg.my_module:make_env", "my_module"),
        ("my_pkg.my_module:Harvest", "Harvest"),
        ("my_pkg.welten:Größe", "Gr-e"),
    ],
)
def test_scenario_names_fit_into_paths(spec: str, name: str) -> None:
    assert scenario_name(spec) == name
