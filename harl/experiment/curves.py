"""Learning curves of several runs: read from their folders, put together by what they have in common."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from harl.config import flat
from harl.experiment.run_folder import RunFolder

SAME_EXPERIMENT = ("seed", "resume", "output_dir", "device", "logger", "checkpoint", "train.num_env_steps")
"""Keys in which runs of one experiment may differ."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One column of a run's log."""

    run: RunFolder
    env_steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Several runs at the environment steps that all of them have."""

    label: str
    env_steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    """Mean over runs."""
    std: NDArray[np.float64]
    """Standard deviation over runs (n − 1); NaN for a single run."""
    runs: int


def read_curve(run: RunFolder, column: str) -> Curve:
    """A column of `metrics.csv`; rows in which it is empty are left out.

    Raises:
        KeyError: the log has no such column; the message lists those it has.
    """
    with run.metrics_csv.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        if column not in names:
            raise KeyError(f"{run.metrics_csv} has no column {column!r}; there are: {', '.join(names)}")
        rows = [(int(row["env_steps"]), float(row[column])) for row in reader if row[column]]
    steps, values = np.array([step for step, _ in rows], np.int64), np.array([value for _, value in rows], np.float64)
    return Curve(run, steps, values)


def experiments(runs: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs by a label that names what tells them apart, seeds aside: `happo, algo.time_limit=mask`."""
    configs = [flat(yaml.safe_load(run.config.read_text(encoding="utf-8"))) for run in runs]
    found: dict[str, list[RunFolder]] = {}
    for run, config in zip(runs, configs, strict=True):
        # What an algorithm or an environment brings with it is implied by its name.
        alike = [other for other in configs if other["algo.name"] == config["algo.name"]]
        own = _varied(alike, config, "") | _varied(configs, config, "env.")
        label = ", ".join([str(config["algo.name"]), *(f"{key}={config[key]}" for key in sorted(own))])
        found.setdefault(label, []).append(run)
    return found


def _varied(configs: Sequence[Mapping[str, Any]], config: Mapping[str, Any], prefix: str) -> set[str]:
    """Keys of `config` below `prefix` whose values differ among the configs that have them."""
    keys = [key for key in config if key.startswith(prefix) and not key.startswith(SAME_EXPERIMENT)]
    return {key for key in keys if len({str(other[key]) for other in configs if key in other}) > 1}


def summarise(label: str, curves: Sequence[Curve]) -> Summary:
    """Mean and spread at the steps that all curves have."""
    common = set(curves[0].env_steps.tolist())
    for curve in curves[1:]:
        common &= set(curve.env_steps.tolist())
    steps = np.array(sorted(common), np.int64)
    table = np.array([curve.values[np.isin(curve.env_steps, steps)] for curve in curves])
    several = len(curves) > 1
    std = table.std(0, ddof=1) if several else np.full(len(steps), np.nan)
    return Summary(label, steps, table.mean(0), std, len(curves))
