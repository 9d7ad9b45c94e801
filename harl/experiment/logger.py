"""The log of a run: a CSV table, TensorBoard, evaluation episodes, and what is shown on the terminal."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

import numpy as np

from harl.experiment.files import storage_errors
from harl.experiment.progress import ProgressDisplay, ProgressMode, duration
from harl.experiment.run_folder import RunFolder, Status
from harl.experiment.tables import STEP, JsonLines, MetricsTable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class RunLogger:
    """Writes what a run reports, as it is reported: a run that is killed has everything on the disk up to there.

    Steps are environment steps, `total_steps` is the run's budget. With `resume_step`, what was logged beyond that
    step is removed, in TensorBoard by a purge event. A new run does not write into an existing log: `StorageError`,
    as for anything that cannot be written. As a context manager it is closed however the block ends.
    """

    def __init__(
        self,
        folder: RunFolder,
        total_steps: int,
        progress: ProgressMode = "auto",
        tensorboard: bool = True,
        resume_step: int | None = None,
    ) -> None:
        self._folder = folder
        self._started = time.monotonic()
        self._step = resume_step or 0
        with contextlib.ExitStack() as opened:
            self._table = opened.enter_context(contextlib.closing(MetricsTable(folder.metrics_csv, resume_step)))
            self._evaluations = opened.enter_context(contextlib.closing(JsonLines(folder.evaluations, resume_step)))
            self._events = _event_writer(folder, resume_step) if tensorboard else None
            if self._events is not None:
                opened.callback(self._close_events, self._events)
            self._display = ProgressDisplay(total_steps, progress, self._step)
            opened.callback(self._display.close)
            self._open_files = opened.pop_all()
        self._closed = False

    def scalars(self, env_steps: int, values: Mapping[str, SupportsFloat]) -> None:
        """Log numbers at a step, not before the last one; those that are not finite are left out.

        The names are columns of `metrics.csv` and plain scalars of TensorBoard. Logging the same name twice at one
        step is for `metrics.csv` a correction; TensorBoard would show both.
        """
        self._step = env_steps
        self._table.add(env_steps, values)
        if self._events is not None:
            with storage_errors("write to", self._folder.tensorboard):
                for name, value in values.items():
                    if math.isfinite(value):
                        self._events.add_scalar(name, float(value), env_steps)
                self._events.flush()
        self._display.line(env_steps)

    def evaluation(self, env_steps: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Log evaluation episodes: for each `episode`, `env`, `seed`, `returns` (agent to number), `length`, and more.

        `env_steps`, `return_sum` and `return_mean` (over the agents) are added to each line.
        """
        records = []
        for episode in episodes:
            returns = [float(value) for value in episode["returns"].values()]
            totals = {"return_sum": math.fsum(returns), "return_mean": math.fsum(returns) / len(returns)}
            records.append({STEP: env_steps, **episode, **totals})
        self._evaluations.add(records)
        if records:
            sums = np.array([record["return_sum"] for record in records])
            self.message(
                f"evaluation at {env_steps:,} steps: return {sums.mean():.2f} ± {sums.std():.2f} "
                f"(summed over agents, {len(records)} episode{'s' * (len(records) != 1)})"
            )

    def progress(
        self, env_steps: int, phase: str, steps_per_second: float | None = None, last_return: float | None = None
    ) -> None:
        """Show where the run is: `phase` is `collect`, `update`, `evaluate`, ...; None keeps the last number shown."""
        self._step = env_steps
        self._display.update(env_steps, phase, steps_per_second, last_return)

    def message(self, text: str) -> None:
        """Show a line to the person at the terminal."""
        self._display.message(text)

    def close(self, status: Status | None = "completed") -> None:
        """Bring everything to the disk and say how the run ended (None: it never began); further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._open_files.close()
        if status is not None:
            self._display.message(
                f"{status} at {self._step:,} steps after {duration(time.monotonic() - self._started)}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit)
        self.close("completed" if kind is None else "interrupted" if interrupted else "failed")

    def _close_events(self, events: SummaryWriter) -> None:
        with storage_errors("write to", self._folder.tensorboard):
            events.close()


def _event_writer(folder: RunFolder, resume_step: int | None) -> SummaryWriter:
    """A new event file; on resume it begins with the order to forget what earlier files hold beyond that step."""
    from torch.utils.tensorboard import SummaryWriter

    purge_step = None if resume_step is None else resume_step + 1
    with storage_errors("write to", folder.tensorboard):
        return SummaryWriter(str(folder.tensorboard), purge_step=purge_step)
