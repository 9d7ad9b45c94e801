"""Whole off-policy runs for tests: tiny ones, made quickly, and what stops them."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harl
from harl.config import Config, build_config, from_dict, to_dict
from harl.experiment.run_folder import RunFolder
from harl.runners import OffPolicyBaseRunner, RunInterrupted
from harl.runners.job import runner_for
from tests.algorithms.learners import ALGORITHMS, sizes

__all__ = [
    "ALGORITHMS",
    "QUICK",
    "TINY",
    "config_for",
    "defaults",
    "env_defaults",
    "env_for",
    "fixture",
    "make",
    "resume",
    "run",
    "stop_at",
]

TINY: dict[str, Any] = {
    "train.n_rollout_threads": 2,
    "train.num_env_steps": 80,
    "train.warmup_steps": 20,
    "train.train_interval": 3,
    "train.log_interval": 20,
    "algo.batch_size": 8,
    "algo.buffer_size": 48,
    "algo.save_replay": True,
    "eval.interval": 40,
    "eval.eval_episodes": 2,
    "eval.n_eval_rollout_threads": 2,
    "checkpoint.interval": 40,
    "logger.progress": "off",
}
"""40 vector steps: 10 of warm-up, then 10 bouts of 3 updates; the buffer overflows; three evaluations."""

QUICK: dict[str, Any] = {"logger__tensorboard": False, "eval__use_eval": False}
"""What else to leave out where nothing but the training matters."""

EXACT: dict[str, dict[str, Any]] = {"hasac": {"algo.auto_alpha": True, "algo.n_step": 3}}
"""Settings that switch on what an algorithm has beyond the defaults of these tests."""

MPE: dict[str, list[str]] = {
    "spread": ["env=mpe"],
    "spread_box": ["env=mpe", "env.continuous_actions=true"],
    "speaker": ["env=mpe", "env.scenario=simple_speaker_listener"],
    "speaker_box": ["env=mpe", "env.scenario=simple_speaker_listener", "env.continuous_actions=true"],
}


def env_for(algo: str) -> str:
    """A task of the particle worlds with the actions that the algorithm is made for."""
    return "spread" if algo == "had3qn" else "spread_box"


def fixture(name: str, module: str = "tests.envs.fixtures", **kwargs: Any) -> str:
    """The name of an environment of a test module, for `config_for`."""
    return json.dumps([f"{module}:{name}", kwargs])


@functools.cache
def defaults(algo: str) -> str:
    """The whole configuration of an algorithm as nothing else is typed, as JSON."""
    return json.dumps(to_dict(build_config([f"algo={algo}", "device.name=cpu"])))


@functools.cache
def env_defaults(env: str) -> str:
    """The section `env` of a task or of a `fixture`, as JSON."""
    if env in MPE:
        return json.dumps(to_dict(build_config(MPE[env]))["env"])
    entry_point, kwargs = json.loads(env)
    given = ["env=pettingzoo", f"env.entry_point={entry_point}", "env.reward=shared_mean"]
    section = to_dict(build_config(given))["env"]
    return json.dumps({**section, "kwargs": kwargs})


def config_for(algo: str, env: str | None = None, **overrides: Any) -> Config:
    """Configuration of a tiny run; overrides are config keys with __ for the dot, as `algo__lr=0.01`.

    Composing takes longer than such a run, so algorithms and environments are composed once each.
    """
    data = json.loads(defaults(algo))
    data["env"] = json.loads(env_defaults(env or env_for(algo)))
    values = {**TINY, **sizes(algo, 8), **EXACT.get(algo, {})}
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    for key, value in values.items():
        *parents, name = key.split(".")
        section = functools.reduce(lambda node, parent: node[parent], parents, data)
        assert name in section, key
        section[name] = value
    return from_dict(data)


def make(folder: Path, algo: str, env: str | None = None, **overrides: Any) -> OffPolicyBaseRunner:
    """A runner of a tiny run below `folder`."""
    runner = runner_for(config_for(algo, env, **overrides, output_dir=str(folder)))
    assert isinstance(runner, OffPolicyBaseRunner)
    return runner


def run(folder: Path, algo: str, env: str | None = None, **overrides: Any) -> OffPolicyBaseRunner:
    """A tiny run, done."""
    runner = make(folder, algo, env, **overrides)
    runner.run()
    return runner


def resume(folder: RunFolder, *overrides: str) -> OffPolicyBaseRunner:
    """The run of this folder, carried on to its end."""
    runner = harl.make_runner([f"resume={folder.path}", *overrides])
    assert isinstance(runner, OffPolicyBaseRunner)
    runner.run()
    return runner


def stop_at(runner: OffPolicyBaseRunner, env_steps: int, number: signal.Signals = signal.SIGTERM) -> int:
    """Run until a signal comes right after the step that reaches `env_steps`; returns the exit code."""
    step, sent = runner.step, False

    def stepping(actions: np.ndarray[Any, Any]) -> None:
        nonlocal sent
        step(actions)
        if not sent and runner.env_steps >= env_steps:
            sent = True
            os.kill(os.getpid(), number)

    runner.step = stepping  # type: ignore[method-assign]
    with pytest.raises(RunInterrupted) as stopped:
        runner.run()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code
