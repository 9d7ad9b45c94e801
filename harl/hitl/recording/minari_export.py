"""Recordings as a Minari dataset, and back."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.config import ConfigError
from harl.envs.api import FloatArray, Layout
from harl.hitl.recording.csv_export import survey_rows
from harl.hitl.recording.files import plain
from harl.hitl.recording.layout import differences, layout_to_json
from harl.hitl.recording.reading import RecordedEpisode
from harl.hitl.recording.recordings import RecordingError, Session

INSTALL = "datasets are written by Minari: pip install 'harl[people]'"
LARGEST_ATTRIBUTE = 60_000
"""Bytes; HDF5 takes 64 KiB."""
NAME = re.compile(r"([\w-][\w/-]*[\w-]/)?[\w-]+-v\d+", re.ASCII)
"""What Minari takes for a dataset."""
NOT_INFOS = ("obs", "terminated", "truncated")


def check_installed() -> None:
    """Raise `ConfigError` that says what to install, where Minari or its storage is missing."""
    for module in ("minari", "h5py"):
        try:
            importlib.import_module(module)
        except ImportError:
            raise ConfigError([f"{module} is not installed: {INSTALL}"]) from None


def to_minari(sessions: Sequence[Session], folder: Path, name: str | None = None, discarded: bool = False) -> Path:
    """Write a dataset: one Minari episode for each recorded one.

    Observations and actions are dicts by agent, at each agent's own width. The reward is the sum of the agents' raw
    rewards; infos (T rows, row t belongs to step t) hold everything else by its name in the recording, and
    `controller` as pseudonyms. Metadata of an episode: the line of `episodes.jsonl`, `condition`, and `initial_state`.
    Episodes out of which a person's part was taken are left out.

    Args:
        sessions: all with the same agents and spaces.
        folder: root of the datasets, as `MINARI_DATASETS_PATH`.
        name: of the dataset; None: `<env>/<scenario>/people-v0`.
        discarded: whether episodes that people discarded are in.

    Returns:
        Folder of the dataset, for `minari.MinariDataset`.

    Raises:
        ConfigError: Minari is missing, or the sessions do not go together.
        RecordingError: there is no episode, or there is such a dataset already.
    """
    check_installed()
    minari = importlib.import_module("minari")
    dataset, chosen = check_sessions(sessions, folder, name, discarded)
    path = _place(folder, dataset)
    layout, first = sessions[0].layout, sessions[0].facts
    with _datasets_in(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an author and an environment of gymnasium
        written = minari.create_dataset_from_buffers(
            dataset,
            [_buffer(minari, number, episode) for number, episode in enumerate(chosen)],
            observation_space=_by_agent(layout, layout.observation_spaces),
            action_space=_by_agent(layout, layout.action_spaces),
            algorithm_name=first["algo"],
            description=f"People in the loop: {first['title']}",
            data_format="hdf5",
            jpeg_encoding=False,
        )
        written.storage.update_episode_metadata([_metadata(episode) for episode in chosen])
        surveys = [row for session in sessions for row in survey_rows(session)]
        written.storage.update_metadata({"harl_layout": json.dumps(layout_to_json(layout))})
        written.storage.update_metadata({"harl_survey": json.dumps(surveys)})
    return path


def check_sessions(
    sessions: Sequence[Session], folder: Path, name: str | None = None, discarded: bool = False
) -> tuple[str, list[RecordedEpisode]]:
    """Whether a dataset can be written, before anything is; arguments and errors are those of `to_minari`.

    Returns:
        Its name, and the episodes that are in it.
    """
    layout, first = sessions[0].layout, sessions[0].facts
    for other in sessions[1:]:
        found = differences(other.layout, layout)
        if found:
            raise ConfigError([f"{other.folder.name} and {sessions[0].folder.name} differ: {text}" for text in found])
    dataset = name or f"{_word(first['env'])}/{_word(first['scenario'])}/people-v0"
    if not NAME.fullmatch(dataset):
        raise ConfigError([f"{dataset!r} is no name of a dataset: they end in a version, as mine-v0 or group/mine-v0"])
    if _place(folder, dataset).exists():
        raise RecordingError(f"{_place(folder, dataset)} exists: give another --to or --name")
    chosen = [e for s in sessions for e in s.episodes() if not e.redacted and (discarded or not e.discarded)]
    if not chosen:
        raise RecordingError("no episode to write: none was recorded, or all were discarded or redacted")
    return dataset, chosen


def _place(folder: Path, dataset: str) -> Path:
    return folder.absolute() / dataset / "data"


def joint_actions(layout: Layout, actions: Mapping[str, NDArray[Any]]) -> FloatArray:
    """(T, A, action_dim): what a dataset's actions are as the environment takes them."""
    steps = len(next(iter(actions.values())))
    joint = np.zeros((steps, layout.num_agents, layout.action_dim), np.float32)
    for i, agent in enumerate(layout.agents):
        joint[:, i, : layout.action_dims[i]] = np.asarray(actions[agent], np.float32).reshape(steps, -1)
    return joint


def initial_state(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """State of the environment before an episode of a dataset; None where it is not known."""
    text = metadata.get("initial_state")
    return None if text is None else {name: _from_json(value) for name, value in json.loads(text).items()}


def _buffer(minari: Any, number: int, episode: RecordedEpisode) -> Any:
    layout, arrays = episode.session.layout, episode.load()
    observations = {
        agent: _own_values(arrays["obs"][:, i], space)
        for i, (agent, space) in enumerate(zip(layout.agents, layout.observation_spaces, strict=True))
    }
    actions = {
        agent: _own_values(arrays["executed"][:, i], space)
        for i, (agent, space) in enumerate(zip(layout.agents, layout.action_spaces, strict=True))
    }
    left = ~arrays["active"]  # before the step; the ends of these agents stand at earlier ones
    terminated: NDArray[np.bool_] = np.asarray((arrays["terminated"] | left).all(axis=1))
    truncated: NDArray[np.bool_] = (arrays["terminated"] | arrays["truncated"] | left).all(axis=1) & ~terminated
    if not terminated[-1]:
        truncated[-1] = True  # the recording was cut
    return minari.data_collector.EpisodeBuffer(
        id=number,
        seed=episode.facts["seed"],
        observations=observations,
        actions=actions,
        rewards=arrays["reward"].sum(axis=1, dtype=np.float64),
        terminations=terminated,
        truncations=truncated,
        infos=_infos(episode, arrays),
    )


def _infos(episode: RecordedEpisode, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    infos: dict[str, Any] = {name: value for name, value in arrays.items() if name not in NOT_INFOS}
    infos |= {f"agent_{name}": arrays[name] for name in ("terminated", "truncated")}
    for name in ("share_obs", "available_actions"):
        if name in infos:  # seen before the step, as row t of the observations
            infos[name] = np.ascontiguousarray(infos[name][:-1])
    names = [*episode.facts["controllers"], ""]
    infos["controller"] = {
        agent: [names[index] for index in arrays["controller"][:, i]]
        for i, agent in enumerate(episode.session.layout.agents)
    }
    return infos


def _metadata(episode: RecordedEpisode) -> dict[str, Any]:
    """Flat values that HDF5 attributes hold."""
    facts = plain(episode.facts)
    known: dict[str, Any] = {"session": episode.session.folder.name}
    for name, value in facts.items():
        if name not in ("files", "seed", "number", "steps") and value is not None:
            known[name] = json.dumps(value) if isinstance(value, dict | list) else value
    state = episode.state()
    text = "" if state is None else json.dumps({name: _to_json(value) for name, value in state.items()})
    if text and len(text) < LARGEST_ATTRIBUTE:
        known["initial_state"] = text
    return known


def _to_json(value: Any) -> Any:
    """Arrays as a dict of their type and numbers, at any depth."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": value.reshape(-1).tolist()}
    if isinstance(value, dict):
        return {"dict": {key: _to_json(item) for key, item in value.items()}}
    return {"list": [_to_json(item) for item in value]} if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        return np.array(value["data"], value["dtype"]).reshape(value["shape"])
    if "dict" in value:
        return {key: _from_json(item) for key, item in value["dict"].items()}
    return [_from_json(item) for item in value["list"]]


def _by_agent(layout: Layout, each: Sequence[spaces.Space[Any]]) -> spaces.Dict:
    return spaces.Dict(dict(zip(layout.agents, each, strict=True)))


def _own_values(values: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """(T, width) of the widest agent → what an element of this agent's space is, T times."""
    if isinstance(space, spaces.Discrete):
        index = values.argmax(axis=1) if values.shape[1] > 1 else values[:, 0]
        return index.astype(np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        return values[:, : len(space.nvec)].astype(np.int64)
    assert isinstance(space, spaces.Box)
    if len(space.shape) == 3:
        return values.astype(space.dtype)
    size = int(np.prod(space.shape))
    return values[:, :size].reshape(len(values), *space.shape).astype(space.dtype)


def _word(text: str) -> str:
    """A part of the name of a dataset."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "unnamed"


@contextlib.contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Minari takes the place of its datasets from the environment alone."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder.absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
