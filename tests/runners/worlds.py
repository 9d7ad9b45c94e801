"""More small environments for whole runs, beside those of `tests/envs/fixtures.py`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from tests.envs.fixtures import ConstReward, Dicts, FixtureEnv, Identity


class GlobalDice(FixtureEnv):
    """Draws what it shows from NumPy's global generator, as old environments do; it can save its state."""

    def __init__(self, T: int = 7, agents: int = 2, render_mode: str | None = None) -> None:
        super().__init__(agents, T, render_mode)
        self.set_spaces(spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Discrete(3))

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.seen = np.random.random_sample(2).astype(np.float32)

    def observe(self, agent: str) -> Any:
        return self.seen

    def reward(self, agent: str, action: Any) -> float:
        return float(self.seen[0]) + float(action)

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "agents": list(self.agents), "seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.agents, self.seen = state["t"], list(state["agents"]), state["seen"]


class Convention(FixtureEnv):
    """A matrix game for two: all get 1 where the sum of the actions is the cue that both see, modulo 3, else 0.

    Whatever one agent does is as good as anything else while the other one is undecided: they must agree on who
    contributes what. Optimum: T; independent guesses: T / 3.
    """

    def __init__(self, T: int = 8) -> None:
        super().__init__(2, T)
        self.set_spaces(spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(3))

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.cue = int(self.rng.integers(3))

    def observe(self, agent: str) -> Any:
        return np.eye(3, dtype=np.float32)[self.cue]

    def step(self, actions: dict[str, Any]) -> Dicts:
        self.right = sum(int(action) for action in actions.values()) % 3 == self.cue
        return super().step(actions)

    def reward(self, agent: str, action: Any) -> float:
        return float(self.right)


class Quadrants(FixtureEnv):
    """Each agent sees an image with one lit quadrant and gets reward 1 for the action of its number, else 0.

    `high` is the brightest value. Optimum: T; a uniform policy: T / 4.
    """

    def __init__(self, T: int = 10, agents: int = 2, side: int = 8, high: int = 255) -> None:
        super().__init__(agents, T)
        self.side, self.high = side, high
        self.set_spaces(spaces.Box(0, high, (side, side, 1), np.uint8), spaces.Discrete(4))

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.lit = {agent: int(self.rng.integers(4)) for agent in self.possible_agents}

    def observe(self, agent: str) -> Any:
        half, lit = self.side // 2, self.lit[agent]
        image = np.zeros((self.side, self.side, 1), np.uint8)
        row, column = half * (lit // 2), half * (lit % 2)
        image[row : row + half, column : column + half] = self.high
        return image

    def reward(self, agent: str, action: Any) -> float:
        return float(int(action) == self.lit[agent])

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "agents": list(self.agents), "lit": dict(self.lit), "rng": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.agents, self.lit = state["t"], list(state["agents"]), dict(state["lit"])
        self.rng.bit_generator.state = state["rng"]


class Recall(FixtureEnv):
    """Each agent sees a cue of its own in the first step alone, and gets reward 1 for repeating it in the last one.

    Optimum: 1 an episode; whoever has no memory: 0.5.
    """

    def __init__(self, T: int = 5, agents: int = 2) -> None:
        super().__init__(agents, T)
        self.set_spaces(spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(2))

    def begin(self) -> None:
        self.cues = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}

    def observe(self, agent: str) -> Any:
        seen = np.zeros(3, np.float32)
        if self.t == 0:
            seen[self.cues[agent]] = 1.0
        seen[2] = self.t == self.max_cycles - 1
        return seen

    def reward(self, agent: str, action: Any) -> float:
        return float(self.t == self.max_cycles and int(action) == self.cues[agent])


class OwnRewards(FixtureEnv):
    """Agent i gets 10^i in every step."""

    def __init__(self, T: int = 5, agents: int = 3) -> None:
        super().__init__(agents, T)
        self.set_spaces(spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Discrete(2))

    def observe(self, agent: str) -> Any:
        return np.ones(2, np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return 10.0 ** self.possible_agents.index(agent)


class MinusOne(ConstReward):
    """Three agents, reward -1 each in every step, 25 steps."""

    def __init__(self, T: int = 25) -> None:
        super().__init__(T, agents=3)

    def reward(self, agent: str, action: Any) -> float:
        return -1.0


class NoReward(ConstReward):
    """Reward 0 everywhere."""

    def reward(self, agent: str, action: Any) -> float:
        return 0.0


class Filmed(ConstReward):
    """Its picture is ten times as bright as the step is late."""

    def render(self) -> Any:
        return np.full((16, 24, 3), 10 * self.t, np.uint8)


class Raises(ConstReward):
    """The environment's own code fails in step k of each episode."""

    def __init__(self, k: int = 7) -> None:
        super().__init__()
        self.k = k

    def reward(self, agent: str, action: Any) -> float:
        if self.t == self.k:
            raise ValueError(f"boom-{self.k}")
        return 1.0


class WrongState(ConstReward):
    """Declares a central state of 12 numbers and returns 4."""

    def __init__(self) -> None:
        super().__init__(agents=3)
        self.state_space = spaces.Box(-1.0, 1.0, (12,), np.float32)

    def state(self) -> Any:
        return np.zeros(4, np.float32)


class WrongObservation(ConstReward):
    """Declares observations of 2 numbers and returns 3 from the reset on."""

    def observe(self, agent: str) -> Any:
        return np.ones(3, np.float32)


class IntegerBox(ConstReward):
    """Continuous actions declared as whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spaces = {agent: spaces.Box(-1, 1, (2,), np.int32) for agent in self.possible_agents}


class Reports(ConstReward):
    """Reports a number of its own in each step: `height`, which is the step; and can save its state."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, rewards, terminations, truncations, infos = super().step(actions)
        infos[self.possible_agents[0]]["height"] = float(self.t)
        return observations, rewards, terminations, truncations, infos


class Logged(Identity):
    """Keeps what each copy was seeded with and showed first in each episode, in the order in which they were built."""

    copies: ClassVar[list[Logged]] = []

    def __init__(self, T: int = 5, agents: int = 2) -> None:
        super().__init__(agents=agents, T=T, actions=50)
        self.seeds: list[int | None] = []
        self.first: list[tuple[int, ...]] = []
        self.copies.append(self)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        result = super().reset(seed, options)
        self.first.append(tuple(self.targets.values()))
        return result


class TwoLegal(FixtureEnv):
    """Actions 2 and 3 of five are allowed, always; the mask is in the observation; an illegal action raises."""

    def __init__(self, T: int = 5, render_mode: str | None = None) -> None:
        super().__init__(2, T, render_mode)
        seen = spaces.Box(0.0, 1.0, (2,), np.float32)
        mask = spaces.Box(0, 1, (5,), np.int8)
        self.set_spaces(spaces.Dict({"observation": seen, "action_mask": mask}), spaces.Discrete(5))

    def observe(self, agent: str) -> Any:
        return {"observation": np.ones(2, np.float32), "action_mask": np.array([0, 0, 1, 1, 0], np.int8)}

    def reward(self, agent: str, action: Any) -> float:
        if action not in (2, 3):
            raise ValueError(f"{agent} was sent the illegal action {action}")
        return 1.0
