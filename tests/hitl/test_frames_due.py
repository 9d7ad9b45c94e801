"""When a frame goes out: as many a second as somebody wants, and every step where steps come no faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from harl.hitl.web import WebBridge
from tests.hitl.rooms import Clock, web_config
from tests.hitl.test_people_bridge import STAGE, outcome_of


@pytest.fixture
def shown() -> Iterator[tuple[WebBridge, Clock]]:
    """A bridge with one person who looks at ten frames a second, and its clock."""
    clock = Clock()
    bridge = WebBridge(web_config(port=0, fps=10.0, record="off"), clock)
    bridge.attach(dataclasses.replace(STAGE, notice=lambda text: None), outcome_of(1))
    bridge.room.enter("o", "olga", "observer", "desktop")
    bridge.room.watch("o", 0, "none", 10.0, 128)
    yield bridge, clock
    bridge.close("over")


def test_steps_at_the_rate_of_the_frames_are_all_shown_however_unevenly_they_come(
    shown: tuple[WebBridge, Clock],
) -> None:
    bridge, clock = shown
    start, rng = clock.now, np.random.default_rng(0)
    for step in range(200):
        clock.now = start + 0.1 * step + rng.uniform(0, 0.02)
        assert bridge.show(0, False, False), f"step {step}"


@pytest.mark.parametrize("steps_per_second", [25, 1000])
def test_of_faster_steps_no_more_are_shown_than_wanted(shown: tuple[WebBridge, Clock], steps_per_second: int) -> None:
    bridge, clock = shown
    count = 0
    for _ in range(20 * steps_per_second):
        clock.now += 1 / steps_per_second
        count += bridge.show(0, False, False)
    assert 160 <= count <= 202


def test_a_render_that_returns_no_picture_is_told_once_and_does_not_stop_the_run() -> None:
    told: list[str] = []
    bridge = WebBridge(web_config(port=0, record="off"), Clock())
    stage = dataclasses.replace(
        STAGE, notice=told.append, render=lambda env: np.zeros((8, 8, 3)), scene=lambda env: None
    )
    bridge.attach(stage, outcome_of(1))
    bridge.room.enter("o", "olga", "observer", "desktop")
    bridge.room.watch("o", 0, "jpeg", 10.0, 128)
    assert bridge.show(0, False, True)
    assert bridge.show(0, False, True)
    bridge.close("over")
    (text,) = [text for text in told if "cannot be shown" in text]
    assert text.endswith("as jpeg: ValueError: a picture is (H, W, 3) of uint8, not (8, 8, 3) of float64")
