"""Every off-policy algorithm in every kind of world: it trains with finite numbers, or is refused before work."""

from __future__ import annotations

from pathlib import Path

import pytest

from harl.config import ConfigError
from tests.algorithms.learners import ALGORITHMS, all_finite, changed, parameters
from tests.runners.off_policy_runs import QUICK, fixture, make, run

WORLDS = "tests.runners.off_policy_worlds"
ENVS = {
    "box": fixture("IdentityBox"),
    "box_deaths": fixture("BoxDeaths", WORLDS),
    "discrete": fixture("Identity"),
    "masks": fixture("MaskOnly", legal=2),
    "masks_deaths": fixture("Deaths"),
    "multidiscrete_masks": fixture("MaskedParts", WORLDS),
    "differing": fixture("Hetero"),
    "speaker_box": "speaker_box",
}
DISCRETE = ("discrete", "masks", "masks_deaths")
"""Worlds in which all agents have one choice a step."""
STATES = {
    "EP": {"env__state_type": "EP"},
    "FP": {"env__state_type": "FP"},
    "individual": {"env__reward": "individual"},
}
SHORT = {"train__num_env_steps": 48, "algo__policy_freq": 1}


def possible(algo: str, env: str) -> bool:
    return algo != "had3qn" or env in DISCRETE


@pytest.mark.parametrize("state", ["EP", "individual", pytest.param("FP", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("algo", "env"), [(algo, env) for algo in ALGORITHMS for env in ENVS if possible(algo, env)])
def test_it_trains(tmp_path: Path, algo: str, env: str, state: str) -> None:
    runner = make(tmp_path, algo, ENVS[env], **SHORT, **QUICK, **STATES[state])
    before = parameters(runner)
    runner.run()
    assert runner.env_steps == 48
    assert runner.total_it == 12
    assert all_finite(runner)
    assert changed(before, parameters(runner)) == set(before)
    assert runner.layout.state_type == ("EP" if state == "EP" else "FP")


@pytest.mark.parametrize("state", ["EP", "individual", pytest.param("FP", marks=pytest.mark.slow)])
@pytest.mark.parametrize("env", ["box", "box_deaths", "discrete", "masks_deaths", "multidiscrete_masks"])
@pytest.mark.parametrize("algo", ["maddpg", "matd3"])
def test_it_trains_one_network_for_all(tmp_path: Path, algo: str, env: str, state: str) -> None:
    runner = run(tmp_path, algo, ENVS[env], algo__share_param=True, **SHORT, **QUICK, **STATES[state])
    assert len(runner.team.own) == 1
    assert runner.total_it == 12
    assert all_finite(runner)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_D_09_a_team_of_one_with_a_state_for_each_agent(tmp_path: Path, algo: str) -> None:
    env = fixture("Identity" if algo == "had3qn" else "IdentityBox", agents=1)
    runner = run(tmp_path, algo, env, **SHORT, **QUICK, **STATES["FP"])
    assert runner.total_it == 12
    assert runner.layout.agents == ("agent_0",)
    assert all_finite(runner)


@pytest.mark.parametrize("env", [env for env in ENVS if not possible("had3qn", env)])
def test_CFG_13_had3qn_refuses_other_actions_with_algorithms_that_fit(tmp_path: Path, env: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(tmp_path, "had3qn", ENVS[env], **QUICK)
    text = str(refused.value)
    assert "allowed: Discrete" in text
    for other in ("hatd3", "hasac", "maddpg", "happo"):
        assert other in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", ["haddpg", "hatd3", "hasac", "had3qn"])
def test_D_20_sharing_is_refused_for_sequential_updates_with_the_alternative(tmp_path: Path, algo: str) -> None:
    with pytest.raises(ConfigError, match=r"algo\.share_param=true") as refused:
        make(tmp_path, algo, algo__share_param=True)
    alternative = {"haddpg": "algo=maddpg", "hatd3": "algo=matd3"}.get(algo, "leave it false")
    assert alternative in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env", ["differing", "speaker_box"])
def test_USR_02_sharing_is_refused_for_agents_that_differ(tmp_path: Path, env: str) -> None:
    with pytest.raises(ConfigError, match="one network needs equal spaces") as refused:
        make(tmp_path, "maddpg", ENVS[env], algo__share_param=True)
    assert "algo.share_param=false" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", ["haddpg", "hasac"])
def test_HET_01_speaker_and_listener(tmp_path: Path, algo: str) -> None:
    runner = run(tmp_path, algo, "speaker", train__num_env_steps=500, train__train_interval=10, **QUICK)
    assert runner.env_steps == 500
    assert runner.layout.obs_dims == (3, 11)
    assert [actor.code.width for actor in runner.team.own] == [3, 5]
    assert all_finite(runner)


def test_images_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are images"):
        make(tmp_path, "hatd3", fixture("Pictures", WORLDS))
    assert list(tmp_path.iterdir()) == []
