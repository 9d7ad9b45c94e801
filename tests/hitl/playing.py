"""A run with people, without a learner: a bridge of `hitl=web` around particle worlds, stepped by a thread."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harl.envs.api import EnvStep, FloatArray, VectorEnv
from harl.envs.breaking_off import break_off
from harl.hitl.bridge import Source, Stage
from harl.hitl.web import WebBridge
from tests.hitl.recording_fixtures import mpe
from tests.hitl.rooms import web_config

Policy = Callable[[EnvStep], FloatArray]
TOKENS = {role: f"{role}-0123456789abcdef" for role in ("controller", "trainer")}


class Run:
    """Steps environments until it is told to stop; the policy does nothing at all unless another one is given."""

    def __init__(
        self,
        folder: Path,
        scenario: str = "simple_spread",
        envs: int = 1,
        policy: Policy | None = None,
        overrides: tuple[str, ...] = (),
        shown: str = "all",
        **changes: Any,
    ) -> None:
        self.envs: VectorEnv
        self.envs, _ = mpe(scenario, *overrides, envs=envs)
        self._policy = policy or self._idle
        settings = {"port": 0, "record": "off", "pace": "free", "envs": shown, "reward__anneal": False}
        self.bridge = WebBridge(web_config(**{**settings, **changes}))
        self.folder = folder
        self.steps = 0
        self.human = np.zeros((envs, self.envs.layout.num_agents), np.int64)
        self.returns: list[float] = []
        """Of each episode of environment 0, summed over agents."""
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.bridge.server.port}/"

    def __enter__(self) -> Run:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """End the run, and wait for it."""
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _idle(self, now: EnvStep) -> FloatArray:
        layout = self.envs.layout
        return np.zeros((self.envs.num_envs, layout.num_agents, layout.action_dim), np.float32)

    def _guarded(self) -> None:
        try:
            self._play()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.bridge.close("the run is over")

    def _play(self) -> None:
        now = self.envs.reset(list(range(self.envs.num_envs)))
        self.bridge.attach(self._stage(), now)
        total = 0.0
        while not self._over.is_set():
            override = self.bridge.override_actions(self.steps, now.obs, None, self._policy(now))
            if override.source is not None:
                self.human += override.source == Source.HUMAN
            now = break_off(self.envs, self.envs.step(override.actions), self.bridge.discarded())
            self.bridge.override_rewards(self.steps, now.rewards)
            self.bridge.publish(now)
            self.steps += self.envs.num_envs
            total += float(now.rewards[0].sum())
            if now.ended[0]:
                self.returns.append(total)
                total = 0.0

    def _stage(self) -> Stage:
        known: dict[str, Any] = {
            "layout": self.envs.layout, "num_envs": self.envs.num_envs, "purpose": "train", "title": "a run",
            "env_name": "mpe", "scenario": self.envs.scenario, "algo": "none", "folder": self.folder,
            "sums_rewards": False, "total_steps": 0, "render": self.envs.render, "scene": self.envs.scene,
            "earliest": lambda: 0, "stopping": self._over.is_set, "log_probs": lambda obs, masks, actions: None,
            "notice": lambda text: None, "metrics": lambda numbers: None, "env_state": self.envs.get_state,
            "seed_of": lambda env: env, "standing": None, "watch_ends": self.envs.watch_ends,
            "render_end": self.envs.render_end,
        }  # fmt: skip
        return Stage(**{field.name: known[field.name] for field in dataclasses.fields(Stage)})
