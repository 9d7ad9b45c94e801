"""Episodes of a real environment, recorded as the bridge records them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from harl.config import Config, build_config, to_dict
from harl.envs.api import Layout, VectorEnv
from harl.hitl.recording.layout import layout_to_json
from harl.hitl.recording.recorder import Recorder, StepRecord
from harl.hitl.recording.state import state_of
from harl.registry import make_envs

Driving = Callable[[int, int], Sequence[str | None]]
"""(episode, step) → who drives each agent."""


def session(layout: Layout, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Facts of a session with these agents."""
    facts = {"title": "happo on mpe", "purpose": "train", "algo": "happo", "env": "mpe", "scenario": "simple_spread"}
    return {**facts, "num_envs": 1, "layout": layout_to_json(layout), "config": config, **more}


def mpe(scenario: str = "simple_spread", *overrides: str, envs: int = 1) -> tuple[VectorEnv, dict[str, Any]]:
    """Environments, and the configuration that describes them."""
    config = configured(scenario, *overrides)
    return make_envs(config.env, envs), to_dict(config)


@functools.cache
def configured(scenario: str, *overrides: str) -> Config:
    """The configuration of a run; composed once."""
    return build_config(["algo=happo", "env=mpe", f"env.scenario={scenario}", *overrides])


def alice_drives(episode: int, step: int) -> Sequence[str | None]:
    """Steps 5 to 9 of agent_0, step 20 of agent_1."""
    return ["alice-93f1" if 5 <= step < 10 else None, "bob-77c0" if step == 20 else None, None]


def record_episodes(
    recorder: Recorder,
    envs: VectorEnv,
    episodes: int,
    driving: Driving = alice_drives,
    seed: int = 7,
    env: int = 0,
    state: bool = True,
) -> list[np.ndarray[Any, Any]]:
    """Play episodes with random actions in `env` and record them; gives the raw returns (A,) of each."""
    rng = np.random.default_rng(seed)
    step = envs.reset([seed + n for n in range(envs.num_envs)])
    agents, returns = envs.layout.num_agents, []
    for episode in range(episodes):
        start = state_of(envs.get_state(), env, envs.num_envs) if state else None
        recorder.begin(env, episode, seed + env, 1000, step.obs[env], step.share_obs[env], None, start)
        total = np.zeros(agents)
        for t in range(25):
            shape = (envs.num_envs, agents, envs.layout.action_dim)
            proposed = rng.random(shape).astype(np.float32)
            for agent, space in enumerate(envs.layout.action_spaces):
                if isinstance(space, spaces.Discrete):
                    proposed[:, agent] = np.floor(proposed[:, agent] * space.n)
            executed = proposed.copy()
            names = list(driving(episode, t))[:agents]
            for agent, name in enumerate(names):
                if name is not None:
                    executed[env, agent] = 0.0
            human = np.array([name is not None for name in names])
            step = envs.step(executed)
            seen, share = (step.final_obs, step.final_share_obs) if step.ended[env] else (step.obs, step.share_obs)
            assert seen is not None
            assert share is not None
            recorder.step(
                StepRecord(
                    env=env,
                    env_steps=1000 + t,
                    proposed=proposed[env],
                    executed=executed[env],
                    reward=step.rewards[env, :, 0],
                    obs=seen[env],
                    share_obs=share[env],
                    terminated=step.terminated[env],
                    truncated=step.truncated[env],
                    source=human.astype(np.int8),
                    controllers=names,
                    seq=np.where(human, t, -1),
                    seen_step=np.where(human, t - 1, -1),
                )
            )
            total += step.rewards[env, :, 0]
        recorder.end(env)
        returns.append(total)
    return returns


def started(
    folder: Path,
    scenario: str = "simple_spread",
    record: str = "touched",
    overrides: Sequence[str] = (),
    **more: Any,
) -> tuple[Recorder, VectorEnv]:
    """A recorder and an environment for it."""
    envs, config = mpe(scenario, *overrides)
    facts = session(envs.layout, **{"scenario": scenario, "config": config, **more})
    return Recorder(folder, facts, record), envs
