"""Recordings as tidy tables: `steps.csv` has a row for each step and agent."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from harl.experiment.files import storage_errors
from harl.hitl.bridge import Source
from harl.hitl.recording.fields import NOBODY
from harl.hitl.recording.reading import RecordedEpisode
from harl.hitl.recording.recordings import RecordingError, Session

PER_SESSION = ("session", "title", "algo", "env", "scenario", "condition", "consent_version", "purpose")
PER_EPISODE = (
    *("env_index", "episode", "number", "seed", "policy_steps", "first_step", "steps", "is_partial", "reason"),
    *("success", "discarded", "redacted", "t_begin", "t_end"),
)
PER_STEP = ("env_steps", "t_wall", "weight")
PER_AGENT = (
    *("active", "log_prob_proposed", "log_prob_executed", "reward", "human_raw", "human_credited", "reward_learned"),
    *("seen_step", "seq", "t_received", "t_applied", "rtt_ms", "terminated", "truncated", "takeover_start"),
    *("takeover_end", "pre_intervention"),
)
UNKNOWN = {"seen_step": -1, "seq": -1}


TABLES = ("steps", "episodes", "events", "survey")


def check_free(folder: Path) -> None:
    """Raise `RecordingError` where tables of an earlier export are in the folder."""
    found = [path.name for path in _paths(folder).values() if path.exists()]
    if found:
        raise RecordingError(
            f"{folder} has {', '.join(found)} of an earlier export: give another --to, or take them away first; "
            "several runs go into the same tables where FOLDER is one that holds them all"
        )


def to_csv(sessions: Sequence[Session], folder: Path, discarded: bool = True) -> list[Path]:
    """Write `steps.csv`, `episodes.csv`, `events.csv` and `survey.csv`.

    Args:
        sessions: what to write; several go into the same tables.
        folder: where; made where it is missing, files of these names are replaced.
        discarded: whether episodes that people discarded are in.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = max(session.layout.action_dim for session in sessions)
    kinds = ("proposed", "executed")
    actions = [f"{kind}_{k}" for kind in kinds for k in range(columns)]
    names = {
        "steps": [*_keys(), "step", "agent", "source", "controller", *PER_STEP, *actions, *PER_AGENT],
        "episodes": [*_keys(), *PER_EPISODE[2:], "agent", *_totals(), "people"],
        "events": ["session", "t_wall", "t_mono", "kind", "person", "data"],
        "survey": ["session", "condition", "consent_version", "t_wall", "person", "field", "answer"],
    }
    paths = _paths(folder)
    with contextlib.ExitStack() as stack, storage_errors("write", folder):
        write = {name: _writer(stack.enter_context(_open(paths[name])), names[name]) for name in names}
        for session in sessions:
            for episode in session.episodes():
                if discarded or not episode.discarded:
                    write["steps"].writerows(step_rows(episode))
                    write["episodes"].writerows(_episode_rows(episode))
            for event in session.events():
                row = {"session": session.folder.name, "t_wall": event.t_wall, "t_mono": event.t_mono}
                row |= {"kind": event.kind, "person": event.person, "data": json.dumps(event.data)}
                write["events"].writerow(row)
            write["survey"].writerows(survey_rows(session))
    return list(paths.values())


def step_rows(episode: RecordedEpisode) -> Iterator[dict[str, Any]]:
    """A row for each step and agent of an episode; empty where nothing is known."""
    session, arrays = episode.session, episode.load()
    about = _about(episode)
    for t in range(episode.steps):
        step = {name: _cell(arrays[name][t]) for name in PER_STEP}
        step["step"] = t + episode.facts["first_step"]
        for i, agent in enumerate(session.layout.agents):
            yield about | step | {"agent": agent} | _agent_row(episode, arrays, t, i)


def survey_rows(session: Session) -> Iterator[dict[str, Any]]:
    """A row for each answer to a questionnaire."""
    facts = {name: session.facts.get(name) for name in ("condition", "consent_version")}
    for event in session.events("survey"):
        for field, answer in event.data.get("answers", {}).items():
            row = {"session": session.folder.name, **facts, "t_wall": event.t_wall, "person": event.person}
            yield row | {"field": field, "answer": answer}


def _paths(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.csv" for name in TABLES}


def _keys() -> list[str]:
    return [*PER_SESSION, *PER_EPISODE[:2]]


def _totals() -> list[str]:
    return ["returns", "returns_learned", "human_steps", "interventions"]


def _about(episode: RecordedEpisode) -> dict[str, Any]:
    facts = episode.session.facts
    session = {name: facts.get(name) for name in ("title", "algo", "env", "scenario")}
    own = {name: episode.facts.get(name) for name in ("condition", "consent_version", "purpose", "episode")}
    return {**session, **own, "session": episode.session.folder.name, "env_index": episode.env}


def _episode_rows(episode: RecordedEpisode) -> Iterator[dict[str, Any]]:
    facts = {name: _cell(episode.facts.get(name)) for name in PER_EPISODE[2:]} | {"redacted": int(episode.redacted)}
    for agent in episode.session.layout.agents:
        totals = {name: episode.facts[name][agent] for name in _totals()}
        yield _about(episode) | facts | totals | {"agent": agent, "people": " ".join(episode.people)}


def _agent_row(episode: RecordedEpisode, arrays: Mapping[str, NDArray[Any]], t: int, i: int) -> dict[str, Any]:
    controller = int(arrays["controller"][t, i])
    row: dict[str, Any] = {
        "source": Source(int(arrays["source"][t, i])).name.lower(),
        "controller": "" if controller == NOBODY else episode.facts["controllers"][controller],
    }
    for name in PER_AGENT:
        value = arrays[name][t, i]
        row[name] = "" if name in UNKNOWN and value == UNKNOWN[name] else _cell(value)
    for kind in ("proposed", "executed"):
        own = arrays[kind][t, i, : episode.session.layout.action_dims[i]]
        row |= {f"{kind}_{k}": _cell(value) for k, value in enumerate(own)}
    return row


def _cell(value: Any) -> Any:
    """The shortest text that is read back as the same number; empty for NaN and None."""
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return int(value)
    return str(value) if isinstance(value, np.floating) else value


def _open(path: Path) -> TextIO:
    return path.open("w", newline="", encoding="utf-8")


def _writer(file: TextIO, columns: Sequence[str]) -> csv.DictWriter[str]:
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    return writer
