"""Games in which agents act one after the other, and end in the same cycle or in the midst of one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv

from harl.envs.parallel import ParallelVectorEnv


class Turns(AECEnv[str, Any, Any]):
    """Four agents act one after the other; the first two are over in cycle 3, the others in cycle 5.

    An agent is paid 10 times its number, plus its action, in every cycle. `early`: the two end when the first of them
    has acted, in the midst of a cycle.
    """

    def __init__(self, early: bool = False) -> None:
        super().__init__()
        self.render_mode = None
        self.metadata = {"name": "turns", "is_parallelizable": True}
        self.early = early
        self.possible_agents = [f"agent_{i}" for i in range(4)]
        self.observation_spaces = {agent: spaces.Box(0.0, 10.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.cycle, self.agents = 0, self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        return np.array([self.cycle], np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.rewards[agent] = 10.0 * self.possible_agents.index(agent) + float(action)
        last = agent == self.agents[-1]
        self.cycle += last
        in_the_midst, at_the_end = agent == "agent_0" and self.cycle == 2, last and self.cycle == 3
        if in_the_midst if self.early else at_the_end:
            self.terminations["agent_0"] = self.terminations["agent_1"] = True
        if self.cycle == 5:
            self.terminations = dict.fromkeys(self.agents, True)
        later = self.agents[self.agents.index(agent) + 1 :] + self.agents
        self.agent_selection = next((other for other in later if not self.terminations[other]), agent)
        self._accumulate_rewards()
        self._deads_step_first()


def test_DED_08_two_that_end_in_the_same_cycle_take_nothing_from_those_that_go_on() -> None:
    envs = ParallelVectorEnv(Turns, 1)
    envs.reset([0])
    actions = np.array([[[1.0], [2.0], [0.0], [1.0]]], np.float32)
    steps = [copy.deepcopy(envs.step(actions)) for _ in range(5)]
    for k, step in enumerate(steps):
        paid = [1.0, 12.0, 20.0, 31.0] if k < 3 else [0.0, 0.0, 20.0, 31.0]
        assert step.rewards[0, :, 0].tolist() == paid, k
        assert step.ended.tolist() == [k == 4]
    assert [step.active[0, :, 0].tolist() for step in steps[:4]] == [[1, 1, 1, 1]] * 2 + [[0, 0, 1, 1]] * 2
    assert steps[2].terminated.tolist() == [[True, True, False, False]]
    assert steps[4].terminated.tolist() == [[False, False, True, True]]


def test_DED_08_ends_in_the_midst_of_a_cycle_are_an_error_that_says_so() -> None:
    envs = ParallelVectorEnv(lambda: Turns(early=True), 1)
    envs.reset([0])
    actions = np.zeros((1, 4, 1), np.float32)
    for _ in range(2):
        envs.step(actions)
    with pytest.raises(AssertionError, match=r"all agent death .* only at the end of a cycle") as refused:
        envs.step(actions)
    assert "environment 0, step 3 of episode 1" in "".join(refused.value.__notes__)
