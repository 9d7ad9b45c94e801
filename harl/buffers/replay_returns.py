"""Rewards over several steps, kept up to date while the steps come in.

A transition that looks n steps ahead is complete n - 1 steps after it was stored. The sums of the last n steps are
therefore extended with every step, so that sampling costs the same whatever n is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harl.envs.api import BoolArray


class ReturnWindow:
    """Discounted sums of rewards that begin at each of the last n steps; row j began j steps before the newest.

    A sum grows until it covers n steps, or until its environment *stopped*: the episode ended, or an agent was cut out
    of it and has to be bootstrapped from where it was. A learner (the team, or one agent) whose rewards are *over*
    because it terminated earns nothing more.

    Args:
        n_step: n.
        gamma: discount factor of one step.
        num_envs: N.
        learners: R, 1 for the team or the number of agents.
    """

    ARRAYS = ("sums", "alive", "open", "steps")

    def __init__(self, n_step: int, gamma: float, num_envs: int, learners: int) -> None:
        self.n_step = n_step
        self.count = 0
        """Rows that are in use."""
        self.sums = np.zeros((n_step, num_envs, learners))
        self.alive = np.zeros((n_step, num_envs, learners), np.bool_)
        """Whether the learner goes on after the steps that the sum covers."""
        self.open = np.zeros((n_step, num_envs), np.bool_)
        """Whether the sum grows with the next step."""
        self.steps = np.zeros((n_step, num_envs), np.int64)
        """How many steps the sum covers."""
        self._powers = gamma ** np.arange(n_step + 1)

    def push(self, rewards: NDArray[Any], there: BoolArray, over: BoolArray, stopped: BoolArray) -> None:
        """Take in a step.

        Args:
            rewards: (N, R) what each learner earned.
            there: (N, R) whether the learner was in the episode before the step.
            over: (N, R) whether it terminated in it.
            stopped: (N,) whether no sum may reach beyond this step.
        """
        for name in self.ARRAYS:
            array = getattr(self, name)
            array[1:] = array[:-1].copy()
        self.sums[0], self.alive[0], self.open[0], self.steps[0] = 0.0, there, True, 0
        self.count = min(self.count + 1, self.n_step)
        growing = self.open[..., None]
        self.sums += np.where(growing & self.alive, self._powers[:-1, None, None] * rewards, 0.0)
        self.steps += self.open
        self.alive &= ~(growing & over)
        self.open &= ~stopped

    def discounts(self) -> NDArray[np.float64]:
        """(n, N, R): the factor of the value after the steps that each sum covers; 0 where the learner terminated."""
        return np.where(self.alive, self._powers[self.steps][..., None], 0.0)

    def close(self) -> None:
        """Let no sum grow any more: the next step does not follow the last one."""
        self.open[...] = False

    def get_state(self) -> dict[str, Any]:
        """What the next steps are added to."""
        return {"count": self.count, **{name: torch.from_numpy(getattr(self, name).copy()) for name in self.ARRAYS}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` gave."""
        self.count = state["count"]
        for name in self.ARRAYS:
            getattr(self, name)[...] = state[name].cpu().numpy()
