"""Runs that learn while people of a SHARPIE site act, of both families, and what their learners remember of it."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import harl
from harl.hitl.bridge import Source

T, LENGTH = 50, 300
"""Steps of a rollout and of an episode."""
COMMON = (
    "env=pettingzoo", "env.entry_point=tests.hitl.sharpie_worlds:Walk", f"env.kwargs.length={LENGTH}",
    f"env.kwargs.leaves={2 * LENGTH}", "env.state_type=EP", "env.reward=shared_sum", "hitl=sharpie",
    "hitl.hostname=127.0.0.1", "train.n_rollout_threads=1", "train.num_env_steps=1e6", "eval.use_eval=false",
    "logger.progress=off", "logger.tensorboard=false", "algo.lr=0.002", "seed=3",
)  # fmt: skip
FAMILIES = {
    "happo": ("algo=happo", f"train.episode_length={T}"),
    "hasac": (
        "algo=hasac", "model.hidden_sizes=[16]", f"train.warmup_steps={LENGTH}", "train.train_interval=10",
        "algo.batch_size=64", "algo.buffer_size=100_000", "algo.n_step=1", "algo.critic_lr=0.002",
    ),
}  # fmt: skip
"""Algorithm → its family's part of the configuration: one on-policy, one off-policy."""
PAYS = 0.001
FOR_ITSELF = ("hitl.reward.learn=replace", "env.reward=individual", "env.state_type=FP", "algo.gamma=0.1",
              f"env.kwargs.pays={PAYS}")  # fmt: skip
"""Every agent learns from its own rewards, where people gave any from theirs alone, which are worth much more."""


class Step(NamedTuple):
    """One step of environment 0 as it is learned from, all by agent."""

    obs: list[float]
    actions: list[int]
    rewards: list[float]
    human: list[bool]
    """Whether it is marked as a person's."""


class Remembered(ABC):
    """What the learner of a run has in its buffer, oldest step first."""

    @abstractmethod
    def steps(self) -> list[Step]:
        """All that the learner has ever been given, or still has."""


class Rollouts(Remembered):
    """What was in the rollout buffer at each update."""

    def __init__(self, runner: Any) -> None:
        self._steps: list[Step] = []
        train = runner.train

        def watched() -> Any:
            buffer = runner.buffer
            human = runner.people.overrides.source[:, 0] == Source.HUMAN
            np.testing.assert_array_equal(buffer.policy_mask[:, 0, :, 0] == 0, human)
            columns = (buffer.obs[:-1, 0, :, 0], buffer.actions[:, 0, :, 0], buffer.rewards[:, 0, :, 0], human)
            self._steps += map(Step, *(column.tolist() for column in columns))
            return train()

        runner.train = watched

    def steps(self) -> list[Step]:
        return self._steps


class Replay(Remembered):
    """What is in the replay buffer, which has room for the whole run."""

    def __init__(self, runner: Any) -> None:
        self.buffer, self.second = runner.buffer, runner.people.second

    def steps(self) -> list[Step]:
        count = self.buffer.filled
        assert count < self.buffer.slots
        rows = self.buffer.gather(torch.arange(count))
        np.testing.assert_array_equal(rows.next_obs[:, :, 0], rows.obs[:, :, 0] + rows.actions[:, :, 0] - 1)
        rewards = rows.rewards[..., 0] if rows.rewards.dim() == 3 else rows.rewards[:, 0].expand(2, -1)
        columns = (rows.obs[:, :, 0].T, rows.actions[:, :, 0].T, rewards.T, self.buffer.people.driven[:count, 0])
        return [Step(*step) for step in zip(*(column.tolist() for column in columns), strict=True)]


def remembered(runner: Any) -> Remembered:
    """Begin to watch what a run learns from."""
    return Replay(runner) if runner.family == "off_policy" else Rollouts(runner)


def training(algo: str, port: int, folder: Path, over: Callable[[], Any], *more: str) -> Any:
    """A run that serves the queue of a site, and is asked to stop a few steps after `over` has returned."""
    runner = harl.make_runner([*FAMILIES[algo], *COMMON, f"hitl.port={port}", f"output_dir={folder}", *more])

    def wait() -> None:
        try:
            over()
            seen, limit = runner.env_steps, time.monotonic() + 20
            while runner.env_steps < seen + 3 and time.monotonic() < limit:
                time.sleep(0.01)
        finally:
            runner.stopping.requested = True

    threading.Thread(target=wait, daemon=True).start()
    return runner


def run(runner: Any) -> None:
    """Train until it is asked to stop."""
    with contextlib.suppress(harl.runners.runner.RunInterrupted):
        runner.run()


def chances(runner: Any, agent: int = 0) -> np.ndarray[Any, Any]:
    """Probability of each action of an agent, mean over places."""
    obs = torch.zeros(21, 2, 1)
    obs[:, :, 0] = torch.linspace(-20, 20, 21)[:, None]
    found = [
        runner.team.log_probs(obs, None, torch.full((21, 2, 1), float(action)))[:, agent].exp().mean().item()
        for action in range(3)
    ]
    return np.array(found)
