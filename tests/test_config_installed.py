"""Environments of installed packages, by an entry point in the group `harl.envs`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest
from hydra.core.config_store import ConfigStore

from harl.config import ConfigError, PettingZooConfig, build_config, installed


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a package with one environment were installed; the process-wide store of Hydra is cleared afterwards."""
    entry = EntryPoint("meet", "tests.envs.fixtures:ConstReward", installed.GROUP)
    monkeypatch.setattr(installed, "entry_points", lambda group: [entry] if group == installed.GROUP else [])
    yield
    ConfigStore.instance().repo.get("env", {}).pop("meet.yaml", None)


@pytest.mark.usefixtures("meet")
def test_ENV_13_an_installed_environment_is_a_choice() -> None:
    config = build_config(["env=meet", "env.reward=individual", "env.kwargs.T=7"])
    assert isinstance(config.env, PettingZooConfig)
    assert config.env.entry_point == "tests.envs.fixtures:ConstReward"
    assert config.env.kwargs == {"T": 7}


@pytest.mark.usefixtures("meet")
def test_a_mistyped_choice_names_it() -> None:
    with pytest.raises(ConfigError, match="meet"):
        build_config(["env=meat"])
