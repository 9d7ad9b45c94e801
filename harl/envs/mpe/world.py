"""Physics of N particle worlds at once.

Arrays keep the environments on their *last* axis. A step then is a few dozen array operations whose inner loops run
over all environments, instead of over the two coordinates of a point; only what leaves the package is transposed.
All numbers are float64, as in the two reference implementations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harl.envs.mpe.randomness import uniform
from harl.envs.mpe.scenarios import Scenario

TIME_STEP = 0.1
DAMPING = 0.25
"""Share of the velocity that is lost in a step."""
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
"""Softness of bodies: over about this distance the contact force sets in."""
LEAST_DISTANCE = 1e-12
"""Two bodies exactly on one spot have no direction to push each other in; they are left there instead of NaN."""


@dataclass(frozen=True, slots=True)
class Physics:
    """What differs between the two published versions of the particle worlds."""

    move_before_push: bool
    """Positions move with the velocity before (True) or after (False) the forces have changed it."""
    box_direction: float
    """+1: the second of two opposite continuous controls pushes along the axis; -1: the first does."""
    self_collisions: int
    """Collisions that every agent is charged for with itself."""


PHYSICS = {
    "mpe2": Physics(move_before_push=True, box_direction=1.0, self_collisions=0),
    "classic": Physics(move_before_push=False, box_direction=-1.0, self_collisions=1),
}


class World:
    """Positions, velocities, speech and goals of N worlds with A agents and L landmarks."""

    positions: NDArray[np.float64]
    """(A + L, 2, N). Agents first, then landmarks, which never move within an episode."""
    velocities: NDArray[np.float64]
    """(A, 2, N)."""
    forces: NDArray[np.float64]
    """(movers, 2, N). What the agents that can move exert in the coming step; written by the controls."""
    speech: NDArray[np.float64]
    """(A, C, N). What each agent said in the last step; zero after a reset and for agents that cannot speak."""
    goals: NDArray[np.int64]
    """(G, N). Index of the landmark that each goal means."""
    relative: NDArray[np.float64]
    """(A, V, 2, N). Where each agent sees the landmarks and, if bodies collide, the other agents, in that order."""
    distances: NDArray[np.float64]
    """(A, V, N). Lengths of `relative`, kept only where bodies collide."""

    def __init__(self, scenario: Scenario, num_envs: int, physics: Physics) -> None:
        agents, landmarks = scenario.num_agents, scenario.num_landmarks
        self.physics = physics
        self._collide = scenario.collide
        self._least_gap = 2 * scenario.agent_radius
        self._num_agents, self._num_landmarks = agents, landmarks

        self.positions = np.zeros((agents + landmarks, 2, num_envs))
        self.velocities = np.zeros((agents, 2, num_envs))
        self.speech = np.zeros((agents, scenario.vocabulary, num_envs))
        self.goals = np.zeros((scenario.num_goals, num_envs), np.int64)
        self.agents, self.landmarks = self.positions[:agents], self.positions[agents:]
        self._moving_positions = self.agents[scenario.movers]
        self._moving_velocities = self.velocities[scenario.movers]
        self.forces = np.zeros_like(self._moving_positions)

        in_sight = [list(range(agents, agents + landmarks)) for _ in range(agents)]
        if self._collide:
            for own, seen in enumerate(in_sight):
                seen.extend(other for other in range(agents) if other != own)
        self._in_sight = np.array(in_sight, np.intp)
        self.relative = np.zeros((*self._in_sight.shape, 2, num_envs))
        self.distances = np.zeros((*self._in_sight.shape, num_envs))
        self._squares = np.zeros_like(self.relative)

    def scatter(self, where: NDArray[np.intp], seeds: NDArray[np.int64], episodes: NDArray[np.int64]) -> None:
        """Begin the given episodes in the worlds `where`: bodies at random places, at rest and silent, random goals."""
        self.positions[:, :, where], self.goals[:, where] = self.beginning(seeds, episodes)
        self.velocities[:, :, where] = 0.0
        self.speech[:, :, where] = 0.0

    def beginning(
        self, seeds: NDArray[np.int64], episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Positions (A + L, 2, len(seeds)), uniform in [-1, 1), and goals (G, len(seeds)) at the start of episodes."""
        bodies = self.positions.shape[0]
        draws = uniform(seeds, episodes, 2 * bodies + self.goals.shape[0])
        places = 2.0 * draws[: 2 * bodies].reshape(bodies, 2, -1) - 1.0
        return places, (draws[2 * bodies :] * self._num_landmarks).astype(np.int64)

    def advance(self) -> None:
        """Move all bodies by one time step under `forces`, which is used up."""
        velocities, forces = self._moving_velocities, self.forces
        if self._collide:
            forces += self._contact_forces()
        if self.physics.move_before_push:
            self._moving_positions += velocities * TIME_STEP
        velocities *= 1 - DAMPING
        forces *= TIME_STEP
        velocities += forces
        if not self.physics.move_before_push:
            self._moving_positions += velocities * TIME_STEP
        self.measure()

    def measure(self) -> None:
        """Bring `relative` and `distances` up to date; needed after every change of positions."""
        np.take(self.positions, self._in_sight, axis=0, out=self.relative, mode="clip")
        self.relative -= self.agents[:, None]
        if self._collide:
            np.multiply(self.relative, self.relative, out=self._squares)
            np.add(self._squares[:, :, 0], self._squares[:, :, 1], out=self.distances)
            np.sqrt(self.distances, out=self.distances)

    def collisions(self) -> NDArray[np.float64]:
        """How many collisions each agent is in, (A, N)."""
        touching = self.distances[:, self._num_landmarks :] < self._least_gap
        count: NDArray[np.float64] = touching.sum(axis=1, dtype=np.float64)
        count += self.physics.self_collisions
        return count

    def _contact_forces(self) -> NDArray[np.float64]:
        """Force on each agent from the agents that it touches, (A, 2, N)."""
        distances = self.distances[:, self._num_landmarks :]
        depth = self._least_gap - distances
        depth /= CONTACT_MARGIN
        strength = np.logaddexp(0.0, depth, out=depth)
        strength *= -CONTACT_MARGIN * CONTACT_FORCE
        strength /= np.maximum(distances, LEAST_DISTANCE)
        pushes = self.relative[:, self._num_landmarks :] * strength[:, :, None]
        total: NDArray[np.float64] = pushes.sum(axis=1)
        return total
