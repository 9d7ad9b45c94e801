"""Agents that leave an episode while a person keeps holding a key: nothing of it is anybody's doing."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces

from harl.config import ConfigError
from harl.hitl import export
from harl.hitl.bridge import Source
from harl.hitl.recording.demonstrations import demonstrations
from harl.hitl.recording.recordings import RecordedEpisode, find_sessions
from tests.envs.fixtures import Deaths
from tests.hitl.recording_fixtures import started
from tests.hitl.rooms import messages
from tests.hitl.scripted import PEOPLE, any_family
from tests.hitl.test_discard import Bridge
from tests.hitl.test_recorder import DRIVEN, begin, step
from tests.runners.runs import column

STEPS = 20
HUMAN = 10
"""Five episodes in which agent_0 takes two steps."""
ACTIVE = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]]


class Leaving(Deaths):
    """`Deaths` where every action is always allowed: a key that is held acts on."""

    def __init__(self) -> None:
        super().__init__(3)
        self.set_spaces(spaces.Box(0.0, 10.0, (2,), np.float32), spaces.Discrete(4))

    def observe(self, agent: str) -> Any:
        return super().observe(agent)["observation"]

    def step(self, actions: dict[str, Any]) -> Any:
        return super().step({agent: max(1, int(action)) for agent, action in actions.items()})


ENV = ["env=pettingzoo", "env.entry_point=tests.hitl.test_departures:Leaving", "env.reward=shared_mean"]


def hold(seq: int) -> Any:
    def act(room: Any) -> None:
        if seq == 0:
            room.enter("c", "carol", "controller", "desktop")
            room.control("c", "request", "agent_0", "toggle")
        room.input("c", "agent_0", seq, *room.position[0], 1, True, 60_000)

    return act


def recorded(folder: Path, algo: str = "happo") -> tuple[Any, Bridge]:
    """A run of five episodes in each environment, in all of which carol holds a key for agent_0 of the first one."""
    bridge = Bridge({t: hold(t) for t in range(STEPS)})
    runner = any_family(folder, bridge, algo, *ENV, PEOPLE, f"train.num_env_steps={2 * STEPS}")
    runner.run()
    return runner, bridge


def whole_episodes(folder: Path) -> list[RecordedEpisode]:
    (session,) = find_sessions(folder)
    return [episode for episode in session.episodes() if not episode.facts["first_step"]]


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_recording_says_who_has_left_and_that_nobody_drives_them(tmp_path: Path, algo: str) -> None:
    runner, bridge = recorded(tmp_path, algo)
    episodes = whole_episodes(runner.folder.path)
    assert len(episodes) == 5
    for episode in episodes:
        arrays = episode.load()
        assert arrays["active"].tolist() == np.array(ACTIVE, bool).tolist()
        assert arrays["source"][:, 0].tolist() == [Source.HUMAN] * 2 + [Source.POLICY] * 2
        assert arrays["controller"][:, 0].tolist() == [0, 0, -1, -1]
        assert episode.facts["human_steps"] == {"agent_0": 2, "agent_1": 0, "agent_2": 0}
        assert (episode.facts["reason"], episode.is_partial) == ("terminated", False)
    assert sum(column(runner.folder, "people/human_steps")) == 10
    acks = messages(bridge.room, "ack")
    assert [ack["status"] for ack in acks] == (["applied"] * 2 + ["illegal"] * 2) * 5
    assert {ack["text"] for ack in acks if ack["status"] == "illegal"} == {"agent_0 has left this episode"}


def test_tables_and_datasets_say_so_too(tmp_path: Path) -> None:
    runner, _ = recorded(tmp_path / "runs")
    assert export.main([str(runner.folder.path), "--to", str(tmp_path / "out"), "--name", "x-v0"]) == 0
    with (tmp_path / "out" / "steps.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["episode"] == "1" and row["agent"] == "agent_0"]
    assert [(row["active"], row["source"]) for row in rows] == [("1", "human")] * 2 + [("0", "policy")] * 2
    dataset: Any = minari.MinariDataset(tmp_path / "out" / "x-v0" / "data")
    for episode in dataset.iterate_episodes():
        assert episode.infos["active"].tolist() == np.array(ACTIVE, bool).tolist()
        assert episode.terminations.tolist() == [False, False, False, True]
        assert not episode.truncations.any()


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_what_is_held_of_an_agent_that_has_left_is_no_demonstration(tmp_path: Path, algo: str) -> None:
    runner, _ = recorded(tmp_path / "a")
    found = demonstrations(runner.folder.path, runner.layout)
    assert sum(int(episode.human.sum()) for episode in found) == HUMAN
    for episode in found:
        assert (episode.obs[episode.human][:, 0] == 1.0).all()  # of the dead it is 0
        assert episode.ended
    learner = any_family(tmp_path / "b", Bridge({}), algo, *ENV, PEOPLE)
    assert learner.people.teach(found) == HUMAN


def test_recordings_that_do_not_know_who_has_left_are_read_by_the_ends(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    over = np.array([True, False, False])
    for episode in range(2):
        begin(recorder, episode=episode)
        for t in range(5):
            driven = DRIVEN if episode or t > 1 else {}
            step(recorder, env_steps=t, terminated=over & (t == 1), **driven)
        recorder.end(0)
    recorder.close()
    (session,) = find_sessions(tmp_path)
    first, second = session.episodes()
    assert second.load()["active"].tolist() == [[True] * 3] * 2 + [[False, True, True]] * 3
    (only,) = demonstrations(tmp_path, envs.layout)  # in the first one it was driven after it had left alone
    assert only.source == second.label() != first.label()
    assert only.human.tolist() == [[True, False, False]] * 2 + [[False] * 3] * 3


def test_where_nobody_drove_anybody_who_was_there_there_is_nothing_to_learn(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    begin(recorder)
    step(recorder, terminated=np.array([True, False, False]))
    step(recorder, **DRIVEN)
    recorder.end(0)
    recorder.close()
    with pytest.raises(ConfigError, match="no episode in which a person drove"):
        demonstrations(tmp_path, envs.layout)


def test_recorder_counts_nobody_who_has_left(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    begin(recorder)
    step(recorder, **DRIVEN)
    step(recorder, active=np.array([False, True, True]), **DRIVEN)
    recorder.end(0)
    recorder.close()
    (episode,) = find_sessions(tmp_path)[0].episodes()
    assert episode.facts["human_steps"]["agent_0"] == 1
