"""The table of per-step evaluation numbers: any agents, nothing lost, nothing overwritten."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from harl.experiment.metrics_csv import dump_metrics_to_csv


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_any_agents_missing_keys_and_unequal_lengths(tmp_path: Path) -> None:
    path = dump_metrics_to_csv(
        {
            "speaker": [{"power": 1.23456789, "tasks": 3}, {"power": None}],
            "listener": [{"power": np.float32(0.5)}, {"lost, found": float("nan")}, {"power": np.int64(7), "on": True}],
            "silent": [],
        },
        eval_episode=10,
        folder=tmp_path / "new" / "folder",
        env_steps=2000,
    )
    assert path == tmp_path / "new" / "folder" / "all_agents_episode_10_step_2000.csv"
    rows = read(path)
    assert list(rows[0]) == [
        "env",
        "episode",
        "step",
        "speaker/power",
        "speaker/tasks",
        "listener/power",
        "listener/lost, found",
        "listener/on",
    ]
    assert [list(row.values()) for row in rows] == [
        ["", "", "0", "1.23456789", "3", "0.5", "", ""],
        ["", "", "1", "", "", "", "", ""],
        ["", "", "2", "", "", "7", "", "True"],
    ]


def test_values_of_one_step_meet_in_one_row(tmp_path: Path) -> None:
    """Environments and episodes keep their identity; agents may report them in different orders."""
    steps = [{"env": e, "episode": 4 + e, "step": s} for s in range(2) for e in range(2)]
    path = dump_metrics_to_csv(
        {
            "a": [{**step, "x": 10 * step["env"] + step["step"]} for step in steps],
            "b": [{**step, "y": 10 * step["env"] + step["step"]} for step in reversed(steps)],
        },
        1,
        tmp_path,
        5,
    )
    rows = read(path)
    assert [(row["env"], row["episode"], row["step"]) for row in rows] == [
        ("0", "4", "0"),
        ("1", "5", "0"),
        ("0", "4", "1"),
        ("1", "5", "1"),
    ]
    assert all(row["a/x"] == row["b/y"] == str(10 * int(row["env"]) + int(row["step"])) for row in rows)


def test_a_step_reported_twice_is_two_rows(tmp_path: Path) -> None:
    path = dump_metrics_to_csv({"a": [{"step": 0, "x": 1}, {"step": 0, "x": 2}]}, 1, tmp_path, 0)
    assert [row["a/x"] for row in read(path)] == ["1", "2"]


def test_rows_are_sorted_by_day_and_hour_only_where_both_exist(tmp_path: Path) -> None:
    times = [(2, 1.0), (1, 5.0), (1, 0.5), (10, 0.0)]
    both = {"a": [{"x": i} for i in range(4)], "b": [{"day": day, "hour": hour} for day, hour in times]}
    assert [row["a/x"] for row in read(dump_metrics_to_csv(both, 1, tmp_path, 1))] == ["2", "1", "0", "3"]
    day_only = {"a": both["a"], "b": [{"day": day} for day, _ in times]}
    assert [row["a/x"] for row in read(dump_metrics_to_csv(day_only, 1, tmp_path, 2))] == ["0", "1", "2", "3"]
    some = {
        "b": [{"x": 0}, {"day": 2, "hour": 1, "x": 1}, {"day": None, "hour": 1, "x": 2}, {"day": 1, "hour": 1, "x": 3}]
    }
    assert [row["b/x"] for row in read(dump_metrics_to_csv(some, 1, tmp_path, 3))] == ["3", "1", "0", "2"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    paths = [dump_metrics_to_csv({"a": [{"x": i}]}, 5, tmp_path, 100) for i in range(3)]
    assert [path.name for path in paths] == [
        "all_agents_episode_5_step_100.csv",
        "all_agents_episode_5_step_100-1.csv",
        "all_agents_episode_5_step_100-2.csv",
    ]
    assert [read(path)[0]["a/x"] for path in paths] == ["0", "1", "2"]


def test_no_steps_give_a_table_without_rows(tmp_path: Path) -> None:
    assert dump_metrics_to_csv({}, 0, tmp_path, 0).read_text() == "env,episode,step\n"


def test_arrays_are_json(tmp_path: Path) -> None:
    path = dump_metrics_to_csv({"a": [{"action": np.array([1.5, 2.0]), "s": "text, more"}]}, 1, tmp_path, 0)
    assert (read(path)[0]["a/action"], read(path)[0]["a/s"]) == ("[1.5, 2.0]", "text, more")


def test_a_step_that_is_no_dict_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"metrics\['a'\]\[1\] is a float; expected a dict"):
        dump_metrics_to_csv({"a": [{}, 1.0]}, 1, tmp_path, 0)  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []
