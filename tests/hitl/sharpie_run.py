"""A run of single steps, whose policies always propose the same, with a bridge to the people of a site."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from websockets.sync.server import ServerConnection

from harl.config import SharpieConfig, build_config
from harl.envs.mpe import MPEVectorEnv
from harl.hitl.bridge import Credit, Source, Stage
from harl.hitl.sharpie_bridge import SharpieBridge
from tests.hitl.sharpie_fakes import FakeSite, agent, batch

N, STEPS = 2, 4
"""Environments, and steps of an episode."""
ROLES = {name: agent(participant=name == "agent_0") for name in ("agent_0", "agent_1", "agent_2")}


def sharpie_config(port: int = 1, **changes: Any) -> SharpieConfig:
    """The section `hitl` of hitl=sharpie, with other values; `takeover__learn=…` sets hitl.takeover.learn."""
    config = build_config(["hitl=sharpie"]).run.hitl
    assert isinstance(config, SharpieConfig)
    changes = {"hostname": "127.0.0.1", "port": port, "reward__anneal": False, "reward__weight": 1.0, **changes}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        value = dataclasses.replace(getattr(config, section), **{key: value}) if key else value
        config = dataclasses.replace(config, **{section: value})
    return config


class Run:
    """A run whose policies always propose action 4; keeps what happened in environment 0 while a session went on."""

    def __init__(self, folder: Path, bridge: SharpieBridge) -> None:
        self.bridge, self.envs = bridge, MPEVectorEnv(num_envs=N, scenario="simple_spread", max_cycles=STEPS)
        self.env_steps, self.asked_to_stop = 0, False
        self.human_steps = 0
        """In all environments, in and out of sessions."""
        self.executed: list[list[int]] = []
        self.source: list[list[int]] = []
        self.mask: list[list[float]] = []
        self.rewards: dict[int, list[float]] = {}
        self.in_session: list[int] = []
        """Counts of environment steps of the steps of sessions."""
        self.credits: list[Credit] = []
        self.notices: list[str] = []
        self.watched: list[list[int]] = []
        """Of which environments ends were asked for, whenever that changed."""
        self.stage = Stage(
            layout=self.envs.layout, num_envs=N, purpose="train", title="a run", env_name="mpe",
            scenario="simple_spread", algo="happo", folder=folder, sums_rewards=False, total_steps=0,
            render=self.envs.render, scene=lambda env: None, earliest=lambda: 0,
            stopping=lambda: self.asked_to_stop, log_probs=lambda obs, masks, actions: None,
            notice=self.notices.append, metrics=lambda m: None, watch_ends=self.watch_ends,
            render_end=self.envs.render_end,
        )  # fmt: skip
        self.now = self.envs.reset([1, 2])
        bridge.attach(self.stage, self.now)

    def watch_ends(self, envs: Iterable[int]) -> bool:
        self.watched.append(list(envs))
        return self.envs.watch_ends(self.watched[-1])

    def step(self) -> None:
        """One step of all environments."""
        bridge = self.bridge
        proposed = np.full((N, 3, 1), 4, np.float32)
        override = bridge.override_actions(self.env_steps, self.now.obs, None, proposed)
        session = bridge.reception.session
        self.human_steps += 0 if override.source is None else int((override.source == Source.HUMAN).sum())
        self.now = self.envs.step(override.actions)
        _, credits = bridge.override_rewards(self.env_steps, self.now.rewards)
        self.credits += credits
        self.rewards[self.env_steps] = self.now.rewards[0, :, 0].tolist()
        if session is not None and session.begun and not session.finished:
            self.in_session.append(self.env_steps)
            self.executed.append(override.actions[0, :, 0].astype(int).tolist())
            self.source.append([0, 0, 0] if override.source is None else override.source[0].tolist())
            self.mask.append([1, 1, 1] if override.policy_mask is None else override.policy_mask[0, :, 0].tolist())
        bridge.publish(self.now)
        self.env_steps += N


@contextmanager
def run_at(site: FakeSite, folder: Path, **changes: Any) -> Iterator[Run]:
    """A run that serves the site's queue."""
    assert site.settings is not None
    if "agent_1" not in site.settings[1]:
        site.settings[1] = ROLES
    with site.running() as port:
        bridge = SharpieBridge(sharpie_config(port, **changes))
        try:
            yield Run(folder, bridge)
        finally:
            bridge.close("the test is over")


def play(run: Run, site: FakeSite, room: str, link: str = "spread", more: int = 3) -> None:
    """Step until the session is over, and a few steps more."""
    for _ in range(100_000):
        run.step()
        if (link, room) in site.closed and run.bridge.reception.session is None:
            break
    assert (link, room) in site.closed
    for _ in range(more):
        run.step()


def scripted(*answers: Any, role: str = "agent_0") -> Any:
    """People who answer each frame with the next of these; None is silence."""

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        step = message.get("step")
        if step is not None and step <= len(answers) and answers[step - 1] is not None:
            answer = answers[step - 1]
            connection.send(answer if isinstance(answer, str) else batch(**{role: answer}))

    return people
