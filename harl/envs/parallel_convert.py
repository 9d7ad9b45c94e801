"""Other kinds of environments as PettingZoo `ParallelEnv`s: AEC games that step in cycles, and single-agent ones."""

from __future__ import annotations

from typing import Any

import gymnasium
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel

from harl.envs.api import EnvError

SINGLE_AGENT = "agent_0"


class SingleAgentEnv(ParallelEnv[str, Any, Any]):
    """A single-agent gymnasium environment as a `ParallelEnv` with the one agent "agent_0"."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.metadata = {"name": type(env.unwrapped).__name__, **env.metadata}
        self.render_mode = env.render_mode
        self.possible_agents = [SINGLE_AGENT]
        self.agents: list[str] = []
        self.max_episode_steps = env.spec.max_episode_steps if env.spec else None

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return self.env.observation_space

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        self.agents = [SINGLE_AGENT]
        return {SINGLE_AGENT: observation}, {SINGLE_AGENT: info}

    def step(self, actions: dict[str, Any]) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(actions[SINGLE_AGENT])
        if terminated or truncated:
            self.agents = []
        return tuple({SINGLE_AGENT: value} for value in (observation, reward, terminated, truncated, info))

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def to_parallel(env: Any) -> Any:
    """The environment as a `ParallelEnv`.

    Raises:
        EnvError: an AEC environment that does not step in cycles, or an object of another kind.
    """
    if isinstance(env, AECEnv):
        if not env.metadata.get("is_parallelizable", False):
            raise EnvError(
                f"{env} is a turn-based AEC environment whose metadata does not say is_parallelizable: its agents do "
                "not act together, once each in a cycle. Use its parallel_env, or set "
                'metadata["is_parallelizable"] = True if it updates only at the end of each cycle'
            )
        return aec_to_parallel(env)
    if isinstance(env, gymnasium.Env):
        return SingleAgentEnv(env)
    missing = [name for name in ("reset", "step", "observation_space", "action_space") if not callable_at(env, name)]
    if missing:
        raise EnvError(
            f"the factory returned {type(env).__name__}, which lacks {', '.join(missing)}; it must return a PettingZoo "
            "ParallelEnv (an AEC environment that steps in cycles or a gymnasium.Env is adapted)"
        )
    return env


def callable_at(owner: Any, name: str) -> bool:
    """Whether `owner.name` exists and can be called."""
    return callable(getattr(owner, name, None))
