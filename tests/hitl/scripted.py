"""A bridge without a network: what people do is a function of the step, and everything that happens is written down."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from harl.config import build_config, from_dict, to_dict
from harl.envs.api import EnvStep, FloatArray
from harl.hitl.bridge import Credit, Override, Source, Stage
from harl.runners import OffPolicyBaseRunner, OnPolicyBaseRunner
from harl.runners.job import runner_for
from tests.algorithms.learners import sizes
from tests.runners import off_policy_runs, runs

PEOPLE = "hitl=web"
"""The mode with the fewest keys of its own; what learners do is the same in all modes."""

Drive = Callable[[int, FloatArray, FloatArray], Mapping[tuple[int, int], Any]]
"""(number of the step, observations, proposals) → (environment, agent) → the action, or (action, source)."""


class Scripted:
    """See the module; `step` counts vector steps of this bridge.

    Args:
        drive: what people do; None for nobody.
        rewards: number of the step and rewards → rewards to learn from.
        credits: number of the step → amendments.
        discards: number of the step → environments.
        late: number of the step after the last one of a rollout → amendments before it is learned from.
        late_discards: the same → environments.
        seen_ago: number of the step → how many steps ago all drivers have seen what they act on.
    """

    def __init__(
        self,
        drive: Drive | None = None,
        rewards: Callable[[int, FloatArray], FloatArray] | None = None,
        credits: Mapping[int, Sequence[Credit]] | None = None,
        discards: Mapping[int, Sequence[int]] | None = None,
        late: Mapping[int, Sequence[Credit]] | None = None,
        late_discards: Mapping[int, Sequence[int]] | None = None,
        seen_ago: Mapping[int, int] | None = None,
    ) -> None:
        self._seen_ago = seen_ago or {}
        self._drive, self._rewards = drive, rewards
        self._credits, self._discards, self._late = credits or {}, discards or {}, late or {}
        self._late_discards = late_discards or {}
        self.step = 0
        self.stages: list[Stage] = []
        self.first: list[EnvStep] = []
        self.asked: list[int] = []
        """`env_steps` of each step."""
        self.obs: list[FloatArray] = []
        self.proposed: list[FloatArray] = []
        self.executed: list[FloatArray] = []
        self.human: list[np.ndarray[Any, Any]] = []
        """(N, A) bool of each step."""
        self.outcomes: list[EnvStep] = []
        self.earliest: list[int] = []
        self.closed: list[str] = []
        self.lingered: list[int] = []
        """`env_steps` of the last step before each time that late feedback was asked for."""

    def attach(self, stage: Stage, first: EnvStep) -> None:
        self.stages.append(stage)
        self.first.append(_copied(first))

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        assert self.stages, "nobody was attached"
        self.asked.append(env_steps)
        self.obs.append(obs.copy())
        self.proposed.append(proposed.copy())
        self.human.append(np.zeros(proposed.shape[:2], np.bool_))
        choices = {} if self._drive is None else self._drive(self.step, obs, proposed)
        if not choices:
            self.executed.append(proposed.copy())
            return Override(proposed, None, None)
        actions, source = proposed.copy(), np.zeros(proposed.shape[:2], np.int8)
        for (env, agent), choice in choices.items():
            action, who = choice if isinstance(choice, tuple) else (choice, Source.HUMAN)
            width = self.stages[-1].layout.action_dims[agent]
            actions[env, agent, :width] = action
            source[env, agent] = who
        self.human[-1] = source == Source.HUMAN
        self.executed.append(actions.copy())
        seen_ago = np.where(source > 0, self._seen_ago.get(self.step, 0), 0)
        return Override(actions, source, (source == 0).astype(np.float32)[..., None], seen_ago)

    def override_rewards(self, env_steps: int, rewards: FloatArray) -> tuple[FloatArray, Sequence[Credit]]:
        assert env_steps == self.asked[-1]
        self.earliest.append(self.stages[-1].earliest())
        changed = rewards if self._rewards is None else self._rewards(self.step, rewards)
        return changed, self._credits.get(self.step, ())

    def late_feedback(self) -> Sequence[Credit]:
        self.lingered.append(self.asked[-1])
        return self._late.get(self.step, ())

    def discarded(self) -> Sequence[int]:
        within_a_step = len(self.asked) > self.step
        return (self._discards if within_a_step else self._late_discards).get(self.step, ())

    def publish(self, outcome: EnvStep) -> None:
        self.outcomes.append(_copied(outcome))
        self.step += 1

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def _copied(step: EnvStep) -> EnvStep:
    values = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    return EnvStep(**{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in values.items()})


def between(start: int, end: int, who: Mapping[tuple[int, int], Any]) -> Drive:
    """People who drive the same agents with the same actions from step `start` up to, not including, `end`."""
    return lambda step, obs, proposed: who if start <= step < end else {}


def on_policy(folder: Path, bridge: Scripted | None, *overrides: str) -> OnPolicyBaseRunner:
    """A runner of a tiny on-policy run."""
    runner = _built(folder, bridge, tuple(runs.last_of_each([*runs.TINY, *runs.QUICK, *overrides])))
    assert isinstance(runner, OnPolicyBaseRunner)
    return runner


def off_policy(folder: Path, bridge: Scripted | None, algo: str, *overrides: str) -> OffPolicyBaseRunner:
    """A runner of a tiny off-policy run."""
    tiny = {**off_policy_runs.TINY, **sizes(algo, 8)}
    values = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in tiny.items()]
    given = [f"algo={algo}", "device.name=cpu", *values, *runs.QUICK, *overrides]
    runner = _built(folder, bridge, tuple(runs.last_of_each(given)))
    assert isinstance(runner, OffPolicyBaseRunner)
    return runner


def any_family(folder: Path, bridge: Scripted | None, algo: str, *overrides: str) -> Any:
    """A runner of a tiny run of either family."""
    if algo in ("happo", "mappo", "haa2c", "hatrpo"):
        return on_policy(folder, bridge, f"algo={algo}", *overrides)
    return off_policy(folder, bridge, algo, *overrides)


def _built(folder: Path, bridge: Scripted | None, overrides: tuple[str, ...]) -> Any:
    pairs = [tuple(override.split("=", 1)) for override in overrides]
    chosen = dict(pairs)
    data = json.loads(_defaults(f"algo={chosen['algo']}"))
    of_env = tuple(f"{key}={value}" for key, value in pairs if key == "env" or key.startswith("env."))
    data["env"] = json.loads(_defaults(*of_env))["env"]
    if "hitl" in chosen:
        data["hitl"] = json.loads(_defaults(f"hitl={chosen['hitl']}"))["hitl"]
    for key, value in {**chosen, "output_dir": str(folder)}.items():
        if key not in ("algo", "hitl", "env") and not key.startswith("env."):
            *parents, name = key.split(".")
            section = functools.reduce(lambda node, parent: node[parent], parents, data)
            assert name in section, key
            section[name] = value if value == "off" else yaml.safe_load(value)
    return runner_for(from_dict(data), bridge)


@functools.lru_cache
def _defaults(*overrides: str) -> str:
    """Composing takes longer than a tiny run, so each choice is composed once."""
    return json.dumps(to_dict(build_config([*overrides])))


def parameters(runner: Any) -> torch.Tensor:
    """All parameters of a runner's networks and optimisers, one after the other."""
    numbers = [value for _, value in runs.leaves(runner.learner_state()) if isinstance(value, float | int | list)]
    return torch.cat([torch.as_tensor(value, dtype=torch.float64).flatten() for value in numbers])
