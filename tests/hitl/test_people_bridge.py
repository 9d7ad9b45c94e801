"""From what people do to what environments and learners get."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from harl.envs.api import EnvStep
from harl.hitl.bridge import PeopleError, Source, Stage
from harl.hitl.people_bridge import PeopleBridge
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.web import WebBridge
from tests.hitl.rooms import LAYOUT, Clock, messages, web_config

N = 2


class Bridge(PeopleBridge):
    """Shows every step to whoever is there."""

    def show(self, env, done, at_once):
        if env in self.crediting.ledgers:
            self.crediting.ledgers[env].show(*self.room.position[env], self.clock())
        return True


def outcome_of(n: int, rewards: float = 0.0, ended: bool = False) -> EnvStep:
    """A step of n environments of three agents."""
    flags = np.zeros((n, 3), bool)
    return EnvStep(
        obs=np.zeros((n, 3, 4), np.float32), share_obs=np.zeros((n, 3, 12), np.float32), available_actions=None,
        active=np.ones((n, 3, 1), np.float32), rewards=np.full((n, 3, 1), rewards, np.float32), terminated=flags,
        truncated=flags, ended=np.full(n, ended),
    )  # fmt: skip


STAGE = Stage(
    layout=dataclasses.replace(LAYOUT, has_masks=False), num_envs=1, purpose="train", title="a run", env_name="x",
    scenario="y", algo="happo", folder=Path(), sums_rewards=False, total_steps=1000,
    render=lambda env: np.zeros((8, 8, 3), np.uint8), scene=lambda env: None, earliest=lambda: 0,
    stopping=lambda: False, log_probs=lambda obs, masks, actions: None, notice=print, metrics=lambda numbers: None,
)  # fmt: skip


class Play:
    """A bridge on a stage, stepped by hand."""

    def __init__(self, tmp_path, **changes):
        self.clock = Clock()
        self.bridge = Bridge(web_config(**{"record": "off", **changes}), self.clock)
        self.earliest, self.steps = 0, 0
        self.stage = dataclasses.replace(STAGE, num_envs=N, folder=tmp_path, earliest=lambda: self.earliest)
        self.bridge.attach(self.stage, outcome_of(N))
        self.room = self.bridge.room

    def step(self, proposed=None, masks=None, rewards=0.0, ended=False, left=()):
        """`left`: environments and agents that take part in no step after this one."""
        proposed = np.full((N, 3, 2), 0.5, np.float32) if proposed is None else proposed
        outcome = outcome_of(N, rewards, ended)
        for place in left:
            outcome.active[place] = 0.0
        override = self.bridge.override_actions(self.steps, outcome.obs, masks, proposed)
        learned, credits = self.bridge.override_rewards(self.steps, outcome.rewards)
        self.bridge.publish(outcome)
        self.steps += N
        self.clock.now += 1.0
        return proposed, override, learned, credits


@pytest.fixture
def play(tmp_path):
    made = Play(tmp_path, reward__anneal=False, pace="free", takeover__lease_ttl_ms=60_000)
    made.room.enter("c", "carol", "controller", "desktop")
    made.room.enter("t", "tess", "trainer", "desktop")
    return made


def test_with_nobody_there_the_proposal_itself_comes_back(tmp_path):
    proposed, override, _, credits = Play(tmp_path).step()
    assert override.actions is proposed
    assert override.source is override.policy_mask is None
    assert credits == ()


def test_with_observers_alone_the_proposal_itself_comes_back(tmp_path):
    made = Play(tmp_path, pace="free")
    made.room.enter("o", "olga", "observer", "desktop")
    proposed, override, _, _ = made.step()
    assert override.actions is proposed
    assert override.policy_mask is None


def test_a_playback_goes_in_real_time_for_observers_too(tmp_path):
    made = Play(tmp_path, pace="auto")
    made.room.enter("o", "olga", "observer", "desktop")
    assert made.room.pace.state() == "free", "a training goes on"
    made.bridge.attach(dataclasses.replace(made.stage, purpose="evaluate"), outcome_of(N))
    assert made.room.pace.state() == "realtime"
    made.room.leave("o", "gone")
    assert made.room.pace.state() == "free"


def test_the_driven_agent_alone_is_overridden(play):
    play.room.control("c", "request", "mover", "hold")
    play.room.input("c", "mover", 1, 0, 0, 3, True, 60_000)
    proposed, override, _, _ = play.step()
    assert (proposed == 0.5).all()
    assert override.actions[0, 0, 0] == 3
    assert np.delete(override.actions.reshape(-1), 0).tolist() == [0.5] * 11
    assert override.source.tolist() == [[Source.HUMAN, 0, 0], [0, 0, 0]]
    assert override.policy_mask[..., 0].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_how_old_what_they_have_seen_is(play):
    play.room.control("c", "request", "mover", "hold")
    play.room.input("c", "mover", 1, 0, 0, 3, True, 60_000)
    play.step()
    _, held, _, _ = play.step()
    assert held.seen_ago.tolist() == [[1, 0, 0], [0, 0, 0]]
    play.room.input("c", "mover", 2, 0, 2, 3, True, 60_000)
    assert play.step()[1].seen_ago.sum() == 0
    play.step(ended=[0])
    play.step()
    play.room.input("c", "mover", 3, 0, 3, None, True, 60_000)  # letting go is never too late
    _, other, _, _ = play.step()
    assert other.seen_ago[0, 0] == 2, "more steps than the episode has had"


def test_doing_nothing_is_an_action_of_the_person(play):
    play.room.control("c", "request", "arm", "toggle")
    play.room.input("c", "arm", 1, 0, 0, None, True, 60_000)
    _, override, _, _ = play.step()
    assert override.actions[0, 2].tolist() == [0.0, 0.0]
    assert override.source[0, 2] == Source.HUMAN


@pytest.mark.parametrize(
    ("absent", "acted", "source"),
    [("policy", 0.5, Source.POLICY), ("default", 0.0, Source.DEFAULT), ("previous", 3.0, Source.PREVIOUS)],
)
def test_who_acts_for_an_awaited_driver_who_does_not(tmp_path, absent, acted, source):
    made = Play(tmp_path, absent=absent, pace="lockstep", timeout_s=0.01, takeover__lease_ttl_ms=60_000)
    made.room.clock = made.bridge.clock = made.clock
    made.room.enter("c", "carol", "controller", "desktop")
    made.room.control("c", "request", "mover", "hold")
    made.room.input("c", "mover", 1, 0, 0, 3, True, 60_000)
    _, first, _, _ = made.step()
    assert first.actions[0, 0, 0] == 3
    made.room.seats[0, 0].held = None
    hold = made.room.pace.hold
    made.room.pace.hold = lambda stopping, show: (hold(lambda: True, show), True)[1]
    _, second, _, _ = made.step()
    assert second.actions[0, 0, 0] == acted
    assert (second.source[0, 0] if second.source is not None else 0) == source


@pytest.mark.parametrize("absent", ["default", "previous"])
def test_nobody_stands_in_for_the_driver_of_an_agent_that_has_left(tmp_path, absent):
    made = Play(tmp_path, absent=absent, pace="free", takeover__lease_ttl_ms=60_000)
    made.room.enter("c", "carol", "controller", "desktop")
    for agent in ("mover", "arm"):
        made.room.control("c", "request", agent, "hold")
    made.room.pace.hold = lambda stopping, meanwhile: True
    made.step(left=[(0, 0)])
    proposed, override, _, _ = made.step()
    assert override.source[0].tolist() == [Source.POLICY, Source.POLICY, Source[absent.upper()]]
    assert (override.actions[0, 0] == proposed[0, 0]).all()


def feedback(play, value=1.0, agent="mover", who="t", seq=1, seen=(0, 3), shown_ms=1000.0, **more):
    play.room.feedback(who, agent, seq, value, *seen, shown_ms=shown_ms, **more)


def test_praise_reaches_the_steps_that_were_on_the_screen(play):
    for _ in range(3):
        play.step()
    # The frames after steps 1, 2, 3 were shown for a second each; the event comes a second after the last one.
    feedback(play)
    _, _, rewards, credits = play.step(rewards=2.0)
    assert (rewards == 2.0).all()
    assert [(c.env_steps, c.env, c.agent) for c in credits] == [(0, 0, 0), (2, 0, 0), (4, 0, 0)]
    assert [c.delta for c in credits] == pytest.approx([0.5 * w / 2.8 for w in (1.0, 1.0, 0.8)])
    (told,) = messages(play.room, "credit")
    assert (told["seq"], told["late"]) == (1, False)
    assert told["weight_sum"] == pytest.approx(1.0)


def test_who_comes_later_praises_what_was_shown_since_alone(play):
    for _ in range(3):
        play.step()
    play.clock.now += 0.5
    play.room.enter("l", "lea", "trainer", "desktop")
    feedback(play, who="l", shown_ms=10.0)
    assert play.step()[3] == [], "on the first thing that she sees, she has seen nothing happen"
    assert messages(play.room, "credit")[-1]["late"] is True
    play.step()
    feedback(play, who="l", seq=2, seen=(0, 5))
    assert {credit.env_steps for credit in play.step()[3]} == {6, 8}


def test_who_comes_after_all_have_left_does_not_praise_what_they_saw(play):
    play.step()
    play.bridge.crediting.ledgers[0].pending.append(0)  # not shown yet when they left
    play.room.leave("c", "gone")
    play.room.leave("t", "gone")
    play.step()
    play.room.enter("l", "lea", "trainer", "desktop")
    play.step()
    feedback(play, who="l", seen=(0, 3))
    assert {credit.env_steps for credit in play.step()[3]} == {4}


def test_one_press_is_worth_the_weight_for_each_of_the_team(play):
    for _ in range(3):
        play.step()
    feedback(play, agent="team")
    _, _, _, credits = play.step()
    assert sum(c.delta for c in credits) == pytest.approx(3 * 0.5)


def test_where_rewards_are_added_up_a_press_on_the_team_counts_once(play):
    play.bridge.crediting.stage = dataclasses.replace(play.stage, sums_rewards=True)
    for _ in range(3):
        play.step()
    feedback(play, agent="team")
    _, _, _, credits = play.step()
    assert sum(c.delta for c in credits) == pytest.approx(0.5)


def test_late_feedback_is_recorded_but_not_applied(play):
    for _ in range(3):
        play.step()
    play.earliest = 6
    feedback(play)
    _, _, _, credits = play.step()
    assert credits  # the runner counts them
    assert all(credit.delta == 0.0 for credit in credits)
    assert messages(play.room, "credit")[0]["late"] is True


def test_partly_late_feedback_reaches_the_steps_that_are_left(play):
    for _ in range(3):
        play.step()
    play.earliest = 4
    feedback(play)
    _, _, _, credits = play.step()
    assert [c.env_steps for c in credits if c.delta] == [4]
    assert messages(play.room, "credit")[0]["late"] is True


def test_taking_it_back_takes_back_what_it_did(play):
    for _ in range(3):
        play.step()
    feedback(play)
    _, _, _, credits = play.step()
    play.room.undo("t", 1)
    _, _, _, undone = play.step()
    assert [(c.env_steps, c.delta) for c in undone] == [(c.env_steps, pytest.approx(-c.delta)) for c in credits]
    play.room.undo("t", 1)
    assert play.step()[3] == []


def test_replace_puts_feedback_in_the_place_of_the_reward_in_credited_steps_alone(tmp_path):
    made = Play(tmp_path, reward__learn="replace", reward__credit="turn", pace="free")
    made.room.enter("t", "tess", "trainer", "desktop")
    for _ in range(3):
        made.step(rewards=7.0)
    assert not made.step(rewards=7.0)[3]  # silence is no reward
    feedback(made, value=-1.0)
    _, _, rewards, credits = made.step(rewards=7.0)
    assert (rewards == 7.0).all()
    assert [(c.env_steps, c.agent, c.delta) for c in credits] == [(4, 0, -8.0)]
    feedback(made, value=0.5, seq=2)
    assert [c.delta for c in made.step()[3]] == [0.5]
    made.room.undo("t", 1)
    made.room.undo("t", 2)
    assert sum(c.delta for c in made.step()[3]) == 7.5  # the reward is what it was


def test_the_weight_falls_linearly_to_nothing(tmp_path):
    made = Play(tmp_path, reward__credit="turn", pace="free")
    made.room.enter("t", "tess", "trainer", "desktop")
    made.step()
    made.steps = 750
    made.step()
    feedback(made, seen=(0, 2))
    (credit,) = made.step()[3]
    assert credit.delta == pytest.approx(0.5 * (1 - 752 / 1000))


@pytest.mark.parametrize("learn", ["log", "evaluate"])
def test_what_is_only_recorded_changes_nothing(tmp_path, learn):
    changes = {"reward__learn": "log"} if learn == "log" else {}
    made = Play(tmp_path, pace="free", **changes)
    if learn == "evaluate":
        made.bridge.crediting.stage = dataclasses.replace(made.stage, purpose="evaluate")
    made.room.enter("t", "tess", "trainer", "desktop")
    for _ in range(3):
        made.step()
    feedback(made)
    assert made.step()[3] == []


def test_episodes_are_counted_for_everybody(play):
    play.step(rewards=1.0)
    assert play.room.position[0] == (0, 1)
    play.step(rewards=1.0, ended=True)
    assert play.room.position[0] == (1, 0)
    assert play.bridge.last_return[0].tolist() == [2.0] * 3


def test_the_share_of_human_steps(play):
    play.room.control("c", "request", "mover", "hold")
    play.step()
    play.room.input("c", "mover", 1, 0, 1, 3, True, 60_000)
    play.step()
    assert play.bridge.human_share == 0.5


def test_a_discarded_episode_is_named_once_WS14(play):
    play.step()
    play.room.mark("c", "discard", 0)
    play.step()
    assert play.bridge.discarded() == [0]
    assert play.bridge.discarded() == []


def test_whoever_drops_out_is_replaced_by_the_policy_at_the_next_step_and_may_come_back_WS11(play):
    play.room.control("c", "request", "mover", "hold")
    play.room.input("c", "mover", 1, 0, 0, 3, True, 60_000)
    assert play.step()[1].source[0, 0] == Source.HUMAN
    play.room.away("c")
    kinds = [kind for kind, _ in play.room.drain_events()]
    assert play.step()[1].policy_mask is None
    play.clock.now += 3
    play.room.back("c")
    play.room.control("c", "request", "mover", "hold")
    play.room.input("c", "mover", 2, 0, 2, 3, True, 60_000)
    assert play.step()[1].source[0, 0] == Source.HUMAN
    assert kinds == ["lease_expired", "away"]


def test_an_episode_that_people_leave_after_seven_steps_is_kept_and_marked_ENV14(tmp_path):
    made = Play(tmp_path, record="touched", pace="free", takeover__lease_ttl_ms=60_000)
    made.room.enter("c", "carol", "controller", "desktop")
    made.step(ended=True)  # what is recorded begins with the next episode
    made.room.control("c", "request", "mover", "hold")
    for step in range(7):
        made.room.input("c", "mover", step + 1, 1, step, 3, True, 60_000)
        made.step(rewards=1.0)
    made.room.leave("c", "gone")
    for _ in range(3):
        made.step()
    made.room.enter("d", "dave", "controller", "desktop")
    made.step()
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    (episode,) = [found for found in session.episodes() if (found.env, found.episode) == (0, 1)]
    data = episode.load()
    assert len(data["obs"]) == 8
    assert len(data["executed"]) == len(data["reward"]) == 7
    assert episode.is_partial
    assert not (data["terminated"] | data["truncated"]).any()
    assert (data["source"][:, 0] == Source.HUMAN).all()


def test_a_run_that_waits_for_people_ends_when_nobody_comes_WS16():
    bridge = WebBridge(web_config(port=0, wait_for_people=True, max_pause_s=0.3))
    try:
        bridge.attach(dataclasses.replace(STAGE, notice=lambda text: None), outcome_of(1))
        with pytest.raises(PeopleError, match="nobody came within hitl"):
            bridge.override_actions(0, np.zeros((1, 3, 4), np.float32), None, np.zeros((1, 3, 2), np.float32))
    finally:
        bridge.close("over")


def test_two_people_of_one_name_are_told_apart(play):
    assert play.room.enter("x", "carol", "controller", "desktop") == "carol-2"
    assert play.room.enter("y", "carol", "controller", "desktop") == "carol-3"


def test_realtime_is_realtime_with_nobody_there(tmp_path):
    made = Play(tmp_path, pace="realtime")
    held = []
    made.room.pace.hold = lambda stopping, show: held.append(1)
    proposed, override, _, _ = made.step()
    assert held
    assert override.actions is proposed


def test_after_letting_go_the_run_stays_in_real_time_for_a_while(tmp_path):
    made = Play(tmp_path, pace="auto")
    made.room.enter("t", "tess", "trainer", "desktop")
    made.room.control("t", "request", "mover", "hold")
    made.room.input("t", "mover", 1, 0, 0, 3, True, 500)
    made.room.input("t", "mover", 2, 0, 0, None, False, 500)
    made.room.control("t", "release", "mover", "hold")
    made.clock.now += 9
    assert made.room.pace.state() == "realtime"
    made.clock.now += 2
    assert made.room.pace.state() == "free"


def test_feedback_is_recorded_at_the_step_that_was_shown_and_at_those_it_is_credited_to(tmp_path):
    made = Play(tmp_path, record="touched", pace="free", reward__anneal=False)
    made.room.enter("t", "tess", "trainer", "desktop")
    made.step(ended=True)
    for _ in range(3):
        made.step()
    feedback(made, value=-1.0, seen=(1, 3))
    made.step()
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    (episode,) = [found for found in session.episodes() if (found.env, found.episode) == (0, 1)]
    data = episode.load()
    assert data["human_raw"][:, 0].tolist()[2] == -1.0
    assert np.isnan(np.delete(data["human_raw"][:, 0], 2)).all()
    assert data["human_credited"][:, 0].sum() == pytest.approx(-2.8 / 3.8, abs=1e-5)  # the rest: a step before
    assert data["weight"].tolist() == [0.5] * 4


def test_feedback_after_a_discard_is_not_spent_on_what_was_discarded(tmp_path):
    made = Play(tmp_path, record="touched", pace="free", reward__anneal=False)
    made.room.enter("t", "tess", "trainer", "desktop")
    for _ in range(3):
        made.step()
    made.room.mark("t", "discard", 0)
    assert made.bridge.discarded() == [0]
    made.step(ended=True)
    feedback(made, seen=(1, 0), seq=1)  # nothing has happened since
    assert made.step()[3] == []
    made.step()
    made.room.outbox.take()
    feedback(made, seen=(1, 2), seq=2, shown_ms=500.0)
    credits = {credit.env_steps: credit.delta for credit in made.step()[3]}
    assert credits == pytest.approx({8: 0.5 * 1.0 / 3.8, 10: 0.5 * 0.3 / 3.8})  # the rest was thrown away
    (told,) = messages(made.room, "credit")
    assert (told["late"], told["weight_sum"]) == (False, pytest.approx(1.3 / 3.8))
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    first, second = (event for event in session.events() if event.kind == "feedback")
    assert (first.data["credited"], first.data["late"]) == ([], True)
    assert [place[:2] for place in second.data["credited"]] == [[1, 0], [1, 1]]
    gone, kept = (found for found in session.episodes() if found.env == 0)
    assert gone.discarded
    assert gone.amendments == ()
    assert not gone.load()["human_credited"].any()
    assert kept.load()["human_credited"][:2, 0].sum() == pytest.approx(1.3 / 3.8)


def test_feedback_on_the_last_step_of_a_run_is_recorded(tmp_path):
    """It is heard in the step after; where there is none, when the run ends."""
    made = Play(tmp_path, record="touched", pace="free", reward__anneal=False)
    made.room.enter("t", "tess", "trainer", "desktop")
    for _ in range(3):
        made.step()
    feedback(made, shown_ms=500.0)
    made.bridge.close("over")
    made.bridge.close("over")
    (session,) = find_sessions(tmp_path)
    (event,) = [event for event in session.events() if event.kind == "feedback"]
    assert event.data["late"] is True  # nothing learns any more
    (episode,) = [found for found in session.episodes() if found.env == 0]
    data = episode.load()
    assert data["human_raw"][-1, 0] == 1.0
    assert data["human_credited"][-1, 0] > 0
    assert data["reward_learned"].tolist() == data["reward"].tolist()


@pytest.mark.parametrize("record", ["touched", "watched"])
def test_who_comes_in_and_acts_before_the_next_step_is_recorded_from_that_one_on(tmp_path, record):
    made = Play(tmp_path, record=record, pace="free", takeover__lease_ttl_ms=60_000)
    made.step(rewards=1.0)
    made.room.enter("c", "carol", "controller", "desktop")
    made.room.control("c", "request", "mover", "hold")
    made.room.input("c", "mover", 1, 0, 1, 3, True, 60_000)
    overrides = [made.step(rewards=reward)[1] for reward in (2.0, 3.0)]
    assert all(override.source[0, 0] == Source.HUMAN for override in overrides)
    made.bridge.close("the run is over")
    (session,) = find_sessions(tmp_path)
    (episode,) = session.episodes()
    assert (episode.human_steps, episode.facts["first_step"]) == (2, 1)
    recorded = episode.load()
    assert recorded["reward"][:, 0].tolist() == [2.0, 3.0]
    assert recorded["executed"][:, 0, 0].tolist() == [3.0, 3.0]
