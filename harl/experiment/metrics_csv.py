"""Per-step numbers of evaluation episodes, of any agents, in one CSV table."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from harl.experiment.files import storage_errors

IDENTITY = ("env", "episode", "step")
"""First columns of the table, and keys of a step's dict that say which step it is."""

_Key = tuple[Any, ...]


def dump_metrics_to_csv(
    metrics: Mapping[str, Sequence[Mapping[str, Any]]], eval_episode: int, folder: Path, env_steps: int
) -> Path:
    """Write what each agent reported in each step, and return the file's path.

    `metrics` maps an agent to its steps, each a dict of values. Agents may have different keys and numbers of steps.
    `env`, `episode` and `step` in a dict say which step of which episode it is, so that the agents' values meet in
    one row; without `step` it is the position in the sequence. Every other key becomes the column `<agent>/<key>`,
    with an empty cell where it is missing, None or NaN. If an agent reports `day` and `hour`, the rows are sorted by
    them. The file is `all_agents_episode_<eval_episode>_step_<env_steps>.csv` (with `-1`, `-2`, ... where that
    exists) in `folder`, which is made. Raises `TypeError` where a step is not a dict.
    """
    rows: dict[_Key, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    times: dict[_Key, tuple[float, float]] = {}
    for agent, steps in metrics.items():
        repeats: Counter[_Key] = Counter()
        for position, values in enumerate(steps):
            _require_dict(values, f"metrics[{agent!r}][{position}]")
            identity = (values.get("env"), values.get("episode"), values.get("step", position))
            key = (*identity, repeats[identity])
            repeats[identity] += 1
            row = rows.setdefault(key, dict(zip(IDENTITY, identity, strict=True)))
            cells = {f"{agent}/{name}": value for name, value in values.items() if name not in IDENTITY}
            row.update(cells)
            columns.update(dict.fromkeys(cells))
            if (moment := _moment(values)) is not None:
                times.setdefault(key, moment)
    ordered = list(rows)
    if times:
        ordered.sort(key=lambda key: times.get(key, (math.inf, math.inf)))  # stable: equal times keep their order
    with storage_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _new_file(folder, f"all_agents_episode_{eval_episode}_step_{env_steps}") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = [*IDENTITY, *columns]
            writer.writerow(names)
            writer.writerows([_cell(rows[key].get(name)) for name in names] for key in ordered)
    return Path(file.name)


def _require_dict(values: object, where: str) -> None:
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is a {type(values).__name__}; expected a dict of that step's values")


def _moment(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """Day and hour of a step that has both."""
    try:
        day, hour = float(values["day"]), float(values["hour"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(day) or math.isnan(hour) else (day, hour)


def _new_file(folder: Path, stem: str) -> TextIO:
    path, number = folder / f"{stem}.csv", 0
    while True:
        try:
            return path.open("x", newline="", encoding="utf-8")
        except FileExistsError:
            number += 1
            path = folder / f"{stem}-{number}.csv"


def _cell(value: Any) -> str:
    """A value as text: numbers read back equal, arrays and containers are JSON, None and NaN are nothing."""
    if hasattr(value, "tolist"):  # numpy and torch
        value = value.tolist()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, default=str)
    return str(value)
