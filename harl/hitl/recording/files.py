"""The files of one recording, written by a thread of their own so that no step waits for a disk."""

from __future__ import annotations

import io
import json
import math
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harl.experiment.files import StorageError, folder_to_disk, reason, replacing, to_disk, write_text
from harl.experiment.run_folder import RunFolder

Arrays = Mapping[str, NDArray[Any]]
SAFE_WITHIN_S = 1.0
"""Longest time for which a line has been written and is not yet on the disk."""


def line(value: Any) -> bytes:
    """One line of JSON; what is no finite number becomes null."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def plain(value: Any) -> Any:
    """The same as JSON knows it."""
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def npz(arrays: Arrays) -> bytes:
    """An npz file that `numpy.load(…, allow_pickle=False)` reads."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            single = io.BytesIO()
            np.lib.format.write_array(single, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", single.getbuffer())
    return buffer.getvalue()


class RecordingFiles:
    """A new folder `<parent>/<stamp>/`, made when there is something to write.

    What is handed over is written in that order. The thread that hands over waits only while more than `capacity`
    bytes are on their way. After a failure of the disk every call raises `StorageError`.

    Args:
        parent: the `people` folder of a run.
        facts: what `session.json` says, plain JSON.
        capacity: bytes.
    """

    def __init__(self, parent: Path, facts: Mapping[str, Any], capacity: int = 64 << 20) -> None:
        self._parent, self._facts, self._capacity = parent, facts, capacity
        self._folder: Path | None = None
        self._failure: StorageError | None = None
        self._changed = threading.Condition()
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_bytes = 0
        self._lines: dict[str, BinaryIO] = {}
        self._unsafe: set[str] = set()
        """Files with lines that the disk may not have yet, and, below, since when."""
        self._unsafe_since = 0.0
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def folder(self) -> Path | None:
        """Where the recording is; None before there was anything to write."""
        return self._folder

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a line to a file."""
        text = line(record)
        self._hand_over(len(text), lambda: self._append(name, text))

    def save(self, name: str, arrays: Arrays) -> None:
        """Write an npz file, whole or not at all; the arrays must not change any more."""
        self._hand_over(sum(array.nbytes for array in arrays.values()), lambda: self._save(name, arrays))

    def remove(self, name: str) -> None:
        """Take a file away."""
        self._hand_over(0, lambda: (self._made() / name).unlink(missing_ok=True))

    def make_safe(self, wait: bool = False) -> None:
        """Have the disk keep all lines so far; waits for it where asked to."""
        if self._thread is None:
            return
        done = threading.Event()
        self._hand_over(0, lambda: self._fsync(done))
        if wait:
            self._wait_for(done)

    def close(self) -> None:
        """Write what is left and end; may be called twice."""
        if self._thread is None:
            return
        if self._failure is None:
            self.make_safe()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def _hand_over(self, size: int, job: Callable[[], None]) -> None:
        with self._changed:
            if self._closing:
                raise ValueError("the recording is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
                self._thread.start()
            while self._failure is None and self._waiting_bytes > self._capacity:
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._jobs.append((size, job))
            self._waiting_bytes += size
            self._changed.notify_all()

    def _wait_for(self, done: threading.Event) -> None:
        while not done.wait(0.05):
            if self._failure is not None:
                raise self._failure

    def _write(self) -> None:
        """What the thread does."""
        try:
            with RunFolder(self._made()).lock():
                while self._next():
                    pass
        except OSError as error:
            self._fail(StorageError(f"cannot write the recording in {self._parent}: {reason(error)}"))
        except StorageError as error:
            self._fail(error)
        finally:
            for file in self._lines.values():
                file.close()

    def _fail(self, failure: StorageError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _next(self) -> bool:
        with self._changed:
            while not self._jobs and not self._closing and (left := self._safe_for()) != 0:
                self._changed.wait(left)
            if not self._jobs and self._closing:
                return False
            size, job = self._jobs.popleft() if self._jobs else (0, self._to_disk)
        job()
        if self._safe_for() == 0:
            self._to_disk()
        with self._changed:
            self._waiting_bytes -= size
            if not self._jobs:
                for file in self._lines.values():
                    file.flush()
            self._changed.notify_all()
        return True

    def _made(self) -> Path:
        if self._folder is None:
            folder = _new_folder(self._parent)
            (folder / "episodes").mkdir()
            write_text(folder / "session.json", json.dumps(plain(self._facts), indent=2) + "\n")
            folder_to_disk(self._parent)
            self._folder = folder
        return self._folder

    def _safe_for(self) -> float | None:
        """Seconds after which lines have to be brought to the disk; None where it has them all."""
        return max(0.0, self._unsafe_since + SAFE_WITHIN_S - time.monotonic()) if self._unsafe else None

    def _append(self, name: str, text: bytes) -> None:
        if name not in self._lines:
            self._lines[name] = (self._made() / name).open("ab")
        self._lines[name].write(text)
        self._unsafe_since = self._unsafe_since if self._unsafe else time.monotonic()
        self._unsafe.add(name)

    def _save(self, name: str, arrays: Arrays) -> None:
        with replacing(self._made() / name) as file:
            file.write(npz(arrays))

    def _to_disk(self) -> None:
        for name in self._unsafe:
            to_disk(self._lines[name])
        self._unsafe.clear()
        folder_to_disk(self._made())

    def _fsync(self, done: threading.Event) -> None:
        self._to_disk()
        done.set()


def _new_folder(parent: Path) -> Path:
    """A folder that was not there; two recordings that start in one second get different ones."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp, number = f"{datetime.now():%Y%m%d-%H%M%S}", 0
    while True:
        folder = parent / (f"{stamp}-{number}" if number else stamp)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
