"""A run that serves a site: what people do there acts in its environment, is credited and recorded."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import ServerConnection

from harl.config import ConfigError
from harl.envs.mpe import MPEVectorEnv
from harl.hitl.bridge import Credit, PeopleError, Source
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.sharpie_bridge import SharpieBridge
from harl.hitl.sharpie_site.pictures import encode
from tests.hitl.sharpie_fakes import KEY, FakeSite, agent, batch, left, picture_of, policy
from tests.hitl.sharpie_run import ROLES, STEPS, N, play, run_at, scripted, sharpie_config


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARPIE_CONNECTION_KEY", KEY)
    monkeypatch.setattr("harl.hitl.sharpie_site.waiting.ASK_S", 0.02)
    monkeypatch.setattr("harl.hitl.sharpie_site.waiting.pauses", lambda: iter(lambda: 0.05, None))


def test_what_a_person_presses_is_done_in_the_step_after_the_frame_that_they_saw(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(1, 2, 0, 3, 1)  # the last one is to the last frame, and does nothing
    with run_at(site, tmp_path) as run:
        for _ in range(3):  # the run is in the middle of an episode
            run.step()
        site.queue.put(("spread", "A1"))
        play(run, site, "A1")
        assert run.human_steps == 4
        assert run.executed == [[1, 4, 4], [2, 4, 4], [0, 4, 4], [3, 4, 4]]
        assert run.source == [[Source.HUMAN, 0, 0]] * 4
        assert run.mask == [[0, 1, 1]] * 4
        assert run.notices[0] == f"people: from the SHARPIE site at {run.bridge._site.url}"  # type: ignore[union-attr]
        assert [text.rpartition(" ")[2] for text in run.notices[1:]] == ["in", "left"]
        rewards = [run.rewards[step] for step in run.in_session]
    frames = site.frames("spread", "A1")
    assert [frame["step"] for frame in frames] == [1, 2, 3, 4, 5]
    assert [frame["truncated"] for frame in frames] == [False] * 4 + [True]
    assert [frame["terminated"] for frame in frames] == [False] * 5
    assert frames[0]["actions"] == {}
    assert [frame["actions"] for frame in frames[1:]] == [
        {"agent_0": k, "agent_1": 4, "agent_2": 4} for k in (1, 2, 0, 3)
    ]
    assert [list(frame["rewards"].values()) for frame in frames[1:]] == rewards
    assert all(len(frame["observations"]["agent_2"]) == 18 for frame in frames)
    assert len({tuple(frame["observations"]["agent_0"]) for frame in frames}) == 5
    assert picture_of(frames[0]).shape == (700, 700, 3)
    assert site.closed["spread", "A1"] == 1000


def test_the_last_frame_shows_the_last_state(tmp_path: Path) -> None:
    """Environments start the next episode within the step; what is drawn before that is asked for while people look."""
    site = FakeSite()
    site.people["spread"] = scripted(1, 2, 0, 3)
    longer = MPEVectorEnv(num_envs=N, scenario="simple_spread")
    states: list[Any] = []
    with run_at(site, tmp_path) as run:
        step = run.envs.step

        def watched(actions: Any) -> Any:
            states.append((run.envs.get_state(), actions.copy()))
            return step(actions)

        run.envs.step = watched  # type: ignore[method-assign]
        run.step()
        assert run.watched == []
        site.queue.put(("spread", "A1"))
        play(run, site, "A1")
        assert run.watched == [[0], []]
        state, actions = states[run.in_session[-1] // N]
    longer.set_state(state)
    longer.step(actions)
    frames = site.frames("spread", "A1")
    assert frames[-1]["image"] == encode(longer.render(0))
    assert len({frame["image"] for frame in frames[1:]}) == STEPS


def test_an_episode_whose_agents_terminated_one_by_one_is_terminated(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(1, 2, 0, 3)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        step = run.envs.step

        def leaving(actions: Any) -> Any:
            outcome = step(actions)
            last = outcome.ended[:, None] & np.array([False, False, True])  # the others had left before
            return dataclasses.replace(outcome, terminated=last, truncated=np.zeros_like(last))

        run.envs.step = leaving  # type: ignore[method-assign]
        play(run, site, "A1")
    last = site.frames("spread", "A1")[-1]
    assert (last["terminated"], last["truncated"]) == (True, False)


def test_a_last_state_that_cannot_be_drawn_is_said_and_the_one_before_it_is_shown(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(1, 2, 0, 3)
    site.queue.put(("spread", "A1"))

    def broken(env: int) -> Any:
        raise RuntimeError("out of order")

    with run_at(site, tmp_path) as run:
        run.bridge.stage = dataclasses.replace(run.stage, render_end=broken)
        play(run, site, "A1")
        assert [text for text in run.notices if "out of order" in text] == [
            "this environment cannot be shown: RuntimeError: out of order"
        ]
    frames = site.frames("spread", "A1")
    assert frames[-1]["image"] == frames[-2]["image"]


def test_no_key_leaves_a_shared_agent_to_the_policy(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "agent_0": agent(policy=policy())}
    site.people["spread"] = scripted(1, 0, 2, 0)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
        assert run.executed == [[1, 4, 4], [4, 4, 4], [2, 4, 4], [4, 4, 4]]
        assert run.source == [[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_a_reward_is_credited_to_the_step_that_was_shown_also_to_the_last(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "agent_0": agent(inputs_type="reward", policy=policy())}
    site.people["spread"] = scripted(1, 1, 0, -1, 1)  # of the first state (nothing to judge) and of steps 1 to 4
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
        steps = run.in_session
        assert run.credits == [Credit(steps[0], 0, 0, 1.0), Credit(steps[2], 0, 0, -1.0), Credit(steps[3], 0, 0, 1.0)]
        assert run.executed == [[4, 4, 4]] * 4


def test_a_reward_can_take_the_place_of_the_environments(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    keys = {"ArrowUp": 5, "ArrowDown": -5, "default": 0}
    site.settings[1] = {**ROLES, "agent_0": agent(inputs_type="reward", keyboard_inputs=keys)}
    site.people["spread"] = scripted(0, 5, -5, 0, 0)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path, reward__learn="replace") as run:
        play(run, site, "A1")
        for credit, step, value in zip(run.credits, run.in_session, (1.0, -1.0), strict=False):
            assert credit.env_steps == step
            assert run.rewards[step][0] + credit.delta == pytest.approx(value)
        assert len(run.credits) == 2


def test_two_people_drive_two_agents(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "agent_2": agent()}
    answer = batch(agent_0=1, agent_2=2, agent_1=3, nobody=9)
    site.people["spread"] = scripted(*[answer] * 4)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
        assert run.executed == [[1, 4, 2]] * 4


@pytest.mark.parametrize(
    ("absent", "acted", "source"),
    [("policy", 4, Source.POLICY), ("default", 0, Source.DEFAULT), ("previous", 2, Source.PREVIOUS)],
)
def test_who_acts_for_a_silent_person(tmp_path: Path, absent: str, acted: int, source: Source) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(2, None, None, None)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path, absent=absent, timeout_s=0.2) as run:
        play(run, site, "A1")
        assert [row[0] for row in run.executed] == [2, acted, acted, acted]
        assert [row[0] for row in run.source] == [Source.HUMAN, source, source, source]


@pytest.mark.parametrize("limit", ["takeover__lease_ttl_ms", "takeover__idle_s"])
@pytest.mark.parametrize("pace", ["lockstep", "realtime"])
def test_an_answer_acts_however_long_the_run_learns_before_the_next_step(tmp_path: Path, pace: str, limit: str) -> None:
    """Nothing newer is shown meanwhile, so that people have nothing to answer: no lease runs out."""
    site = FakeSite()
    site.people["spread"] = scripted(*[1] * 9)
    site.queue.put(("spread", "A1"))
    assert site.settings is not None
    site.settings[2]["target_fps"] = 100_000.0  # every step is shown, also in realtime
    with run_at(site, tmp_path, pace=pace, **{limit: 50 if limit.endswith("_ms") else 0.05}) as run:
        seats, answered = run.bridge.room.seats, 0
        while ("spread", "A1") not in site.closed:
            run.step()
            session, place, until = run.bridge.reception.session, run.bridge.room.position[0], time.monotonic() + 20
            if session is None or not session.begun or session.finished:
                continue
            while (held := seats[0, 0].held) is None or (held.episode, held.step) != place:
                assert time.monotonic() < until
                time.sleep(0.005)
            answered += 1
            time.sleep(0.15)
        assert answered == STEPS - 1  # but for the first frame, which a step waits for in lockstep alone
        assert [row[0] for row in run.executed[1:]] == [1] * answered
        assert [row[0] for row in run.source[1:]] == [Source.HUMAN] * answered


@pytest.mark.parametrize(("absent", "acted"), [("default", 0), ("previous", 2)])
def test_who_stands_in_does_so_however_long_the_run_learns(tmp_path: Path, absent: str, acted: int) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(2, None, None, None)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path, absent=absent, timeout_s=0.2, takeover__lease_ttl_ms=50) as run:
        wait = run.bridge.wait_for_answers

        def slowly(stopping: Any) -> bool | None:
            found = wait(stopping)
            time.sleep(0.15)
            return found

        run.bridge.wait_for_answers = slowly  # type: ignore[method-assign]
        play(run, site, "A1")
        assert [row[0] for row in run.executed] == [2, acted, acted, acted]


def test_in_realtime_who_falls_silent_loses_the_agent(tmp_path: Path) -> None:
    site, silent = FakeSite(), threading.Event()

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message and not silent.is_set():
            connection.send(batch(agent_0=2))

    site.people["spread"] = people
    site.queue.put(("spread", "A1"))
    assert site.settings is not None
    site.settings[2]["target_fps"] = 100_000.0
    with run_at(site, tmp_path, pace="realtime", takeover__lease_ttl_ms=50) as run:
        session, seats, until = None, run.bridge.room.seats, time.monotonic() + 20
        while session is None or not session.begun:  # it takes the first step unseen, and shows what became of it
            run.step()
            session = run.bridge.reception.session
        while (held := seats[0, 0].held) is None or held.step != 1:
            assert time.monotonic() < until
            time.sleep(0.005)
        silent.set()
        seen = session.frames
        run.step()
        while session.frames == seen:
            assert time.monotonic() < until
            time.sleep(0.005)
        time.sleep(0.15)
        run.step()
        assert [row[0] for row in run.executed] == [4, 2, 4]
        assert run.bridge.room.driver(0, 0) is None


def test_inputs_that_are_no_actions_leave_the_agent_to_the_policy(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(batch(agent_0="up"), 17, 2, {"x": 1})
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
        assert [row[0] for row in run.executed] == [4, 4, 2, 4]


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_run_goes_on_when_people_or_the_site_go(tmp_path: Path, how: str) -> None:
    import socket

    site = FakeSite()

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if message.get("step") == 3 and how == "dies":
            connection.socket.shutdown(socket.SHUT_RDWR)
        elif message.get("step") == 3:
            connection.send(left())
        elif "step" in message:
            connection.send(batch(agent_0=1))

    site.people.update(spread=people, other=scripted(2, 2, 2, 2))
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1", more=20)
        assert [row[0] for row in run.executed[:2]] == [1, 1]
        run.executed.clear()
        site.queue.put(("other", "A2"))
        play(run, site, "A2", "other")
        assert [row[0] for row in run.executed] == [2, 2, 2, 2]


def test_in_realtime_nobody_is_waited_for(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(2, *[None] * 10)
    site.queue.put(("spread", "A1"))
    assert site.settings is not None
    site.settings[2] = {"target_fps": 20.0, "wait_for_inputs": False}
    with run_at(site, tmp_path, pace="realtime", timeout_s=3600, takeover__lease_ttl_ms=1000) as run:
        play(run, site, "A1")
    assert site.closed["spread", "A1"] == 1000
    assert site.frames("spread", "A1")[-1]["truncated"] is True


def test_an_experiment_without_people_is_shown_at_its_pace(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {name: agent(participant=False) for name in ROLES}
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
    assert [frame["step"] for frame in site.frames("spread", "A1")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("before", [0, STEPS])
def test_an_episode_is_recorded_from_its_first_step(tmp_path: Path, before: int) -> None:
    """Also where people come in between two episodes, after whatever the last step has done about recording."""
    site = FakeSite()
    site.people["spread"] = scripted(*[1] * 4)
    with run_at(site, tmp_path, record="touched") as run:
        for _ in range(before):
            run.step()
        site.queue.put(("spread", "A1"))
        site.wait_for(lambda: ("spread", "A1") in site.got)
        while run.bridge.reception.session is None:
            time.sleep(0.01)
        play(run, site, "A1")
    (session,) = find_sessions(tmp_path)
    (episode,) = [episode for episode in session.episodes() if episode.human_steps]
    assert episode.load()["executed"][:, 0, 0].tolist() == [1, 1, 1, 1]
    assert not episode.is_partial


def test_hints_and_steps_are_recorded(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "agent_1": agent(inputs_type="other", textual_inputs=True)}
    site.people["spread"] = scripted(*[batch(agent_0=1, agent_1="go left")] * 4)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path, record="touched") as run:
        play(run, site, "A1")
    (session,) = find_sessions(tmp_path)
    episode = next(episode for episode in session.episodes() if episode.human_steps)
    arrays = episode.load()
    assert arrays["executed"][:, 0, 0].tolist() == [1, 1, 1, 1]
    assert arrays["source"][:, 0].tolist() == [Source.HUMAN] * 4
    assert episode.people == ["spread/A1:agent_0"]
    events = (tmp_path / "people").rglob("*.jsonl")
    assert "go left" in "".join(file.read_text() for file in events)


def test_that_a_run_takes_no_hints_is_said_once(tmp_path: Path) -> None:
    """Its networks have learned without any: what people say is kept, and changes nothing."""
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "agent_0": agent(inputs_type="other", textual_inputs=True, policy=policy())}
    site.people["spread"] = scripted(*[batch(agent_0="go left")] * 4)
    site.queue.put(("spread", "A1"))
    site.queue.put(("spread", "A2"))
    with run_at(site, tmp_path) as run:
        play(run, site, "A1")
        play(run, site, "A2")
        assert all(row == [4, 4, 4] for row in run.executed)
        assert [text for text in run.notices if "agent_0 says" in text] == [
            "people: what agent_0 says (inputs_type other) is recorded alone: policies of a run take no hints"
        ]
    (session,) = find_sessions(tmp_path)
    said = [event.data for event in session.events() if event.kind == "hint"]
    assert [(hint["agent"], hint["value"], hint["seen"][1]) for hint in said] == [
        ("agent_0", "go left", step) for _ in range(2) for step in range(STEPS)
    ]


def test_roles_that_are_no_agents_and_links_of_others_are_refused(tmp_path: Path) -> None:
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {**ROLES, "pilot": agent()}
    site.queue.put(("spread", "A1"))
    site.queue.put(("other", "A2"))
    with run_at(site, tmp_path, link="spread") as run:
        site.wait_for(lambda: len(site.closed) == 2)
        run.step()
    assert site.errors("spread", "A1") == [
        "the role 'pilot' is no agent of this runner; it has agent_0, agent_1, agent_2"
    ]
    assert "does not serve" in site.errors("other", "A2")[0]


def test_a_mapping_says_which_role_is_which_agent(tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text("experiments: {spread: {agents: {pilot: {plays: agent_1, shared: true}, two: {plays: agent_2}}}}")
    site = FakeSite()
    assert site.settings is not None
    site.settings[1] = {"agent_1": agent(participant=False), "pilot": agent(), "two": agent()}
    site.people["spread"] = scripted(*[batch(pilot=0, two=0)] * 2, *[batch(pilot=1, two=2)] * 2)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path, mapping=str(file)) as run:
        play(run, site, "A1")
        assert run.executed == [[4, 4, 0]] * 2 + [[4, 1, 2]] * 2
    assert list(site.frames("spread", "A1")[1]["actions"]) == ["agent_0", "pilot", "two"]


def test_a_room_without_the_queue(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(*[1] * 4)
    with run_at(site, tmp_path, link="spread", room="A1") as run:
        play(run, site, "A1", more=0)
        assert run.executed[:4] == [[1, 4, 4]] * 4
    assert "/runner/connection" not in site.connections


def test_a_run_that_ends_tells_its_people(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(1, 1)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        threading.Thread(
            target=lambda: (site.wait_for(lambda: len(site.frames("spread", "A1")) == 3),
                            setattr(run, "asked_to_stop", True))
        ).start()  # fmt: skip
        while not run.asked_to_stop:
            run.step()
        run.bridge.close("stopped")
        run.bridge.close("stopped")
        site.wait_for(lambda: ("spread", "A1") in site.closed)
    assert site.errors("spread", "A1") == ["the runner was stopped"]


def test_environments_that_start_anew_end_the_session(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(*[1] * 4)
    site.queue.put(("spread", "A1"))
    with run_at(site, tmp_path) as run:
        while not (run.bridge.reception.session and run.bridge.reception.session.begun):
            run.step()
        run.bridge.attach(run.stage, run.envs.reset([3, 4]))
        run.now = run.envs.reset([3, 4])
        play(run, site, "A1")
    assert site.closed["spread", "A1"] == 1000


def test_what_is_missing_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHARPIE_CONNECTION_KEY")
    with pytest.raises(ConfigError) as raised:
        SharpieBridge(sharpie_config(room="A1"))
    assert "hitl.room is set without hitl.link" in raised.value.errors[0]
    assert "no connection key" in raised.value.errors[1]
    monkeypatch.setenv("SHARPIE_CONNECTION_KEY", KEY)
    with pytest.raises(ConfigError, match="cannot be read"):
        SharpieBridge(sharpie_config(mapping=str(tmp_path / "nowhere.yaml")))


def test_an_evaluation_waits_for_its_sessions(tmp_path: Path) -> None:
    site = FakeSite()
    site.people["spread"] = scripted(*[1] * 4)
    with run_at(site, tmp_path, max_pause_s=20.0) as run:
        run.bridge.stage = run.stage = dataclasses.replace(run.stage, purpose="evaluate")
        site.queue.put(("spread", "A1"))
        site.queue.put(("spread", "A2"))
        for _ in range(2 * STEPS):
            run.step()
        assert run.executed == [[1, 4, 4]] * 2 * STEPS
        assert run.credits == []


def test_an_evaluation_that_nobody_comes_to_ends(tmp_path: Path) -> None:
    with run_at(FakeSite(), tmp_path, max_pause_s=0.3) as run:
        run.bridge.stage = dataclasses.replace(run.stage, purpose="evaluate")
        with pytest.raises(PeopleError, match=r"no session came from .* within hitl\.max_pause_s=0\.3 s"):
            run.step()
