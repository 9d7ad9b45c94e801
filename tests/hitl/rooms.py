"""Rooms with a clock of their own, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces

from harl.config import WebConfig, build_config
from harl.envs.api import Layout
from harl.hitl.room import Room


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def web_config(**changes: Any) -> WebConfig:
    """The section `hitl` of hitl=web, with other values: `takeover__bc_coef=1` sets hitl.takeover.bc_coef."""
    config = build_config(["hitl=web"]).run.hitl
    assert isinstance(config, WebConfig)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            config = dataclasses.replace(
                config, **{section: dataclasses.replace(getattr(config, section), **{key: value})}
            )
        else:
            config = dataclasses.replace(config, **{name: value})
    return config


LAYOUT = Layout(
    agents=("mover", "talker", "arm"),
    observation_spaces=tuple(spaces.Box(-1, 1, (4,)) for _ in range(3)),
    action_spaces=(spaces.Discrete(5), spaces.MultiDiscrete([3, 2]), spaces.Box(-1.0, 1.0, (2,))),
    obs_shape=(4,),
    share_obs_shape=(12,),
    state_type="EP",
    has_masks=True,
)
MASKS = np.ones((3, 5), np.float32)


def room(clock: Clock, num_envs: int = 2, **changes: Any) -> Room:
    """An open room of three agents that differ, with a controller `c` and a trainer `t`."""
    made = Room(web_config(**changes), clock)
    made.open(LAYOUT, num_envs)
    made.enter("c", "carol", "controller", "desktop")
    made.enter("t", "tess", "trainer", "desktop")
    made.outbox.take()
    return made


def messages(made: Room, kind: str) -> list[dict[str, Any]]:
    """Messages of a kind that wait in the outbox; takes all of them."""
    return [letter.message for letter in made.outbox.take() if letter.message["type"] == kind]
