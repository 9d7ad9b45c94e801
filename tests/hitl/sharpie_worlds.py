"""Environments and policies that tests reach by import path."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Walk(ParallelEnv[str, Any, Any]):
    """Two agents on a line; each one's observation is its place, which `pays`. agent_1 leaves after `leaves` steps."""

    def __init__(self, length: int = 3, leaves: int = 99, pays: float = 1.0, render_mode: str | None = None) -> None:
        self.length, self.leaves, self.pays, self.render_mode = length, leaves, pays, render_mode
        self.possible_agents = ["agent_0", "agent_1"]
        self.agents: list[str] = []
        self.taken: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-100, 100, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.places, self.steps = list(self.possible_agents), {"agent_0": 0, "agent_1": 0}, 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([self.places[agent]], np.float32) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        self.taken.append(dict(actions))
        for agent, action in actions.items():
            self.places[agent] += action - 1
        self.steps += 1
        gone = {agent: agent == "agent_1" and self.steps >= self.leaves for agent in self.agents}
        cut = dict.fromkeys(self.agents, self.steps >= self.length)
        seen, rewards = self._seen(), {agent: self.pays * self.places[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not gone[agent] and not cut[agent]]
        return seen, rewards, gone, cut, {agent: {} for agent in seen}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((16, 16, 3), min(10 * self.steps, 255), np.uint8)


class Single(gymnasium.Env[Any, Any]):
    """A gymnasium environment of two steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return np.asarray(action, np.float32), np.float64(self.steps), np.bool_(False), np.bool_(self.steps == 2), {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class Steady:
    """A policy with one answer, which remembers what it was shown."""

    def __init__(self, action: Any = 2) -> None:
        self.action, self.shown = action, []

    def predict(self, observation: Any, participant_input: Any = None) -> Any:
        return self.action if participant_input is None else participant_input

    def update(self, *transition: Any) -> None:
        self.shown.append(transition)


made_already = Steady()
not_a_policy = object()


class Broken(Walk):
    """Fails in its second step."""

    def step(self, actions: dict[str, Any]) -> Any:
        if self.steps:
            raise RuntimeError("out of order")
        return super().step(actions)


class Slow(Steady):
    """Thinks for a second before its first action."""

    def predict(self, observation: Any, participant_input: Any = None) -> Any:
        if not self.shown:
            time.sleep(1.0)
        return super().predict(observation, participant_input)
