"""What happened in a room, kept on this side: one line of JSON a step, on disk before the next one begins."""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from harl.hitl.sharpie_site.messages import log, members


class Journal:
    """Writes `<folder>/<link>/<room>_<time>.jsonl`, one file an episode; a disk that is full costs lines, no episode.

    Every line has `kind`, `time` (seconds since 1970) and `monotonic` (seconds, for differences).

    Args:
        folder: where the files go; None writes nothing.
        link, room: which session.
    """

    def __init__(self, folder: Path | None, link: str, room: str) -> None:
        self.folder, self.link, self.room = folder, link, room
        self.path: Path | None = None
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        if self.folder is not None:
            stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            path = self.folder / _portable(self.link) / f"{_portable(self.room)}_{stamp}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("x", encoding="utf-8")
                self.path = path
            except OSError as error:
                log.error("nothing is recorded of this episode: %s", error)
        return self

    def write(self, kind: str, told: str | None = None, **data: Any) -> None:
        """Add a line; values of any kind, as `sanitize_data` takes them, and `members` that were made for the site."""
        if self._file is None:
            return
        line = members(kind=kind, time=time.time(), monotonic=time.monotonic(), **data)
        try:
            self._file.write(f"{{{line}}}\n" if told is None else f"{{{line},{told}}}\n")
            self._file.flush()
        except OSError as error:
            log.error("%s: a line is lost: %s", self.path, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write("end", why="finished" if error is None else f"{type(error).__name__}: {error}")
        if self._file is not None:
            self._file.close()
            self._file = None


def _portable(name: str) -> str:
    """A name of a file that cannot lead out of its folder."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60] or "-"
