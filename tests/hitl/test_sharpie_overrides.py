"""Whose action is taken, and which reward counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harl.hitl.sharpie import (
    get_agent_data,
    get_policy_actions,
    override_actions,
    override_rewards,
    train_policies,
    update_single_agent,
)
from harl.hitl.sharpie_site.updates import Transition, Updates
from tests.hitl.sharpie_fakes import agent, policy

SHARED = {"agent_0": agent(policy=policy()), "agent_1": agent(participant=False, policy=policy())}


class Pupil:
    """A policy that remembers what it was shown."""

    def __init__(self, fails: bool = False) -> None:
        self.shown: list[tuple[Any, ...]] = []
        self.hints: list[Any] = []
        self.fails = fails

    def predict(self, observation: Any, participant_input: Any = "none") -> Any:
        self.hints.append(participant_input)
        return ("acted on", observation)

    def update(self, observation: Any, action: Any, reward: Any, done: bool, next_observation: Any) -> None:
        self.shown.append((observation, action, reward, done, next_observation))
        if self.fails:
            raise RuntimeError("no")


@pytest.mark.parametrize(
    ("settings", "inputs", "actions", "expected"),
    [
        (SHARED, {"agent_0": 1}, {"agent_0": 7, "agent_1": 8}, {"agent_0": 1, "agent_1": 8}),
        (SHARED, {"agent_0": 0}, {"agent_0": 7, "agent_1": 8}, {"agent_0": 7, "agent_1": 8}),
        (SHARED, {"agent_0": False}, {"agent_0": 7}, {"agent_0": False}),
        (SHARED, {"agent_0": 0}, {"agent_1": 8}, {"agent_0": 0, "agent_1": 8}),
        (SHARED, {"stranger": 1}, {"agent_0": 7}, {"agent_0": 7}),
        ({"a": agent(multiple_keyboard_inputs=True)}, {"a": [0]}, {"a": 7}, {"a": 7}),
        ({"a": agent(multiple_keyboard_inputs=True)}, {"a": [1, -1]}, {"a": 7}, {"a": [1, -1]}),
        ({"a": agent(inputs_type="reward")}, {"a": 1}, {"a": 7}, {"a": 7}),
        ({"a": agent(inputs_type="other")}, {"a": "hint"}, {"a": 7}, {"a": 7}),
        ({"a": agent(keyboard_inputs={})}, {"a": 0}, {"a": 7}, {"a": 7}),
        ({"a": agent()}, {"a": 1}, 7, 1),
    ],
)
def test_actions_of_people_replace_those_of_policies(
    settings: dict[str, Any], inputs: dict[str, Any], actions: Any, expected: Any
) -> None:
    before = dict(actions) if isinstance(actions, dict) else actions
    result = override_actions(settings, inputs, actions)
    assert result == expected
    assert actions == before


REWARDED = {"a": agent(inputs_type="reward"), "b": agent(participant=False)}


@pytest.mark.parametrize(
    ("settings", "inputs", "reward", "expected"),
    [
        (REWARDED, {"a": 1}, {"a": 0.5, "b": 0.25}, {"a": 1, "b": 0.25}),
        (REWARDED, {"a": 0}, {"a": 0.5, "b": 0.25}, {"a": 0.5, "b": 0.25}),
        (REWARDED, {"a": -1}, 0.5, {"a": -1, "b": 0.5}),
        (REWARDED, {"a": "good"}, 0.5, 0.5),
        (REWARDED, {"a": float("nan")}, 0.5, 0.5),
        (REWARDED, {"b": 1, "stranger": 1}, 0.5, 0.5),
        ({"a": agent(inputs_type="reward")}, {"a": 1}, 0.5, 1),
        ({"a": agent(inputs_type="reward", multiple_keyboard_inputs=True)}, {"a": [1, 1, -1]}, 0.5, 1),
        ({"a": agent(inputs_type="reward", multiple_keyboard_inputs=True)}, {"a": [0]}, 0.5, 0.5),
        ({"a": agent(inputs_type="actions")}, {"a": 1}, 0.5, 0.5),
    ],
)
def test_rewards_of_people_replace_the_environments_and_silence_does_not(
    settings: dict[str, Any], inputs: dict[str, Any], reward: Any, expected: Any
) -> None:
    assert override_rewards(settings, inputs, reward) == expected


def test_policies_see_their_own_observation_and_hints_where_they_are_meant_for_them() -> None:
    settings = {"a": agent(inputs_type="other"), "b": agent()}
    a, b = Pupil(), Pupil()
    actions = get_policy_actions({"a": 1, "b": 2}, {"a": a, "b": b}, {"a": "go", "b": 1}, settings)
    assert actions == {"a": ("acted on", 1), "b": ("acted on", 2)}
    assert (a.hints, b.hints) == (["go"], ["none"])
    assert get_policy_actions("all", {"a": a}) == {"a": ("acted on", "all")}
    assert a.hints[-1] == "none"


def test_parts_of_agents() -> None:
    assert get_agent_data("a", {"a": 1}) == 1
    assert get_agent_data("b", {"a": 1}) == 0
    assert get_agent_data("b", {"a": 1}, None) is None
    assert get_agent_data("a", 5) == 5


def test_an_update_gets_the_agents_own_transition() -> None:
    pupil = Pupil()
    update_single_agent("a", pupil, {"a": 1, "b": 9}, {"a": 2}, {"a": 3.0}, {"a": 4}, True)
    assert pupil.shown == [(1, 2, 3.0, True, 4)]
    update_single_agent("a", object(), 1, 2, 3, 4, False)  # learns nothing


def test_a_failing_update_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    update_single_agent("a", Pupil(fails=True), 1, 2, 3, 4, False)
    assert "the update of a's policy failed" in caplog.text
    assert "RuntimeError: no" in caplog.text


@pytest.mark.parametrize(
    ("interval", "step", "done", "times"),
    [(1, 1, False, 1), (3, 3, False, 1), (3, 4, False, 0), (3, 4, True, 0), (-2, 3, False, 0), (-2, 3, True, 1),
     (0, 3, True, 0)],
)  # fmt: skip
def test_intervals(interval: int, step: int, done: bool, times: int) -> None:
    pupil = Pupil()
    train_policies({"a": pupil}, {"a": interval}, step, "s", "a", 1.0, np.bool_(done), False, {}, s_prime="after")
    assert pupil.shown == [("s", "a", 1.0, done, "after")] * times


def test_the_reward_is_never_taken_for_the_next_observation() -> None:
    pupil = Pupil()
    train_policies({"a": pupil}, {"a": 1}, 1, "s", "a", 1.0, False, False, {})
    assert pupil.shown == [("s", "a", 1.0, False, None)]


def transitions(count: int) -> list[Transition]:
    return [Transition(i, i, i, i + 1, i == count - 1, False) for i in range(count)]


@pytest.mark.parametrize(
    ("interval", "after_each_step"), [(1, [1, 2, 3, 4, 5]), (2, [0, 2, 2, 4, 5]), (-2, [0, 0, 0, 0, 5]), (0, [0] * 5)]
)
def test_no_transition_is_lost_between_updates(interval: int, after_each_step: list[int]) -> None:
    pupil = Pupil()
    updates = Updates({"a": pupil}, {"a": interval})
    seen = []
    for step, made in enumerate(transitions(5), start=1):
        updates.add(step, made)
        seen.append(len(pupil.shown))
    assert seen == after_each_step
    assert pupil.shown == [(i, i, i, i == 4, i + 1) for i in range(after_each_step[-1])]


def test_an_episode_that_breaks_off_is_learned_from() -> None:
    pupil = Pupil()
    updates = Updates({"a": pupil}, {"a": -2})
    updates.add(1, transitions(5)[0])
    updates.flush()
    updates.flush()
    assert pupil.shown == [(0, 0, 0, False, 1)]
