"""Writes down what passes through a bridge: which steps, and who did what in them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from harl.config import PeopleConfig
from harl.envs.api import BoolArray, EnvStep, FloatArray
from harl.hitl.bridge import Stage
from harl.hitl.leases import Drive
from harl.hitl.recording.fields import StepRecord
from harl.hitl.recording.recorder import Recorder, describe_session
from harl.hitl.recording.state import state_of
from harl.hitl.room import TEAM, Feedback

REMEMBERED = 8192
"""Steps whose place in the recording is known, for feedback that comes late."""


class Chronicle:
    """The recording of what people see and do, for as long as somebody is there.

    Args:
        stage: what is played.
        config: the `hitl` section.
        consent_version: of the terms that people agree to.
    """

    def __init__(self, stage: Stage, config: PeopleConfig, consent_version: str | None = None) -> None:
        self.stage, self.config = stage, config
        facts = {"condition": config.condition, "consent_version": consent_version}
        learn = {"takeover": config.takeover.learn, "reward": config.reward.learn}
        if stage.purpose != "train":
            learn = dict.fromkeys(learn, "log")
        self.recorder = Recorder(stage.folder, describe_session(stage, learn=learn, **facts), config.record)
        self._running: set[int] = set()
        self._places: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """(environment, env_steps) → episode and its step."""

    def follow(
        self, envs: Collection[int], episode: Sequence[int], step: Sequence[int], env_steps: int, now: EnvStep
    ) -> None:
        """Begin to record environments that somebody looks at, as they are after a step."""
        for env in envs:
            if env in self._running:
                continue
            state = self.stage.env_state()
            masks = None if now.available_actions is None else now.available_actions[env]
            self.recorder.begin(
                env,
                int(episode[env]),
                self.stage.seed_of(env),
                env_steps,
                now.obs[env],
                now.share_obs[env],
                masks,
                None if state is None else state_of(state, env, self.stage.num_envs),
                int(step[env]),
            )
            self._running.add(env)

    def step(
        self,
        env: int,
        place: tuple[int, int],
        before: Moment,
        drives: Sequence[Drive],
        outcome: EnvStep,
        watched: bool,
        weight: float,
    ) -> None:
        """Record a step of an environment.

        Args:
            env: index of the environment.
            place: episode and step, from 0, that it was.
            before: what was proposed and done in it.
            drives: who drove.
            outcome: what came of it.
            watched: whether anybody saw it.
            weight: reward that a unit of credited feedback is worth.
        """
        if env not in self._running:
            return
        over = bool(outcome.ended[env])
        obs, share_obs, masks = outcome.obs, outcome.share_obs, outcome.available_actions
        if over and outcome.final_obs is not None and outcome.final_share_obs is not None:
            obs, share_obs, masks = outcome.final_obs, outcome.final_share_obs, outcome.final_available_actions
        proposed_log_prob, executed_log_prob = before.log_probs
        record = StepRecord(
            env=env,
            env_steps=before.env_steps,
            proposed=before.proposed[env],
            executed=before.executed[env],
            reward=outcome.rewards[env, :, 0],
            obs=obs[env],
            share_obs=share_obs[env],
            terminated=outcome.terminated[env],
            truncated=outcome.truncated[env],
            available_actions=None if masks is None else masks[env],
            source=before.source[env],
            active=before.active[env],
            log_prob_proposed=None if proposed_log_prob is None else proposed_log_prob[env],
            log_prob_executed=None if executed_log_prob is None else executed_log_prob[env],
            watched=watched,
            weight=weight,
        )
        if drives:
            _note_drivers(record, drives, place[0])
        self.recorder.step(record)
        self._places[env, before.env_steps] = place
        if len(self._places) > REMEMBERED:
            self._places.popitem(last=False)
        if over:
            broken_off = outcome.broken_off is not None and bool(outcome.broken_off[env])
            self.recorder.end(env, "discarded" if broken_off else None, partial=broken_off)
            self._running.discard(env)

    def forget_unwatched(self, envs: Collection[int]) -> None:
        """End the recording of environments that nobody looks at any more."""
        for env in self._running - set(envs):
            self.recorder.end(env, "unwatched", partial=True)
            self._running.discard(env)

    def event(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write down that something happened."""
        fields = dict(data)
        if "name" in fields:
            fields["who"] = fields.pop("name")
        self.recorder.event(kind, fields)

    def feedback(self, event: Feedback, shares: Mapping[int, float], late: bool) -> None:
        """Write down an event, and to which steps it was credited (env_steps → weight)."""
        steps = [
            [*self._places[event.env, env_steps], weight]
            for env_steps, weight in shares.items()
            if (event.env, env_steps) in self._places
        ]
        self.recorder.event(
            "undo" if event.undo else "feedback",
            {
                "who": event.name, "agent": event.agent, "env": event.env, "seq": event.seq, "value": event.value,
                "seen": [event.episode, event.step], "t_client_ms": event.t_client_ms, "shown_ms": event.shown_ms,
                "t_server": event.received, "confidence": event.confidence, "credited": steps, "late": late,
            },
        )  # fmt: skip
        if event.undo:
            return
        self.recorder.took_part(event.env, event.episode, event.name)
        if event.step > 0:
            agents = self.stage.layout.agents
            for agent in range(len(agents)) if event.agent == TEAM else (agents.index(event.agent),):
                place = event.env, event.episode, event.step - 1
                self.recorder.amend(*place, agent, 0.0, event.seq, 0.0, event.value, event.name)

    def amend(self, event: Feedback, env_steps: int, agent: int, delta: float, credited: float) -> None:
        """The reward of a step that may have been recorded already is another one."""
        place = self._places.get((event.env, env_steps))
        if place is not None:
            episode, step = place
            self.recorder.amend(event.env, episode, step, agent, delta, event.seq, credited, None, event.name)

    def label(self, env: int, episode: int, label: str, who: str) -> None:
        """A person marked an episode."""
        self.recorder.label(env, episode, label, who)

    def close(self, reason: str) -> None:
        """End what is under way, marked partial."""
        self.recorder.close(reason)


def _note_drivers(record: StepRecord, drives: Sequence[Drive], episode: int) -> None:
    """Write down who drove, and when their inputs came and took effect."""
    count = len(record.executed)
    people: list[str | None] = [None] * count
    seen, seq = np.full(count, -1, np.int32), np.full(count, -1, np.int64)
    received, rtt = np.full(count, np.nan), np.full(count, np.nan, np.float32)
    for drive in drives:
        people[drive.agent] = drive.name
        seq[drive.agent] = drive.held.seq
        if drive.held.episode == episode:  # else it was not of this episode: who does nothing need not have looked
            seen[drive.agent] = drive.held.step
        received[drive.agent] = drive.held.received
        rtt[drive.agent] = np.nan if drive.rtt_ms is None else drive.rtt_ms
    record.controllers, record.seen_step, record.seq = people, seen, seq
    record.t_received, record.rtt_ms = received, rtt
    record.t_applied = np.where(seq >= 0, time.monotonic(), np.nan)


class Moment:
    """What was proposed and done in one step, in all environments."""

    def __init__(
        self,
        env_steps: int,
        proposed: FloatArray,
        executed: FloatArray,
        source: np.ndarray[Any, np.dtype[np.int8]],
        active: BoolArray,
        log_probs: tuple[FloatArray | None, FloatArray | None] = (None, None),
    ) -> None:
        self.env_steps, self.proposed, self.executed, self.source = env_steps, proposed, executed, source
        self.active = active
        """(N, A) who took part; others had left the episode before."""
        self.log_probs = log_probs
        """(N, A) of the proposal and of what was executed, under the policies of the step."""
