"""A takeover is one thing wherever it is counted: a person drives, and the policy drove before, in the same episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl.hitl.recording.fields import takeover_ends, takeover_starts
from harl.hitl.recording.recordings import find_sessions
from tests.hitl.scripted import PEOPLE, any_family
from tests.hitl.test_discard import Bridge
from tests.runners.runs import column

DRIVEN = {*range(3, 12), 16, 17}
"""Vector steps, of episodes of five: 3 and 16 are takeovers, at 5 and 10 she only goes on."""
LET_GO = {12, 18}


def carol(t: int) -> Any:
    def act(room: Any) -> None:
        if t == 0:
            room.enter("c", "carol", "controller", "desktop")
        if t in DRIVEN:
            if t - 1 not in DRIVEN:
                room.control("c", "request", "agent_0", "toggle")
            room.input("c", "agent_0", t, *room.position[0], 1, True, 60_000)
        if t in LET_GO:
            room.control("c", "release", "agent_0", "toggle")

    return act


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_metric_recording_and_leases_agree_on_who_took_over(tmp_path: Path, algo: str) -> None:
    bridge = Bridge({t: carol(t) for t in range(20)})
    env = ["env=mpe", "env.kwargs.max_cycles=5"]
    runner = any_family(tmp_path, bridge, algo, *env, PEOPLE, "train.num_env_steps=40")
    runner.run()
    (session,) = find_sessions(runner.folder.path)
    episodes = {episode.episode: episode for episode in session.episodes()}
    assert len(list(session.events("lease_granted"))) == 2
    assert sum(column(runner.folder, "people/human_steps")) == len(DRIVEN)
    assert sum(column(runner.folder, "people/interventions")) == 2
    assert {n: episodes[n].facts["interventions"]["agent_0"] for n in episodes} == {0: 1, 1: 0, 2: 0, 3: 1}
    starts = {n: np.argwhere(episodes[n].load()["takeover_start"]).tolist() for n in episodes}
    # The recording sets in after the first step, in which she came.
    assert starts == {0: [[2, 0]], 1: [], 2: [], 3: [[1, 0]]}


def test_takeovers_are_from_the_policy_alone() -> None:
    """0 policy, 1 human, 2 and 3 stand in for an absent driver; the first step of an episode has none before it."""
    source = np.array([[1, 0], [1, 1], [0, 2], [1, 1], [1, 3], [0, 0]], np.int8)
    assert np.argwhere(takeover_starts(source)).tolist() == [[1, 1], [3, 0]]
    assert np.argwhere(takeover_ends(source)).tolist() == [[1, 0], [1, 1], [3, 1], [4, 0]]
    assert not takeover_starts(source[:0]).size
    assert takeover_ends(source[:4]).tolist()[-1] == [True, True]
