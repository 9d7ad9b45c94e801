"""Reading recordings that are whole, torn, or of something else; and learning from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harl.config import ConfigError
from harl.hitl.recording.demonstrations import demonstrations
from harl.hitl.recording.recorder import Recorder
from harl.hitl.recording.recordings import RecordingError, Session, find_sessions
from tests.hitl.recording_fixtures import mpe, record_episodes, session, started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 2)
    recorder.event("connect", {"name": "ann"})
    recorder.event("leave", {"name": "ann"})
    recorder.close()
    assert recorder.folder is not None
    return recorder.folder


@pytest.mark.parametrize("where", ["session", "people", "run", "runs"])
def test_sessions_are_found_from_everywhere(tmp_path: Path, where: str) -> None:
    recorder, envs = started(tmp_path / "runs" / "one")
    record_episodes(recorder, envs, 1)
    recorder.close()
    assert recorder.folder is not None
    given = {
        "session": recorder.folder,
        "people": recorder.folder.parent,
        "run": recorder.folder.parent.parent,
        "runs": tmp_path / "runs",
    }[where]
    assert [found.folder for found in find_sessions(given)] == [recorder.folder]


@pytest.mark.parametrize("name", ["episodes.jsonl", "events.jsonl"])
def test_line_that_was_not_finished_is_left_out_and_said(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for cut in (1, 5, 20):
        (folder / name).write_bytes(content[:-cut])
        recorded = Session(folder)
        assert len(list(recorded.raw_lines(name))) == 1
        assert recorded.problems == [f"{name}: the last line was not finished"]


def test_episode_whose_line_was_torn_is_read_from_its_file(folder: Path) -> None:
    whole = {e.episode: e.facts for e in Session(folder).episodes()}
    content = (folder / "episodes.jsonl").read_bytes()
    (folder / "episodes.jsonl").write_bytes(content[:-30])
    first, second = Session(folder).episodes()
    assert (first.episode, second.episode) == (0, 1)
    same = ("returns", "human_steps", "interventions", "people", "steps", "is_partial", "seed", "purpose")
    assert {name: second.facts[name] for name in same} == {name: whole[1][name] for name in same}
    assert second.load()["source"][:, 0].sum() == 5


def test_damage_in_the_middle_is_an_error_that_names_the_line(folder: Path) -> None:
    content = (folder / "events.jsonl").read_bytes()
    (folder / "events.jsonl").write_bytes(b"{" + content)
    with pytest.raises(RecordingError, match=r"events.jsonl, line 1 is damaged"):
        list(Session(folder).events())


def test_missing_file_is_said_and_the_rest_is_read(folder: Path) -> None:
    next(iter(sorted((folder / "episodes").iterdir()))).unlink()
    recorded = Session(folder)
    assert [e.episode for e in recorded.episodes()] == [1]
    assert recorded.problems == ["episodes/000000_env-0_episode-0.npz: missing"]


def test_episode_is_read_up_to_a_missing_part(tmp_path: Path) -> None:
    envs, config = mpe()
    recorder = Recorder(tmp_path, session(envs.layout, config), part_bytes=5_000)
    record_episodes(recorder, envs, 1)
    recorder.close()
    assert recorder.folder is not None
    parts = sorted((recorder.folder / "episodes").iterdir())
    assert len(parts) > 2
    (whole,) = Session(recorder.folder).episodes()
    arrays = whole.load()
    parts[-1].unlink()
    (cut,) = Session(recorder.folder).episodes()
    assert cut.is_partial
    assert 0 < cut.steps < 25
    np.testing.assert_array_equal(cut.load()["obs"], arrays["obs"][: cut.steps + 1])


def test_damaged_file_is_an_error_that_names_it(folder: Path) -> None:
    file = min((folder / "episodes").iterdir())
    file.write_bytes(file.read_bytes()[:100])
    episode = next(iter(Session(folder).episodes()))
    with pytest.raises(RecordingError, match=r"000000_env-0_episode-0.npz is damaged"):
        episode.load()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts | {"format": 99}, "has the format 99; this version reads 1"),
        (lambda facts: facts | {"layout": {}}, "is no description of a session"),
    ],
)
def test_other_formats_are_refused(folder: Path, change: Callable[[dict[str, object]], object], message: str) -> None:
    file = folder / "session.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(RecordingError, match=message):
        Session(folder)


def test_state_is_one_for_all_or_one_each(tmp_path: Path) -> None:
    envs, config = mpe("simple_spread", "env.state_type=FP")
    recorder = Recorder(tmp_path, session(envs.layout, config))
    record_episodes(recorder, envs, 1)
    recorder.close()
    (episode,) = find_sessions(tmp_path)[0].episodes()
    share = episode.load()["share_obs"]
    assert share.shape == (26, 3, 57)
    np.testing.assert_array_equal(share[:, :, 54:], np.broadcast_to(np.eye(3, dtype=np.float32), (26, 3, 3)))


def test_demonstrations_hold_what_the_environment_did(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 1)
    recorder.close()
    (found,) = demonstrations(tmp_path, envs.layout)
    arrays = next(iter(find_sessions(tmp_path)[0].episodes())).load()
    assert found.problems(envs.layout) == []
    assert found.ended
    np.testing.assert_array_equal(found.actions, arrays["executed"])
    np.testing.assert_array_equal(found.next_obs[:-1], found.obs[1:])
    np.testing.assert_array_equal(found.next_share_obs, arrays["share_obs"][1:])
    np.testing.assert_array_equal(np.flatnonzero(found.human[:, 0]), np.arange(5, 10))
    assert found.seen_ago is not None
    assert set(found.seen_ago[found.human].tolist()) == {1}
    assert found.truncated[-1].all()
    # Stepping from what was seen gives what comes next, in the same arrays.
    assert (found.rewards != 0).all()
    assert "episode 0 of environment 0" in found.source


def test_demonstrations_leave_out_what_must_not_be_learned_from(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path)
    record_episodes(recorder, envs, 3, lambda episode, step: ["ann" if episode < 2 and step > 20 else None] * 3)
    recorder.discard(0, 1, "ann")
    recorder.took_part(0, 2, "ann")
    recorder.close()
    assert len(list(find_sessions(tmp_path)[0].episodes())) == 3
    assert [found.source.split(" in ")[0] for found in demonstrations(tmp_path, envs.layout)] == [
        "episode 0 of environment 0"
    ]


def test_evaluations_are_no_demonstrations(tmp_path: Path) -> None:
    recorder, envs = started(tmp_path, purpose="evaluate")
    record_episodes(recorder, envs, 1)
    recorder.close()
    with pytest.raises(ConfigError, match="no episode in which a person drove while training"):
        demonstrations(tmp_path, envs.layout)


def test_demonstrations_of_other_agents_are_refused_with_what_differs(folder: Path) -> None:
    with pytest.raises(ConfigError, match="agents are agent_0, agent_1, agent_2, here agent_0, agent_1") as found:
        demonstrations(folder, mpe("simple_reference")[0].layout)
    assert f"hitl.demonstrations={folder}" in str(found.value)
    with pytest.raises(ConfigError, match=r"actions of agent_2 are Discrete\(5\), here Box"):
        demonstrations(folder, mpe("simple_spread", "env.continuous_actions=true")[0].layout)
    with pytest.raises(ConfigError, match=r"looked there and below it for session\.json"):
        demonstrations(folder / "episodes", mpe()[0].layout)
