"""Robots whose joints belong to several agents, from a package of environments that is not ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harl.envs.api import EnvStep, FloatArray
from harl.envs.parallel import ParallelVectorEnv
from tests.runners.off_policy_runs import fixture, make

CHEETAH = {"scenario": "HalfCheetah", "agent_conf": "2x3"}


@pytest.mark.slow
def test_TLB_09_the_cheetah_never_terminates_and_is_valued_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three episodes: none terminated, all truncated, each after 1,000 steps; targets bootstrap at all three."""
    monkeypatch.chdir(tmp_path)  # the simulator writes its warnings into a file where it stands
    cheetah = fixture("parallel_env", "gymnasium_robotics.mamujoco_v1", **CHEETAH)
    only = {"eval__use_eval": False, "logger__tensorboard": False, "checkpoint__interval": 10_000}
    steps = {
        "train__warmup_steps": 3000,
        "train__num_env_steps": 3000,
        "algo__buffer_size": 3000,
        "algo__n_step": 1,
        "algo__gamma": 0.9,
    }
    runner = make(tmp_path, "haddpg", cheetah, train__n_rollout_threads=3, **steps, **only)
    assert isinstance(runner.envs, ParallelVectorEnv)
    ends = []
    step = runner.envs.step

    def watched(actions: FloatArray) -> EnvStep:
        outcome = step(actions)
        ends.append([outcome.terminated.any(), outcome.truncated.all(1).sum(), outcome.ended.sum()])
        return outcome

    runner.envs.step = watched  # type: ignore[method-assign]
    runner.run()
    assert len(ends) == 1000
    assert not np.array(ends[:-1]).any()
    assert ends[-1] == [False, 3, 3]
    stored = runner.buffer.gather(torch.arange(3000))
    assert (stored.discounts == np.float32(0.9)).all(), "the last states are valued like others"
    assert (stored.next_valid == 1).all()
    last = torch.arange(2997, 3000)
    first = torch.arange(3)
    assert not torch.equal(stored.next_obs[:, last], stored.obs[:, first]), "the final states, not those after a reset"
