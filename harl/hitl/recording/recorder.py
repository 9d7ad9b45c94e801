"""Writes down what people did: `<run>/people/<stamp>/`, one npz an episode, lines of JSON beside them.

The files and all their fields: docs/people_data.md.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harl.config import ConfigError, load_yaml, to_dict
from harl.envs.api import FloatArray
from harl.hitl.bridge import Stage
from harl.hitl.recording.episode import EpisodeInMemory
from harl.hitl.recording.fields import FORMAT, StepRecord, step_fields, view_fields
from harl.hitl.recording.files import RecordingFiles
from harl.hitl.recording.layout import layout_from_json, layout_to_json

EPISODES, EVENTS, AMENDMENTS = "episodes.jsonl", "events.jsonl", "amendments.jsonl"
PART_BYTES = 8 << 20
"""Episodes that grow larger than this go to the disk in parts."""
RECENT_BYTES = 16 << 20
"""Episodes that nobody touched and that ended lately are kept up to this size, for feedback that comes late."""
PRE_INTERVENTION_STEPS = 15


class Recorder:
    """The recording of one session. Called by the thread that steps the environments, and by no other.

    The folder appears with the first thing that is worth recording. An episode is on the disk, whole, shortly after
    its `end`; `close` waits for everything. A process that is killed loses the episode under way, up to the parts of
    it that were written (they are read as a partial episode).

    Args:
        folder: the run folder; recordings go to `people/` in it.
        session: what `describe_session` gives.
        record: which episodes are kept: `touched` by an action, feedback or a mark; `watched` or touched; `off`.
        part_bytes: see PART_BYTES.

    Raises:
        StorageError: by any method, when the disk failed.
    """

    def __init__(
        self, folder: Path, session: Mapping[str, Any], record: str = "touched", part_bytes: int = PART_BYTES
    ) -> None:
        self._layout = layout_from_json(session["layout"])
        self._fields, self._views = step_fields(self._layout), view_fields(self._layout)
        self._record, self._part_bytes = record, part_bytes
        self._session = dict(session)
        self._session.setdefault("pre_intervention_steps", PRE_INTERVENTION_STEPS)
        facts = {"format": FORMAT, "t_wall": time.time(), "t_mono": time.monotonic(), **self._session}
        self._files = RecordingFiles(folder / "people", facts)
        self._running: dict[int, EpisodeInMemory] = {}
        self._recent: OrderedDict[tuple[int, int], EpisodeInMemory] = OrderedDict()
        self._recent_bytes = 0
        self._begun = 0
        self._closed = False

    @property
    def folder(self) -> Path | None:
        """Where the recording is; None while there is none."""
        return self._files.folder

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write down something that happened, with the time.

        People appear in `data` by their pseudonyms alone; `who` is the one whose event it is.
        """
        if self._record != "off":
            times = {"t_wall": time.time(), "t_mono": time.monotonic()}
            self._files.append(EVENTS, {"kind": kind, **times, "data": data})

    def begin(
        self,
        env: int,
        episode: int,
        seed: int | None,
        policy_steps: int,
        obs: FloatArray,
        share_obs: FloatArray,
        masks: FloatArray | None = None,
        state: Mapping[str, Any] | None = None,
        first_step: int = 0,
    ) -> None:
        """An episode starts; one of the same environment that is under way is over and marked partial.

        Args:
            env: index of the environment.
            episode: index of the episode in that environment.
            seed: with which the environment was reset last, where known.
            policy_steps: environment steps that the policies have been trained for.
            obs: (A, *obs_shape).
            share_obs: (A, *share_obs_shape).
            masks: (A, action_number) or None.
            state: of this environment now (`recorded_state.state_of`), where it can be saved; for replaying.
            first_step: step of the episode at which the recording sets in.
        """
        if self._record == "off":
            return
        self.end(env, "replaced", partial=True)
        head: dict[str, Any] = {"number": self._begun, "env": env, "episode": episode, "seed": seed}
        head |= {"policy_steps": policy_steps, "first_step": first_step}
        self._begun += 1
        for name in ("purpose", "condition", "consent_version"):
            head[name] = self._session.get(name)
        fresh = EpisodeInMemory(self._layout, self._fields, self._views, head, self._part_bytes)
        fresh.see_first(obs, share_obs, masks, state)
        self._running[env] = fresh

    def step(self, record: StepRecord) -> None:
        """A step of the episode under way in `record.env`; ignored where none was begun."""
        episode = self._running.get(record.env)
        if episode is None:
            return
        if episode.full:
            self._spill(episode)
        episode.add(record)

    def end(self, env: int, reason: str | None = None, partial: bool = False) -> None:
        """The episode under way in `env` is over.

        Args:
            env: index of the environment.
            reason: None: `terminated` or `truncated`, as its last step says.
            partial: whether it was cut short by something else than the environment.
        """
        episode = self._running.pop(env, None)
        if episode is None:
            return
        episode.finish(reason, partial)
        if episode.worth_keeping(self._record):
            self._write(episode)
        else:
            for name in episode.parts:
                self._files.remove(name)
            if not episode.parts and episode.steps:
                self._remember(episode)

    def took_part(self, env: int, episode: int, who: str) -> None:
        """A person did something in an episode other than drive: feedback, or a mark."""
        found = self._find(env, episode)
        if found is not None:
            found.people.add(who)
            self._rescue(found)
        else:
            self._amend(env, episode, {"people": [who]})

    def amend(
        self,
        env: int,
        episode: int,
        step: int,
        agent: int,
        delta: float,
        event: int | str | None = None,
        credited: float = 0.0,
        raw: float | None = None,
        who: str | None = None,
    ) -> None:
        """Feedback about a step that has been recorded already.

        Args:
            env: index of the environment.
            episode: index of the episode.
            step: of the episode, from 0.
            agent: index of the agent.
            delta: added to the reward that was learned from.
            event: number of the feedback event.
            credited: added to the feedback credited to the step.
            raw: value of an event that was given while this step was shown.
            who: pseudonym of the person.
        """
        found = self._find(env, episode)
        if found is not None and found.amend(step, agent, delta, credited, raw):
            if who is not None:
                found.people.add(who)
            self._rescue(found)
            return
        change = {"step": step, "agent": agent, "delta": delta, "credited": credited, "raw": raw, "event": event}
        self._amend(env, episode, {**change, "people": [] if who is None else [who]})

    def label(self, env: int, episode: int, label: str, who: str | None = None) -> None:
        """A person marked an episode: `success`, `fail` or `discard`."""
        found = self._find(env, episode)
        if found is None:
            self._amend(env, episode, {"label": label, "people": [] if who is None else [who]})
            return
        found.label(label)
        if who is not None:
            found.people.add(who)
        self._rescue(found)

    def discard(self, env: int, episode: int, who: str | None = None) -> None:
        """Nothing of the episode may be learned from or counted; its data stays, marked."""
        self.label(env, episode, "discard", who)

    def sync(self) -> None:
        """Wait until the disk has everything that is over."""
        self._files.make_safe(wait=True)

    def close(self, reason: str = "closed") -> None:
        """End the episodes under way as partial, and wait for the disk; may be called twice."""
        if not self._closed:
            self._closed = True
            for env in list(self._running):
                self.end(env, reason, partial=True)
            self._files.close()

    def _find(self, env: int, episode: int) -> EpisodeInMemory | None:
        running = self._running.get(env)
        if running is not None and running.head["episode"] == episode:
            return running
        return self._recent.get((env, episode))

    def _remember(self, episode: EpisodeInMemory) -> None:
        """Keep an episode that nobody touched for a while."""
        episode.shrink()
        self._recent[episode.head["env"], episode.head["episode"]] = episode
        self._recent_bytes += episode.nbytes
        while self._recent_bytes > RECENT_BYTES:
            _, oldest = self._recent.popitem(last=False)
            self._recent_bytes -= oldest.nbytes

    def _rescue(self, episode: EpisodeInMemory) -> None:
        """Write an episode that had ended untouched and has been touched now."""
        key = episode.head["env"], episode.head["episode"]
        if self._record != "off" and self._recent.pop(key, None) is not None:
            self._recent_bytes -= episode.nbytes
            episode.touched = True
            self._write(episode)

    def _write(self, episode: EpisodeInMemory) -> None:
        if episode.rows:
            self._spill(episode)
        self._files.append(EPISODES, episode.describe())
        self._files.make_safe()

    def _spill(self, episode: EpisodeInMemory) -> None:
        name, arrays = episode.take_part()
        self._files.save(name, arrays)

    def _amend(self, env: int, episode: int, change: Mapping[str, Any]) -> None:
        if self._record != "off":
            self._files.append(AMENDMENTS, {"env": env, "episode": episode, "t_wall": time.time(), **change})


def describe_session(stage: Stage, **more: Any) -> dict[str, Any]:
    """What `session.json` says of a session: who is trained on what, and the configuration of the run.

    Args:
        stage: as the bridge was given it.
        more: further facts, plain JSON, as `condition`, `consent_version`, or the keys of `hitl`.
    """
    facts: dict[str, Any] = {"title": stage.title, "purpose": stage.purpose, "algo": stage.algo}
    facts |= {"env": stage.env_name, "scenario": stage.scenario, "num_envs": stage.num_envs}
    facts["layout"] = layout_to_json(stage.layout)
    try:
        facts["config"] = to_dict(load_yaml(stage.folder / "config.yaml"))
    except ConfigError:  # used as a library, without a run folder: the recording cannot be played again by itself
        facts["config"] = None
    return {**facts, **more}
