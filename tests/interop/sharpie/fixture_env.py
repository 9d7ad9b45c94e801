"""A track on which every agent goes its own way, one cell a step.

The left half of the picture is pure red, to see which colours arrive.
"""

import json
import os

import numpy as np


class TrackEnv:
    """An environment as SHARPIE's runner wants it.

    Args:
        roles: names of the agents.
        length: steps of an episode.
        obs_size: numbers that each agent sees.
        holes: whether one of them is NaN, and the end is flagged by a boolean of numpy.
        size: width of the picture; it is half as high.
    """

    def __init__(self, roles=("agent_0",), length=6, obs_size=4, holes=False, size=128):
        self.roles, self.length, self.obs_size = list(roles), int(length), int(obs_size)
        self.holes, self.size = holes, int(size)

    def _observations(self):
        base = np.linspace(0, 1, self.obs_size, dtype=np.float32) + self.steps
        if self.holes:
            base[1] = np.nan
        return {role: base + i for i, role in enumerate(self.roles)}

    def reset(self):
        self.steps, self.places = 0, dict.fromkeys(self.roles, 0)
        return self._observations(), {}

    def step(self, actions):
        self.steps += 1
        note("step", actions=actions)
        for role, action in actions.items():
            if isinstance(action, int | float) and role in self.places:
                self.places[role] += action
        rewards = {role: float(place) for role, place in self.places.items()}
        over = self.steps >= self.length
        return self._observations(), rewards, np.bool_(over) if self.holes else over, False, {}

    def render(self):
        half = self.size // 2
        picture = np.zeros((half, self.size, 3), np.uint8)
        picture[:, :half, 0] = 255
        start = half + 8 * (self.steps % 8)
        picture[:, start : start + 8] = 255
        return picture


def note(kind, **data):
    """Write down what happened, where the environment variable FIXTURE_LOG names a file."""
    path = os.environ.get("FIXTURE_LOG")
    if path:
        with open(path, "a") as file:
            plain = json.dumps({"kind": kind, **data}, default=lambda value: value.tolist())
            file.write(plain + "\n")


environment = TrackEnv
