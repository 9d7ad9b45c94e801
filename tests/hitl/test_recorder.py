"""What is written, that it stays whole whatever happens, and that memory stays bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harl.config import from_dict, save_yaml
from harl.experiment.files import StorageError
from harl.experiment.run_folder import RunFolder, RunFolderError
from harl.hitl.recording import recorder as recorder_module
from harl.hitl.recording.layout import differences, layout_from_json, layout_to_json
from harl.hitl.recording.recorder import Recorder, StepRecord, describe_session
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.recording.state import state_from_arrays, state_of, state_to_arrays
from tests.hitl.recording_fixtures import mpe, record_episodes, session, started

ROOT = Path(__file__).parents[2]


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    (file,) = folder.glob(f"people/*/{name}")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def step(recorder: Recorder, env: int = 0, **more: Any) -> None:
    """A step of simple_spread in which nothing much happens."""
    ones = np.ones(3, np.float32)
    plain: dict[str, Any] = {
        "env": env,
        "env_steps": 0,
        "proposed": np.zeros((3, 1), np.float32),
        "executed": np.zeros((3, 1), np.float32),
        "reward": -ones,
        "obs": np.zeros((3, 18), np.float32),
        "share_obs": np.zeros((3, 54), np.float32),
        "terminated": np.zeros(3, np.bool_),
        "truncated": np.zeros(3, np.bool_),
    }
    recorder.step(StepRecord(**{**plain, **more}))


def begin(recorder: Recorder, env: int = 0, episode: int = 0, **more: Any) -> None:
    recorder.begin(env, episode, 1, 0, np.zeros((3, 18), np.float32), np.zeros((3, 54), np.float32), **more)


DRIVEN = {"source": np.array([1, 0, 0], np.int8), "controllers": ["ann", None, None]}


def test_every_field_comes_back_as_it_was_given(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    rng = np.random.default_rng(0)
    given = []
    first = rng.random((3, 18), np.float32), rng.random((3, 54), np.float32)
    first[1][:] = first[1][0]
    recorder.begin(0, 4, 11, 2000, *first)
    for t in range(3):
        share = np.repeat(rng.random((1, 54), np.float32), 3, axis=0)
        record = StepRecord(
            env=0,
            env_steps=2000 + t,
            proposed=rng.random((3, 1), np.float32),
            executed=rng.random((3, 1), np.float32),
            reward=rng.random(3, np.float32),
            obs=rng.random((3, 18), np.float32),
            share_obs=share,
            terminated=np.array([t == 2, False, False]),
            truncated=np.array([False, t == 2, t == 2]),
            source=np.array([1, 2, 3], np.int8),
            controllers=["ann", None, None],
            active=np.array([1, 1, 0]),
            log_prob_proposed=rng.random(3, np.float32),
            log_prob_executed=rng.random(3, np.float32),
            human_raw=np.array([1.0, np.nan, -1.0], np.float32),
            human_credited=rng.random(3, np.float32),
            weight=0.25,
            reward_learned=rng.random(3, np.float32),
            seen_step=np.array([t - 1, -1, -1], np.int32),
            seq=np.array([40 + t, -1, -1], np.int64),
            t_received=np.array([1e9 + t, np.nan, np.nan]),
            t_applied=np.array([1e9 + t + 0.01, np.nan, np.nan]),
            rtt_ms=np.array([12.5, np.nan, np.nan], np.float32),
            t_wall=1e9 + t,
        )
        given.append(record)
        recorder.step(record)
    recorder.end(0)
    recorder.close()
    (episode,) = find_sessions(tmp_path)[0].episodes()
    arrays = episode.load()
    for name in recorder_module.StepRecord.__dataclass_fields__:
        if name not in ("env", "controllers", "obs", "share_obs", "available_actions", "watched"):
            expected = np.stack([np.asarray(getattr(record, name)) for record in given])
            np.testing.assert_array_equal(arrays[name], expected, err_msg=name)
    for name, start in (("obs", first[0]), ("share_obs", first[1])):
        np.testing.assert_array_equal(arrays[name], np.stack([start, *(getattr(r, name) for r in given)]))
    assert arrays["controller"].tolist() == [[0, -1, -1]] * 3
    assert episode.facts["controllers"] == ["ann"]
    assert (episode.facts["seed"], episode.facts["policy_steps"], episode.steps) == (11, 2000, 3)


def test_line_of_an_episode_says_what_happened(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path, condition="helped", consent_version="2026-11")
    returns = record_episodes(recorder, envs, 2)
    recorder.close()
    first, second = lines(tmp_path, "episodes.jsonl")
    assert [first["episode"], second["episode"]] == [0, 1]
    assert first["human_steps"] == {"agent_0": 5, "agent_1": 1, "agent_2": 0}
    assert first["interventions"] == {"agent_0": 1, "agent_1": 1, "agent_2": 0}
    assert first["people"] == first["controllers"] == ["alice-93f1", "bob-77c0"]
    assert (first["reason"], first["is_partial"], first["success"], first["discarded"]) == (
        "truncated",
        False,
        None,
        False,
    )
    assert (first["condition"], first["consent_version"], first["purpose"]) == ("helped", "2026-11", "train")
    np.testing.assert_allclose(list(second["returns"].values()), returns[1], rtol=1e-6)


def test_files_hold_no_pickle(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 1)
    recorder.close()
    for file in tmp_path.glob("people/*/episodes/*.npz"):
        with np.load(file, allow_pickle=False) as arrays:
            assert all(not array.dtype.hasobject for array in arrays.values())


def test_what_nobody_touched_leaves_no_trace(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 2, lambda episode, step: [None] * 3)
    recorder.close()
    assert list(tmp_path.iterdir()) == []
    assert recorder.folder is None


@pytest.mark.parametrize(("record", "episodes"), [("touched", 0), ("watched", 1), ("off", 0)])
def test_watched_episodes_are_kept_where_that_is_wanted(tmp_path: Path, record: str, episodes: int) -> None:
    recorder, _ = started(tmp_path, record=record)
    for number in range(2):
        begin(recorder, episode=number)
        step(recorder, watched=number == 1)
        recorder.end(0)
    recorder.close()
    assert len(list(tmp_path.glob("people/*/episodes/*.npz"))) == episodes


def test_off_writes_nothing_at_all(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path, record="off")
    record_episodes(recorder, envs, 1)
    recorder.event("connect", {"name": "ann"})
    recorder.amend(0, 0, 0, 0, 1.0, 1)
    recorder.label(0, 0, "fail", "ann")
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_late_feedback_saves_an_episode_that_had_ended_untouched(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 3, lambda episode, step: [None] * 3)
    recorder.amend(0, 1, 24, 2, 0.5, 7, credited=1.0, raw=1.0, who="ann")
    recorder.close()
    (episode,) = find_sessions(tmp_path)[0].episodes()
    arrays = episode.load()
    assert (episode.episode, episode.people, episode.steps) == (1, ["ann"], 25)
    assert arrays["reward_learned"][24, 2] == np.float32(arrays["reward"][24, 2] + np.float32(0.5))
    assert (arrays["human_credited"][24, 2], arrays["human_raw"][24, 2]) == (1.0, 1.0)
    assert np.isnan(arrays["human_raw"]).sum() == 74


def test_amendment_of_a_step_on_the_disk_is_read_with_it(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 2)
    recorder.sync()
    before = {e.episode: (e.load()["reward_learned"].copy(), e.facts["returns_learned"]) for e in _episodes(tmp_path)}
    recorder.amend(0, 0, 3, 1, 0.75, 12, credited=1.5, who="cleo")
    recorder.amend(0, 0, 3, 1, -0.25, 13, raw=-1.0, who="cleo")
    recorder.close()
    after = {e.episode: e for e in _episodes(tmp_path)}
    change = after[0].load()["reward_learned"] - before[0][0]
    assert change[3, 1] == pytest.approx(0.5, abs=1e-6)
    assert np.count_nonzero(change) == 1
    assert after[0].load()["human_raw"][3, 1] == -1.0
    assert after[0].facts["returns_learned"]["agent_1"] == pytest.approx(before[0][1]["agent_1"] + 0.5)
    assert "cleo" in after[0].people
    assert "cleo" not in after[1].people
    np.testing.assert_array_equal(after[1].load()["reward_learned"], before[1][0])


def _episodes(folder: Path) -> Any:
    return find_sessions(folder)[0].episodes()


@pytest.mark.parametrize("when", ["under way", "written"])
def test_marks_stay_with_the_episode(tmp_path: Path, when: str) -> None:
    recorder, envs = started(tmp_path)
    if when == "written":
        record_episodes(recorder, envs, 2)
    else:
        begin(recorder)
        step(recorder, **DRIVEN)
    recorder.label(0, 0, "success", "ann")
    recorder.discard(0, 0, "dora")
    recorder.close()
    first = next(iter(_episodes(tmp_path)))
    assert (first.facts["success"], first.discarded) == (True, True)
    assert {"ann", "dora"} <= set(first.people)


def test_unknown_label_is_refused(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    begin(recorder)
    with pytest.raises(ValueError, match="'great' is not one of success, fail, discard"):
        recorder.label(0, 0, "great")


def test_episode_under_way_at_the_end_is_partial(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    begin(recorder)
    step(recorder, **DRIVEN)
    recorder.close("the run was stopped")
    recorder.close()
    (episode,) = _episodes(tmp_path)
    assert (episode.is_partial, episode.facts["reason"], episode.steps) == (True, "the run was stopped", 1)


def test_episode_that_is_joined_late_is_partial(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    begin(recorder, first_step=10)
    step(recorder, **DRIVEN)
    recorder.amend(0, 0, 10, 1, 2.0, 1)
    recorder.end(0)
    recorder.close()
    (episode,) = _episodes(tmp_path)
    assert episode.is_partial
    assert episode.load()["reward_learned"].tolist() == [[-1.0, 1.0, -1.0]]


def test_second_begin_ends_the_first_as_partial(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    for number in range(2):
        begin(recorder, episode=number)
        step(recorder, **DRIVEN)
    recorder.end(0)
    recorder.close()
    assert [(e.facts["reason"], e.is_partial) for e in _episodes(tmp_path)] == [
        ("replaced", True),
        ("truncated", False),
    ]


def test_takeovers_and_what_came_before_them_are_marked(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path, pre_intervention_steps=3)
    drivers = {4: "ann", 5: "ann", 6: "ben", 9: "ben", 10: "ben"}
    record_episodes(recorder, envs, 1, lambda episode, step: [None, drivers.get(step), None])
    recorder.close()
    arrays = next(iter(_episodes(tmp_path))).load()
    assert np.flatnonzero(arrays["takeover_start"][:, 1]).tolist() == [4, 9]  # at 6 it is taken from ann
    assert np.flatnonzero(arrays["takeover_end"][:, 1]).tolist() == [6, 10]
    assert np.flatnonzero(arrays["pre_intervention"][:, 1]).tolist() == [1, 2, 3, 7, 8]
    assert not arrays["takeover_start"][:, 0].any()


def test_long_episodes_go_to_the_disk_in_parts(tmp_path: Path) -> None:
    envs, config = mpe()
    recorder = Recorder(tmp_path, session(envs.layout, config), part_bytes=20_000)
    begin(recorder)
    rng = np.random.default_rng(1)
    seen = rng.random((200, 3, 18), np.float32)
    for t in range(200):
        driven = DRIVEN if 10 <= t < 150 else {}
        step(recorder, env_steps=t, obs=seen[t], **driven)
        if t == 100:
            recorder.amend(0, 0, 0, 0, 5.0, 3)
            recorder.amend(0, 0, 100, 0, 7.0, 4)
        running = recorder._running[0]
        assert running.nbytes < 25_000
    recorder.end(0)
    recorder.close()
    (episode,) = _episodes(tmp_path)
    arrays = episode.load()
    assert len(episode.facts["files"]) > 5
    assert arrays["env_steps"].tolist() == list(range(200))
    np.testing.assert_array_equal(arrays["obs"][1:], seen)
    assert (episode.facts["human_steps"]["agent_0"], episode.facts["interventions"]["agent_0"]) == (140, 1)
    assert arrays["reward_learned"][[0, 100], 0].tolist() == [4.0, 6.0]
    assert np.flatnonzero(arrays["takeover_start"][:, 0]).tolist() == [10]
    assert not episode.is_partial


def test_parts_of_an_episode_that_nobody_touched_go_away(tmp_path: Path) -> None:
    envs, config = mpe()
    recorder = Recorder(tmp_path, session(envs.layout, config), part_bytes=20_000)
    begin(recorder)
    for _ in range(200):
        step(recorder)
    recorder.sync()
    assert list(tmp_path.glob("people/*/episodes/*.npz"))
    recorder.end(0)
    recorder.close()
    assert not list(tmp_path.glob("people/*/episodes/*"))


def test_memory_for_untouched_episodes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "RECENT_BYTES", 100_000)
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 30, lambda episode, step: [None] * 3)
    assert 0 < sum(episode.nbytes for episode in recorder._recent.values()) == recorder._recent_bytes <= 100_000
    assert list(recorder._recent)[-1] == (0, 29)
    recorder.close()


def test_events_keep_their_order_and_time(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    recorder.event("connect", {"name": "ann", "role": "trainer"})
    recorder.event("feedback", {"name": "ann", "value": np.float32(1), "late": np.bool_(True), "shown": float("nan")})
    recorder.close()
    first, second = find_sessions(tmp_path)[0].events()
    assert (first.kind, first.person) == ("connect", "ann")
    assert second.data == {"name": "ann", "value": 1.0, "late": True, "shown": None}
    assert 0 < first.t_mono <= second.t_mono
    assert abs(second.t_wall - time.time()) < 3600


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.hitl.recording_fixtures import mpe, record_episodes, session
from tests.hitl.test_recorder import DRIVEN, begin, step
from harl.hitl.recording.recorder import Recorder
envs, config = mpe()
recorder = Recorder(Path({folder!r}), session(envs.layout, config), part_bytes=20_000)
record_episodes(recorder, envs, 3)
recorder.event("lease", {{"name": "ann"}})
begin(recorder, episode=3)
for _ in range(60):
    step(recorder, **DRIVEN)
recorder.sync()
step(recorder, **DRIVEN)
print("ready", flush=True)
time.sleep(600)
"""


def test_killed_process_leaves_earlier_episodes_whole(tmp_path: Path) -> None:
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    (recorded,) = find_sessions(tmp_path)
    *whole, broken = recorded.episodes()
    assert [(e.episode, e.is_partial, e.steps) for e in whole] == [(n, False, 25) for n in range(3)]
    for episode in whole:
        assert episode.load()["reward"].sum(axis=0, dtype=np.float64).tolist() == list(
            episode.facts["returns"].values()
        )
    assert (broken.episode, broken.is_partial) == (3, True)
    assert 0 < broken.steps <= 60
    assert broken.load()["source"][:, 0].all()
    assert broken.people == ["ann"]
    assert [event.kind for event in recorded.events()] == ["lease"]


def test_process_killed_at_any_time_leaves_lines_with_whole_files(tmp_path: Path) -> None:
    code = KILLED.format(root=str(ROOT), folder=str(tmp_path)).replace("3)\nrecorder.event", "10**6)\nrecorder.event")
    assert "10**6" in code
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("people/*/episodes/*.npz"))) < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    found = list(_episodes(tmp_path))
    assert len(found) >= 20
    for episode in found:
        assert len(episode.load()["reward"]) == episode.steps == 25


def test_recording_is_locked_while_it_is_written(tmp_path: Path) -> None:
    recorder, _ = started(tmp_path)
    recorder.event("connect", {})
    recorder.sync()
    assert recorder.folder is not None
    with pytest.raises(RunFolderError, match="another process"), RunFolder(recorder.folder).lock():
        pass
    recorder.close()
    with RunFolder(recorder.folder).lock():
        pass


def test_disk_that_fails_is_said_at_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "people").write_text("a file where the folder should be")
    recorder, _ = started(tmp_path)
    recorder.event("connect", {})
    with pytest.raises(StorageError, match=r"cannot write the recording in .*people"):
        recorder.sync()
    with pytest.raises(StorageError, match="cannot write the recording"):
        recorder.event("connect", {})
    with pytest.raises(StorageError, match="cannot write the recording"):
        recorder.close()


def test_two_sessions_of_one_second_get_two_folders(tmp_path: Path) -> None:
    for _ in range(3):
        recorder, _ = started(tmp_path)
        recorder.event("connect", {})
        recorder.close()
    assert len(find_sessions(tmp_path)) == 3


@pytest.mark.parametrize("scenario", ["simple_spread", "simple_speaker_listener"])
@pytest.mark.parametrize("continuous", ["false", "true"])
def test_layout_goes_through_json(scenario: str, continuous: str) -> None:
    layout = mpe(scenario, f"env.continuous_actions={continuous}")[0].layout
    back = layout_from_json(json.loads(json.dumps(layout_to_json(layout))))
    assert differences(back, layout) == []
    assert back == layout


def test_differences_of_layouts_are_named() -> None:
    spread, other = mpe()[0].layout, mpe("simple_spread", "env.continuous_actions=true")[0].layout
    assert differences(spread, mpe("simple_reference")[0].layout) == [
        "agents are agent_0, agent_1, agent_2, here agent_0, agent_1"
    ]
    assert "actions of agent_0 are Discrete(5), here Box(0.0, 1.0, (5,), float32)" in differences(spread, other)


def test_state_of_one_environment_goes_through_arrays() -> None:
    envs, _ = mpe(envs=3)
    envs.reset([1, 2, 3])
    state = state_of(envs.get_state(), 2, 3)
    assert state is not None
    single, _ = mpe()
    back = state_from_arrays(state_to_arrays(state))
    assert back is not None
    single.set_state(back)
    actions = np.full((3, 3, 1), 2, np.float32)
    np.testing.assert_array_equal(single.step(actions[:1]).rewards[0], envs.step(actions).rewards[2])


def test_state_that_cannot_be_kept_does_not_stop_the_recording(tmp_path: Path) -> None:
    assert state_of({"whole": 3}, 0, 2) is None
    recorder, _ = started(tmp_path)
    begin(recorder, state={"odd": object()})
    step(recorder, **DRIVEN)
    recorder.end(0)
    recorder.close()
    (episode,) = _episodes(tmp_path)
    assert episode.state() is None
    assert "object" in episode.facts["state_lost"]


def test_session_is_described_with_the_configuration_of_its_run(tmp_path: Path) -> None:
    envs, config = mpe()
    about = {"layout": envs.layout, "num_envs": 4, "purpose": "train", "title": "happo on mpe", "algo": "happo"}
    stage: Any = SimpleNamespace(**about, env_name="mpe", scenario="simple_spread", folder=tmp_path)
    assert describe_session(stage)["config"] is None
    save_yaml(tmp_path / "config.yaml", from_dict(config))
    facts = describe_session(stage, condition="helped")
    assert facts["config"] == config
    assert (facts["condition"], facts["num_envs"], facts["env"]) == ("helped", 4, "mpe")
    recorder = Recorder(tmp_path, facts)
    record_episodes(recorder, envs, 1)
    recorder.close()
    assert find_sessions(tmp_path)[0].config == from_dict(config)
