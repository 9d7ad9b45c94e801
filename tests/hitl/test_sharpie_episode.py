"""Episodes without a network: frames, transitions, stand-ins, ends."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harl.hitl.sharpie import load_environment, load_episode, load_policies, run_episode
from harl.hitl.sharpie_site.entrance import local_settings
from harl.hitl.sharpie_site.environments import UnfitAction, fit_action
from harl.hitl.sharpie_site.mapping import ExperimentEntry, parse_mapping
from harl.hitl.sharpie_site.messages import ProtocolError
from harl.hitl.sharpie_site.people import NobodyThere, PersonLeft, Waits
from harl.hitl.sharpie_site.serving import NotServed, Serving
from tests.hitl.sharpie_fakes import FakeSocket, agent, batch, left, picture_of, policy

WORLDS = "tests.hitl.sharpie_worlds"
FAST = {"target_fps": 100_000, "wait_for_inputs": False}
IMPATIENT = Waits(timeout_s=0.01, join_s=0.01, gone_s=60, last_s=0.01, settle_s=0.0)


def entry(environment: str = "Walk", agents: dict[str, Any] | None = None, **more: Any) -> ExperimentEntry:
    made = {"entry_point": f"{WORLDS}:{environment}", "kwargs": {}, "adapt": environment == "Single"}
    data = {"environment": made, "agents": agents or {}, **more}
    return parse_mapping({"experiments": {"x": data}}, "test", Path()).experiments["x"]


STEADY = {"object": f"{WORLDS}:Steady"}


class Stage:
    """Plays one episode of an entry over a fake socket, and keeps what there was to see."""

    def __init__(self, mapped: ExperimentEntry, settings: dict[str, Any], script: list[Any], **serving: Any) -> None:
        self.socket = FakeSocket(script)
        self.serving = Serving(waits=serving.pop("waits", Waits(last_s=0.01, settle_s=0.0)), **serving)
        self.mapped, self.settings = mapped, settings

    def play(self) -> int:
        return run_episode(
            self.socket, {}, self.settings, FAST, serving=self.serving, entry=self.mapped, link="x", room="r"
        )

    def policy(self, role: str) -> Any:
        return self.serving.policies("x", self.mapped)[role].target

    @property
    def actions(self) -> list[Any]:
        return [frame["actions"] for frame in self.socket.frames]


def test_an_episode_of_a_person_and_a_policy() -> None:
    settings = {"agent_0": agent(), "agent_1": agent(participant=False)}
    stage = Stage(entry(agents={"agent_0": {}, "agent_1": STEADY}), settings, [batch(agent_0=k) for k in (2, 0, 1, 2)])
    assert stage.play() == 3
    frames = stage.socket.frames
    assert [frame["step"] for frame in frames] == [1, 2, 3, 4]
    assert [frame["observations"]["agent_0"] for frame in frames] == [[0.0], [1.0], [0.0], [0.0]]
    assert stage.actions == [{}] + [{"agent_0": k, "agent_1": 2} for k in (2, 0, 1)]
    assert [frame["rewards"] for frame in frames] == [0] + [
        {"agent_0": a, "agent_1": b} for a, b in ((1.0, 1.0), (0.0, 2.0), (0.0, 3.0))
    ]
    assert [(frame["terminated"], frame["truncated"]) for frame in frames] == [(False, False)] * 3 + [(False, True)]
    assert [int(picture_of(frame)[0, 0, 0]) for frame in frames] == [0, 10, 20, 30]


def test_transitions_are_whole_and_have_the_persons_reward_for_the_step_that_was_shown() -> None:
    """The reward that answers frame k is that of the step which led to frame k; the last frame's counts too."""
    settings = {"agent_0": agent(inputs_type="reward", policy=policy(1)), "agent_1": agent(participant=False)}
    rewards = (-1, 1, 0, -1)  # of the first state (nothing to judge), then of steps 1, 2 and 3
    stage = Stage(entry(agents={"agent_0": STEADY, "agent_1": STEADY}), settings, [batch(agent_0=r) for r in rewards])
    assert stage.play() == 3
    shown = stage.policy("agent_0").shown
    assert [(s[0].tolist(), s[1], s[2], s[3], s[4].tolist()) for s in shown] == [
        ([0.0], 2, 1, False, [1.0]),
        ([1.0], 2, 2.0, False, [2.0]),  # no key: the environment's own reward
        ([2.0], 2, -1, True, [3.0]),
    ]
    assert [s[2] for s in stage.policy("agent_1").shown] == [1.0, 2.0, 3.0]


def test_learning_is_from_what_was_executed() -> None:
    settings = {"agent_0": agent(policy=policy(1)), "agent_1": agent(participant=False)}
    agents = {"agent_0": {**STEADY, "kwargs": {"action": 1}}, "agent_1": STEADY}
    stage = Stage(entry(agents=agents), settings, [batch(agent_0=k) for k in (2, 0, 0, 0)])
    stage.play()
    assert [s[1] for s in stage.policy("agent_0").shown] == [2, 1, 1]


@pytest.mark.parametrize(
    ("site", "mapped", "times"),
    [(0, None, 0), (-2, None, 3), (2, None, 3), (0, 1, 3), (1, 0, 0)],
)
def test_intervals_of_site_and_mapping(site: int, mapped: int | None, times: int) -> None:
    settings = {"agent_0": agent(participant=False, policy=policy(site)), "agent_1": agent(participant=False)}
    agents = {"agent_0": {**STEADY, "interval": mapped}, "agent_1": STEADY}
    stage = Stage(entry(agents=agents), settings, [])
    stage.play()
    assert len(stage.policy("agent_0").shown) == times
    assert [s[3] for s in stage.policy("agent_0").shown] == [False, False, True][:times]


@pytest.mark.parametrize(
    ("shared", "has_policy", "executed"),
    [(None, True, 2), (None, False, 0), (True, False, 2), (False, True, 0)],
)
def test_no_key_leaves_an_agent_to_its_policy_where_it_is_shared(
    shared: bool | None, has_policy: bool, executed: int
) -> None:
    own = agent(policy=policy()) if has_policy else agent()
    settings = {"agent_0": own, "agent_1": agent(participant=False)}
    stage = Stage(
        entry(agents={"agent_0": {**STEADY, "shared": shared}, "agent_1": STEADY}), settings, [batch(agent_0=0)] * 4
    )
    stage.play()
    assert stage.actions[1]["agent_0"] == executed


@pytest.mark.parametrize(
    ("absent", "has_object", "expected"),
    [("policy", True, 2), ("policy", False, 0), ("default", True, 0), ("previous", True, 1), ("previous", False, 1)],
)
def test_who_acts_for_people_that_do_not_answer(absent: str, has_object: bool, expected: int) -> None:
    settings = {"agent_0": agent(), "agent_1": agent(participant=False)}
    mapped = entry(agents={"agent_0": STEADY if has_object else {}, "agent_1": STEADY})
    waits = Waits(timeout_s=0.01, absent=absent, last_s=0.01, settle_s=0.0)
    stage = Stage(mapped, settings, [batch(agent_0=1), None, None, None], waits=waits)
    assert stage.play() == 3
    assert [taken["agent_0"] for taken in stage.actions[1:]] == [1, expected, expected]


def test_an_input_that_is_no_action_is_as_none(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"agent_0": agent(), "agent_1": agent(participant=False)}
    odd: list[Any] = ["up", 7, 0.5]
    stage = Stage(entry(agents={"agent_0": STEADY, "agent_1": STEADY}), settings, [batch(agent_0=k) for k in odd])
    with caplog.at_level(logging.WARNING, "harl.sharpie"):
        stage.play()
    assert [taken["agent_0"] for taken in stage.actions[1:]] == [2, 2, 2]
    assert "the text 'up' is no action; allowed: Discrete(3)" in caplog.text


def test_hints_reach_the_policy() -> None:
    settings = {"agent_0": agent(inputs_type="other", textual_inputs=True), "agent_1": agent(participant=False)}
    stage = Stage(entry(agents={"agent_0": STEADY, "agent_1": STEADY}), settings, [batch(agent_0=k) for k in (0, 1, 2)])
    stage.play()
    assert [taken["agent_0"] for taken in stage.actions[1:]] == [0, 1, 2]


def test_agents_that_leave_act_no_more() -> None:
    mapped = entry(agents={"agent_0": {}, "agent_1": STEADY})
    mapped.environment.kwargs["leaves"] = 1  # type: ignore[union-attr]
    settings = {"agent_0": agent(), "agent_1": agent(participant=False)}
    stage = Stage(mapped, settings, [batch(agent_0=1)] * 4)
    assert stage.play() == 3
    assert [sorted(taken) for taken in stage.actions[1:]] == [["agent_0", "agent_1"], ["agent_0"], ["agent_0"]]


def test_agents_with_other_names_than_roles() -> None:
    agents = {"pilot": {"plays": "agent_1"}, "agent_0": STEADY}
    settings = {"pilot": agent(), "agent_0": agent(participant=False)}
    stage = Stage(entry(agents=agents), settings, [batch(pilot=0)] * 4)
    stage.play()
    assert stage.actions[1] == {"pilot": 0, "agent_0": 2}
    assert stage.socket.frames[1]["observations"] == {"pilot": [-1.0], "agent_0": [1.0]}


def test_a_gymnasium_environment_is_adapted() -> None:
    mapped = entry("Single", agents={"agent_0": {}})
    settings = {"agent_0": agent(multiple_keyboard_inputs=True, keyboard_inputs={"default": [0, 0]})}
    stage = Stage(mapped, settings, [batch(agent_0=[[0, 1], [0.5, 1]]), batch(agent_0=[[0, 0]]), None])
    assert stage.play() == 2
    assert stage.actions[1:] == [{"agent_0": [0.5, 1.0]}, {"agent_0": [0.0, 0.0]}]
    assert stage.socket.frames[-1]["truncated"] is True


def test_who_leaves_breaks_the_episode_off_and_nothing_learned_is_lost() -> None:
    settings = {"agent_0": agent(policy=policy(-2)), "agent_1": agent(participant=False)}
    stage = Stage(entry(agents={"agent_0": STEADY, "agent_1": STEADY}), settings, [batch(agent_0=1), batch(agent_0=1),
                  left()])  # fmt: skip
    with pytest.raises(PersonLeft):
        stage.play()
    assert [(s[1], s[3]) for s in stage.policy("agent_0").shown] == [(1, False), (1, False)]


def test_a_closed_tab_does_not_block() -> None:
    settings = {"agent_0": agent(), "agent_1": agent(participant=False)}
    with pytest.raises(NobodyThere):
        Stage(entry(agents={"agent_1": STEADY}), settings, [], waits=IMPATIENT).play()


def test_an_agent_without_anybody_is_refused_before_the_first_frame() -> None:
    stage = Stage(entry(agents={"agent_0": {}}), {"agent_0": agent()}, [])
    with pytest.raises(NotServed, match="nobody acts for agent_1"):
        stage.play()
    assert stage.socket.sent == []


def test_frames_go_at_the_pace_of_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    clock = type("clock", (), {"sleep": staticmethod(sleep), "monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr("harl.hitl.sharpie_site.episode.time", clock)
    settings = {"agent_0": agent(participant=False), "agent_1": agent(participant=False)}
    mapped = entry(agents={"agent_0": STEADY, "agent_1": STEADY})
    run_episode(FakeSocket([]), {}, settings, {"target_fps": 20, "wait_for_inputs": False}, entry=mapped,
                serving=Serving(), link="x")  # fmt: skip
    assert slept == [0.05, 0.05, 0.05]


@pytest.mark.parametrize(
    ("space", "value", "action"),
    [
        (spaces.Discrete(3), 2, 2),
        (spaces.Discrete(3), 2.0, 2),
        (spaces.Discrete(3), [0, 1], 1),
        (spaces.Discrete(3, start=-1), -1, -1),
        (spaces.Box(-1, 1, (2,)), [3, 0.5], [1.0, 0.5]),
        (spaces.Box(-1, 1, (2,)), [[1, 0], [0, 1]], [1.0, 1.0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 2]),
        (spaces.Text(5), "abc", None),
    ],
)
def test_inputs_become_actions_of_the_space(space: spaces.Space[Any], value: Any, action: Any) -> None:
    if action is None:
        with pytest.raises(UnfitAction):
            fit_action(space, value)
        return
    result = fit_action(space, value)
    assert space.contains(result)
    np.testing.assert_array_equal(result, action)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), True),
        (spaces.Discrete(3), []),
        (spaces.Discrete(3), {"a": 1}),
        (spaces.Discrete(3), None),
        (spaces.Box(-1, 1, (2,)), [1]),
        (spaces.Box(-1, 1, (2,)), [float("nan"), 0]),
        (spaces.Box(-1, 1, (2,)), [[1], [2, 3]]),
        (spaces.Box(-1, 1, (2,)), {"x": 1}),
        (spaces.MultiDiscrete([2, 3]), [2, 0]),
    ],
)
def test_inputs_that_are_no_actions(space: spaces.Space[Any], value: Any) -> None:
    with pytest.raises(UnfitAction, match="allowed"):
        fit_action(space, value)


SETTINGS = [
    {"files": {"environment": {"path": "env.py", "content": "raise SystemExit"}}, "metadata": {}},
    {"agent_0": agent(policy={"checkpoint_interval": 1, "files": {"policy": {"path": "p.py", "content": "x = 1"}}})},
    {"conda_environment": None, "target_fps": 20.0, "wait_for_inputs": False},
]


class SettingsSocket(FakeSocket):
    def __init__(self, parts: list[Any]) -> None:
        super().__init__([])
        self.parts = parts

    def send(self, text: str) -> None:
        super().send(text)
        self.inbox += [part if isinstance(part, str) else json.dumps(part) for part in self.parts]


def test_settings_are_asked_for_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    socket = SettingsSocket([batch(agent_0=1), *SETTINGS])
    assert load_episode(socket) == tuple(SETTINGS)
    assert socket.sent == [{"type": "private", "message": "settings"}]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (1, {"agent_0": {"inputs_type": "thoughts"}}, "inputs_type of agent 'agent_0' is 'thoughts'"),
        (1, {"agent_0": {"keyboard_inputs": [1]}}, "keyboard_inputs"),
        (1, {"agent_0": 5}, "settings of agent"),
        (1, {"agent_0": {"policy": {"checkpoint_interval": -1}}}, "checkpoint_interval"),
        (1, {"agent_0": {"policy": "p"}}, "policy of agent"),
        (2, {"target_fps": 0}, "target_fps is 0"),
        (2, {"target_fps": "fast"}, "target_fps is 'fast'"),
        (2, {"target_fps": True}, "target_fps is True"),
        (2, "oops", "no JSON"),
    ],
)
def test_settings_that_are_none_are_refused(part: int, change: Any, message: str) -> None:
    parts = list(SETTINGS)
    parts[part] = change
    with pytest.raises(ProtocolError, match=message):
        load_episode(SettingsSocket(parts))


def test_settings_that_do_not_come_are_not_waited_for_without_end() -> None:
    with pytest.raises(ProtocolError, match="no settings within 20 s"):
        load_episode(SettingsSocket(SETTINGS[:2]))


def test_code_of_the_site_is_not_run_without_trust() -> None:
    with pytest.raises(NotServed):
        load_environment(SETTINGS[0])
    with pytest.raises(NotServed):
        load_policies(SETTINGS[1])
    assert load_policies({"agent_0": agent()}) == ({}, {})


def test_code_of_the_site_is_run_with_trust_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "from site_helper import WORD\nenvironment = lambda size: (WORD, size)\n"
    files = {
        "environment": {"path": "../../evil/environment.py", "content": code},
        "helper": {"path": "/somewhere/site_helper.py", "content": "WORD = 'trusted'\n"},
    }
    serving = Serving(trust_server_code=True)
    made = load_environment({"files": files, "metadata": {"size": 3}}, serving=serving)
    assert made == ("trusted", 3)
    own = {"policy": {"path": "p.py", "content": "policy = 'mine'"}}
    agents = {"agent_0": agent(policy={"checkpoint_interval": -2, "files": own})}
    assert load_policies(agents, serving=serving) == ({"agent_0": "mine"}, {"agent_0": -2})
    assert list(tmp_path.iterdir()) == []
    assert "which the site chose" in caplog.text


@pytest.mark.parametrize(
    "files", [{}, {"environment": {"path": 3}}, {"environment": {"path": "nowhere.py", "content": None}}, 7]
)
def test_files_that_are_none_are_refused(files: Any) -> None:
    with pytest.raises(ProtocolError):
        load_environment({"files": files}, serving=Serving(trust_server_code=True))


def test_settings_of_the_mapping_stand_in_for_the_sites() -> None:
    agents = {"agent_0": {"default": 1, "inputs_type": "reward"}, "agent_1": {**STEADY, "interval": -2}}
    environment, settings, experiment = local_settings(entry(agents=agents, target_fps=7))
    assert environment == {}
    assert settings["agent_0"] == {
        "participant": True, "keyboard_inputs": {"default": 1}, "multiple_keyboard_inputs": False,
        "inputs_type": "reward",
    }  # fmt: skip
    assert settings["agent_1"]["participant"] is False
    assert settings["agent_1"]["policy"]["checkpoint_interval"] == -2
    assert experiment == {"target_fps": 7.0, "wait_for_inputs": False}
