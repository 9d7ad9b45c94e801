"""Fixture environment for SHARPIE (own code): a 1-D track, one cell per step.

Metadata of the Environment row is passed to the constructor by the runner.
frame: the left half is pure red (255,0,0) RGB, to see what the JPEG encoder does.
obs_size >= 50 takes the LZMA+pickle path of the runner, < 50 plain lists.
"""
import json
import os

import numpy as np


class TrackEnv:
    def __init__(self, roles=("agent_0",), length=6, obs_size=4, per_agent=True, log=None, holes=False):
        self.roles, self.length, self.obs_size = list(roles), int(length), int(obs_size)
        self.per_agent, self.holes, self.log = per_agent, holes, log or os.environ.get("FIXTURE_LOG")

    def _obs(self):
        base = np.linspace(0, 1, self.obs_size, dtype=np.float32) + self.t
        if self.holes:
            base[1] = np.nan
        return {r: base + i for i, r in enumerate(self.roles)} if self.per_agent else base

    def _note(self, kind, **data):
        if self.log:
            with open(self.log, "a") as f:
                f.write(json.dumps({"kind": kind, "t": self.t, **data}, default=str) + "\n")

    def reset(self, **_):
        self.t, self.pos = 0, {r: 0 for r in self.roles}
        self._note("reset")
        return self._obs(), {}

    def step(self, actions):
        self.t += 1
        self._note("step", actions=actions)
        for r, a in (actions or {}).items():
            if isinstance(a, (int, float)) and r in self.pos:
                self.pos[r] += a
        reward = {r: float(self.pos[r]) for r in self.roles} if self.per_agent else 1.0
        return self._obs(), reward, self.t >= self.length, False, {}

    def render(self):
        img = np.zeros((64, 128, 3), np.uint8)
        img[:, :64, 0] = 255                      # RGB red
        img[:, 64 + 8 * (self.t % 8):72 + 8 * (self.t % 8)] = 255
        return img


environment = TrackEnv
