"""The folder of one run: how it is named, found again, guarded against a second writer, and marked as done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from harl.config.names import portable_name
from harl.experiment.files import StorageError, reason, storage_errors, write_text
from harl.experiment.provenance import describe_start

if sys.platform != "win32":
    import fcntl

Status = Literal["running", "interrupted", "failed", "completed"]


class RunFolderError(StorageError):
    """A run folder cannot be made, found or locked; the message is for the user as it stands."""


class RunFolder:
    """Paths and marks of one run. Nothing in the folder depends on where it lies: it may be moved or copied.

    Use `create` for a new run and `open` for one that exists.
    """

    path: Path
    """Absolute."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def create(
        cls, root: str | Path, env: str, scenario: str, algo: str, exp_name: str, seed: int, now: datetime | None = None
    ) -> RunFolder:
        """Make `<root>/<env>/<scenario>/<algo>/<exp_name>/seed-<seed>_<timestamp>/`, never one that exists.

        A relative `root` is meant from the working folder. Runs that start in the same second get `-1`, `-2`, ...
        Names become portable ones; the run's config holds them as they were given. Raises `RunFolderError` where
        the folder cannot be made.
        """
        parent = experiment_folder(root, env, scenario, algo, exp_name)
        name = f"seed-{seed}_{now or datetime.now():%Y%m%d-%H%M%S}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            return cls(_new_folder(parent, name))
        except OSError as error:
            raise RunFolderError(
                f"cannot create a run folder in {parent}: {reason(error)}; set output_dir to a folder you can write to"
            ) from error

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The run that `path` belongs to: its folder, or `checkpoints`, a checkpoint or a file within it.

        A relative path is meant from the working folder. Raises `RunFolderError` that says what was looked for.
        """
        given = Path(path).expanduser().resolve()
        if not given.exists():
            raise RunFolderError(f"no such run: {given} does not exist{_nearest_parent(given)}")
        for folder in itertools.islice([given, *given.parents], 4):
            if is_run_folder(folder):
                return cls(folder)
        below = find_runs(given) if given.is_dir() else []
        hint = f"; runs below it: {', '.join(str(run.path) for run in below[:5])}" if below else ""
        kind = "an empty folder" if given.is_dir() and not any(given.iterdir()) else "not part of a run"
        raise RunFolderError(
            f"{given} is {kind}: looked there and above it for a folder with config.yaml and meta.json{hint}"
        )

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def meta(self) -> Path:
        """Versions, commit, machine and command line of every start."""
        return self.path / "meta.json"

    @property
    def metrics_csv(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def evaluations(self) -> Path:
        """One line of JSON for each evaluation episode."""
        return self.path / "evaluations.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def people(self) -> Path:
        """What people did in this run."""
        return self.path / "people"

    @property
    def completed(self) -> bool:
        """Whether the run reached its budget."""
        return (self.path / "COMPLETED").is_file()

    @property
    def status(self) -> dict[str, Any]:
        """What `write_status` wrote last: `status`, `reason`, `time`, `pid`; empty before the first time."""
        file = self.path / "status.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}

    def write_meta(self, extra: Mapping[str, Any] | None = None) -> None:
        """Record this start in `meta.json`; later starts of the same run are added to its list `resumes`.

        `extra` (plain JSON data) is recorded with it, as the names that were made portable or a seed that was drawn.
        """
        start = {**describe_start(), **(extra or {})}
        with storage_errors("write", self.meta):
            if self.meta.is_file():
                meta = json.loads(self.meta.read_text(encoding="utf-8"))
                meta["resumes"].append(start)
            else:
                meta = {**start, "resumes": []}
            write_text(self.meta, json.dumps(meta, indent=2) + "\n")

    def write_status(self, status: Status, reason: str = "") -> None:
        """Say in `status.json` how the run stands; `running` takes the mark of an earlier completion away."""
        record = {"status": status, "reason": reason, "time": _now(), "pid": os.getpid()}
        with storage_errors("write", self.path / "status.json"):
            if status == "running":
                (self.path / "COMPLETED").unlink(missing_ok=True)
            write_text(self.path / "status.json", json.dumps(record, indent=2) + "\n")

    def mark_completed(self, summary: Mapping[str, Any]) -> None:
        """Write `COMPLETED` with a summary of the run (plain JSON data)."""
        self.write_status("completed")
        with storage_errors("write", self.path / "COMPLETED"):
            write_text(self.path / "COMPLETED", json.dumps({"time": _now(), **summary}, indent=2) + "\n")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer of this run within the block.

        The lock goes when the process ends, however it ends. Raises `RunFolderError` with the holder's process id.
        """
        file = self.path / ".lock"
        if sys.platform == "win32":
            warnings.warn(f"Windows has no such locks: start only one process on {self.path}", stacklevel=3)
            yield
            return
        with storage_errors("open", file):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
                raise RunFolderError(
                    f"{self.path} is being written by another process ({holder}): "
                    "wait until it ends, or stop it, before you continue this run"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} since {_now()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def experiment_folder(root: str | Path, env: str, scenario: str, algo: str, exp_name: str) -> Path:
    """The folder that holds the runs of one experiment, one for each seed and start; absolute, not created."""
    names = [portable_name(name) for name in (env, scenario, algo, exp_name)]
    return Path(root).expanduser().resolve().joinpath(*names)


def is_run_folder(path: Path) -> bool:
    """Whether `path` is the folder of a run."""
    return (path / "config.yaml").is_file() and ((path / "meta.json").is_file() or (path / "checkpoints").is_dir())


def find_runs(parent: str | Path, seed: int | None = None) -> list[RunFolder]:
    """All runs at or below `parent`, sorted by path; only those of one seed where it is given."""
    found = []
    for folder, children, _ in os.walk(parent):
        if is_run_folder(Path(folder)):
            children.clear()
            if seed is None or Path(folder).name.startswith(f"seed-{seed}_"):
                found.append(RunFolder(Path(folder)))
    return sorted(found, key=lambda run: run.path)


def _new_folder(parent: Path, name: str) -> Path:
    """Make a folder that was not there: `mkdir` is what decides between processes that start together."""
    path, number = parent / name, 0
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = parent / f"{name}-{number}"


def _nearest_parent(path: Path) -> str:
    """What is there instead of a path that does not exist, for its error message."""
    parent = next(folder for folder in path.parents if folder.exists())
    children = sorted(child.name for child in parent.iterdir())[:5] if parent.is_dir() else []
    return f"; {parent} holds {', '.join(children)}" if children else f"; {parent} is the last part that does"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
