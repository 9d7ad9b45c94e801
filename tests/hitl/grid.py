"""A grid with pits, a person who knows the way, and what a policy is worth there when it is alone."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from harl.envs.api import EnvStep, FloatArray, Layout, VectorEnv

SIDE = 6
CELLS = SIDE * SIDE
GOAL = CELLS - 1
PITS = tuple(SIDE * row + column for row, column in ((1, 1), (1, 4), (2, 3), (3, 1), (4, 3), (4, 5), (5, 2)))
LIMIT = 40
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
STEP_REWARD = -0.01


def _moved(cell: int, action: int) -> int:
    row, column = divmod(cell, SIDE)
    row, column = row + MOVES[action][0], column + MOVES[action][1]
    return SIDE * row + column if 0 <= row < SIDE and 0 <= column < SIDE else cell


NEXT = np.array([[_moved(cell, action) for action in range(4)] for cell in range(CELLS)])


def _distances() -> np.ndarray[Any, Any]:
    """Steps to the goal around the pits, for each cell."""
    found = np.full(CELLS, 10**6)
    found[GOAL], queue = 0, deque([GOAL])
    while queue:
        cell = queue.popleft()
        for before in range(CELLS):
            if before not in PITS and found[before] == 10**6 and cell in NEXT[before]:
                found[before] = found[cell] + 1
                queue.append(before)
    return found


DISTANCE = _distances()
BEST = DISTANCE[NEXT].argmin(1)
"""What somebody who knows the way does in each cell."""
GOOD = DISTANCE[NEXT] < DISTANCE[:, None]
"""(cells, actions) whether it leads closer to the goal."""
IS_END = np.isin(np.arange(CELLS), (*PITS, GOAL))
EARNS = np.where(np.arange(CELLS) == GOAL, 1.0, np.where(np.isin(np.arange(CELLS), PITS), -1.0, STEP_REWARD))
"""Reward for entering a cell."""


class Grid(VectorEnv):
    """One agent for each of N grids; it starts in a corner, and the goal is in the opposite one."""

    name, scenario, episode_limit = "grid", "pits", LIMIT

    def __init__(self, num_envs: int) -> None:
        seen = spaces.Box(0.0, 1.0, (CELLS,), np.float32)
        self.layout = Layout(("walker",), (seen,), (spaces.Discrete(4),), (CELLS,), (CELLS,), "EP", False)
        self.num_envs = num_envs
        self.cell = np.zeros(num_envs, np.int64)
        self.taken = np.zeros(num_envs, np.int64)

    def reset(self, seeds: list[int] | None = None) -> EnvStep:
        self.cell[:] = self.taken[:] = 0
        no = np.zeros((self.num_envs, 1), np.bool_)
        return self._record(np.zeros(self.num_envs), no[:, 0], no[:, 0], None)

    def step(self, actions: FloatArray) -> EnvStep:
        self.cell = NEXT[self.cell, actions[:, 0, 0].astype(np.int64)]
        self.taken += 1
        rewards, over = EARNS[self.cell], IS_END[self.cell]
        cut = ~over & (self.taken >= LIMIT)
        final = np.eye(CELLS, dtype=np.float32)[self.cell][:, None]
        ended = over | cut
        self.cell, self.taken = np.where(ended, 0, self.cell), np.where(ended, 0, self.taken)
        return self._record(rewards, over, cut, final if ended.any() else None)

    def _record(self, rewards: Any, over: Any, cut: Any, final: FloatArray | None) -> EnvStep:
        seen = np.eye(CELLS, dtype=np.float32)[self.cell][:, None]
        return EnvStep(
            obs=seen,
            share_obs=seen,
            available_actions=None,
            active=np.ones((self.num_envs, 1, 1), np.float32),
            rewards=rewards[:, None, None].astype(np.float32),
            terminated=over[:, None],
            truncated=cut[:, None],
            ended=over | cut,
            final_obs=final,
            final_share_obs=final,
        )


class Guide:
    """Takes over for three steps, half of the times that a proposal leads no closer to the goal; leaves after a while.

    Args:
        num_envs: N.
        until: the step at which it leaves.
        seed: of its coin.
    """

    def __init__(self, num_envs: int, until: int, seed: int) -> None:
        self.left = np.zeros(num_envs, np.int64)
        self.until, self.rng, self.used = until, np.random.default_rng(seed), 0

    def __call__(self, step: int, obs: FloatArray, proposed: FloatArray) -> dict[tuple[int, int], Any]:
        if step >= self.until:
            return {}
        cells = obs[:, 0].argmax(-1)
        bad = ~GOOD[cells, proposed[:, 0, 0].astype(np.int64)]
        starts = (self.left == 0) & bad & (self.rng.random(len(bad)) < 0.5)
        self.left[starts] = 3
        driven = self.left > 0
        self.left[driven] -= 1
        self.used += int(driven.sum())
        return {(int(n), 0): BEST[cells[n]] for n in np.flatnonzero(driven)}


@torch.no_grad()
def worth(policy: Any) -> float:
    """The return that is to be expected of a policy alone, exactly."""
    choices = torch.arange(4.0).unsqueeze(1)
    obs = torch.eye(CELLS).repeat_interleave(4, 0)
    chances = policy(obs).log_prob(choices.repeat(CELLS, 1)).exp().view(CELLS, 4).double().numpy()
    values = np.zeros(CELLS)
    for _ in range(LIMIT):
        values = (chances * (EARNS[NEXT] + np.where(IS_END[NEXT], 0.0, values[NEXT]))).sum(1)
    return float(values[0])
