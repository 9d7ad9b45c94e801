"""Small environments for off-policy runs, beside those of `tests/envs/fixtures.py` and `tests/runners/worlds.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.envs.fixtures import ConstReward, Dicts, FixtureEnv


class BoxDeaths(FixtureEnv):
    """Agents with uneven Boxes; agent i lives 2+i steps and is gone from every dict afterwards."""

    def __init__(self, agents: int = 3) -> None:
        super().__init__(agents, T=1 + agents)
        box = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
        self.set_spaces(spaces.Box(0.0, 10.0, (2,), np.float32), box)

    def observe(self, agent: str) -> Any:
        return np.array([1.0, self.t], np.float32)

    def step(self, actions: dict[str, Any]) -> Dicts:
        wrong = set(actions) ^ set(self.agents)
        if wrong:
            raise ValueError(f"actions must be exactly those of {self.agents}; wrong: {sorted(wrong)}")
        for agent, action in actions.items():
            if not self.action_spaces[agent].contains(action):
                raise ValueError(f"{agent} was sent {action!r}, which is outside of {self.action_spaces[agent]}")
        self.t += 1
        playing = self.agents
        ends = {agent: self.t >= 2 + self.possible_agents.index(agent) for agent in playing}
        observations = self._observations()
        rewards = {agent: float(actions[agent][0]) for agent in playing}
        self.agents = [agent for agent in playing if not ends[agent]]
        return observations, rewards, ends, dict.fromkeys(playing, False), {agent: {} for agent in playing}


class MaskedParts(FixtureEnv):
    """MultiDiscrete([3, 2]) agents; one choice of each part is forbidden in turn, and raises."""

    def __init__(self, T: int = 6, agents: int = 2) -> None:
        super().__init__(agents, T)
        seen, mask = spaces.Box(0.0, 10.0, (1,), np.float32), spaces.Box(0, 1, (5,), np.int8)
        self.set_spaces(spaces.Dict({"observation": seen, "action_mask": mask}), spaces.MultiDiscrete([3, 2]))

    def mask(self) -> np.ndarray[Any, Any]:
        mask = np.ones(5, np.int8)
        mask[self.t % 3] = mask[3 + self.t % 2] = 0
        return mask

    def observe(self, agent: str) -> Any:
        return {"observation": np.array([self.t], np.float32), "action_mask": self.mask()}

    def step(self, actions: dict[str, Any]) -> Dicts:
        mask = self.mask()
        for agent, (first, second) in actions.items():
            if not (mask[first] and mask[3 + second]):
                raise ValueError(f"{agent} was sent the illegal action {first, second}; mask {mask}")
        return super().step(actions)

    def reward(self, agent: str, action: Any) -> float:
        return float(action[0])


class Parts(ConstReward):
    """MultiDiscrete([3, 2]) agents without masks; each is rewarded by how few of its parts are 0."""

    def __init__(self) -> None:
        super().__init__(T=6)
        self.set_spaces(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiDiscrete([3, 2]))

    def reward(self, agent: str, action: Any) -> float:
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"{agent} was sent {action!r}, which is not in {self.action_spaces[agent]}")
        return float(np.count_nonzero(action))


class Widths(FixtureEnv):
    """A Discrete(3) agent that sees 2 numbers and a Discrete(5) agent that sees 4."""

    SEES = (2, 4)

    def __init__(self) -> None:
        super().__init__(2, T=6)
        agents = dict(zip(self.possible_agents, self.SEES, strict=True))
        self.observation_spaces = {agent: spaces.Box(0.0, 1.0, (width,), np.float32) for agent, width in agents.items()}
        self.action_spaces = {agent: spaces.Discrete(width + 1) for agent, width in agents.items()}

    def observe(self, agent: str) -> Any:
        return self.rng.random(self.observation_spaces[agent].shape, np.float32)

    def reward(self, agent: str, action: Any) -> float:
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"{agent} was sent {action!r}, which is not in {self.action_spaces[agent]}")
        return float(action)


class Doubles(ConstReward):
    """Observations and bounded actions in float64; an action of another dtype or outside of the bounds raises."""

    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(np.array([0.1, -0.7]), np.array([0.7, 0.3]), dtype=np.float64)
        self.set_spaces(spaces.Box(-1.0, 1.0, (2,), np.float64), box)

    def observe(self, agent: str) -> Any:
        return np.ones(2, np.float64)

    def reward(self, agent: str, action: Any) -> float:
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"{agent} was sent {action!r}, which is not in {self.action_spaces[agent]}")
        return 1.0


class Unbounded(ConstReward):
    """The second agent's actions have no upper bound in dimension 1."""

    def __init__(self, low: float = 0.0) -> None:
        super().__init__()
        free = spaces.Box(np.array([-1.0, low], np.float32), np.array([1.0, np.inf], np.float32))
        self.action_spaces = {
            agent: spaces.Box(-1.0, 1.0, (2,), np.float32) if agent == "agent_0" else free
            for agent in self.possible_agents
        }


class Pictures(ConstReward):
    """Observations are small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.set_spaces(spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(3))

    def observe(self, agent: str) -> Any:
        return np.zeros((8, 8, 3), np.uint8)
