"""The growing text files of a run: a CSV table of scalars, and lines of JSON.

What is written is with the operating system when the call returns. A last line that a crash cut short is dropped when
the run goes on.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np

from harl.experiment.files import StorageError, replacing, storage_errors

STEP = "env_steps"
"""First column of the table, and a key of every line of JSON."""


class MetricsTable:
    """`metrics.csv`: one row for each step at which something was logged, one column for each name ever logged.

    A new name adds a column, by rewriting the file in one step; where a row has no value its cell is empty. What is
    logged at the step of the last row completes that row. With `resume_step`, rows beyond it are removed first;
    without it, the file must not exist.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        self._descriptor = -1
        self._last_step = -1
        self._last_row: dict[str, str] = {}
        self._last_start = self._end = 0
        """Positions in the file of the last row and behind it."""
        _require_fresh(path, resume_step)
        with storage_errors("write", path):
            header, rows = _read_csv(path)
            self._columns = header or [STEP]
            self._rewrite([row for row in rows if resume_step is not None and int(row[STEP]) <= resume_step])

    def add(self, env_steps: int, values: Mapping[str, SupportsFloat]) -> None:
        """Log values at a step that is not before the last one; values that are not finite are left out."""
        if env_steps < self._last_step:
            raise ValueError(f"scalars of step {env_steps} come after those of step {self._last_step}")
        cells = {name: _cell(value) for name, value in values.items() if math.isfinite(value)}
        if not cells:
            return
        again = env_steps == self._last_step
        row = {**self._last_row, **cells} if again else {STEP: str(env_steps), **cells}
        new_columns = [name for name in cells if name not in self._columns]
        start = self._last_start if again else self._end
        with storage_errors("write", self._path):
            if new_columns:
                self._columns += new_columns
                rows = _read_csv(self._path)[1]
                self._rewrite([*(rows[:-1] if again else rows), row])
                return
            line = self._lines([row])
            _write_all(self._descriptor, line, start)
            os.ftruncate(self._descriptor, start + len(line))
        self._last_step, self._last_row = env_steps, row
        self._last_start, self._end = start, start + len(line)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        before = self._lines([dict(zip(self._columns, self._columns, strict=True)), *rows[:-1]])
        last = self._lines(rows[-1:])
        with replacing(self._path) as file:
            file.write(before + last)
        self.close()
        self._descriptor = os.open(self._path, os.O_WRONLY)
        self._last_row = rows[-1] if rows else {}
        self._last_step = int(self._last_row.get(STEP, -1))
        self._last_start, self._end = len(before), len(before) + len(last)

    def _lines(self, rows: Iterable[Mapping[str, str]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


class JsonLines:
    """`evaluations.jsonl`: one JSON object a line. `resume_step` as for `MetricsTable`."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        _require_fresh(path, resume_step)
        with storage_errors("write", path):
            kept = [line for line in _complete_lines(path) if resume_step is not None and _step_of(line) <= resume_step]
            with replacing(path) as file:
                file.writelines(kept)
            self._descriptor = os.open(path, os.O_WRONLY)
            self._end = sum(len(line) for line in kept)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records of plain or numpy data; numbers that are not finite, which JSON does not have, become null."""
        lines = "".join(json.dumps(_json_data(record), allow_nan=False) + "\n" for record in records).encode()
        with storage_errors("write", self._path):
            _write_all(self._descriptor, lines, self._end)
        self._end += len(lines)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _require_fresh(path: Path, resume_step: int | None) -> None:
    if resume_step is None and path.exists():
        raise StorageError(f"{path} exists: a new run does not overwrite it; resume that run, or start in a new folder")


def _write_all(descriptor: int, data: bytes, position: int) -> None:
    os.lseek(descriptor, position, os.SEEK_SET)
    while data:
        data = data[os.write(descriptor, data) :]


def _complete_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def _read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Header and whole rows (without their empty cells) of a metrics table."""
    lines = [line.decode(errors="replace") for line in _complete_lines(path)]
    header, *rows = list(csv.reader(lines)) or [[]]
    whole = [row for row in rows if len(row) == len(header) and row[0].isdecimal()]
    return header, [{name: cell for name, cell in zip(header, row, strict=True) if cell} for row in whole]


def _step_of(line: bytes) -> float:
    """Step of a line of JSON; infinite, so that it is dropped, where the line is not what was written."""
    try:
        return float(json.loads(line)[STEP])
    except (ValueError, TypeError, KeyError):
        return math.inf


def _cell(value: SupportsFloat) -> str:
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value))


def _json_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_data(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _json_data(value.tolist())
    if isinstance(value, list | tuple):
        return [_json_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
