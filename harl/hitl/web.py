"""`hitl=web`: the bridge to the own page, over the own server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.config import WebConfig
from harl.envs.api import EnvStep, FloatArray
from harl.hitl.bridge import Override, PeopleError, Source, Stage
from harl.hitl.network.frames import Codec, Frame, Payload, encode_scene, own_picture
from harl.hitl.network.rates import Limits
from harl.hitl.network.server import Server
from harl.hitl.people_bridge import PeopleBridge

SIZES = (128, 256, 512, 1024, 2048)
"""Sizes in which pictures are made; each is made once for all who want it."""
EARLY = 0.25
"""Share of the time between two frames by which one may come early: steps at the rate of the frames are all shown,
however unevenly they come."""
SPEED_OVER_S = 1.0
"""Seconds over which speeds are measured."""


class WebBridge(PeopleBridge):
    """People in browsers, and scripts, at the server of this run.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the server cannot listen as configured.
    """

    config: WebConfig

    def __init__(self, config: WebConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config, clock)
        self.server = Server(self.room, config, limits=_limits(config.inputs_per_s))
        self.links: Mapping[str, str] = self.server.start()
        self._next_frame: dict[int, float] = {}
        self._period: dict[int, float] = {}
        """Seconds between two frames of an environment."""
        self._waited = not config.wait_for_people
        self._measured_at, self._measured_steps, self.steps_per_second = clock(), 0, 0.0
        self._broken: set[str] = set()
        """Ways of showing that have failed, and are not tried again."""

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """See `Bridge`; says where people can come in."""
        again = self.stage is not None
        super().attach(stage, first)
        self._measured_at, self._measured_steps = self.clock(), self.env_steps
        if "state" not in self.modes:
            self._broken.add("state")
        for warning in self.server.warnings:
            stage.notice(f"warning: {warning}")
        if not again:
            print("\n".join(f"people ({role}): {link}" for role, link in self.links.items()), flush=True)

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        """See `Bridge`.

        Raises:
            PeopleError: `hitl.wait_for_people`, and nobody came.
        """
        if not self._waited:
            self._wait_for_people()
        return super().override_actions(env_steps, obs, available_actions, proposed)

    @property
    def consent_version(self) -> str | None:
        """Version of the terms: as configured, or as the page shows it."""
        agreement = self.server.settings.agreement
        return super().consent_version if agreement is None else agreement.version

    def _wait_for_people(self) -> None:
        self._waited = True
        limit, stage = self.config.max_pause_s, self._stage
        stage.notice(f"waiting up to {limit:g} s for somebody who may act")
        deadline = self.clock() + limit
        while not self.room.may_act() and not stage.stopping():
            left = deadline - self.clock()
            if left <= 0:
                raise PeopleError(
                    f"nobody came within hitl.max_pause_s={limit:g} s; start without waiting by "
                    "hitl.wait_for_people=false"
                )
            with self.room.changed:
                self.room.changed.wait(min(left, 0.2))
            self._meanwhile()

    def show(self, env: int, done: bool, at_once: bool) -> bool:
        """See `PeopleBridge`; nothing is drawn or encoded unless a frame is due for somebody who wants it."""
        now, due = self.clock(), self._next_frame.get(env, 0.0)
        if not at_once and env not in self.room.newcomers and now < due - EARLY * self._period.get(env, 0.0):
            return False
        watchers = self.room.watchers(env)
        if not watchers:
            return False
        self._period[env] = period = 1.0 / max(person.fps for person in watchers)
        self.room.newcomers.discard(env)
        self._next_frame[env] = max(due + period, now + period / 2)
        self._measure(now)
        wanted = {person.show if person.show != "jpeg" else _size(person.max_px) for person in watchers}
        payloads: dict[str | int, Payload] = {}
        if "state" in wanted and (drawing := self._try("state", lambda: self._stage.scene(env))) is not None:
            payloads["state"] = (Codec.STATE, encode_scene(drawing))
        sizes = [size for size in wanted if isinstance(size, int)]
        if sizes and (picture := self._try("jpeg", lambda: self._picture(env))) is not None:
            payloads |= dict.fromkeys(sizes, picture)
        episode, step = self.room.position[env]
        self.server.offer(Frame(env, episode, step, self.meta(env, done), payloads, at_once))
        if env in self.crediting.ledgers:
            self.crediting.ledgers[env].show(episode, step, now)
        return True

    def _picture(self, env: int) -> NDArray[np.uint8] | None:
        picture = self._stage.render(env)
        return None if picture is None else own_picture(picture)

    def meta(self, env: int, done: bool) -> dict[str, Any]:
        """What is shown beside the picture."""
        agents = self._stage.layout.agents
        widths = self._stage.layout.action_dims
        actions = {name: _plain(self.actions[env, i, : widths[i]]) for i, name in enumerate(agents)}
        _, step = self.room.position[env]
        rewards = self.rewards[env] if step else np.zeros_like(self.rewards[env])  # a new episode has earned nothing
        return {
            "env_steps": self.env_steps,
            "sps": round(self.steps_per_second, 1),
            "reward": dict(zip(agents, rewards.tolist(), strict=True)),
            "return": dict(zip(agents, self.returns[env].tolist(), strict=True)),
            "actions": actions,
            "source": {name: Source(int(self.source[env, i])).name.lower() for i, name in enumerate(agents)},
            "driver": {name: self.room.driver(env, i) for i, name in enumerate(agents)},
            "applied": {agents[drive.agent]: drive.held.seq for drive in self._drives.get(env, ())},
            "done": done,
            "last_return": dict(zip(agents, self.last_return[env].tolist(), strict=True)),
            "rate": round(self.human_share, 4),
            "pace": self.room.pace.state(),
            "rec": self.recording,
        }

    def _try(self, way: str, draw: Callable[[], Any]) -> Any:
        """What is drawn; None where it cannot be, which is said once and does not stop the run."""
        if way in self._broken:
            return None
        try:
            return draw()
        except Exception as error:
            self._broken.add(way)
            text = f"this environment cannot be shown as {way}: {type(error).__name__}: {error}"
            self._stage.notice(text)
            self.room.outbox.post({"type": "notice", "level": "warning", "text": text[:200]})
            return None

    def _measure(self, now: float) -> None:
        elapsed = now - self._measured_at
        if elapsed >= SPEED_OVER_S:
            steps = self.env_steps - self._measured_steps
            self.steps_per_second = steps / elapsed
            self._measured_at, self._measured_steps = now, self.env_steps
            self.room.rate = max(self.config.fps, self.steps_per_second / self._stage.num_envs)

    def close(self, reason: str) -> None:
        """See `Bridge`."""
        super().close(reason)
        self.server.close(reason)


def _size(max_px: int) -> int:
    """The smallest of `SIZES` that is as large as what was asked for."""
    return next((size for size in SIZES if size >= max_px), SIZES[-1])


def _plain(action: FloatArray) -> float | list[float]:
    values: list[float] = np.round(action, 4).tolist()
    return values[0] if len(values) == 1 else values


def _limits(inputs_per_s: float) -> Limits:
    usual = Limits()
    burst, any_rate = max(usual.input_burst, inputs_per_s / 2), max(usual.any_rate, 2 * inputs_per_s)
    others = max(usual.other_rate, inputs_per_s / 3)
    return Limits(input_rate=inputs_per_s, input_burst=burst, other_rate=others, any_rate=any_rate)
