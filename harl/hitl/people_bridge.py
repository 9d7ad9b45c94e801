"""What every bridge with people does, whatever the network looks like: drive, credit, count, record."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harl.config import PeopleConfig
from harl.envs.api import EnvStep, FloatArray
from harl.hitl.bridge import Bridge, Credit, Override, Source, Stage
from harl.hitl.controls import AgentControls, layout_controls
from harl.hitl.credit import REMEMBERED, WINDOWS, Ledger, Weight, credited
from harl.hitl.room import TEAM, Drive, Feedback, Mark, Room
from harl.hitl.seats import describe_space

log = logging.getLogger(__name__)

RATE_STEPS = 2000
"""Steps of the shown environment over which the share of human steps is counted."""
UNDOABLE = 256
"""Feedback events that can still be taken back."""


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
"""Of agents, told apart by the colour-blind too (Okabe & Ito 2008)."""
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
        self._given: OrderedDict[tuple[str, int], list[tuple[int, int, int, float, float]]] = OrderedDict()
        """What an event came to: (environment, env_steps, agent, value, confidence) by session and number."""
        self._discarded: list[int] = []
        self._drives: dict[int, list[Drive]] = {}
        self.rewards: FloatArray = np.zeros((0, 0), np.float32)
        self.source: SourceArray = np.zeros((0, 0), np.int8)
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

    # What the run calls.

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """Begin, or begin anew, with environments that were just started."""
        layout, n = stage.layout, stage.num_envs
        self.stage = stage
        again = bool(self.room.position)
        if again:
            self.room.layout = layout
        else:
            self.room.open(layout, n)
            self.episode = np.zeros(n, np.int64)
        self.episode += again
        self.step = np.zeros(n, np.int64)
        self.returns = np.zeros((n, layout.num_agents))
        self.last_return = np.zeros((n, layout.num_agents))
        self.rewards = np.zeros((n, layout.num_agents), np.float32)
        self.ledgers: dict[int, Ledger] = {}
        self.raw: dict[int, OrderedDict[int, FloatArray]] = {}
        self.actions: FloatArray = np.zeros((n, layout.num_agents, layout.action_dim), np.float32)
        self.source = np.zeros((n, layout.num_agents), np.int8)
        controls = layout_controls(layout, stage.scenario)
        self.idle_actions = [np.atleast_1d(np.asarray(controls[name].noop, np.float32)) for name in layout.agents]
        self.room.about = self.about(stage, controls)
        self.env_steps = 0
        self._place()

    def about(self, stage: Stage, controls: Mapping[str, AgentControls]) -> dict[str, Any]:
        """What people are told of the run when they come in."""
        agents = {}
        for i, (name, space) in enumerate(zip(stage.layout.agents, stage.layout.action_spaces, strict=True)):
            own = {"index": i, "colour": COLOURS[i % len(COLOURS)], "action_space": describe_space(space)}
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
        }

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        """See `Bridge`."""
        self.env_steps, room = env_steps, self.room
        self._drives = {}
        if not room.occupied:
            self.actions = proposed
            return Override(proposed, None, None)
        stage = self._stage
        missed = room.pace.hold(stage.stopping, self._show_to_newcomers)
        room.expire()
        previous = self.actions
        actions, source = proposed, np.zeros(self.source.shape, np.int8)
        for env in sorted(room.driven()):
            drives = room.take(env, None if available_actions is None else available_actions[env])
            if drives:
                self._drives[env] = drives
            if (drives or missed) and actions is proposed:
                actions = proposed.copy()
            for drive in drives:
                width = len(self.idle_actions[drive.agent])
                held = drive.held.action
                actions[env, drive.agent, :width] = self.idle_actions[drive.agent] if held is None else held
                source[env, drive.agent] = Source.HUMAN
            if missed:
                self._stand_in(env, previous, actions, source)
        self.actions, self.source = actions, source
        if not source.any():
            return Override(proposed, None, None)
        mask = (source == Source.POLICY).astype(np.float32)[..., None]
        return Override(actions, source, mask)

    def override_rewards(self, env_steps: int, rewards: FloatArray) -> tuple[FloatArray, Sequence[Credit]]:
        """See `Bridge`."""
        self.rewards = rewards[..., 0]
        if not (self.room.occupied or self.room.feedback_box):
            return rewards, ()
        credits: list[Credit] = []
        while self.room.feedback_box:
            credits += self._credit(self.room.feedback_box.popleft())
        return rewards, credits

    def publish(self, outcome: EnvStep) -> None:
        """See `Bridge`."""
        self.returns += outcome.rewards[..., 0]
        self.step += 1
        room = self.room
        watched = room.watched() if room.occupied else set()
        self._listen()
        for env in watched:
            self._note(env)
        ended = np.flatnonzero(outcome.ended)
        for over in ended.tolist():
            self.last_return[over], self.returns[over] = self.returns[over], 0.0
            room.episode_over(over)
        self.episode[ended] += 1
        self.step[ended] = 0
        self._place(watched)
        for env in watched:
            applied = any(not drive.held.shown for drive in self._drives.get(env, ()))
            if self.show(env, bool(outcome.ended[env]), applied):
                for drive in self._drives.get(env, ()):
                    drive.held.shown = True

    def discarded(self) -> Sequence[int]:
        """See `Bridge`."""
        found, self._discarded = self._discarded, []
        return found

    def close(self, reason: str) -> None:
        """See `Bridge`."""
        self._closed = True

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
    def human_share(self) -> float:
        """Share of human steps among the last ones of the shown environment."""
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    def _place(self, envs: set[int] | None = None) -> None:
        for env in range(self._stage.num_envs) if envs is None else envs:
            self.room.position[env] = (int(self.episode[env]), int(self.step[env]))

    def _stand_in(self, env: int, previous: FloatArray, actions: FloatArray, source: SourceArray) -> None:
        """Act for drivers who were awaited and did not act."""
        if self.config.absent == "policy":
            return
        acted = {drive.agent for drive in self._drives.get(env, ())}
        for agent in range(self._stage.layout.num_agents):
            if agent in acted or self.room.driver(env, agent) is None:
                continue
            width = len(self.idle_actions[agent])
            if self.config.absent == "default":
                actions[env, agent, :width] = self.idle_actions[agent]
                source[env, agent] = Source.DEFAULT
            else:
                actions[env, agent] = previous[env, agent]
                source[env, agent] = Source.PREVIOUS

    def _note(self, env: int) -> None:
        """Remember a step that somebody may talk about."""
        self.ledgers.setdefault(env, Ledger()).passed(self.env_steps)
        raw = self.raw.setdefault(env, OrderedDict())
        raw[self.env_steps] = self.rewards[env].copy()
        if len(raw) > REMEMBERED:
            raw.popitem(last=False)
        if env == self.config.env_index:
            self.recent.append(env in self._drives)

    def _show_to_newcomers(self) -> None:
        """Show what stands still to those who have just come."""
        with self.room.changed:
            envs = sorted(self.room.newcomers)
            self.room.newcomers.clear()
        for env in envs:
            self.show(env, False, True)

    def _listen(self) -> None:
        """Take in what people said of episodes."""
        while self.room.marks:
            self.marked(self.room.marks.popleft())

    def marked(self, mark: Mark) -> None:
        """Somebody said that an episode was a success, a failure, or is not to count."""
        if mark.label == "discard" and mark.episode == self.episode[mark.env]:
            self._discarded.append(mark.env)

    def _credit(self, event: Feedback) -> list[Credit]:
        """Amendments that an event comes to; tells the person which steps it was credited to."""
        if event.undo:
            return self._take_back(event)
        ledger = self.ledgers.get(event.env)
        weights: list[Weight] = []
        if ledger is not None:
            at = self._event_time(event, ledger)
            window = WINDOWS.get(self.config.reward.credit)
            weights = credited(ledger.frames, (event.episode, event.step), at, window, self.config.reward.only_shown)
        agents = self._stage.layout.agents
        concerned = range(len(agents)) if event.agent == TEAM else (agents.index(event.agent),)
        # One press counts once, also where the rewards of the team are added up.
        value = event.value / len(agents) if event.agent == TEAM and self._stage.sums_rewards else event.value
        given = [
            (event.env, step, agent, value * weight, event.confidence)
            for step, weight in weights
            for agent in concerned
        ]
        self._given[event.who, event.seq] = given
        if len(self._given) > UNDOABLE:
            self._given.popitem(last=False)
        credits, late = self._amend(event.who, given)
        self._tell_credit(event, weights, late)
        self.feedback_given(event, weights, late)
        return credits

    def _take_back(self, event: Feedback) -> list[Credit]:
        given = self._given.pop((event.who, event.seq), [])
        credits, late = self._amend(event.who, [(env, step, agent, -v, c) for env, step, agent, v, c in given])
        message = {"type": "credit", "seq": event.seq, "steps": [], "weight_sum": 0.0, "late": late, "undone": True}
        self.room.outbox.post(message, event.who)
        self.feedback_given(event, [], late)
        return credits

    def _event_time(self, event: Feedback, ledger: Ledger) -> float:
        """When the event happened, on the time axis of the frames' publication.

        The person's own clock says how long the frame had been on their screen; without it half a round trip is
        taken off the time at which the message came.
        """
        if event.shown_ms is not None:
            for frame in reversed(ledger.frames):
                if (frame.episode, frame.step) == (event.episode, event.step):
                    return frame.at + event.shown_ms / 1000
        person = self.room.people.get(event.who)
        rtt = 0.0 if person is None or person.rtt_ms is None else person.rtt_ms / 1000
        return event.received - rtt

    def _amend(self, who: str, given: Sequence[tuple[int, int, int, float, float]]) -> tuple[list[Credit], bool]:
        """Turn credited feedback into amendments of rewards that can still be amended; and whether some cannot."""
        stage, how = self._stage, self.config.reward
        if not self.learns or how.learn == "log":
            return [], False
        left = 1.0 - self.env_steps / stage.total_steps if how.anneal and stage.total_steps else 1.0
        earliest, credits, late = stage.earliest(), [], not given
        for env, env_steps, agent, value, confidence in given:
            ledger = self.ledgers[env]
            if env_steps < earliest:
                late = True
                continue
            first = (env_steps, agent) not in ledger.said
            before, after = ledger.say(env_steps, agent, who, value, confidence)
            if how.learn == "shape":
                delta = how.weight * left * (after - before)
            else:
                delta = after - (self.raw[env][env_steps][agent] if first else before)
            credits.append(Credit(env_steps, env, agent, float(delta)))
            self.amended(env, env_steps, agent, float(delta))
        return credits, late

    def _tell_credit(self, event: Feedback, weights: Sequence[Weight], late: bool) -> None:
        ledger, steps = self.ledgers.get(event.env), []
        if weights and ledger is not None:
            n = self._stage.num_envs
            behind = [(self.env_steps - weight.env_steps) // n for weight in (weights[0], weights[-1])]
            steps = [behind[0], behind[1]]
        message = {
            "type": "credit", "seq": event.seq, "steps": steps, "weight_sum": sum(w.weight for w in weights),
            "late": late,
        }  # fmt: skip
        self.room.outbox.post(message, event.who)

    # For the recording.

    def feedback_given(self, event: Feedback, weights: Sequence[Weight], late: bool) -> None:
        """An event was credited, or taken back."""

    def amended(self, env: int, env_steps: int, agent: int, delta: float) -> None:
        """The reward of a step that may have been recorded already is another one."""
