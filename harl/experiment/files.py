"""Writing files so that a reader, or a process killed half-way, never meets half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class StorageError(RuntimeError):
    """Something could not be written to, or read from, a run folder; the message is for the user as it stands."""


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` within the block into a `StorageError` that says what was being done to which file."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """The operating system's words for an error, as `No space left on device`."""
    return error.strerror or str(error)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, and leaves `path` alone when it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            to_disk(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder_to_disk(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` in one step."""
    with replacing(path) as file:
        file.write(text.encode())


def to_disk(file: BinaryIO) -> None:
    """Wait until the disk has what was written to `file`."""
    file.flush()
    os.fsync(file.fileno())


def folder_to_disk(folder: Path) -> None:
    """Wait until the disk has the names in `folder`; systems that cannot open a folder keep them by themselves."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
