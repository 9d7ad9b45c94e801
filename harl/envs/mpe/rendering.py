"""Pictures of a world, drawn by the `mpe2` package."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.mpe.scenarios import Scenario
from harl.envs.mpe.world import World

LEAST_CAMERA_RANGE = 0.05
"""`mpe2` zooms in until the outermost body is at the edge, and fails with all at the origin; never nearer than this."""


class Renderer:
    """Shows single environments. `mpe2` and pygame are imported with the first picture, not before."""

    def __init__(self, scenario: Scenario, continuous_actions: bool) -> None:
        self._scenario = scenario
        self._continuous_actions = continuous_actions
        self._stage: Any = None

    def draw(self, world: World, env_index: int, camera_range: float) -> NDArray[np.uint8]:
        """Picture (700, 700, 3), read-only.

        `camera_range` is the largest coordinate, without sign, at the start of the episode: in its picture bodies have
        their usual size, and they shrink as others go farther. What is not a finite number is drawn at the centre.
        """
        if self._stage is None:
            self._stage = self._build_stage()
        stage = self._stage
        places = np.nan_to_num(world.positions[:, :, env_index], posinf=0.0, neginf=0.0)
        speech = np.nan_to_num(world.speech[:, :, env_index])
        for entity, place in zip(stage.world.entities, places, strict=False):  # the stage has a guard as well
            entity.state.p_pos = place
        if self._scenario.vocabulary:
            for agent, said in zip(stage.world.agents, speech, strict=True):
                agent.state.c = said
        for agent, goal in zip(stage.world.agents, world.goals[:, env_index], strict=False):
            agent.goal_b = stage.world.landmarks[goal]
            agent.goal_a.color = agent.goal_b.color + self._scenario.goal_brightening
        stage.original_cam_range = camera_range
        stage.draw()
        return self._photograph(stage.screen)

    def _photograph(self, screen: Any) -> NDArray[np.uint8]:
        """What is on a surface. pygame puts the pixels in order as it copies them, which is quicker than later."""
        pygame = importlib.import_module("pygame")
        width, height = screen.get_size()
        return np.frombuffer(pygame.image.tobytes(screen, "RGB"), np.uint8).reshape(height, width, 3)

    def close(self) -> None:
        """Forget the stage. Its own `close` would shut pygame down for everyone else in the process."""
        self._stage = None

    def _build_stage(self) -> Any:
        """An environment of `mpe2` to place our bodies in; its own bodies and dynamics are not used."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no picture needs a display; read when pygame starts
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        module = importlib.import_module(f"mpe2.{self._scenario.mpe2_module}")
        stage = module.raw_env(
            render_mode="rgb_array",
            continuous_actions=self._continuous_actions,
            **self._scenario.mpe2_arguments,
        )
        guard = type(stage.world.landmarks[0])()  # a body of no size, which only the camera takes notice of
        guard.size = 0.0
        guard.color = np.ones(3)
        guard.state.p_pos = np.array([LEAST_CAMERA_RANGE, 0.0])
        stage.world.landmarks.append(guard)
        return stage
