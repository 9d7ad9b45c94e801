"""Takes one person out of a recording."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.experiment.files import folder_to_disk, replacing, storage_errors, write_text
from harl.experiment.run_folder import RunFolder
from harl.hitl.recording.files import line, npz
from harl.hitl.recording.recordings import AMENDMENTS, EPISODES, EVENTS, Session

FORGOTTEN = "forgotten"
"""Stands where the person's pseudonym was."""
BY_THE_PERSON = {
    **dict.fromkeys(("executed", "log_prob_executed", "t_received", "t_applied", "rtt_ms"), float("nan")),
    **dict.fromkeys(("seen_step", "seq"), -1),
}
"""What a person's own steps hold of them → what stands there afterwards."""
FEEDBACK = ("human_raw", "human_credited", "reward_learned")
"""Sums over all who gave feedback: nobody's share can be taken out, so they go as a whole."""


@dataclass
class Report:
    """What was taken out of a session, or would be."""

    session: str
    removed: list[str] = field(default_factory=list)
    """Episodes in which nobody else took part: they are gone."""
    redacted: list[str] = field(default_factory=list)
    """Episodes that others share: they stay, without this person's actions and without feedback."""
    events: int = 0
    """Lines of `events.jsonl` (answers to questionnaires too) and `amendments.jsonl` that are gone."""
    videos: int = 0
    """Films of these episodes, which show the pseudonym."""

    @property
    def empty(self) -> bool:
        return not (self.removed or self.redacted or self.events)


class Forgetting:
    """Takes a person out of a session; raises `StorageError` where the session is being written or cannot be changed.

    Args:
        session: whose files are changed, each in one step; a second run finishes what an interrupted one began.
        person: pseudonym.
    """

    def __init__(self, session: Session, person: str) -> None:
        self._session, self._person = session, person
        self._episodes = list(session.raw_lines(EPISODES))
        self._left_behind = [episode.facts for episode in session.left_behind()]
        self._amendments, self._events = list(session.raw_lines(AMENDMENTS)), list(session.raw_lines(EVENTS))
        self._pattern = _mentions(person, names_in(session))

    def run(self, dry: bool = False) -> Report:
        """Take the person out; with `dry` only say what would be."""
        report = Report(self._session.folder.name)
        with storage_errors("change", self._session.folder), RunFolder(self._session.folder).lock():
            kept: list[dict[str, Any]] = []
            for facts in self._episodes:
                self._episode(facts, report, dry, kept)
            for facts in self._left_behind:
                self._episode(facts, report, dry, [])
            events = [event for event in self._events if not self._is_theirs(event["data"])]
            changes = [change for change in self._amendments if self._person not in change["people"]]
            report.events = len(self._events) - len(events) + len(self._amendments) - len(changes)
            if not dry:
                self._rewrite(EVENTS, self._events, events)
                self._rewrite(AMENDMENTS, self._amendments, changes)
                self._rewrite(EPISODES, self._episodes, kept)
                self._rewrite_facts()
                for stray in self._session.folder.rglob(".*.tmp"):
                    stray.unlink()
        return report

    def _episode(self, facts: dict[str, Any], report: Report, dry: bool, kept: list[dict[str, Any]]) -> None:
        """Remove, redact or keep an episode; those that stay are added to `kept`."""
        people = set(facts["people"])  # those who only gave late feedback are in the amendments, which go one by one
        label = f"episode {facts['episode']} of environment {facts['env']}"
        if self._person not in people:
            kept.append(facts)
            return
        report.videos += self._remove_videos(facts["number"], dry)
        if people <= {self._person, FORGOTTEN}:
            report.removed.append(label)
            if not dry:
                for name in facts["files"]:
                    (self._session.folder / name).unlink(missing_ok=True)
            return
        report.redacted.append(label)
        if not dry:
            theirs = [i for i, name in enumerate(facts["controllers"]) if name == self._person]
            for name in facts["files"]:
                if (self._session.folder / name).is_file():
                    self._redact(name, theirs)
            kept.append(self._redacted_facts(facts))

    def _redacted_facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        unknown = dict.fromkeys(facts["returns_learned"])
        return {**facts, "redacted": True, "success": None, "returns_learned": unknown}

    def _redact(self, name: str, theirs: list[int]) -> None:
        """Rewrite a file of an episode without the person."""
        arrays = self._session.read(name)
        driven = np.isin(arrays["controller"], theirs)
        for field_name, empty in BY_THE_PERSON.items():
            arrays[field_name][driven] = empty
        for field_name in FEEDBACK:
            arrays[field_name][...] = np.nan
        about = self._scrub(json.loads(arrays["about"].tobytes()) | {"redacted": True})
        arrays["about"] = _text_array(json.dumps(about))
        with replacing(self._session.folder / name) as file:
            file.write(npz(arrays))

    def _remove_videos(self, number: int, dry: bool) -> int:
        videos = list((self._session.folder / "replay").glob(f"{number:06d}_*"))
        if not dry:
            for video in videos:
                video.unlink()
        return len(videos)

    def _rewrite(self, name: str, before: list[dict[str, Any]], after: Iterable[dict[str, Any]]) -> None:
        if before or (self._session.folder / name).is_file():
            with replacing(self._session.folder / name) as file:
                file.write(b"".join(line(self._scrub(entry)) for entry in after))

    def _rewrite_facts(self) -> None:
        write_text(self._session.folder / "session.json", json.dumps(self._scrub(self._session.facts), indent=2) + "\n")
        folder_to_disk(self._session.folder)

    def _is_theirs(self, data: dict[str, Any]) -> bool:
        return self._person in (data.get("who"), data.get("name"))

    def _scrub(self, value: Any) -> Any:
        """The same without the pseudonym, wherever it stands."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: FORGOTTEN if found[0] == self._person else found[0], value)
        if isinstance(value, dict):
            return {self._scrub(key): self._scrub(item) for key, item in value.items()}
        return [self._scrub(item) for item in value] if isinstance(value, list) else value


def names_in(session: Session) -> set[str]:
    """Pseudonyms of all people in a session."""
    names: set[str] = set()
    for facts in [*session.raw_lines(EPISODES), *(episode.facts for episode in session.left_behind())]:
        names |= set(facts["people"])
    for change in session.raw_lines(AMENDMENTS):
        names |= set(change["people"])
    for event in session.raw_lines(EVENTS):
        names |= {event["data"][key] for key in ("who", "name") if isinstance(event["data"].get(key), str)}
    return names


def mentions(folder: Path, person: str) -> list[Path]:
    """Files in a folder in which a pseudonym still stands, as text or as JSON writes it."""
    words = {person.encode(), json.dumps(person)[1:-1].encode(), person.encode("utf-32-le")}
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if any(word in content for word in words):
                found.append(path)
    return found


def _mentions(person: str, names: set[str]) -> re.Pattern[str]:
    """Finds the pseudonym as a whole word, and longer ones that contain it, which are somebody else's."""
    longer = sorted((name for name in names if person in name and name != person), key=len, reverse=True)
    words = "|".join(re.escape(name) for name in [*longer, person])
    return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])")


def _text_array(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)
