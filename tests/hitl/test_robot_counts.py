"""A scripted person sees every step that it drove, the first and the last too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harl.hitl.recording.recordings import find_sessions
from harl.hitl.robot import take_part
from harl.hitl.scripted.client import Robot
from harl.hitl.scripted.traits import Traits
from harl.hitl.scripted.visit import Invitation
from tests.hitl.playing import Run


@pytest.mark.parametrize("pace", ["realtime", "lockstep"])
def test_a_person_who_leaves_has_counted_what_is_recorded(tmp_path: Path, pace: str) -> None:
    with Run(tmp_path, pace=pace, fps=10.0, record="touched", timeout_s=30.0) as run:
        token = run.bridge.links["controller"].split("token=")[1]
        traits = Traits(delay_steps=(0, 0), noise=0.0, gate="always", budget=None, segment=7)
        person = Robot(Invitation(url=run.url, token=token), traits, seed=3)
        summary = asyncio.run(person.run(2.0))
    assert summary.ended == "time was up"
    assert summary.driven >= 10
    assert summary.driven == run.human.sum()
    (session,) = find_sessions(tmp_path)
    assert summary.driven == sum(episode.human_steps for episode in session.episodes())
    assert f"{summary.driven} steps seen driven" in str(summary)


@pytest.mark.parametrize("pace", ["realtime", "lockstep"])
def test_steps_that_somebody_else_drove_are_not_counted(tmp_path: Path, pace: str) -> None:
    with Run(tmp_path, pace=pace, fps=20.0, record="touched", timeout_s=1.0) as run:
        token = run.bridge.links["controller"].split("token=")[1]
        shares = {"idle": 0.0, "amy": 0.3, "bob": 0.3}
        people = [
            Robot(
                Invitation(url=run.url, token=token, name=name),
                Traits(delay_steps=(0, 0), noise=0.0, gate="always", budget=share, segment=5),
                seed=3,
            )
            for name, share in shares.items()
        ]
        idle, amy, bob = asyncio.run(take_part(people, 3.0))
    assert (idle.inputs, idle.driven) == (0, 0)
    assert amy.driven + bob.driven >= 10
    # A step whose frame gave way to the next one is not seen, where somebody else drives in that; none is seen by two.
    assert 0.9 * run.human.sum() <= amy.driven + bob.driven <= run.human.sum()
    for summary in (amy, bob):
        assert summary.driven <= 0.3 * 3 * summary.steps
