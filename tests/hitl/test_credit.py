"""Which steps a press of + or − is about."""

from __future__ import annotations

from collections import deque

import pytest

from harl.hitl.credit import Ledger, Shown, credited

SLOW, FAST = (0.2, 4.0), (0.2, 0.6)


def frames_at(*times: float) -> deque[Shown]:
    """A frame at each time, each after one step: step k of episode 0 has env_steps 100 + k."""
    return deque(Shown(0, k, at, (100 + k,)) for k, at in enumerate(times))


def test_weights_are_the_shares_of_the_reaction_time_and_sum_to_one():
    # Displayed 0–1, 1–2, 2–(event at 3): u from 2 to 3, 1 to 2, 0.2 to 1 s before the event.
    weights = dict(credited(frames_at(0.0, 1.0, 2.0), (0, 2), 3.0, SLOW, False))
    assert weights == pytest.approx({100: 1.0 / 2.8, 101: 1.0 / 2.8, 102: 0.8 / 2.8})
    assert sum(weights.values()) == pytest.approx(1.0)


def test_the_closed_form_of_a_uniform_density():
    frames = frames_at(*[0.1 * k for k in range(100)])
    weights = dict(credited(frames, (0, 99), 10.0, SLOW, False))
    for k in range(100):
        lo, hi = 10.0 - (0.1 * (k + 1) if k < 99 else 10.0), 10.0 - 0.1 * k
        overlap = max(0.0, min(hi, 4.0) - max(lo, 0.2))
        assert weights.get(100 + k, 0.0) == pytest.approx(overlap / 3.8, abs=1e-9)


def test_the_window_of_fast_games_is_shorter():
    weights = dict(credited(frames_at(0.0, 1.0, 2.0, 2.9), (0, 3), 3.0, FAST, False))
    assert weights == pytest.approx({102: 1.0})


def test_turn_is_the_last_shown_step_alone():
    assert credited(frames_at(0.0, 1.0, 2.0), (0, 1), 9.0, None, False) == [(101, 1.0)]


def test_steps_that_passed_unseen_share_the_weight_of_the_frame_after_them():
    frames = deque([Shown(0, 0, 0.0, ()), Shown(0, 10, 1.0, tuple(range(10)))])
    weights = dict(credited(frames, (0, 10), 2.0, SLOW, False))
    assert weights == pytest.approx(dict.fromkeys(range(10), 0.1))
    assert credited(frames, (0, 10), 2.0, SLOW, True) == [(9, 1.0)]


def test_feedback_on_what_was_not_shown_or_long_ago_goes_nowhere():
    assert credited(frames_at(0.0, 1.0), (1, 0), 2.0, SLOW, False) == []
    assert credited(frames_at(0.0), (0, 0), 9.0, SLOW, False) == [(100, 1.0)]
    assert credited(frames_at(0.0, 0.1), (0, 1), 0.15, SLOW, False) == []


def test_nobody_praises_what_was_shown_before_they_came():
    frames = frames_at(0.0, 1.0, 2.0, 3.0)
    assert dict(credited(frames, (0, 3), 4.0, SLOW, False, since=1.5)) == pytest.approx({102: 1 / 1.8, 103: 0.8 / 1.8})
    assert credited(frames, (0, 3), 4.0, SLOW, False, since=3.5) == []
    assert credited(frames, (0, 3), 4.0, None, False, since=3.5) == []


def test_two_people_count_as_their_mean_weighted_by_confidence():
    ledger = Ledger()
    assert ledger.say(5, 0, "a", 1.0, 1.0) == (None, 1.0)
    assert ledger.say(5, 0, "b", -1.0, 1.0) == (1.0, 0.0)
    before, after = ledger.say(5, 0, "c", 1.0, 2.0)
    assert (before, after) == (0.0, 0.5)


def test_the_same_person_twice_adds_up():
    ledger = Ledger()
    ledger.say(5, 0, "a", 0.25, 1.0)
    assert ledger.say(5, 0, "a", 0.5, 1.0) == (0.25, 0.75)


def test_what_is_taken_back_was_never_said():
    ledger = Ledger()
    ledger.say(5, 0, "a", 0.25, 1.0)
    assert ledger.say(5, 0, "a", -0.25, 1.0, -1) == (0.25, None)
    assert ledger.said == {}


def test_memory_is_bounded():
    ledger = Ledger()
    for step in range(20_000):
        ledger.passed(step)
        ledger.say(step, 0, "a", 1.0, 1.0)
        if step % 7000 == 0:
            ledger.show(0, step, float(step))
    assert len(ledger.said) <= 4096
    assert len(ledger.pending) <= 4096
    assert max(len(frame.steps) for frame in ledger.frames) <= 4096


def test_a_frame_that_is_shown_again_to_newcomers_is_the_same_frame_to_the_others():
    ledger = Ledger()
    for step, at in ((1, 0.0), (2, 1.0), (2, 1.5)):
        if at != 1.5:
            ledger.passed(100 + step)
        ledger.show(0, step, at)
    assert dict(credited(ledger.frames, (0, 2), 3.0, None, False)) == {102: 1.0}
    assert dict(credited(ledger.frames, (0, 2), 3.0, SLOW, False)) == pytest.approx({101: 1.0 / 2.8, 102: 1.8 / 2.8})
