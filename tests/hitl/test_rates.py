"""Rates of messages, by a clock that passes when a test says so."""

from __future__ import annotations

from harl.hitl.network.rates import Bucket, Limits, Meter, Verdict
from tests.hitl.rooms import Clock


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(rate=10, burst=3, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(0.1), bucket.take(0.1), bucket.take(0.25)] == [True, False, True]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_rates_are_those_of_the_protocol() -> None:
    clock = Clock()
    meter = Meter(Limits(), clock)
    taken = {"input": 0, "feedback": 0, "mark": 0}
    for _ in range(1000):  # ten seconds
        clock.now += 0.01
        for kind in taken:
            taken[kind] += meter.read(kind) is Verdict.TAKE
    assert {kind: round(count, -1) for kind, count in taken.items()} == {"input": 630, "feedback": 110, "mark": 220}


def test_feedback_and_its_undoing_share_a_rate() -> None:
    meter = Meter(Limits(), Clock())
    verdicts = [meter.read(kind) for kind in ("feedback", "undo") * 6]
    assert verdicts.count(Verdict.TAKE) == 10


def test_one_drop_in_a_row_is_told() -> None:
    clock = Clock()
    meter = Meter(Limits(any_rate=1), clock)
    assert [meter.arrived() for _ in range(4)] == [
        Verdict.TAKE, Verdict.DROP_AND_TELL, Verdict.DROP, Verdict.DROP,
    ]  # fmt: skip
    clock.now += 5
    assert [meter.arrived() for _ in range(2)] == [Verdict.TAKE, Verdict.DROP_AND_TELL]


def test_a_flood_ends_the_connection_and_a_calm_second_forgives() -> None:
    clock = Clock()
    meter = Meter(Limits(any_rate=1, flood_s=5), clock)
    seen = []
    for _ in range(60):
        clock.now += 0.1
        seen.append(meter.arrived())
    assert seen.index(Verdict.HANG_UP) in range(50, 55)
    calm = Meter(Limits(any_rate=1, flood_s=5), clock)
    for _ in range(20):  # two at once every two seconds: over the rate each time, never for long
        clock.now += 2
        assert [calm.arrived(), calm.arrived()] == [Verdict.TAKE, Verdict.DROP_AND_TELL]
