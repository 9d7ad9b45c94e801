"""Default key maps: every action of every space can be given, by keys that do not get in each other's way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harl.envs.mpe import MPEVectorEnv
from harl.envs.mpe.controls import MOVES
from harl.hitl.controls import (
    MOST_CONTROLS,
    NO_KEY,
    AgentControls,
    Control,
    default_controls,
    known_meanings,
    layout_controls,
    noop,
)

PAGE_KEYS = {
    *("Space", "Escape", "Backspace", "Equal", "Minus", "NumpadAdd", "NumpadSubtract"),
    *("KeyP", "Period", "Comma", "Slash", "Home", "End", "Delete", "PageUp", "PageDown", "Tab", "Enter"),
}
HALF_OPEN = spaces.Box(np.array([0.0, -np.inf, 0.5], np.float32), np.array([2.0, 3.0, 1.0], np.float32))


def mpe(scenario: str, **arguments: Any) -> MPEVectorEnv:
    env = MPEVectorEnv(1, scenario, **arguments)
    env.reset([5])
    return env


def by_code(own: AgentControls) -> dict[str, Control]:
    return {control.code: control for control in own.controls}


def held(own: AgentControls, *codes: str) -> Any:
    """The action when these keys are held, pressed in this order: what the page computes."""
    controls = [by_code(own)[code] for code in codes]
    newest = list({control.group: control for control in controls}.values())
    if not newest:
        return own.noop
    if own.combine == "last":
        return controls[-1].action
    if own.combine == "component":
        parts = [[c.action[i] for c in newest if c.action[i] is not None] for i in range(len(own.noop))]
        return [part[-1] if part else idle for part, idle in zip(parts, own.noop, strict=True)]
    base = np.asarray(own.noop, float)
    return (base + sum(np.asarray(control.action, float) - base for control in newest)).tolist()


def displacement(env: MPEVectorEnv, agent: int, action: Any) -> np.ndarray:
    """Velocity that an agent gets from rest by one action while the others do nothing."""
    controls = layout_controls(env.layout)
    actions = np.zeros((1, env.layout.num_agents, env.layout.action_dim), np.float32)
    for index, name in enumerate(env.layout.agents):
        values = np.atleast_1d(np.asarray(action if index == agent else controls[name].noop, np.float32))
        actions[0, index, : len(values)] = values
    env.step(actions)
    return env.get_state()["agent_velocities"][0, agent]


@pytest.mark.parametrize("physics", ["mpe2", "classic"])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize(
    ("scenario", "mover"), [("simple_spread", 1), ("simple_reference", 0), ("simple_speaker_listener", 1)]
)
@pytest.mark.parametrize(
    ("key", "way"),
    [("ArrowLeft", (-1, 0)), ("ArrowRight", (1, 0)), ("ArrowDown", (0, -1)), ("ArrowUp", (0, 1)), (None, (0, 0))],
)
def test_arrows_move_the_agent_where_they_point(
    scenario: str, mover: int, continuous: bool, physics: str, key: str | None, way: tuple[int, int]
) -> None:
    env = mpe(scenario, continuous_actions=continuous, physics=physics)
    state = env.get_state()  # apart from each other, so that nobody is pushed
    env.set_state(state | {"agent_positions": 3.0 * np.arange(2 * env.layout.num_agents).reshape(1, -1, 2)})
    own = layout_controls(env.layout)[env.layout.agents[mover]]
    action = held(own, *([key] if key else []))
    np.testing.assert_array_equal(np.sign(displacement(env, mover, action)), way)


@pytest.mark.parametrize(("scenario", "words"), [("simple_reference", 10), ("simple_speaker_listener", 3)])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_digits_speak(scenario: str, words: int, continuous: bool) -> None:
    env = mpe(scenario, continuous_actions=continuous)
    own = layout_controls(env.layout)[env.layout.agents[0]]
    digits = [f"Digit{(index + 1) % 10}" for index in range(words)]
    for index, code in enumerate(digits):
        assert by_code(own)[code].label == f"say {'ABCDEFGHIJ'[index]}"
        displacement(env, 0, held(own, code))
        np.testing.assert_array_equal(env.get_state()["speech"][0, 0], np.eye(words)[index])


def test_moving_and_speaking_at_the_same_time() -> None:
    own = layout_controls(mpe("simple_reference").layout)["agent_0"]
    assert own.combine == "sum"
    assert held(own, "ArrowUp", "Digit3") == held(own, "Digit3", "ArrowUp") == 2 * MOVES + 4
    assert held(own, "ArrowUp", "ArrowLeft") == 1, "one way at a time, the last one pressed"
    own = layout_controls(mpe("simple_reference", continuous_actions=True).layout)["agent_0"]
    assert held(own, "ArrowUp", "ArrowRight", "Digit1") == [0, 0, 1, 0, 1, 1] + [0] * 9
    assert held(own, "ArrowLeft", "ArrowRight") == [0, 0, 1, 0, 0] + [0] * 10, "opposite keys do not cancel out"


SPACES: list[Any] = [
    spaces.Discrete(1),
    spaces.Discrete(7),
    spaces.Discrete(34),
    spaces.Discrete(500),
    spaces.MultiDiscrete([3, 4, 2]),
    spaces.MultiDiscrete([12, 2, 2, 2, 2, 2]),
    spaces.Box(-1.0, 1.0, (6,), np.float32),
    spaces.Box(0.0, 1.0, (4,), np.float32),
    spaces.Box(-2.0, 2.0, (40,), np.float32),
    HALF_OPEN,
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_control_is_legal_has_its_own_key_and_leaves_those_of_the_page_alone(space: Any) -> None:
    own = default_controls(space)
    codes = [control.code for control in own.controls if control.code != NO_KEY]
    assert len(codes) == len(set(codes)) > 0
    assert not PAGE_KEYS & set(codes)
    for control in own.controls:
        action = control.action
        if own.combine == "component":
            action = [idle if part is None else part for part, idle in zip(action, own.noop, strict=True)]
        assert space.contains(np.asarray(action, space.dtype)), control
    assert space.contains(np.asarray(own.noop, space.dtype))
    described = own.describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert len(own.controls) <= MOST_CONTROLS * 6


def test_a_discrete_space_has_a_key_for_each_action() -> None:
    own = default_controls(spaces.Discrete(12))
    assert [control.action for control in own.controls] == list(range(12))
    assert [control.code for control in own.controls][:3] == ["Digit1", "Digit2", "Digit3"]
    assert own.controls[10].code == "KeyQ"
    assert own.noop == 0


def test_each_component_has_a_row_of_keys() -> None:
    own = default_controls(spaces.MultiDiscrete([3, 2]))
    assert own.combine == "component"
    assert held(own, "Digit3") == [2, 0]
    assert held(own, "Digit3", "KeyW") == [2, 1]
    assert held(own, "Digit3", "KeyW", "Digit2") == [1, 1]
    assert held(own) == [0, 0]


def test_a_box_has_a_pair_of_keys_for_each_dimension() -> None:
    own = default_controls(spaces.Box(np.array([-1, -4], np.float32), np.array([1, 2], np.float32)))
    assert held(own, "ArrowLeft") == [-1, 0]
    assert held(own, "ArrowUp", "ArrowRight") == [1, 2]
    assert held(own, "ArrowUp", "ArrowDown") == [0, -4]
    assert held(own) == [0, 0]


def test_doing_nothing_stays_within_bounds() -> None:
    assert noop(HALF_OPEN) == [0.0, 0.0, 0.5]
    own = default_controls(HALF_OPEN)
    assert {control.code: control.action for control in own.controls} == {
        "ArrowRight": [2.0, 0.0, 0.5],
        "ArrowDown": [0.0, -1.0, 0.5],
        "ArrowUp": [0.0, 3.0, 0.5],
        "KeyD": [0.0, 0.0, 1.0],
    }


def test_doing_nothing_is_what_is_said_to_do_nothing() -> None:
    assert noop(spaces.Discrete(3), ("left", "right", "noop")) == 2
    assert noop(spaces.MultiDiscrete([2, 2]), ("on", "wait", "idle", "push")) == [1, 0]
    own = default_controls(spaces.Discrete(3), ("left", "right", "noop"))
    assert set(by_code(own)) == {"ArrowLeft", "ArrowRight"}


def test_meanings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3 entries to give a meaning to, not 2"):
        default_controls(spaces.Discrete(3), ("left", "right"))
    with pytest.raises(TypeError, match="in action space"):
        default_controls(spaces.MultiBinary(3))


def test_particle_worlds_behind_the_adapter_are_known_by_name() -> None:
    assert known_meanings("simple_tag_v3", spaces.Discrete(5)) == ("stay", "left", "right", "down", "up")
    assert known_meanings("simple_tag_v3", spaces.Discrete(4)) is None
    assert known_meanings("grid_v0", spaces.Discrete(5)) is None
