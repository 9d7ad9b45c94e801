"""Recorded sessions as demonstrations for a later run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harl.buffers.demonstrations import Demonstration
from harl.config import ConfigError, flat
from harl.envs.api import Layout
from harl.hitl.recording.layout import differences
from harl.hitl.recording.reading import RecordedEpisode
from harl.hitl.recording.recordings import RecordingError, find_sessions

NOT_SET = "(not set)"


def demonstrations(path: str | Path, layout: Layout) -> list[Demonstration]:
    """Recorded episodes in which people drove, as learners take them.

    Left out: episodes that people discarded, those of evaluations, those out of which a person's part was taken, and
    those in which nobody drove an agent that was there.

    Args:
        path: folder of a session, a run, its `people/`, or of several runs.
        layout: agents and spaces of the run that learns.

    Raises:
        ConfigError: there is nothing to learn from, or it is of other agents or spaces; says what differs.
    """
    try:
        sessions = find_sessions(path)
        wrong = [
            f"hitl.demonstrations={path}: session {session.folder.name} is of another environment: {text}"
            for session in sessions
            for text in differences(session.layout, layout)
        ]
        if wrong:
            raise ConfigError(wrong)
        episodes = [demonstration(episode) for session in sessions for episode in usable(session.episodes())]
    except RecordingError as error:
        raise ConfigError([f"hitl.demonstrations={path}: {error}"]) from None
    found = [episode for episode in episodes if episode.human.any()]
    if not found:
        raise ConfigError(
            [
                f"hitl.demonstrations={path}: {len(sessions)} sessions, but no episode in which a person drove while "
                "training, and that was neither discarded nor redacted"
            ]
        )
    return found


def other_options(path: str | Path, env: Mapping[str, Any]) -> list[str]:
    """What the environments of recorded sessions had otherwise than the run that learns, one text for each option.

    Their steps fit, so that it may be meant; but rewards and what follows an action may be others.

    Args:
        path: as for `demonstrations`.
        env: section `env` of the run's configuration, as plain data.
    """
    found: dict[str, None] = {}
    wanted = flat(env)
    for session in find_sessions(path):
        config = session.facts.get("config")
        own = wanted if config is None else flat(config["env"])  # of a session without a run nothing is known
        for key in sorted(own.keys() | wanted.keys()):
            if (before := own.get(key, NOT_SET)) != (now := wanted.get(key, NOT_SET)):
                found[f"recorded with env.{key}={before}; this run has {now}"] = None
    return list(found)


def usable(episodes: Iterator[RecordedEpisode]) -> Iterator[RecordedEpisode]:
    """Episodes that may be learned from and have something to learn."""
    for episode in episodes:
        if episode.learned_from and not episode.discarded and not episode.redacted and episode.human_steps:
            yield episode


def demonstration(episode: RecordedEpisode) -> Demonstration:
    """One episode, whatever people did in it; what they held of an agent that had left is none of it."""
    arrays = episode.load()
    steps = episode.facts["first_step"] + np.arange(len(arrays["executed"]), dtype=np.int64)[:, None]
    masks = arrays.get("available_actions")
    if masks is not None:
        masks = masks.astype(np.float32)
    return Demonstration(
        source=episode.label(),
        obs=arrays["obs"][:-1],
        share_obs=arrays["share_obs"][:-1],
        available_actions=None if masks is None else masks[:-1],
        active=arrays["active"],
        actions=arrays["executed"],
        rewards=arrays["reward"],
        terminated=arrays["terminated"],
        truncated=arrays["truncated"],
        next_obs=arrays["obs"][1:],
        next_share_obs=arrays["share_obs"][1:],
        next_available_actions=None if masks is None else masks[1:],
        seen_ago=steps - arrays["seen_step"],  # of an earlier episode: -1, and so more than this one has
        human=(arrays["source"] == 1) & arrays["active"],
        ended=bool((arrays["terminated"][-1] | arrays["truncated"][-1] | ~arrays["active"][-1]).all()),
    )
