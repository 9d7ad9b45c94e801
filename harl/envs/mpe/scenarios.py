"""The tasks: who is there, what each agent sees, and what it is rewarded for.

All arrays have the environments on their last axis; see `harl.envs.mpe.world`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from harl.envs.mpe.world import World

Array = NDArray[np.float64]


class Scenario(ABC):
    """One task. Instances describe it and compute observations and rewards; the state lives in the `World`."""

    name: ClassVar[str]
    mpe2_module: ClassVar[str]
    """Module of the `mpe2` package with the same task, for its renderer."""
    takes_team_size: ClassVar[bool] = False
    takes_local_ratio: ClassVar[bool] = False

    agents: tuple[str, ...]
    num_landmarks: int = 3
    num_goals: int = 0
    movers: slice = slice(None)
    """Agents that can move."""
    walkers: ClassVar[slice] = slice(0, 0)
    """For each goal in turn, the agent that has to reach it."""
    speakers: slice = slice(0, 0)
    """Agents that can speak."""
    vocabulary: int = 0
    """Words of the language, which is also the width of a continuous utterance."""
    collide: bool = False
    """Whether agents are bodies that push each other away and are charged for it; landmarks never are."""
    agent_radius: float = 0.05
    landmark_radius: float = 0.05
    observation_widths: tuple[int, ...]
    """Length of each agent's own observation."""
    goal_brightening: float = 0.0
    """In pictures, the agent that a goal is set for has the landmark's colour plus this."""

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def mpe2_arguments(self) -> dict[str, Any]:
        """Arguments of the `mpe2` constructor that shape the world."""
        return {}

    def begin(self, world: World) -> None:  # noqa: B027 - a task without goals has nothing to prepare
        """Prepare what stays the same during an episode; called after goals or landmarks have changed."""

    @abstractmethod
    def observe(self, world: World, out: Array) -> None:
        """Write all observations into `out` (A, widest observation, N); entries that are always 0 may be left."""

    @abstractmethod
    def rewards(self, world: World) -> Array:
        """Reward of each agent for the step just taken, (A, N)."""


class SimpleSpread(Scenario):
    """N agents share out N landmarks among them without running into each other."""

    name = "simple_spread"
    mpe2_module = "simple_spread_v3"
    takes_team_size = True
    takes_local_ratio = True
    collide = True
    agent_radius = 0.15

    def __init__(self, team_size: int = 3, local_ratio: float = 0.5) -> None:
        self.agents = tuple(f"agent_{i}" for i in range(team_size))
        self.num_landmarks = team_size
        self._local_ratio = local_ratio
        self._end_of_sight = 4 + 2 * (2 * team_size - 1)
        silence = 2 * (team_size - 1)
        self.observation_widths = (self._end_of_sight + silence,) * team_size

    @property
    def mpe2_arguments(self) -> dict[str, Any]:
        return {"N": self.num_agents}

    def observe(self, world: World, out: Array) -> None:
        out[:, 0:2] = world.velocities
        out[:, 2:4] = world.agents
        out[:, 4 : self._end_of_sight] = world.relative.reshape(self.num_agents, self._end_of_sight - 4, -1)
        # The rest is what the others say, and in this task they are silent.

    def rewards(self, world: World) -> Array:
        nearest = world.distances[:, : self.num_landmarks].min(axis=0)
        return _mix(-nearest.sum(axis=0), -world.collisions(), self._local_ratio)


class _GuidedScenario(Scenario):
    """A task in which landmarks differ by colour and a goal names the one that some agent has to reach."""

    colours: ClassVar[Array]
    """(3 landmarks, 3 colour channels)."""

    def begin(self, world: World) -> None:
        self._goal_colours = self.colours[world.goals].transpose(0, 2, 1)
        self._targets = np.take_along_axis(world.landmarks, world.goals[:, None], axis=0)

    def _squared_distances(self, world: World) -> Array:
        """From each goal to the agent that has to reach it, (G, N)."""
        gaps = world.agents[self.walkers] - self._targets
        gaps *= gaps
        squares: Array = gaps[:, 0] + gaps[:, 1]
        return squares


class SimpleReference(_GuidedScenario):
    """Two agents, each of which knows only where the other has to go; both move and speak."""

    name = "simple_reference"
    mpe2_module = "simple_reference_v3"
    takes_local_ratio = True
    agents = ("agent_0", "agent_1")
    num_goals = 2
    speakers = slice(None)
    vocabulary = 10
    observation_widths = (21, 21)
    colours = np.array([[0.75, 0.25, 0.25], [0.25, 0.75, 0.25], [0.25, 0.25, 0.75]])
    walkers = slice(None, None, -1)

    def __init__(self, local_ratio: float = 0.5) -> None:
        self._local_ratio = local_ratio

    def observe(self, world: World, out: Array) -> None:
        out[:, 0:2] = world.velocities
        out[:, 2:8] = world.relative.reshape(2, 6, -1)
        out[:, 8:11] = self._goal_colours
        out[:, 11:21] = world.speech[::-1]

    def rewards(self, world: World) -> Array:
        own = -np.sqrt(self._squared_distances(world))
        return _mix(own.mean(axis=0), own, self._local_ratio)


class SimpleSpeakerListener(_GuidedScenario):
    """The speaker sees the goal and cannot move; the listener moves and cannot see the goal."""

    name = "simple_speaker_listener"
    mpe2_module = "simple_speaker_listener_v4"
    agents = ("speaker_0", "listener_0")
    num_goals = 1
    movers = slice(1, 2)
    speakers = slice(0, 1)
    vocabulary = 3
    agent_radius = 0.075
    landmark_radius = 0.04
    observation_widths = (3, 11)
    goal_brightening = 0.45
    colours = np.array([[0.65, 0.15, 0.15], [0.15, 0.65, 0.15], [0.15, 0.15, 0.65]])
    walkers = slice(1, 2)

    def observe(self, world: World, out: Array) -> None:
        speaker, listener = out
        speaker[0:3] = self._goal_colours[0]
        listener[0:2] = world.velocities[1]
        listener[2:8] = world.relative[1].reshape(6, -1)
        listener[8:11] = world.speech[0]

    def rewards(self, world: World) -> Array:
        return np.repeat(-self._squared_distances(world), 2, axis=0)


def _mix(shared: Array, own: Array, local_ratio: float) -> Array:
    """Blend the team's reward (N,) with each agent's own (A, N)."""
    return shared * (1 - local_ratio) + own * local_ratio


SCENARIOS: dict[str, type[SimpleSpread | SimpleReference | SimpleSpeakerListener]] = {
    scenario.name: scenario for scenario in (SimpleSpread, SimpleReference, SimpleSpeakerListener)
}
