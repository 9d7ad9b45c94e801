"""What every bridge with people does, whatever the network looks like: drive, credit, count, record."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.config import PeopleConfig
from harl.envs.api import BoolArray, EnvStep, FloatArray
from harl.envs.palette import agent_colour
from harl.hitl.bridge import Bridge, Credit, Override, Source, Stage
from harl.hitl.controls import AgentControls, layout_controls
from harl.hitl.crediting import Crediting
from harl.hitl.leases import Drive
from harl.hitl.recording.chronicle import Chronicle, Moment
from harl.hitl.room import Room
from harl.hitl.seats import describe_space

log = logging.getLogger(__name__)

RATE_STEPS = 2000
"""Steps of the shown environment over which the share of human steps is counted."""

ARRIVALS = {
    "connect": "came in",
    "disconnect": "has left",
    "away": "is away: the connection is closed",
    "back": "is back",
}
"""What is said in the log of the run."""
STRANGER = "somebody who has not agreed to the terms"
"""Of whom nothing is recorded, the pseudonym neither."""
SourceArray = NDArray[np.int8]


class PeopleBridge(Bridge):
    """A bridge around a `Room`.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.
    """

    def __init__(self, config: PeopleConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.clock = config, clock
        self.room = Room(config, clock)
        self.stage: Stage | None = None
        self.recent: deque[bool] = deque(maxlen=RATE_STEPS)
        """Whether a person acted, in the last steps of the shown environment."""
        self._discarded: list[tuple[int, int]] = []
        """Environment and number of each episode that shall not count."""
        self._drives: dict[int, list[Drive]] = {}
        self._moment: Moment | None = None
        """The step under way, where somebody is there."""
        self._seen: tuple[FloatArray, FloatArray | None]
        self._now: EnvStep
        """What the environments returned last."""
        self._credits: list[Credit] = []
        """What feedback has come to that was taken in while the run waited."""
        self.chronicle: Chronicle | None = None
        self.rewards: FloatArray = np.zeros((0, 0), np.float32)
        self.source: SourceArray = np.zeros((0, 0), np.int8)
        self._policies: SourceArray = self.source
        """(N, A) `source` where the policies decide everything; not written to."""
        self._everybody: BoolArray = np.zeros((0, 0), np.bool_)
        """(N, A) `active` where nobody has left; not written to."""
        self.active: BoolArray = self._everybody
        """(N, A) who takes part in the coming step; others have left the episode."""
        self._closed = False

    # What the network does.

    @abstractmethod
    def show(self, env: int, done: bool, at_once: bool) -> bool:
        """Show an environment as it is now to those who look at it.

        Args:
            env: index of the environment.
            done: whether an episode ended in the last step.
            at_once: whether it cannot wait for the next frame that is due.

        Returns:
            Whether a frame went out.
        """

    def _shown(self, env: int, done: bool, at_once: bool) -> bool:
        """`show`, and note of what."""
        sent = self.show(env, done, at_once)
        if sent:
            self.room.shown[env] = self.room.position[env]
        return sent

    # What the run calls.

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """Begin, or begin anew, with environments as they are now."""
        layout, n = stage.layout, stage.num_envs
        self.stage, self._now = stage, first
        again, standing = bool(self.room.position), stage.standing
        if again:
            self.room.layout = layout
        else:
            self.room.open(layout, n)
            self.episode = np.zeros(n, np.int64)
        self.episode += again
        self.step, self.returns = np.zeros(n, np.int64), np.zeros((n, layout.num_agents))
        if standing is not None:
            self.episode[:], self.step[:], self.returns[:] = standing.episode, standing.step, standing.returns
        self.last_return = np.zeros((n, layout.num_agents))
        self.rewards = np.zeros((n, layout.num_agents), np.float32)
        self.crediting = Crediting(stage, self.config, self.room, lambda: self.chronicle)
        self.actions: FloatArray = np.zeros((n, layout.num_agents, layout.action_dim), np.float32)
        self.source = self._policies = np.zeros((n, layout.num_agents), np.int8)
        self.active = self._everybody = np.ones((n, layout.num_agents), np.bool_)
        controls = layout_controls(layout, stage.scenario)
        self.idle_actions = [np.atleast_1d(np.asarray(controls[name].noop, np.float32)) for name in layout.agents]
        self.room.about = self.about(stage, controls)
        self.env_steps = self.room.env_steps = 0 if standing is None else standing.env_steps
        self._place()

    def about(self, stage: Stage, controls: Mapping[str, AgentControls]) -> dict[str, Any]:
        """What people are told of the run when they come in."""
        agents = {}
        for i, (name, space) in enumerate(zip(stage.layout.agents, stage.layout.action_spaces, strict=True)):
            own = {"index": i, "colour": agent_colour(i), "action_space": describe_space(space)}
            agents[name] = {**own, **controls[name].describe()}
        learns = stage.purpose == "train"
        return {
            "run": stage.folder.name,
            "title": stage.title,
            "env_id": stage.env_name,
            "scenario": stage.scenario,
            "purpose": stage.purpose,
            "agents": agents,
            "learn": {
                "takeover": self.config.takeover.learn if learns else "log",
                "reward": self.config.reward.learn if learns else "log",
            },
            "recording": self.recording,
            "modes": self.modes,
        }

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        """See `Bridge`."""
        self.env_steps, room = env_steps, self.room
        room.env_steps = env_steps
        self._drives, self._moment = {}, None
        if not room.occupied:
            if self.config.pace == "realtime":
                room.pace.hold(self._stage.stopping, self._meanwhile)
            self.actions, self.source = proposed, self._policies
            return Override(proposed, None, None)
        stage = self._stage
        if room.newcomers:  # while nobody was there, places were not kept up
            self._place(room.watched())
        self._note_departures(self._now.active)
        missed = room.pace.hold(stage.stopping, self._meanwhile)
        room.expire()
        previous = self.actions
        actions, source, ago = proposed, self._policies, np.zeros(self.source.shape, np.int64)
        for env in sorted(room.driven()):
            drives = room.take(env, None if available_actions is None else available_actions[env])
            if drives:
                self._drives[env] = drives
            if (drives or missed) and actions is proposed:
                actions, source = proposed.copy(), np.zeros_like(self._policies)
            for drive in drives:
                width = len(self.idle_actions[drive.agent])
                held = drive.held.action
                actions[env, drive.agent, :width] = self.idle_actions[drive.agent] if held is None else held
                source[env, drive.agent] = Source.HUMAN
                ago[env, drive.agent] = drive.seen_ago(*room.position[env])
            if missed:
                self._stand_in(env, previous, actions, source)
        self.actions, self.source = actions, source
        self._moment, self._seen = Moment(env_steps, proposed, actions, source, self.active), (obs, available_actions)
        if self._drives and (chronicle := self._chronicle_for_people()) is not None:
            # Who comes in and acts before the next step is shown is recorded from this one on.
            chronicle.follow(set(self._drives), self.episode.tolist(), self.step.tolist(), env_steps, self._now)
        if actions is proposed or not source.any():
            return Override(proposed, None, None)
        mask = (source == Source.POLICY).astype(np.float32)[..., None]
        return Override(actions, source, mask, ago)

    def override_rewards(self, env_steps: int, rewards: FloatArray) -> tuple[FloatArray, Sequence[Credit]]:
        """See `Bridge`."""
        self.rewards = rewards[..., 0]
        if not (self.room.occupied or self.room.feedback_box or self._credits):
            return rewards, ()
        self._take_feedback()
        return rewards, self._collected()

    def late_feedback(self) -> Sequence[Credit]:
        """See `Bridge`; waits for at most `hitl.reward.feedback_grace_s`, and only while somebody may give any."""
        until = self.clock() + self.config.reward.feedback_grace_s
        self._take_feedback()
        found = self._collected()
        if not self.crediting.weight(self.env_steps):
            return found
        pace, stopping = self.room.pace, self._stage.stopping

        def something() -> bool:
            said = self.room.feedback_box or self._credits or self.room.marks or self._discarded
            return bool(said) or not self._feedback_may_come()

        told = False
        while self.clock() < until and self._feedback_may_come():
            if not told:
                text = (
                    f"before the policies learn, {self.config.reward.feedback_grace_s:g} s for a word on the last steps"
                )
                self.room.outbox.post({"type": "notice", "level": "info", "text": text})
                told = True
            came = pace.linger(something, stopping, self._meanwhile, until)
            self._take_marks()
            self._take_feedback()
            found += self._collected()
            if not came or self._discarded:  # who discards an episode waits for the next one
                break
        return found

    def publish(self, outcome: EnvStep) -> None:
        """See `Bridge`."""
        self.returns += outcome.rewards[..., 0]
        self.step += 1
        self._now, room = outcome, self.room
        watched, witnessed = room.watched(), room.witnessed()
        self.crediting.unwatched(watched)
        for env in watched:
            self.crediting.note(env, self.env_steps, int(self.episode[env]), self.rewards[env])
            if env == self.config.env_index:
                self.recent.append(env in self._drives)
        self._write(outcome, witnessed)
        if np.count_nonzero(outcome.ended):
            self._begin_episodes(np.flatnonzero(outcome.ended))
        self._place(watched)
        if witnessed and self.chronicle is not None:
            self.chronicle.follow(
                witnessed, self.episode.tolist(), self.step.tolist(), self.env_steps + len(self.step), outcome
            )
        for env in watched:
            applied = any(not drive.held.shown for drive in self._drives.get(env, ()))
            if self._shown(env, bool(outcome.ended[env]), applied):
                for drive in self._drives.get(env, ()):
                    drive.held.shown = True

    def discarded(self) -> Sequence[int]:
        """See `Bridge`."""
        self._take_marks()
        found, self._discarded = self._discarded, []
        return [env for env, episode in found if episode == self.episode[env]]  # the others are over

    def close(self, reason: str) -> None:
        """See `Bridge`."""
        if self._closed:
            return
        self._closed = True
        if self.stage is not None:
            # Nothing learns any more from what is said of the last steps.
            self.crediting.stage = dataclasses.replace(self.stage, earliest=lambda: sys.maxsize)
            self._hear()
        if self.chronicle is not None:
            self.chronicle.close(reason)

    # Within.

    @property
    def _stage(self) -> Stage:
        assert self.stage is not None, "the bridge is used before attach"
        return self.stage

    @property
    def learns(self) -> bool:
        """Whether anything that people do is learned from."""
        return self._stage.purpose == "train"

    @property
    def recording(self) -> bool:
        """Whether anything is recorded."""
        return self.config.record != "off"

    @property
    def consent_version(self) -> str | None:
        """Version of the terms that people agree to."""
        return self.config.consent_version

    @property
    def modes(self) -> list[str]:
        """Ways in which environments are shown, the best first."""
        return ["state", "jpeg"] if self._stage.scene(self.config.env_index) is not None else ["jpeg"]

    @property
    def human_share(self) -> float:
        """Share of human steps among the last ones of the shown environment."""
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    def _feedback_may_come(self) -> bool:
        """Whether anybody who may praise and blame has been shown anything."""
        shown = {env for env, ledger in self.crediting.ledgers.items() if ledger.frames}
        return any(env in shown for env in self.room.judged())

    def _note_departures(self, active: FloatArray) -> None:
        """Note who takes part in the coming step, from (N, A, 1)."""
        if np.count_nonzero(active) == active.size:
            self.active, self.room.gone = self._everybody, set()
            return
        self.active = active[..., 0] > 0
        self.room.gone = {(env, agent) for env, agent in np.argwhere(~self.active).tolist()}

    def _begin_episodes(self, ended: NDArray[np.intp]) -> None:
        self.last_return[ended], self.returns[ended] = self.returns[ended], 0.0
        self.episode[ended] += 1
        self.step[ended] = 0
        for over in ended.tolist():
            self.room.episode_over(over)

    def _place(self, envs: Collection[int] | None = None) -> None:
        for env in range(self._stage.num_envs) if envs is None else envs:
            self.room.position[env] = (int(self.episode[env]), int(self.step[env]))

    def _stand_in(self, env: int, previous: FloatArray, actions: FloatArray, source: SourceArray) -> None:
        """Act for drivers who were awaited and did not act."""
        if self.config.absent == "policy":
            return
        acted = {drive.agent for drive in self._drives.get(env, ())}
        for agent in range(self._stage.layout.num_agents):
            if agent in acted or not self.active[env, agent] or self.room.driver(env, agent) is None:
                continue
            width = len(self.idle_actions[agent])
            if self.config.absent == "default":
                actions[env, agent, :width] = self.idle_actions[agent]
                source[env, agent] = Source.DEFAULT
            else:
                actions[env, agent] = previous[env, agent]
                source[env, agent] = Source.PREVIOUS

    def _meanwhile(self) -> None:
        """While the run waits: write down what people say, and show what stands still to those who have just come."""
        self._hear()
        with self.room.changed:
            envs = sorted(self.room.newcomers)
            self.room.newcomers.clear()
        for env in envs:
            self._shown(env, False, True)

    def _take_feedback(self) -> None:
        """Find out which steps feedback is about, and what it comes to."""
        while self.room.feedback_box:
            self._credits += self.crediting.take(self.room.feedback_box.popleft(), self.env_steps)

    def _collected(self) -> list[Credit]:
        """Amendments since the last time."""
        found, self._credits = self._credits, []
        return found

    def _hear(self) -> None:
        """Take in, and write down, what people have done and said since the last time."""
        events = self.room.drain_events()
        for kind, fields in events:
            if kind in ARRIVALS and not self._closed:  # else the log of the run may be closed too
                self._stage.notice(f"people: {fields.get('name', STRANGER)} {ARRIVALS[kind]}")
            if (kind not in ARRIVALS or "name" in fields) and (chronicle := self._chronicle_for_people()) is not None:
                chronicle.event(kind, fields)
        self._take_marks()
        self._take_feedback()

    def _write(self, outcome: EnvStep, witnessed: Set[int]) -> None:
        """Record a step, of the environments that people look at who may be recorded."""
        if self.room.news:
            self._hear()
        if self._moment is None:
            if self.chronicle is not None:
                self.chronicle.forget_unwatched(witnessed)
            return
        chronicle = self._chronicle_for_people() if witnessed or self._drives else self.chronicle
        if chronicle is None:
            return
        if self._drives:
            self._moment.log_probs = self._log_probs(self._moment)
        for env in witnessed | self._drives.keys():
            place = int(self.episode[env]), int(self.step[env]) - 1
            weight = self.crediting.weight(self.env_steps)
            chronicle.step(env, place, self._moment, self._drives.get(env, ()), outcome, env in witnessed, weight)
        chronicle.forget_unwatched(witnessed)

    def _chronicle_for_people(self) -> Chronicle | None:
        """The recording; it begins with the first person."""
        if self.chronicle is None and self.recording:
            self.chronicle = Chronicle(self._stage, self.config, self.consent_version)
        return self.chronicle

    def _log_probs(self, moment: Moment) -> tuple[FloatArray | None, FloatArray | None]:
        ask, (obs, masks) = self._stage.log_probs, self._seen
        return ask(obs, masks, moment.proposed), ask(obs, masks, moment.executed)

    def _take_marks(self) -> None:
        """Take in what people said of episodes: a success, a failure, or not to count."""
        while self.room.marks:
            mark = self.room.marks.popleft()
            if mark.label == "discard":
                self._discarded.append((mark.env, mark.episode))
                self.crediting.discard(mark.env, mark.episode)
            if (chronicle := self._chronicle_for_people()) is not None:
                chronicle.label(mark.env, mark.episode, mark.label, mark.name)
