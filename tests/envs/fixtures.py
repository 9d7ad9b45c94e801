"""Small `ParallelEnv`s with known behaviour, shared by the whole test suite (`tests.envs.fixtures:ConstReward`).

| class | what it does |
|---|---|
| ConstReward | constant observation, reward 1 every step, never terminates, truncated at T |
| Deaths | agent i lives 2+i steps, then is gone from every dict; raises if it is sent an action afterwards |
| Hetero | four agents with four kinds of action space and observation widths 3, 7, 11, 4 |
| MaskOnly | one or two legal actions, changing every step; raises on an illegal one |
| SeedLog | remembers seed and options of every reset; observations come from its random stream |
| NaNAt | a NaN or inf in an observation or a reward at step k |
| SumOne | 10 steps, reward x on the first and 1-x on the last: the return is always 1 |
| Identity, IdentityBox | reward 1 (or minus the distance) for repeating what is observed |
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

Dicts = tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


class FixtureEnv(ParallelEnv):
    """What the fixtures share: agents named agent_0, agent_1, …, a step counter, truncation at `max_cycles`.

    Subclasses say what is observed and rewarded; `rng` is seeded by a reset with a seed and goes on otherwise.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "fixture", "render_modes": ["rgb_array"]}

    def __init__(self, agents: int, T: int, render_mode: str | None = None) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        self.max_cycles = T
        self.render_mode = render_mode
        self.t = 0
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def set_spaces(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        """Give every agent a copy of the same spaces, as sampling is seeded for each agent."""
        self.observation_spaces = {agent: deepcopy(observation) for agent in self.possible_agents}
        self.action_spaces = {agent: deepcopy(action) for agent in self.possible_agents}

    def observe(self, agent: str) -> Any:
        raise NotImplementedError

    def reward(self, agent: str, action: Any) -> float:
        raise NotImplementedError

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t = 0
        self.agents = list(self.possible_agents)
        self.begin()
        return self._observations(), {agent: {} for agent in self.agents}

    def begin(self) -> None:
        """Draw what the episode needs; called by reset before the first observation."""

    def step(self, actions: dict[str, Any]) -> Dicts:
        self.t += 1
        playing = self.agents
        rewards = {agent: self.reward(agent, actions[agent]) for agent in playing}
        self.advance()
        cut = self.t >= self.max_cycles
        observations = self._observations()
        if cut:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(playing, False),
            dict.fromkeys(playing, cut),
            {agent: {} for agent in playing},
        )

    def advance(self) -> None:
        """Move the world on; called by step after the rewards and before the observations."""

    def render(self) -> Any:
        return np.full((16, 24, 3), self.t, np.uint8) if self.render_mode == "rgb_array" else None

    def _observations(self) -> dict[str, Any]:
        return {agent: self.observe(agent) for agent in self.agents}


class ConstReward(FixtureEnv):
    """F1. Constant observation, reward 1 every step, truncated at T: the true value is 1 / (1 - gamma)."""

    def __init__(self, T: int = 25, agents: int = 2, render_mode: str | None = None) -> None:
        super().__init__(agents, T, render_mode)
        self.set_spaces(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3))

    def observe(self, agent: str) -> Any:
        return np.ones(2, np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return 1.0

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t, "agents": list(self.agents)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.t, self.agents = state["t"], list(state["agents"])


class Deaths(FixtureEnv):
    """F4. Agent i lives 2+i steps with reward 1 each, ends by termination, and is gone from every dict afterwards.

    Action 0 is reserved for agents that have left: living agents' masks forbid it. With `late_reward` a departed
    agent still gets that reward in the dict, as some environments do.
    """

    def __init__(self, agents: int = 3, late_reward: float = 0.0) -> None:
        super().__init__(agents, T=1 + agents)
        self.late_reward = late_reward
        observation = spaces.Box(0.0, 10.0, (2,), np.float32)
        mask = spaces.Box(0, 1, (4,), np.int8)
        self.set_spaces(spaces.Dict({"observation": observation, "action_mask": mask}), spaces.Discrete(4))

    def observe(self, agent: str) -> Any:
        seen = np.array([1.0, self.t], np.float32)
        return {"observation": seen, "action_mask": np.array([0, 1, 1, 1], np.int8)}

    def step(self, actions: dict[str, Any]) -> Dicts:
        wrong = set(actions) ^ set(self.agents)
        if wrong:
            raise ValueError(f"actions must be exactly those of {self.agents}; wrong: {sorted(wrong)}")
        if any(action == 0 for action in actions.values()):
            raise ValueError(f"a living agent was sent the no-op: {actions}")
        self.t += 1
        playing = self.agents
        ends = {agent: self.t >= 2 + self.possible_agents.index(agent) for agent in playing}
        observations = self._observations()
        rewards = dict.fromkeys(playing, 1.0)
        if self.late_reward:
            rewards |= {agent: self.late_reward for agent in self.possible_agents if agent not in playing}
        self.agents = [agent for agent in playing if not ends[agent]]
        return observations, rewards, ends, dict.fromkeys(playing, False), {agent: {} for agent in playing}


class Hetero(FixtureEnv):
    """F5. Discrete(3), Discrete(5), MultiDiscrete([3, 2]) and Box([-1, 0], [1, 10]) agents; widths 3, 7, 11, 4.

    Every action is checked against its own agent's space. The reward is 1 for the first half of the range.
    """

    WIDTHS = (3, 7, 11, 4)

    def __init__(self, T: int = 10) -> None:
        super().__init__(4, T)
        box = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
        kinds = (spaces.Discrete(3), spaces.Discrete(5), spaces.MultiDiscrete([3, 2]), box)
        self.action_spaces = dict(zip(self.possible_agents, kinds, strict=True))
        self.observation_spaces = {
            agent: spaces.Box(-1.0, 1.0, (width,), np.float32)
            for agent, width in zip(self.possible_agents, self.WIDTHS, strict=True)
        }

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self._seen = {
            agent: self.rng.uniform(-1.0, 1.0, width).astype(np.float32)
            for agent, width in zip(self.possible_agents, self.WIDTHS, strict=True)
        }

    def observe(self, agent: str) -> Any:
        return self._seen[agent]

    def reward(self, agent: str, action: Any) -> float:
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"{agent} was sent {action!r}, which is outside of {self.action_spaces[agent]}")
        return float(np.asarray(action).reshape(-1)[0] <= 1)


class MaskOnly(FixtureEnv):
    """F6. `legal` of `actions` actions are allowed, others every step; an illegal one raises. Mask in the info.

    With `in_observation` the mask comes in the observation instead.
    """

    def __init__(self, actions: int = 5, legal: int = 1, T: int = 10, agents: int = 2, in_observation: bool = False):
        super().__init__(agents, T)
        self.legal, self.in_observation = legal, in_observation
        observation: spaces.Space[Any] = spaces.Box(0.0, 1.0, (actions,), np.float32)
        if in_observation:
            mask = spaces.Box(0, 1, (actions,), np.int8)
            observation = spaces.Dict({"observation": observation, "action_mask": mask})
        self.set_spaces(observation, spaces.Discrete(actions))
        self.number = actions

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.masks = {agent: np.zeros(self.number, np.int8) for agent in self.possible_agents}
        for mask in self.masks.values():
            mask[self.rng.choice(self.number, self.legal, replace=False)] = 1

    def observe(self, agent: str) -> Any:
        seen = np.full(self.number, 0.5, np.float32)
        return {"observation": seen, "action_mask": self.masks[agent]} if self.in_observation else seen

    def reward(self, agent: str, action: Any) -> float:
        if not self.masks[agent][action]:
            raise ValueError(
                f"{agent} was sent the illegal action {action}; allowed: {np.flatnonzero(self.masks[agent])}"
            )
        return 1.0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed, options)[0], self._mask_infos()

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, rewards, terminations, truncations, _ = super().step(actions)
        return observations, rewards, terminations, truncations, self._mask_infos()

    def _mask_infos(self) -> dict[str, Any]:
        return {agent: {} if self.in_observation else {"action_mask": self.masks[agent]} for agent in self.masks}


class SeedLog(FixtureEnv):
    """F7. `resets` lists (seed, options) of every reset; an episode's observation is one draw of the random stream."""

    def __init__(self, T: int = 5, agents: int = 2) -> None:
        super().__init__(agents, T)
        self.set_spaces(spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(4))
        self.resets: list[tuple[int | None, dict[str, Any] | None]] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.resets.append((seed, options))
        return super().reset(seed, options)

    def begin(self) -> None:
        self._drawn = self.rng.random(3, np.float32)

    def observe(self, agent: str) -> Any:
        return self._drawn

    def reward(self, agent: str, action: Any) -> float:
        return float(action)


class NaNAt(ConstReward):
    """F9. Like ConstReward, but in step k of each episode the first agent's `where` ("obs" or "reward") is `value`.

    `value` is "nan" or "inf". `worker` picks the copy that does it, counted in the order in which they are built
    (of all that the process has built since `NaNAt.built` was last set to 0); None: every one.
    """

    built: ClassVar[int] = 0

    def __init__(
        self,
        k: int = 3,
        where: str = "obs",
        value: str = "nan",
        worker: int | None = None,
        T: int = 25,
        agents: int = 2,
    ) -> None:
        if where not in ("obs", "reward") or value not in ("nan", "inf"):
            raise ValueError(f"where is 'obs' or 'reward' and value 'nan' or 'inf', not {where!r}, {value!r}")
        super().__init__(T, agents)
        self.k, self.where, self.value = k, where, float(value)
        self.guilty = worker is None or worker == NaNAt.built
        NaNAt.built += 1

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, rewards, *rest = super().step(actions)
        if self.guilty and self.t == self.k:
            agent = self.possible_agents[0]
            if self.where == "obs":
                observations[agent] = np.full(2, self.value, np.float32)
            else:
                rewards[agent] = self.value
        return observations, rewards, *rest


class SumOne(FixtureEnv):
    """F10. Episodes of T steps that terminate: reward x on the first, 1-x on the last, 0 between; x is random."""

    def __init__(self, T: int = 10, agents: int = 2) -> None:
        super().__init__(agents, T)
        self.set_spaces(spaces.Box(0.0, float(T), (1,), np.float32), spaces.Discrete(2))

    def begin(self) -> None:
        self.x = float(self.rng.random())

    def observe(self, agent: str) -> Any:
        return np.array([self.t], np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return self.x if self.t == 1 else 1.0 - self.x if self.t == self.max_cycles else 0.0

    def step(self, actions: dict[str, Any]) -> Dicts:
        observations, rewards, terminations, truncations, infos = super().step(actions)
        return observations, rewards, truncations, terminations, infos


class Identity(FixtureEnv):
    """Each agent sees a one-hot target and gets reward 1 for the action of that index, else 0. Optimum: T."""

    def __init__(self, actions: int = 4, T: int = 10, agents: int = 2) -> None:
        super().__init__(agents, T)
        self.number = actions
        self.set_spaces(spaces.Box(0.0, 1.0, (actions,), np.float32), spaces.Discrete(actions))

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.targets = {agent: int(self.rng.integers(self.number)) for agent in self.possible_agents}

    def observe(self, agent: str) -> Any:
        return np.eye(self.number, dtype=np.float32)[self.targets[agent]]

    def reward(self, agent: str, action: Any) -> float:
        return float(int(action) == self.targets[agent])


class IdentityBox(FixtureEnv):
    """Each agent sees a point within its action bounds and gets minus the mean distance of its action. Optimum: 0."""

    def __init__(self, dims: int = 2, bound: float = 1.0, T: int = 10, agents: int = 2) -> None:
        super().__init__(agents, T)
        self.bound = bound
        self.set_spaces(spaces.Box(-bound, bound, (dims,), np.float32), spaces.Box(-bound, bound, (dims,), np.float32))
        self.dims = dims

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.targets = {
            agent: self.rng.uniform(-self.bound, self.bound, self.dims).astype(np.float32)
            for agent in self.possible_agents
        }

    def observe(self, agent: str) -> Any:
        return self.targets[agent]

    def reward(self, agent: str, action: Any) -> float:
        return -float(np.abs(np.asarray(action) - self.targets[agent]).mean())
