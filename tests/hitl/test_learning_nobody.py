"""A bridge at which nobody does anything changes nothing, to the bit; and what every bridge is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from harl.config import ConfigError
from harl.envs.api import FloatArray
from harl.runners import RunInterrupted
from tests.hitl.scripted import PEOPLE, Scripted, any_family, off_policy, on_policy, parameters
from tests.runners.runs import world

ALGOS = ["happo", "mappo", "hatrpo", "haa2c", "hasac", "hatd3", "had3qn", "maddpg"]


def env_of(algo: str) -> list[str]:
    if algo in ("happo", "hatrpo"):
        return world("Deaths")
    return ["env=mpe", f"env.continuous_actions={str(algo in ('hasac', 'hatd3', 'maddpg')).lower()}"]


@pytest.mark.parametrize("algo", ALGOS)
def test_nobody_drives_and_nothing_changes(tmp_path: Path, algo: str) -> None:
    plain = any_family(tmp_path / "a", None, algo, *env_of(algo))
    plain.run()
    bridge = Scripted()
    watched = any_family(tmp_path / "b", bridge, algo, *env_of(algo), PEOPLE)
    watched.run()
    assert torch.equal(parameters(plain), parameters(watched))
    assert bridge.step == 40
    assert bridge.closed[0] == "completed"


def test_memory_and_images_are_the_same_too(tmp_path: Path) -> None:
    for extra in (
        ["model.use_recurrent_policy=true", "model.data_chunk_length=5", *world("Recall")],
        world("Quadrants"),
    ):
        plain = on_policy(tmp_path, None, "algo=happo", *extra)
        plain.run()
        watched = on_policy(tmp_path, Scripted(), "algo=happo", *extra, PEOPLE)
        watched.run()
        assert torch.equal(parameters(plain), parameters(watched))


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_every_step_is_asked_shown_and_numbered(tmp_path: Path, algo: str) -> None:
    bridge = Scripted()
    runner = any_family(tmp_path, bridge, algo, *world("Identity", T=5), PEOPLE)
    runner.run()
    assert bridge.asked == list(range(0, 80, 2))
    assert len(bridge.outcomes) == 40
    (stage,) = bridge.stages
    assert stage.purpose == "train"
    assert stage.num_envs == 2
    assert stage.title == f"{algo} on pettingzoo/Identity"
    assert stage.folder == runner.folder.path
    assert stage.total_steps == 80
    np.testing.assert_array_equal(bridge.first[0].obs, bridge.obs[0])
    for before, after in zip(bridge.outcomes, bridge.obs[1:], strict=False):
        np.testing.assert_array_equal(before.obs, after)
    assert bridge.closed[0] == "completed"
    if algo == "happo":
        assert bridge.earliest == [asked // 20 * 20 for asked in bridge.asked]
    else:
        assert bridge.earliest == [max(0, asked - 48) for asked in bridge.asked]


def test_pictures_of_the_training_environments_are_at_hand(tmp_path: Path) -> None:
    bridge = Scripted()
    on_policy(tmp_path, bridge, "algo=happo", *world("Filmed"), PEOPLE, "train.num_env_steps=20").run()
    # The environments are closed by now, but these draw without anything.
    assert bridge.stages[0].render(1).shape == (16, 24, 3)


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_end_of_the_run_is_told(tmp_path: Path, algo: str) -> None:
    failing = Scripted(rewards=lambda step, rewards: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        any_family(tmp_path, failing, algo, *world("Identity"), PEOPLE).run()
    assert failing.closed[0] == "failed"

    def interrupt(step: int, rewards: FloatArray) -> FloatArray:
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return rewards

    stopped = Scripted(rewards=interrupt)
    with pytest.raises(RunInterrupted):
        any_family(tmp_path, stopped, algo, *world("Identity"), PEOPLE).run()
    assert stopped.closed[0] == "interrupted"


def test_wrong_combinations_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        on_policy(tmp_path, Scripted(), "algo=happo", *world("Identity"), PEOPLE, "hitl.takeover.learn=rlpd")
    assert "allowed: auto, mask_bc, mask, executed, silent" in str(refused.value)
    with pytest.raises(ConfigError, match=r"hitl\.env_index=2: .* 0 to 1"):
        off_policy(tmp_path, Scripted(), "hasac", *world("Identity"), PEOPLE, "hitl.env_index=2")
    assert not list(tmp_path.iterdir())
