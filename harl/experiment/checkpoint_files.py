"""One checkpoint's folder: a file for each top-level key of the state, and a manifest to check them against."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from harl.experiment.files import StorageError, folder_to_disk, reason, to_disk, write_text
from harl.experiment.plain_state import from_plain

SCHEMA = 1
"""Version of the layout; raised when older code could not read a newer checkpoint."""
KEY = re.compile(r"[A-Za-z0-9_-]+")
"""What a top-level key of a state may look like, since it names a file."""


class CheckpointError(StorageError):
    """A checkpoint cannot be written or read; the message is for the user as it stands."""


class DamagedError(Exception):
    """A checkpoint is not as it was written; the message says what is wrong with it."""


def write_files(folder: Path, env_steps: int, score: float | None, plain: Mapping[str, Any]) -> None:
    """Fill a new folder with a checkpoint of plain state, and wait until the disk has it; raises `OSError`."""
    folder.mkdir(parents=True)
    files = {key: _write_file(folder / f"{key}.pt", value) for key, value in plain.items()}
    manifest = {"schema": SCHEMA, "env_steps": env_steps, "score": score, "files": files}
    write_text(folder / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    folder_to_disk(folder)


def read_files(folder: Path, keys: Collection[str] | None, map_location: str | torch.device) -> dict[str, Any]:
    """The state in a checkpoint's folder, or the given keys of it, after a check of every file that is read.

    Raises `DamagedError`, or `CheckpointError` for an unknown key, another layout, or content that is more than data.
    """
    files = read_manifest(folder)["files"]
    missing = [key for key in keys or () if key not in files]
    if missing:
        raise CheckpointError(f"checkpoint {folder} has no {listed(missing)}; it has: {listed(files)}")
    wanted = list(files) if keys is None else list(keys)
    for key in wanted:
        _check_file(folder / f"{key}.pt", files[key])
    return {key: _load_file(folder / f"{key}.pt", map_location) for key in wanted}


def read_manifest(folder: Path) -> dict[str, Any]:
    """`env_steps`, `score` and, under `files`, `bytes` and `sha256` for each key; raises as `read_files`."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        schema, files = manifest["schema"], manifest["files"]
        understood = all(KEY.fullmatch(key) and {"bytes", "sha256"} <= entry.keys() for key, entry in files.items())
    except OSError as error:
        raise DamagedError(f"manifest.json: {reason(error)}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DamagedError("manifest.json is not what was written") from None
    if schema != SCHEMA:
        raise CheckpointError(f"checkpoint {folder} has layout {schema!r}, this version of harl reads {SCHEMA}")
    if not understood:
        raise DamagedError("manifest.json is not what was written")
    return dict(manifest)


def read_score(folder: Path) -> float | None:
    """The score of a checkpoint, None where it has none or cannot be read."""
    try:
        score = read_manifest(folder).get("score")
    except (DamagedError, CheckpointError):
        return None
    return float(score) if isinstance(score, int | float) else None


def is_whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is as it was written."""
    try:
        for key, entry in read_manifest(folder)["files"].items():
            _check_file(folder / f"{key}.pt", entry)
    except (DamagedError, CheckpointError):
        return False
    return True


def listed(items: Iterable[Any]) -> str:
    """Items for a message."""
    return ", ".join(str(item) for item in items) or "none"


class _HashingWriter:
    """A file for `torch.save` that adds up the hash on the way, and keeps the error that torch would hide."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _write_file(path: Path, value: Any) -> dict[str, Any]:
    """Write one file of a checkpoint; returns its entry in the manifest."""
    with path.open("wb") as file:
        writer = _HashingWriter(file)
        try:
            torch.save(value, cast(IO[bytes], writer))
        except RuntimeError:
            if writer.error is not None:
                raise writer.error from None
            raise
        to_disk(file)
    return {"bytes": writer.bytes, "sha256": writer.sha256.hexdigest()}


def _check_file(file: Path, entry: Mapping[str, Any]) -> None:
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise DamagedError(f"{file.name} has {size} bytes of {entry['bytes']}")
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
                raise DamagedError(f"{file.name} is not what was written")
    except OSError as error:
        raise DamagedError(f"{file.name}: {reason(error)}") from None


def _load_file(file: Path, map_location: str | torch.device) -> Any:
    try:
        return from_plain(torch.load(file, map_location=map_location, weights_only=True))
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The file is as the manifest says, so it was made so: not damage to pass over, but not to be trusted.
        # torch's own message is not shown, because it explains how to load the file all the same.
        raise CheckpointError(
            f"{file} was refused ({type(error).__name__}): it holds more than tensors, numbers, text and containers, "
            "and loading that could run code"
        ) from None
    except (OSError, RuntimeError, EOFError) as error:
        raise DamagedError(f"{file.name} cannot be read: {error}") from None
