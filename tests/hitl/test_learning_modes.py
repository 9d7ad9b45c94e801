"""Which ways of learning from people go with which algorithm, and what is said of the others."""

from __future__ import annotations

import pytest

from harl.config import ConfigError, PeopleConfig, build_config
from harl.config.hitl_schema import TAKEOVER_MODES
from harl.hitl.learning import MODES, Family, resolve, unsupported
from harl.registry import ALGORITHMS

ALGOS: dict[Family, str] = {"on_policy": "happo", "off_policy": "hasac"}


def people(*overrides: str) -> PeopleConfig:
    config = build_config(["algo=happo", "env=mpe", "hitl=web", *overrides]).run.hitl
    assert isinstance(config, PeopleConfig)
    return config


def test_every_mode_of_the_configuration_is_in_the_table() -> None:
    assert set(TAKEOVER_MODES) == {"auto", *MODES}


@pytest.mark.parametrize(("family", "name"), [("on_policy", "mask_bc"), ("off_policy", "rlpd")])
def test_auto_is_the_right_way_of_the_family(family: Family, name: str) -> None:
    learning = resolve(people(), family)
    assert learning.mode.name == learning.options.learn == name
    assert unsupported(people(), family, ALGOS[family], 1) == []


@pytest.mark.parametrize("family", ["on_policy", "off_policy"])
@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_other_family_are_refused_with_those_that_would_do(family: Family, mode: str) -> None:
    problems = unsupported(people(f"hitl.takeover.learn={mode}"), family, ALGOS[family], 1)
    if family in MODES[mode].families:
        assert problems == []
        return
    (problem,) = problems
    assert f"hitl.takeover.learn={mode}" in problem
    allowed = problem.split("allowed: ")[1].split(", ")
    assert allowed == ["auto", *(name for name, entry in MODES.items() if family in entry.families)]


def test_nothing_is_imitated_by_what_has_no_policy() -> None:
    """HAD3QN acts by its values; nor is it sent to imitation by what is said of other things."""
    (problem,) = unsupported(people("hitl.takeover.learn=rlpd_bc"), "off_policy", "had3qn", 1, has_policy=False)
    assert "hitl.takeover.learn=rlpd_bc: algo.name=had3qn" in problem
    assert problem.endswith("allowed: auto, rlpd, replay, rlif, silent")
    (problem,) = unsupported(people("hitl.takeover.learn=mask_bc"), "off_policy", "had3qn", 1, has_policy=False)
    assert problem.endswith("allowed: auto, rlpd, replay, rlif, silent")
    given = people("hitl.takeover.learn=replay", "hitl.demonstrations=runs/x")
    (problem,) = unsupported(given, "off_policy", "had3qn", 1, has_policy=False)
    assert problem.endswith("allowed: hitl.takeover.learn=rlpd")
    assert [name for name, entry in ALGORITHMS.items() if not entry.has_policy] == ["had3qn"]


def test_imitation_of_human_rows_needs_some_in_each_batch() -> None:
    none = "hitl.takeover.demo_fraction=0"
    (problem,) = unsupported(people("hitl.takeover.learn=rlpd_bc", none), "off_policy", "hasac", 1)
    assert problem.startswith("hitl.takeover.demo_fraction=0: ")
    assert "above 0" in problem
    assert unsupported(people("hitl.takeover.learn=rlpd", none), "off_policy", "hasac", 1) == []


def test_a_misspelt_mode_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="rlpd_bc"):
        people("hitl.takeover.learn=rlpdbc")


@pytest.mark.parametrize("learn", ["shape", "replace", "log"])
@pytest.mark.parametrize("family", ["on_policy", "off_policy"])
def test_every_use_of_feedback_goes_with_both_families(family: Family, learn: str) -> None:
    assert unsupported(people(f"hitl.reward.learn={learn}"), family, ALGOS[family], 1) == []


def test_shown_environment_must_exist() -> None:
    assert unsupported(people("hitl.env_index=3"), "on_policy", "happo", 4) == []
    (problem,) = unsupported(people("hitl.env_index=4"), "on_policy", "happo", 4)
    assert "hitl.env_index=4" in problem
    assert "0 to 3" in problem


def test_demonstrations_need_a_mode_that_learns_from_them() -> None:
    (problem,) = unsupported(people("hitl.demonstrations=runs/x", "hitl.takeover.learn=mask"), "on_policy", "happo", 1)
    assert "hitl.demonstrations=runs/x" in problem
    assert "hitl.takeover.learn=mask_bc" in problem
    assert unsupported(people("hitl.demonstrations=runs/x"), "off_policy", "hasac", 1) == []
    given = people("hitl.demonstrations=runs/x", "hitl.takeover.learn=silent")
    (problem,) = unsupported(given, "off_policy", "hasac", 1)
    assert problem.endswith("allowed: hitl.takeover.learn=rlpd, rlpd_bc")
    imitated = people("hitl.demonstrations=runs/x", "hitl.takeover.learn=rlpd_bc")
    assert unsupported(imitated, "off_policy", "hasac", 1) == []


def test_all_problems_are_told_at_once() -> None:
    assert len(unsupported(people("hitl.takeover.learn=rlpd", "hitl.env_index=9"), "on_policy", "happo", 1)) == 2


def test_silent_warns() -> None:
    assert any("WARNING" in line for line in resolve(people("hitl.takeover.learn=silent"), "on_policy").notices)
    assert not any("WARNING" in line for line in resolve(people(), "on_policy").notices)


@pytest.mark.parametrize(("family", "name"), [("on_policy", "mask"), ("off_policy", "replay")])
def test_bridge_without_a_section_of_its_own(family: Family, name: str) -> None:
    config = build_config(["algo=happo", "env=mpe"]).run.hitl
    assert resolve(config, family).mode.name == name
    assert unsupported(config, family, ALGOS[family], 1) == []


def test_weight_of_imitation_goes_to_zero_or_stays() -> None:
    learning = resolve(people("hitl.takeover.bc_coef=0.4"), "on_policy")
    assert [learning.weight(p) for p in (0.0, 0.5, 1.0, 1.5)] == [0.4, 0.2, 0.0, 0.0]
    assert resolve(people("hitl.takeover.bc_anneal=false"), "on_policy").weight(0.9) == 0.5
