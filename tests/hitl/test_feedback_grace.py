"""`hitl.reward.feedback_grace_s`: an on-policy update waits for late feedback, not for nobody and never for longer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.config import ConfigError
from harl.hitl.bridge import Credit
from harl.hitl.learning import unsupported
from tests.hitl.rooms import messages, web_config
from tests.hitl.scripted import PEOPLE, Scripted, off_policy, on_policy
from tests.hitl.test_people_bridge import Play, feedback
from tests.runners.runs import column, world

GRACE = 3.0


class Waiting:
    """A `Play` in which each look at whether to stop takes half a second of its clock; then `happens` may happen."""

    def __init__(self, tmp_path: Path, happens: dict[int, Callable[[], None]] | None = None, **changes: Any) -> None:
        settings = {"reward__anneal": False, "pace": "free", "reward__feedback_grace_s": GRACE, **changes}
        self.play = Play(tmp_path, **settings)
        self.play.bridge.stage = dataclasses.replace(self.play.stage, stopping=self._stopping)
        self.play.room.changed.wait = lambda left: True  # type: ignore[method-assign]
        self.happens, self.looks, self.stop = happens or {}, 0, False
        self.room = self.play.room

    def _stopping(self) -> bool:
        self.play.clock.now += 0.5
        self.looks += 1
        self.happens.get(self.looks, lambda: None)()
        return self.stop

    def watched(self, role: Any = "trainer", steps: int = 3) -> Waiting:
        """Somebody comes in and sees some steps."""
        self.room.enter("t", "tess", role, "desktop")
        for _ in range(steps):
            self.play.step()
        return self

    def late(self) -> tuple[Any, float]:
        """What the bridge answers, and how long it took on its clock."""
        before = self.play.clock.now
        return self.play.bridge.late_feedback(), self.play.clock.now - before


def test_feedback_within_the_grace_is_credited_to_the_steps_that_were_shown(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.happens = {2: lambda: feedback(made.play, shown_ms=1000.0)}
    credits, waited = made.late()
    # As in test_people_bridge: the frames after steps 1, 2 and 3 were on the screen for a second each.
    assert [(credit.env_steps, credit.env, credit.agent) for credit in credits] == [(0, 0, 0), (2, 0, 0), (4, 0, 0)]
    assert [credit.delta for credit in credits] == pytest.approx([0.5 * weight / 2.8 for weight in (1.0, 1.0, 0.8)])
    assert waited == GRACE  # more may come
    (told,) = messages(made.room, "credit")
    assert (told["late"], told["ago"]) == (False, [2, 0])


def test_the_wait_is_never_longer_than_the_bound_however_much_is_said(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.happens = {look: (lambda seq: lambda: feedback(made.play, seq=seq))(look) for look in range(1, 40)}
    credits, waited = made.late()
    assert waited == GRACE
    assert len(credits) == 3 * 6


def test_default_is_not_to_wait_but_what_is_there_is_taken(tmp_path: Path) -> None:
    assert web_config().reward.feedback_grace_s == 0
    made = Waiting(tmp_path, reward__feedback_grace_s=0.0).watched()
    feedback(made.play)
    credits, waited = made.late()
    assert waited == 0
    assert len(credits) == 3
    assert made.looks == 0


@pytest.mark.parametrize("role", [None, "observer", "controller"])
def test_nobody_who_may_praise_or_blame_is_waited_for(tmp_path: Path, role: str | None) -> None:
    made = Waiting(tmp_path)
    if role is not None:
        made.watched(role)
    assert made.late() == ([], 0)


def test_trainer_who_has_seen_nothing_is_not_waited_for(tmp_path: Path) -> None:
    assert Waiting(tmp_path).watched(steps=0).late() == ([], 0)


def test_trainer_who_lost_the_connection_is_not_waited_for(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.room.away("t")
    assert made.late() == ([], 0)


def test_the_wait_ends_when_the_last_trainer_leaves(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.happens = {2: lambda: made.room.leave("t", "gone")}
    assert made.late() == ([], 1.0)


def test_last_word_of_somebody_who_leaves_counts(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()

    def word_and_go() -> None:
        feedback(made.play)
        made.room.leave("t", "gone")

    made.happens = {2: word_and_go}
    credits, waited = made.late()
    assert waited == 1.0
    assert len(credits) == 3


def test_the_wait_ends_when_the_run_shall_stop(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()

    def stop() -> None:
        made.stop = True

    made.happens = {3: stop}
    credits, waited = made.late()
    assert (credits, waited) == ([], 1.5)


@pytest.mark.parametrize("how", ["log", "weight", "evaluate"])
def test_feedback_that_is_not_learned_from_is_not_waited_for(tmp_path: Path, how: str) -> None:
    changes: dict[str, Any] = {"log": {"reward__learn": "log"}, "weight": {"reward__weight": 0.0}}.get(how, {})
    made = Waiting(tmp_path, **changes).watched()
    if how == "evaluate":
        made.play.bridge.crediting.stage = dataclasses.replace(made.play.stage, purpose="evaluate")
    assert made.late() == ([], 0)


def test_newcomers_see_what_stands_still(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.room.newcomers.clear()
    shown: list[int] = []
    made.play.bridge.show = lambda env, done, at_once: bool(shown.append(env)) or True  # type: ignore[method-assign]
    made.happens = {2: lambda: made.room.newcomers.add(0)}
    made.late()
    assert shown == [0]


def test_a_word_wakes_the_wait_up(tmp_path: Path) -> None:
    """On the true clock: the grace is far longer than the test may take, and leaving ends it."""
    made = Play(tmp_path, reward__feedback_grace_s=500.0, pace="free")
    made.room.clock = made.bridge.clock = time.monotonic
    made.room.enter("t", "tess", "trainer", "desktop")
    made.step()
    looks = iter(range(100))

    def stopping() -> bool:
        if next(looks) == 2:
            made.room.leave("t", "gone")
        return False

    made.bridge.stage = dataclasses.replace(made.stage, stopping=stopping)
    assert made.bridge.late_feedback() == []


# In a run.


def test_amendments_reach_the_rollout_before_it_is_learned_from(tmp_path: Path) -> None:
    late = {10: [Credit(18, 0, 1, 5.0), Credit(0, 1, 0, 2.0)], 20: [Credit(16, 0, 0, 1.0), Credit(40, 0, 0, 1.0)]}
    bridge = Scripted(late=late)
    runner = on_policy(tmp_path, bridge, "algo=happo", *world("OwnRewards", T=5), PEOPLE, "train.num_env_steps=40")
    learned: list[Any] = []
    update = runner.update

    def noted() -> Any:
        learned.append(runner.buffer.rewards[..., 0].numpy().copy())
        return update()

    runner.update = noted  # type: ignore[method-assign]
    runner.run()
    plain = np.tile(np.array([1.0, 10.0, 100.0], np.float32), (10, 2, 1))
    first = plain.copy()
    first[9, 0, 1] += 5.0
    first[0, 1, 0] += 2.0
    np.testing.assert_array_equal(learned[0], first)
    np.testing.assert_array_equal(learned[1], plain)  # of the rollout before, and of a step that is still to come
    assert bridge.lingered == [18, 38]
    assert column(runner.folder, "people/late_credits") == [2.0]


def test_an_episode_that_is_discarded_in_the_wait_is_not_learned_from(tmp_path: Path) -> None:
    """Episodes of 7 steps: of the first rollout, of 10, its last three are the discarded ones, and step 10 after it."""
    bridge = Scripted(late_discards={10: [0]})
    runner = on_policy(tmp_path, bridge, "algo=happo", *world("Identity", T=7), PEOPLE, "train.num_env_steps=40")
    learned: list[Any] = []
    update = runner.update

    def noted() -> Any:
        learned.append(runner.buffer.weights()[..., 0].amin(-1).numpy().copy())
        return update()

    runner.update = noted  # type: ignore[method-assign]
    runner.run()
    weights = np.concatenate(learned)
    assert np.argwhere(weights == 0).tolist() == [[7, 0], [8, 0], [9, 0], [10, 0]]
    ends = np.stack([outcome.ended for outcome in bridge.outcomes])
    assert np.flatnonzero(ends[:, 0]).tolist() == [6, 10, 17]
    assert sum(column(runner.folder, "train/episodes")) == 2 + 2


def test_a_discard_ends_the_wait(tmp_path: Path) -> None:
    made = Waiting(tmp_path).watched()
    made.happens = {2: lambda: made.room.mark("t", "discard", 0)}
    credits, waited = made.late()
    assert (list(credits), waited) == ([], 1.0)
    assert made.play.bridge.discarded() == [0]
    (told,) = messages(made.room, "notice")
    assert "before the policies learn, 3 s for a word on the last steps" in told["text"]


def test_off_policy_has_nothing_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hitl\.reward\.feedback_grace_s=2: algo\.name=hasac .* allowed: 0"):
        off_policy(tmp_path, Scripted(), "hasac", *world("Identity"), PEOPLE, "hitl.reward.feedback_grace_s=2")
    assert unsupported(web_config(reward__feedback_grace_s=2.0), "on_policy", "happo", 1) == []
    assert unsupported(web_config(), "off_policy", "hasac", 1) == []
