"""From feedback to amendments of the rewards that are learned from; see `harl.hitl.credit` for whose steps it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from harl.config import PeopleConfig
from harl.envs.api import FloatArray
from harl.hitl.bridge import Credit, Stage
from harl.hitl.credit import REMEMBERED, WINDOWS, Ledger, Weight, credited
from harl.hitl.room import TEAM, Feedback, Room

UNDOABLE = 256
"""Feedback events that can still be taken back."""


class Passed(NamedTuple):
    """A step that was taken."""

    episode: int
    rewards: FloatArray
    """(A,), raw."""


class Share(NamedTuple):
    """What an event says of one agent in one step."""

    env_steps: int
    agent: int
    value: float


class Writer(Protocol):
    """What a recording is told of feedback; see `Chronicle`."""

    def feedback(self, event: Feedback, shares: Mapping[int, float], late: bool) -> None: ...

    def amend(self, event: Feedback, env_steps: int, agent: int, delta: float, credited: float) -> None: ...


class Crediting:
    """Feedback of all people on all environments.

    Args:
        stage: what is played.
        config: the `hitl` section.
        room: whose people are told what became of their feedback.
        writer: gives the recording, None where there is none.
    """

    def __init__(self, stage: Stage, config: PeopleConfig, room: Room, writer: Callable[[], Writer | None]) -> None:
        self.stage, self.config, self.room, self.writer = stage, config, room, writer
        self.ledgers: dict[int, Ledger] = {}
        self._passed: dict[int, OrderedDict[int, Passed]] = {}
        """Environment → env_steps → step."""
        self._discarded: set[tuple[int, int]] = set()
        """Environment and number of episodes that a person discarded."""
        self._given: OrderedDict[tuple[str, int], tuple[Feedback, list[Share]]] = OrderedDict()

    def note(self, env: int, env_steps: int, episode: int, rewards: FloatArray) -> None:
        """Remember a step of an episode, with its raw rewards (A,), that somebody may talk about."""
        if env not in self.ledgers:
            self.ledgers[env], self._passed[env] = Ledger(), OrderedDict()
        self.ledgers[env].passed(env_steps)
        passed = self._passed[env]
        passed[env_steps] = Passed(episode, rewards.copy())
        if len(passed) > REMEMBERED:
            passed.popitem(last=False)

    def unwatched(self, watched: Set[int]) -> None:
        """A step was taken that only these environments were watched in: the next frame of others begins anew."""
        for env in self.ledgers.keys() - watched:
            self.ledgers[env].pending.clear()

    def discard(self, env: int, episode: int) -> None:
        """Nothing that comes from now on is about this episode."""
        self._discarded.add((env, episode))

    def take(self, event: Feedback, env_steps: int) -> list[Credit]:
        """Amendments that an event comes to, `env_steps` into the run; the person is told which steps it is about."""
        if event.undo:
            return self._take_back(event, env_steps)
        ledger = self.ledgers.get(event.env)
        weights: list[Weight] = []
        if ledger is not None:
            seen, window = (event.episode, event.step), WINDOWS.get(self.config.reward.credit)
            at = self._event_time(event, ledger)
            weights = credited(ledger.frames, seen, at, window, self.config.reward.only_shown, event.since)
            # The share of what was thrown away is nobody's: the other steps earned no more than they did.
            weights = [weight for weight in weights if not self._thrown_away(event.env, weight.env_steps)]
        agents = self.stage.layout.agents
        concerned = range(len(agents)) if event.agent == TEAM else (agents.index(event.agent),)
        # One press counts once, also where the rewards of the team are added up.
        value = event.value / len(agents) if event.agent == TEAM and self.stage.sums_rewards else event.value
        shares = [Share(step, agent, value * weight) for step, weight in weights for agent in concerned]
        self._given[event.who, event.seq] = event, shares
        if len(self._given) > UNDOABLE:
            self._given.popitem(last=False)
        credits, late = self._amend(event, shares, env_steps)
        self._tell(event, weights, late, env_steps)
        if (writer := self.writer()) is not None:
            writer.feedback(event, dict(weights), late)
        return credits

    @property
    def learns(self) -> bool:
        """Whether feedback is learned from."""
        return self.stage.purpose == "train" and self.config.reward.learn != "log"

    def weight(self, env_steps: int) -> float:
        """Reward that one unit of credited feedback is worth, `env_steps` into the run; 0 where it is not learned."""
        how, total = self.config.reward, self.stage.total_steps
        if not self.learns:
            return 0.0
        if how.learn == "replace":
            return 1.0
        return how.weight * (1.0 - env_steps / total if how.anneal and total else 1.0)

    def _thrown_away(self, env: int, env_steps: int) -> bool:
        passed = self._passed[env].get(env_steps)
        return passed is not None and (env, passed.episode) in self._discarded

    def _take_back(self, event: Feedback, env_steps: int) -> list[Credit]:
        original, shares = self._given.pop((event.who, event.seq), (event, []))
        credits, late = self._amend(original, shares, env_steps, back=True)
        message = {"type": "credit", "seq": event.seq, "steps": [], "weight_sum": 0.0, "late": late}
        self.room.outbox.post({**message, "undone": bool(shares)}, event.who)
        if (writer := self.writer()) is not None:
            writer.feedback(event, {}, late)
        return credits

    def _event_time(self, event: Feedback, ledger: Ledger) -> float:
        """When the event happened, on the time axis of the frames' publication.

        The person's own clock says how long the frame had been on their screen; without it a round trip, of the frame
        to them and of the event back, is taken off the time at which the event came.
        """
        if event.shown_ms is not None:
            for frame in reversed(ledger.frames):
                if (frame.episode, frame.step) == (event.episode, event.step):
                    return frame.at + event.shown_ms / 1000
        person = self.room.people.get(event.who)
        rtt = 0.0 if person is None or person.rtt_ms is None else person.rtt_ms / 1000
        return event.received - rtt

    def _amend(
        self, event: Feedback, shares: Sequence[Share], env_steps: int, back: bool = False
    ) -> tuple[list[Credit], bool]:
        """Amendments of the rewards that can still be amended; and whether some cannot, or none is known."""
        weight, learns = self.weight(env_steps), self.learns
        earliest, credits, late, writer = self.stage.earliest(), [], not shares and not back, self.writer()
        for share in shares:
            passed = self._passed[event.env].get(share.env_steps)
            delta = 0.0
            if learns and (passed is None or share.env_steps < earliest):
                late = True
                credits.append(Credit(share.env_steps, event.env, share.agent, 0.0))  # to be counted
            elif learns and passed is not None:
                delta = self._delta(event, share, back, weight, float(passed.rewards[share.agent]))
                credits.append(Credit(share.env_steps, event.env, share.agent, delta))
            if writer is not None:
                value = -share.value if back else share.value
                writer.amend(event, share.env_steps, share.agent, delta, value)
        return credits, late

    def _delta(self, event: Feedback, share: Share, back: bool, weight: float, raw: float) -> float:
        """How much the reward of a step changes: `shape` adds, `replace` puts what was said in its place."""
        value, count = (-share.value, -1) if back else (share.value, 1)
        before, after = self.ledgers[event.env].say(
            share.env_steps, share.agent, event.who, value, event.confidence, count
        )
        if self.config.reward.learn == "replace":
            return (raw if after is None else after) - (raw if before is None else before)
        return weight * ((after or 0.0) - (before or 0.0))

    def _tell(self, event: Feedback, weights: Sequence[Weight], late: bool, env_steps: int) -> None:
        """Say how many steps ago the first and the last credited step were."""
        ago = [(env_steps - weight.env_steps) // self.stage.num_envs for weight in (*weights[:1], *weights[-1:])]
        message = {"type": "credit", "seq": event.seq, "ago": ago, "late": late}
        self.room.outbox.post({**message, "weight_sum": sum(weight.weight for weight in weights)}, event.who)
