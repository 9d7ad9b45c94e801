"""Reads what `harl.hitl.recording.recorder` wrote, also where the process that wrote it was killed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.config import Config
from harl.config.convert import from_dict
from harl.envs.api import Layout
from harl.experiment.files import StorageError, reason
from harl.hitl.recording.fields import FORMAT, HUMAN, takeover_starts
from harl.hitl.recording.layout import layout_from_json
from harl.hitl.recording.reading import RecordedEpisode

EPISODES, EVENTS, AMENDMENTS = "episodes.jsonl", "events.jsonl", "amendments.jsonl"
UNFINISHED = "the recording stopped before the episode's end"


class RecordingError(StorageError):
    """A recording cannot be read; the message is for the user as it stands."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a session."""

    kind: str
    t_wall: float
    t_mono: float
    data: dict[str, Any]

    @property
    def person(self) -> str | None:
        """Pseudonym of the person whose event it is."""
        return self.data.get("name") or self.data.get("who")


class Session:
    """A folder `people/<stamp>/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "session.json"
        try:
            self.facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self.layout: Layout = layout_from_json(self.facts["layout"])
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {reason(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{path} is no description of a session: {error}") from error
        if self.facts["format"] != FORMAT:
            raise RecordingError(f"{path} has the format {self.facts['format']}; this version reads {FORMAT}")
        self.problems: list[str] = []
        """What could not be read so far, for the user."""

    @property
    def config(self) -> Config:
        """Configuration of the run; raises `ConfigError` where it is not the one of this version."""
        data = self.facts.get("config")
        if data is None:
            raise RecordingError(f"{self.folder} does not say how the environment was made: no run folder was there")
        return from_dict(data)

    def events(self, *kinds: str) -> Iterator[Event]:
        """What happened, in order; of these kinds where any are given."""
        for entry in self.raw_lines(EVENTS):
            if not kinds or entry["kind"] in kinds:
                yield Event(entry["kind"], entry["t_wall"], entry["t_mono"], entry["data"])

    def episodes(self) -> Iterator[RecordedEpisode]:
        """All episodes in the order in which they ended, last those that a killed process left behind."""
        for facts in self.raw_lines(EPISODES):
            if self._present(facts):
                yield self._with_amendments(facts)
        yield from self.left_behind()

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """Arrays of one file."""
        path = self.folder / name
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except OSError as error:
            raise RecordingError(f"cannot read {path}: {reason(error)}") from error
        except (ValueError, zipfile.BadZipFile) as error:
            raise RecordingError(f"{path} is damaged: {error}") from error

    @cached_property
    def _amendments(self) -> dict[tuple[int, int], list[dict[str, Any]]]:
        found: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for change in self.raw_lines(AMENDMENTS):
            found.setdefault((change["env"], change["episode"]), []).append(change)
        return found

    def raw_lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines of a file; one that was not finished when the process was killed is the last and is left out."""
        path = self.folder / name
        if not path.is_file():
            return
        lines = path.read_bytes().split(b"\n")
        for number, text in enumerate(lines[:-1], 1):
            try:
                entry = json.loads(text)
            except ValueError as error:
                raise RecordingError(f"{path}, line {number} is damaged: {error}") from error
            yield entry
        if lines[-1]:
            self._problem(f"{name}: the last line was not finished")

    def _present(self, facts: dict[str, Any]) -> bool:
        """Leave out parts of an episode that are missing; False where nothing is left of it."""
        files = facts["files"]
        missing = [name for name in files if not (self.folder / name).is_file()]
        if not missing:
            return True
        self._problem(f"{', '.join(missing)}: missing")
        kept = files[: files.index(missing[0])]
        if kept:
            facts |= {"files": kept, "is_partial": True, "reason": "a part is missing"}
            facts["steps"] = sum(len(self.read(name)["reward"]) for name in kept)
        return bool(kept)

    def left_behind(self) -> Iterator[RecordedEpisode]:
        """Episodes whose files have no line: the process ended between the two, or in the middle of an episode."""
        known = {name for facts in self.raw_lines(EPISODES) for name in facts["files"]}
        heads: dict[int, dict[str, Any]] = {}
        for path in sorted((self.folder / "episodes").glob("*.npz")):
            name = f"episodes/{path.name}"
            if name not in known:
                arrays = self.read(name)
                about = json.loads(arrays["about"].tobytes())
                head = heads.setdefault(about["number"], {**about, "files": []})
                head |= {"controllers": about["controllers"]}
                head["files"].append((about["first_row"], name))
        for head in heads.values():
            head["files"] = [name for _, name in sorted(head["files"])]
            yield self._with_amendments(self._facts_of(head))

    def _facts_of(self, head: dict[str, Any]) -> dict[str, Any]:
        """What the missing line would say."""
        parts = [self.read(name) for name in head["files"]]
        rows = {name: np.concatenate([part[name] for part in parts]) for name in ("reward", "reward_learned")}
        agents, source = self.layout.agents, np.concatenate([part["source"] for part in parts])
        active = np.concatenate([part["active"] for part in parts])
        times = np.concatenate([part["t_wall"] for part in parts])
        over = bool((parts[-1]["terminated"][-1] | parts[-1]["truncated"][-1] | ~active[-1]).all())
        per_agent = {
            "returns": rows["reward"].sum(axis=0, dtype=np.float64),
            "returns_learned": rows["reward_learned"].sum(axis=0, dtype=np.float64),
            "human_steps": ((source == HUMAN) & active).sum(axis=0),
            "interventions": takeover_starts(source).sum(axis=0),
        }
        return {
            **head,
            "steps": len(source),
            "is_partial": not over or head["first_step"] > 0,
            "reason": UNFINISHED,
            "success": None,
            "discarded": False,
            "people": sorted(head["controllers"]),
            "t_begin": float(times[0]),
            "t_end": float(times[-1]),
            **{name: dict(zip(agents, values.tolist(), strict=True)) for name, values in per_agent.items()},
        }

    def _with_amendments(self, facts: dict[str, Any]) -> RecordedEpisode:
        changes = self._amendments.get((facts["env"], facts["episode"]), [])
        people = set(facts["people"])
        for change in changes:
            people |= set(change["people"])
            label = change.get("label")
            if label == "discard":
                facts["discarded"] = True
            elif label is not None:
                facts["success"] = label == "success"
            elif "delta" in change and not facts.get("redacted"):
                facts["returns_learned"][self.layout.agents[change["agent"]]] += change["delta"]
        facts["people"] = sorted(people)
        return RecordedEpisode(self, facts, tuple(change for change in changes if "delta" in change))

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def find_sessions(path: str | Path) -> list[Session]:
    """Sessions at or below a folder (of a session, a run, its `people/`, or of several runs), oldest first.

    Raises:
        RecordingError: there are none.
    """
    given = Path(path).expanduser()
    if not given.is_dir():
        raise RecordingError(f"no recording: {given} is not a folder")
    found = sorted(file.parent for file in given.rglob("session.json") if (file.parent / "episodes").is_dir())
    if not found:
        raise RecordingError(
            f"no recording in {given}: looked there and below it for session.json with episodes/; a run has one in "
            "people/ once somebody did something"
        )
    return [Session(folder) for folder in found]
