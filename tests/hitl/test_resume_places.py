"""People who come to a run that is continued see the episode and the step at which it stands."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harl
from harl.experiment.checkpoint import CheckpointStore
from harl.hitl.bridge import Standing
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.web import WebBridge
from harl.runners import OffPolicyBaseRunner
from tests.hitl.rooms import Clock, web_config
from tests.hitl.scripted import PEOPLE, Scripted, any_family, on_policy
from tests.hitl.test_discard import Bridge, enter
from tests.hitl.test_learning_resume import REPORTS
from tests.hitl.test_people_bridge import STAGE, outcome_of
from tests.runners import off_policy_runs, runs
from tests.runners.runs import world

MPE = ["env=mpe", "env.kwargs.max_cycles=8"]


def stopped(runner: Any, env_steps: int = 50) -> Any:
    """A runner that was stopped after 25 steps of two environments."""
    stop = off_policy_runs.stop_at if isinstance(runner, OffPolicyBaseRunner) else runs.stop_at
    assert stop(runner, env_steps) == 143
    return runner


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_numbers_steps_and_returns_go_on(tmp_path: Path, algo: str) -> None:
    """Episodes of 7 steps; in environment 1 those that began at steps 7 and 20 were discarded at 12 and 24."""
    before = Scripted(discards={12: [1], 24: [1]})
    first = stopped(any_family(tmp_path, before, algo, *REPORTS, PEOPLE))
    bridge = Scripted()
    harl.make_runner([f"resume={first.folder.path}"], bridge=bridge).run()
    (stage,) = bridge.stages
    assert stage.standing is not None
    assert stage.standing.env_steps == 50
    assert stage.standing.episode.tolist() == [3, 4]
    assert stage.standing.step.tolist() == [4, 0]
    earned = np.sum([outcome.rewards[..., 0] for outcome in before.outcomes[21:25]], axis=0, dtype=np.float64)
    np.testing.assert_allclose(stage.standing.returns, [earned[0], [0.0, 0.0]])


def test_a_new_run_stands_at_the_beginning(tmp_path: Path) -> None:
    bridge = Scripted()
    on_policy(tmp_path, bridge, "algo=happo", *REPORTS, PEOPLE, "train.num_env_steps=20").run()
    standing = bridge.stages[0].standing
    assert standing is not None
    assert [standing.env_steps, *standing.episode, *standing.step, *standing.returns.flat] == [0] * 9


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_what_is_seen_driven_and_recorded_has_the_right_place(tmp_path: Path, algo: str) -> None:
    """Episodes of 8 steps, stopped in step 1 of episode 3; the person acts on what they see."""
    first = stopped(any_family(tmp_path, Bridge({}), algo, *MPE, PEOPLE, "train.num_env_steps=80"))

    def drive(room: Any) -> None:
        room.control("t", "request", "agent_0", "toggle")
        room.input("t", "agent_0", 1, 3, 1, 2, True, 60_000)

    bridge = Bridge({0: enter, 1: drive})
    # The step that follows is shown from (3, 2) on: what was seen one step before is not too old.
    second = harl.make_runner([f"resume={first.folder.path}"], bridge=bridge)
    second.run()
    assert bridge.places[0] == (3, 1)
    assert bridge.places[6:9] == [(3, 7), (4, 0), (4, 1)]
    (session,) = find_sessions(second.folder.path)
    episode = next(found for found in session.episodes() if (found.env, found.episode) == (0, 3))
    assert episode.facts["first_step"] == 2
    assert episode.is_partial
    data = episode.load()
    assert len(data["reward"]) == 6
    assert data["seen_step"][0, 0] == 1
    assert (data["source"][0] == [1, 0, 0]).all()


def test_environments_that_begin_anew_have_new_numbers(tmp_path: Path) -> None:
    first = stopped(on_policy(tmp_path, Scripted(), "algo=happo", *world("Identity", T=7), PEOPLE))
    bridge = Scripted()
    harl.make_runner([f"resume={first.folder.path}"], bridge=bridge).run()
    standing = bridge.stages[0].standing
    assert standing is not None
    assert standing.env_steps == 40
    assert standing.episode.tolist() == [4, 4]
    assert standing.step.tolist() == [0, 0]


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_older_checkpoint_goes_on_with_its_step_and_counts_episodes_anew(tmp_path: Path, algo: str) -> None:
    first = stopped(any_family(tmp_path, Scripted(), algo, *REPORTS, PEOPLE))
    store = CheckpointStore(first.folder.checkpoints, keep_last=1)
    steps, state = store.load("latest")
    del state["progress"]["tracker"]["numbers"]
    state["progress"]["people"]["started"] = np.full(2, 42)
    store.save(steps, state, None)
    bridge = Scripted()
    harl.make_runner([f"resume={first.folder.path}"], bridge=bridge).run()
    standing = bridge.stages[0].standing
    assert standing is not None
    assert standing.episode.tolist() == [0, 0]
    assert standing.step.tolist() == [4, 4]


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_discard_in_a_run_that_had_no_people_before_forgets_the_running_episode_alone(
    tmp_path: Path, algo: str
) -> None:
    """Stopped after 25 steps, 4 steps into the episode; it is discarded with the first step that follows."""
    extra = ["algo.save_replay=true", "algo.n_step=1", "algo.buffer_size=200"] if algo == "hasac" else []
    first = stopped(any_family(tmp_path, None, algo, *REPORTS, *extra))
    bridge = Scripted(discards={0: [0]})
    second = harl.make_runner([f"resume={first.folder.path}"], bridge=bridge)
    seen: list[Any] = []
    insert = second.insert

    def inserting(*given: Any) -> None:
        insert(*given)
        if not seen:
            seen.append(left_out(second))

    second.insert = inserting  # type: ignore[method-assign]
    second.run()
    # On-policy the rollout began at step 20, the episode at 21.
    assert seen == [[1, 2, 3, 4, 5] if algo == "happo" else [21, 22, 23, 24, 25]]


def left_out(runner: Any) -> list[int]:
    """Steps of environment 0 in the buffer that are not learned from."""
    if isinstance(runner, OffPolicyBaseRunner):
        rows = torch.arange(runner.buffer.filled) * 2
        assert runner.buffer.people is not None
        return np.flatnonzero(runner.buffer.people.is_forgotten(rows.numpy())).tolist()
    weights = runner.buffer.weights()[:, 0, 0, 0].numpy()
    return np.flatnonzero(weights == 0).tolist()


def test_speed_of_a_run_that_is_continued_does_not_count_what_came_before(tmp_path: Path) -> None:
    clock = Clock()
    bridge = WebBridge(web_config(port=0, record="off"), clock)
    try:
        standing = Standing(10**6, np.array([3]), np.array([4]), np.zeros((1, 3)))
        bridge.attach(dataclasses.replace(STAGE, folder=tmp_path, standing=standing), outcome_of(1))
        assert bridge.room.position == [(3, 4)]
        assert bridge.room.env_steps == 10**6
        clock.now += 2.0
        bridge.env_steps += 100
        bridge._measure(clock.now)
        assert bridge.steps_per_second == 50.0
    finally:
        bridge.close("over")
