"""Recordings leave as tables and datasets without losing anything."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest

from harl.hitl import export
from harl.hitl.recording.minari_export import initial_state, joint_actions, to_minari
from harl.hitl.recording.recordings import find_sessions
from tests.hitl.recording_fixtures import mpe, record_episodes, started


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three episodes, the last of which was discarded, feedback and a questionnaire."""
    folder = tmp_path / "run"
    recorder, envs = started(folder, condition="helped", consent_version="v2")
    record_episodes(recorder, envs, 3)
    recorder.sync()
    recorder.amend(0, 0, 3, 1, 0.75, 12, credited=1.5, raw=1.0, who="cleo")
    recorder.discard(0, 2, "cleo")
    recorder.event("feedback", {"name": "cleo", "value": 1, "seen_step": 4})
    recorder.event("survey", {"name": "cleo", "answers": {"age": 31, "said": 'it, "helped"\n'}})
    recorder.close()
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_table_has_a_row_for_each_step_and_agent(run: Path, tmp_path: Path) -> None:
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--format", "csv"]) == 0
    rows = table(tmp_path / "out" / "steps.csv")
    assert len(rows) == 2 * 25 * 3
    (session,) = find_sessions(run)
    for number, episode in enumerate(session.episodes()):
        arrays = episode.load()
        own = rows[number * 75 : (number + 1) * 75]
        if episode.discarded:
            assert not own
            continue
        for name in ("reward", "reward_learned", "human_raw", "rtt_ms"):
            given = np.array([float(row[name] or "nan") for row in own], np.float32).reshape(25, 3)
            np.testing.assert_array_equal(given, arrays[name])
        executed = np.array([float(row["executed_0"]) for row in own], np.float32).reshape(25, 3, 1)
        np.testing.assert_array_equal(executed, arrays["executed"])
        assert [row["source"] == "human" for row in own] == (arrays["source"] == 1).reshape(-1).tolist()
    driven = [row for row in rows if row["controller"] == "alice-93f1"]
    assert len(driven) == 10
    assert {row["agent"] for row in driven} == {"agent_0"}
    assert [row["takeover_start"] for row in driven[:5]] == ["1", "0", "0", "0", "0"]
    assert (rows[0]["condition"], rows[0]["consent_version"], rows[0]["seq"]) == ("helped", "v2", "")


def test_discarded_episodes_are_written_where_they_are_wanted(run: Path, tmp_path: Path) -> None:
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--format", "csv", "--discarded"]) == 0
    episodes = table(tmp_path / "out" / "episodes.csv")
    assert [row["discarded"] for row in episodes] == ["0"] * 6 + ["1"] * 3
    assert episodes[1]["people"] == "alice-93f1 bob-77c0 cleo"
    assert float(episodes[1]["returns_learned"]) == pytest.approx(float(episodes[1]["returns"]) + 0.75)


def test_answers_and_events_are_carried_through(run: Path, tmp_path: Path) -> None:
    export.main([str(run), "--to", str(tmp_path / "out"), "--format", "csv"])
    answers = table(tmp_path / "out" / "survey.csv")
    assert [(row["person"], row["field"], row["answer"]) for row in answers] == [
        ("cleo", "age", "31"),
        ("cleo", "said", 'it, "helped"\n'),
    ]
    assert answers[0]["condition"] == "helped"
    events = table(tmp_path / "out" / "events.csv")
    assert [row["kind"] for row in events] == ["feedback", "survey"]
    assert json.loads(events[0]["data"])["seen_step"] == 4


@pytest.mark.parametrize(
    ("scenario", "continuous"),
    [("simple_spread", "false"), ("simple_reference", "true"), ("simple_speaker_listener", "true")],
)
def test_recording_to_minari_to_the_environment_gives_the_same_returns(
    tmp_path: Path, scenario: str, continuous: str
) -> None:
    recorder, envs = started(tmp_path / "run", scenario, overrides=(f"env.continuous_actions={continuous}",))
    returns = record_episodes(recorder, envs, 3)
    recorder.close()
    path = to_minari(find_sessions(tmp_path / "run"), tmp_path / "out")
    dataset: Any = minari.MinariDataset(path)
    assert dataset.total_episodes == 3
    metadata = list(dataset.storage.get_episode_metadata(range(3)))
    again, _ = mpe(scenario, f"env.continuous_actions={continuous}")
    for episode, about, expected in zip(dataset.iterate_episodes(), metadata, returns, strict=True):
        state = initial_state(about)
        assert state is not None
        again.set_state(state)
        total, team = np.zeros(again.layout.num_agents), []
        for actions in joint_actions(again.layout, episode.actions):
            step = again.step(actions[None])
            total += step.rewards[0, :, 0]
            team.append(step.rewards[0, :, 0].sum(dtype=np.float64))
        assert total.tolist() == expected.tolist()
        assert episode.rewards.tolist() == team
        assert step.final_obs is not None
        for i, agent in enumerate(again.layout.agents):
            own = step.final_obs[0, i, : again.layout.obs_dims[i]]
            np.testing.assert_array_equal(episode.observations[agent][-1], own)
            assert len(episode.observations[agent]) == 26


def test_dataset_has_everything_as_infos_and_metadata(run: Path, tmp_path: Path) -> None:
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--format", "minari", "--name", "mine-v3"]) == 0
    dataset: Any = minari.MinariDataset(tmp_path / "out" / "mine-v3" / "data")
    first = dataset[0]
    (session,) = find_sessions(run)
    arrays = next(iter(session.episodes())).load()
    for name in ("proposed", "source", "reward_learned", "human_raw", "pre_intervention", "seq", "log_prob_executed"):
        np.testing.assert_array_equal(first.infos[name], arrays[name])
    people = [name.decode() for name in first.infos["controller"]["agent_0"]]
    assert people[4:11] == ["", *["alice-93f1"] * 5, ""]
    assert (first.truncations[-1], first.terminations.any()) == (True, False)
    (about,) = dataset.storage.get_episode_metadata([0])
    assert (about["condition"], about["consent_version"], about["is_partial"]) == ("helped", "v2", False)
    assert json.loads(about["people"]) == ["alice-93f1", "bob-77c0", "cleo"]
    assert json.loads(dataset.storage.metadata["harl_survey"])[0]["field"] == "age"
    assert dataset.total_episodes == 2


def test_dataset_that_exists_is_not_touched(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(run), "--to", str(tmp_path / "out"), "--format", "minari"]
    assert export.main(arguments) == 0
    assert export.main(arguments) == 1
    assert "exists: give another --to or --name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mine", "my set-v0", "/mine-v0", "mine-v"])
def test_a_name_that_minari_does_not_take_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--name", name]) == 2
    assert f"{name!r} is no name of a dataset: they end in a version, as mine-v0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left", ["data", "tables", "one table", "other agents"])
def test_nothing_is_written_beside_what_is_there(
    run: Path, tmp_path: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, source = tmp_path / "out", run
    if left == "other agents":
        recorder, envs = started(tmp_path / "other", "simple_reference")
        record_episodes(recorder, envs, 1)
        recorder.close()
        source = tmp_path
    elif left == "one table":
        out.mkdir()
        (out / "survey.csv").write_text("mine", encoding="utf-8")
    else:
        assert export.main([str(run), "--to", str(out), "--format", "minari" if left == "data" else "csv"]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert export.main([str(source), "--to", str(out)]) in (1, 2)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    told = capsys.readouterr()
    assert told.out == ""
    said = {
        "data": "exists: give another --to or --name",
        "tables": f"{out} has steps.csv, episodes.csv, events.csv, survey.csv of an earlier export: give another --to",
        "one table": f"{out} has survey.csv of an earlier export",
        "other agents": "differ",
    }
    assert said[left] in told.err


def test_without_minari_the_error_says_what_to_install(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    assert export.main([str(run), "--to", str(tmp_path / "out")]) == 2
    assert "pip install 'harl[people]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert export.main([str(run), "--to", str(tmp_path / "out"), "--format", "csv"]) == 0


def test_folder_without_a_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main([str(tmp_path), "--to", str(tmp_path / "out"), "--format", "csv"]) == 1
    assert "looked there and below it for session.json" in capsys.readouterr().err
    assert export.main([str(tmp_path / "gone"), "--to", str(tmp_path / "out"), "--format", "csv"]) == 1
    assert "is not a folder" in capsys.readouterr().err
