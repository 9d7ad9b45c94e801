"""Means of what updates report, and where the time went, since the last line of the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any


class RunningMeans:
    """Sums of named numbers; what it keeps does not grow."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self.steps_per_second = 0.0
        """Environment steps per second of collecting and learning, without evaluation, at the last count."""
        self._busy = 0.0

    def add(self, values: Mapping[str, float]) -> None:
        """Take one value of each name in."""
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Note the time that the block takes as time of this part of the loop."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds
        self._busy += seconds

    def count_steps(self, steps: int) -> None:
        """Note environment steps that the noted time was spent on."""
        self._steps += steps
        if self._busy > 0:
            self.steps_per_second = self._steps / self._busy

    def drain(self) -> dict[str, float]:
        """Means since the last call, seconds of each part, and the speed; then start anew."""
        result = {name: total / count for name, (total, count) in self._sums.items()}
        result.update({f"time/{part}_s": seconds for part, seconds in self._seconds.items()})
        result["time/steps_per_second"] = self.steps_per_second
        self._sums.clear()
        self._seconds.clear()
        self._steps, self._busy = 0, 0.0
        return result

    def get_state(self) -> dict[str, Any]:
        """The sums, for a checkpoint."""
        return {"sums": {name: list(pair) for name, pair in self._sums.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the sums of a checkpoint."""
        self._sums = {name: (pair[0], pair[1]) for name, pair in state["sums"].items()}
