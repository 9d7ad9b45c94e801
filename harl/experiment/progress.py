"""What a person sees of a run: a live bar on a terminal, one plain line for each log step anywhere else."""

from __future__ import annotations

import os
import sys
from typing import Literal

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

ProgressMode = Literal["auto", "bar", "plain", "off"]


class ProgressDisplay:
    """Shows how far a run is, on standard output.

    `mode` is `bar`, `plain` (no control characters), `off` (messages only), or `auto`: `bar` on a terminal, else
    `plain`. Steps are environment steps; a resumed run starts its bar at `start_step`.
    """

    def __init__(self, total_steps: int, mode: ProgressMode = "auto", start_step: int = 0) -> None:
        if mode not in ("auto", "bar", "plain", "off"):
            raise ValueError(f"progress={mode!r} is not known; allowed: auto, bar, plain, off")
        self.mode = ("bar" if _is_terminal() else "plain") if mode == "auto" else mode
        self._total = total_steps
        self._step = start_step
        self._line_step = -1
        self._phase = ""
        self._rate: float | None = None
        self._return: float | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if self.mode == "bar":
            # Twice a second, from a thread of rich's own: the time goes on while a long update runs.
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[phase]:<8}"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>5.1f} %"),
                TextColumn("{task.fields[facts]}"),
                refresh_per_second=2,
            )
            self._task = self._bar.add_task("", total=total_steps, completed=start_step, phase="start", facts="")
            self._bar.start()

    def update(self, env_steps: int, phase: str, steps_per_second: float | None, last_return: float | None) -> None:
        """Take note of where the run is; None keeps the last value. The bar shows it, plain lines come by `line`."""
        self._step, self._phase = env_steps, phase
        self._rate = self._rate if steps_per_second is None else steps_per_second
        self._return = self._return if last_return is None else last_return
        if self._bar is not None:
            self._bar.update(self._task, completed=env_steps, phase=phase, facts=self._facts())

    def line(self, env_steps: int) -> None:
        """Print where the run is, in plain mode, once for each step."""
        if self.mode == "plain" and env_steps != self._line_step:
            self._step = self._line_step = env_steps
            share = 100 * self._step / self._total if self._total else 100.0
            self._print(", ".join(part for part in (f"{share:.1f} %", self._facts(), self._phase) if part))

    def message(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(text)

    def close(self) -> None:
        """Stop the bar and leave its last state on the screen; may be called twice."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _facts(self) -> str:
        parts = [f"{self._step:,}/{self._total:,} steps"]
        if self._rate:
            left = max(0, self._total - self._step) / self._rate
            parts += [f"{self._rate:,.0f} steps/s", f"{duration(left)} left"]
        if self._return is not None:
            parts.append(f"return {self._return:.2f}")
        return ", ".join(parts)

    def _print(self, text: str) -> None:
        print(text, flush=True)


def duration(seconds: float) -> str:
    """Time for people, as `42 s`, `3 min 20 s`, `5 h 07 min` or `2 d 03 h`."""
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24:02d} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
