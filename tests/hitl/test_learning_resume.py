"""A run with people that is stopped and continued is the run that was never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harl
from harl.hitl.bridge import Credit
from tests.hitl.scripted import PEOPLE, Scripted, off_policy, on_policy
from tests.runners import off_policy_runs, runs
from tests.runners.runs import world

REPORTS = world("Reports", T=7)


def drive(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
    """Takeovers that start right at, and run across, the step at which the run is stopped (25)."""
    return {**({(0, 1): 2} if 23 <= step < 28 else {}), **({(1, 0): 1} if step in (2, 3, 25, 30) else {})}


def people(step: int = 0) -> Scripted:
    credits = {k: [Credit(2 * k - 2, 0, 1, 0.5)] for k in (5, 26, 33)}
    bridge = Scripted(drive, lambda k, rewards: rewards + 0.1 * (k % 3), credits, {12: [1], 24: [1]})
    bridge.step = step
    return bridge


MEMORY = ["model.use_recurrent_policy=true", "model.data_chunk_length=5"]


@pytest.mark.parametrize("extra", [[], MEMORY, ["algo=hatrpo"], ["env.state_type=FP", "hitl.takeover.value_mask=true"]])
def test_on_policy(tmp_path: Path, extra: list[str]) -> None:
    def build(bridge: Scripted, folder: str) -> Any:
        given = ["algo=happo", *REPORTS, PEOPLE, "hitl.takeover.takeover_penalty=0.3", *extra]
        return on_policy(tmp_path / folder, bridge, *given)

    _stopped_and_continued(build, lambda runner: runs.stop_at(runner, 50))


IMITATED = ["hitl.takeover.learn=rlpd_bc"]


@pytest.mark.parametrize("extra", [[], [*IMITATED, "algo.n_step=1"], [*IMITATED, "algo.n_step=3", "env.state_type=FP"]])
def test_off_policy(tmp_path: Path, extra: list[str]) -> None:
    def build(bridge: Scripted, folder: str) -> Any:
        given = [*REPORTS, PEOPLE, "hitl.takeover.takeover_penalty=0.3", *extra]
        return off_policy(tmp_path / folder, bridge, "hasac", *given)

    _stopped_and_continued(build, lambda runner: off_policy_runs.stop_at(runner, 50))


def _stopped_and_continued(build: Callable[[Scripted, str], Any], stop: Callable[[Any], int]) -> None:
    whole = build(people(), "whole")
    whole.run()
    first = build(people(), "parts")
    assert stop(first) == 143
    bridge = people(step=25)
    second = harl.make_runner([f"resume={first.folder.path}"], bridge=bridge)
    second.run()
    assert bridge.asked[0] == 50
    np.testing.assert_array_equal(bridge.first[0].obs, bridge.obs[0])
    runs.assert_same_run(whole.folder, second.folder)


def test_environments_that_cannot_be_saved_begin_anew(tmp_path: Path) -> None:
    """Nothing of the time before is taken for the step before."""
    first = on_policy(tmp_path, people(), "algo=happo", *world("Identity", T=7), PEOPLE)
    assert runs.stop_at(first, 50) == 143
    bridge = Scripted(lambda step, obs, proposed: {(0, 1): 2} if step == 0 else {})
    second = harl.make_runner([f"resume={first.folder.path}"], bridge=bridge)
    second.run()
    # The rollout of which 5 steps were taken is taken again.
    assert bridge.asked[0] == 40
    assert bridge.first[0].obs.shape == (2, 2, 4)


def test_run_without_people_is_continued_with_them(tmp_path: Path) -> None:
    first = on_policy(tmp_path, None, "algo=happo", *REPORTS)
    assert runs.stop_at(first, 50) == 143
    bridge = people(step=25)
    harl.make_runner([f"resume={first.folder.path}"], bridge=bridge).run()
    assert bridge.asked[0] == 50
