"""Reads what `harl.hitl.recorder` wrote, also where the process that wrote it was killed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
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
from harl.hitl.recorded_fields import FORMAT, step_fields, taken_over, view_fields
from harl.hitl.recorded_layout import layout_from_json
from harl.hitl.recorded_state import state_from_arrays

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


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One episode; its arrays are read when they are asked for."""

    session: Session
    facts: dict[str, Any]
    """The line of `episodes.jsonl`, with what people said of the episode later."""
    amendments: tuple[dict[str, Any], ...] = ()
    """Feedback that came when the steps that it is about were on the disk."""

    @property
    def env(self) -> int:
        """Index of the environment."""
        return int(self.facts["env"])

    @property
    def episode(self) -> int:
        """Index of the episode in its environment."""
        return int(self.facts["episode"])

    @property
    def steps(self) -> int:
        return int(self.facts["steps"])

    @property
    def is_partial(self) -> bool:
        """Whether the recording has not all of the episode."""
        return bool(self.facts["is_partial"])

    @property
    def discarded(self) -> bool:
        """Whether a person said that it is not to count."""
        return bool(self.facts["discarded"])

    @property
    def redacted(self) -> bool:
        """Whether a person's part was taken out of it (`harl.hitl.forget`): it cannot be played again."""
        return bool(self.facts.get("redacted", False))

    @property
    def learned_from(self) -> bool:
        """Whether it was played in training, not in an evaluation."""
        return str(self.facts["purpose"]) != "evaluate"

    @property
    def people(self) -> list[str]:
        """Pseudonyms of all who took part."""
        return list(self.facts["people"])

    @property
    def human_steps(self) -> int:
        """Steps that people drove, summed over agents."""
        return sum(self.facts["human_steps"].values())

    def label(self) -> str:
        """For messages."""
        return f"episode {self.episode} of environment {self.env} in {self.session.folder.name}"

    def load(self) -> dict[str, NDArray[Any]]:
        """All arrays, see docs/people_data.md; amendments are applied, and what follows from the steps is added:

        `takeover_start`, `takeover_end` (T, A): first and last step of a stretch that one person drove;
        `pre_intervention` (T, A): the steps before a takeover, as many as the session's `pre_intervention_steps`.
        `share_obs` is (T + 1, A, …) whatever the kind of state.
        """
        layout = self.session.layout
        parts = [self.session.read(name) for name in self.facts["files"]]
        arrays = {field.name: np.concatenate([part[field.name] for part in parts]) for field in step_fields(layout)}
        for field in view_fields(layout):
            rows = [part[field.name][:-1] for part in parts[:-1]]
            arrays[field.name] = np.concatenate([*rows, parts[-1][field.name]])
        if layout.state_type == "EP":
            state = arrays["share_obs"]
            shape = (len(state), layout.num_agents, *layout.share_obs_shape)
            arrays["share_obs"] = np.broadcast_to(state[:, None], shape)
        self._amend(arrays)
        return arrays | self._derived(arrays)

    def state(self) -> dict[str, Any] | None:
        """State of the environment before the first step, for a `VectorEnv` of one; None where it was not recorded."""
        return state_from_arrays(self.session.read(self.facts["files"][0]))

    def _amend(self, arrays: dict[str, NDArray[Any]]) -> None:
        for change in self.amendments:
            row, agent = change["step"] - self.facts["first_step"], change["agent"]
            if not 0 <= row < self.steps:
                continue
            arrays["reward_learned"][row, agent] += change["delta"]
            arrays["human_credited"][row, agent] += change["credited"]
            if change["raw"] is not None:
                before = arrays["human_raw"][row, agent]
                arrays["human_raw"][row, agent] = change["raw"] + (0.0 if np.isnan(before) else before)

    def _derived(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
        start, end, before = (np.zeros(arrays["source"].shape, np.bool_) for _ in range(3))
        window = self.session.facts["pre_intervention_steps"]
        for agent, first, last in taken_over(arrays["source"], arrays["controller"]):
            start[first, agent] = end[last, agent] = True
            before[max(0, first - window) : first, agent] = True
        before &= arrays["source"] != 1
        return {"takeover_start": start, "takeover_end": end, "pre_intervention": before}


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
        times = np.concatenate([part["t_wall"] for part in parts])
        over = bool((parts[-1]["terminated"][-1] | parts[-1]["truncated"][-1]).all())
        controller = np.concatenate([part["controller"] for part in parts])
        starts = [agent for agent, _, _ in taken_over(source, controller)]
        per_agent = {
            "returns": rows["reward"].sum(axis=0, dtype=np.float64),
            "returns_learned": rows["reward_learned"].sum(axis=0, dtype=np.float64),
            "human_steps": (source == 1).sum(axis=0),
            "interventions": np.bincount(starts, minlength=len(agents)),
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
