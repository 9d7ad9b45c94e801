"""Checkpoints of a run: written whole or not at all, checked when read, and free of code.

checkpoints/<env_steps>/<key>.pt       one file for each top-level key of the state
                        manifest.json  layout version, env_steps, score, size and sha256 of each file
checkpoints/latest, best               text files that name one of these folders
"""

from __future__ import annotations

import math
import re
import shutil
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import torch

from harl.experiment.checkpoint_files import (
    KEY,
    CheckpointError,
    DamagedError,
    is_whole,
    listed,
    read_files,
    read_score,
    write_files,
)
from harl.experiment.files import folder_to_disk, reason, write_text
from harl.experiment.plain_state import to_plain

__all__ = ["CheckpointError", "CheckpointStore", "CheckpointWarning"]

_LEFTOVER = re.compile(r"\.(\d+)\.(tmp|replaced)")


class CheckpointWarning(UserWarning):
    """A checkpoint was not used because it is damaged."""


class CheckpointStore:
    """The checkpoints of one run. One process may write; others may read at the same time.

    `folder` is the run's `checkpoints` folder, made when the first one is saved. The last `keep_last` (at least 1)
    and the best are kept.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last} would keep no checkpoint; allowed: 1 and more")
        self.folder = folder
        self.keep_last = keep_last

    def save(self, env_steps: int, state: dict[str, Any], score: float | None = None) -> Path:
        """Write a checkpoint and return its folder; one of the same step is replaced.

        `state` holds what `plain_state.to_plain` takes, under keys that can name files. The highest finite `score`
        makes the best checkpoint, the earliest one where they are equal. Raises `TypeError` or `ValueError` before
        anything is written, and `CheckpointError` when the disk does not take it: earlier ones stay as they were.
        """
        if score is not None and not math.isfinite(score):
            raise ValueError(f"score={score} cannot be compared; allowed: finite numbers, or None")
        for key in state:
            if not KEY.fullmatch(key):
                raise TypeError(f"state key {key!r} cannot name a file; allowed: letters, digits, '_' and '-'")
        plain = {key: to_plain(value, f"state[{key!r}]") for key, value in state.items()}
        temporary, final = self.folder / f".{env_steps}.tmp", self.folder / str(env_steps)
        try:
            self._remove_leftovers()
            write_files(temporary, env_steps, None if score is None else float(score), plain)
            if final.exists():
                final.rename(self.folder / f".{env_steps}.replaced")
            temporary.rename(final)
            folder_to_disk(self.folder)
            self._mark("latest", env_steps)
            self._mark("best", self._highest_score())
        except OSError as error:
            raise CheckpointError(
                f"cannot save the checkpoint of step {env_steps} in {self.folder}: {reason(error)}; "
                f"whole checkpoints: {listed(self.whole())}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(env_steps)
        return final

    def load(
        self,
        which: Literal["latest", "best"] | int = "latest",
        keys: Collection[str] | None = None,
        map_location: str | torch.device = "cpu",
    ) -> tuple[int, dict[str, Any]]:
        """Read a checkpoint: its environment steps, and its state or the given `keys` of it.

        Where the latest one is damaged, the newest whole one before it is taken, with a `CheckpointWarning`.
        Raises `CheckpointError` where there is none, where another than the latest is damaged, and where a file
        holds anything but plain data (it is not run). States of torch's generators belong on the CPU.
        """
        step = self._resolve(which)
        earlier = [other for other in reversed(self.steps()) if other < step] if which == "latest" else []
        damage: list[str] = []
        for candidate in [step, *earlier]:
            try:
                state = read_files(self._place(candidate), keys, map_location)
            except DamagedError as error:
                damage.append(f"checkpoint {candidate} is damaged ({error})")
                continue
            if damage:
                warnings.warn(f"{'; '.join(damage)}: using {candidate} instead", CheckpointWarning, stacklevel=2)
            return candidate, state
        raise CheckpointError(f"{'; '.join(damage)} in {self.folder}; whole checkpoints: {listed(self.whole())}")

    def steps(self) -> list[int]:
        """Environment steps of the checkpoints that are there, whole or not, in rising order."""
        if not self.folder.is_dir():
            return []
        # `.N.replaced` without `N` is what a process leaves that was killed while it replaced checkpoint N.
        names = {child.name.removeprefix(".").removesuffix(".replaced") for child in self.folder.iterdir()}
        return sorted(int(name) for name in names if name.isdecimal())

    def whole(self) -> list[int]:
        """Environment steps of the checkpoints whose files are all as they were written."""
        return [step for step in self.steps() if is_whole(self._place(step))]

    @property
    def latest(self) -> int | None:
        """Environment steps of the checkpoint saved last, None before the first."""
        marked = self._marked("latest")
        return marked if marked is not None else max(self.steps(), default=None)

    @property
    def best(self) -> int | None:
        """Environment steps of the checkpoint with the highest score, None before any had one."""
        return self._marked("best")

    @property
    def best_score(self) -> float | None:
        """Score of the best checkpoint."""
        return None if self.best is None else read_score(self._place(self.best))

    def discard_after(self, env_steps: int) -> list[int]:
        """Remove checkpoints beyond `env_steps`, when a run goes on from there; returns which were removed."""
        beyond = [step for step in self.steps() if step > env_steps]
        if beyond:
            self._mark("latest", max((step for step in self.steps() if step <= env_steps), default=None))
            self._mark("best", self._highest_score(env_steps))
        for step in beyond:
            self._remove(step)
        return beyond

    def _resolve(self, which: str | int) -> int:
        if which not in ("latest", "best") and not isinstance(which, int):
            raise CheckpointError(f"checkpoint {which!r} is none of: latest, best, a number of environment steps")
        there = self.steps()
        if not there:
            raise CheckpointError(f"no checkpoint in {self.folder}: looked there for folders named by their steps")
        step = self.latest if which == "latest" else self.best if which == "best" else which
        if step is None:
            raise CheckpointError(f"no checkpoint in {self.folder} has a score yet; there are: {listed(there)}")
        if step not in there and which != "latest":
            raise CheckpointError(f"there is no checkpoint {step} in {self.folder}; there are: {listed(there)}")
        return int(step)

    def _place(self, step: int) -> Path:
        final, replaced = self.folder / str(step), self.folder / f".{step}.replaced"
        return replaced if replaced.exists() and not final.exists() else final

    def _highest_score(self, up_to: float = math.inf) -> int | None:
        scores = {step: read_score(self._place(step)) for step in self.steps() if step <= up_to}
        scored = {step: score for step, score in scores.items() if score is not None}
        return max(scored, key=lambda step: scored[step], default=None)

    def _marked(self, name: str) -> int | None:
        try:
            text = (self.folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() else None

    def _mark(self, name: str, step: int | None) -> None:
        if step is None:
            (self.folder / name).unlink(missing_ok=True)
        else:
            write_text(self.folder / name, f"{step}\n")

    def _prune(self, saved: int) -> None:
        kept = {saved, self.best, *self.steps()[-self.keep_last :]}
        for step in self.steps():
            if step not in kept:
                self._remove(step)
        self._remove_leftovers()

    def _remove(self, step: int) -> None:
        # Renamed first: a process killed in between leaves no folder that looks like a checkpoint but is not whole.
        doomed = self.folder / f".{step}.tmp"
        self._place(step).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Remove what a process left that was killed at its work, but for the only copy of a checkpoint."""
        for child in self.folder.glob(".*"):
            match = _LEFTOVER.fullmatch(child.name)
            if match is not None and child != self._place(int(match[1])):
                shutil.rmtree(child, ignore_errors=True)
