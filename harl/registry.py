"""Algorithm and environment names, what stands behind them, and what they support.

An algorithm is a line of `ALGORITHMS`: the runner says in which order agents are updated, the actor has the loss, the
critic says what is estimated. An environment is a line of `ENVIRONMENTS`; installed packages add names of their own by
an entry point in the group `harl.envs`, whose value is a factory of a PettingZoo `ParallelEnv`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gymnasium import spaces

from harl.algorithms.actors.a2c import A2C
from harl.algorithms.actors.on_policy import OnPolicyActor
from harl.algorithms.actors.ppo import PPO
from harl.algorithms.actors.trpo import TRPO
from harl.algorithms.critics.v_critic import VCritic
from harl.config import Config, EnvArgs, MPEConfig, PettingZooConfig
from harl.envs.api import Layout, VectorEnv


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One line of the table of algorithms."""

    runner: str
    """Which runner: `on_policy_ha` or `on_policy_ma`."""
    actor: type[OnPolicyActor]
    critic: type[VCritic]
    action_spaces: tuple[type[spaces.Space], ...] = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)  # type: ignore[type-arg]
    """Kinds of action spaces that the actor has a distribution for."""
    share_param: bool = False
    """Whether agents may use one network."""
    images: bool = True
    """Whether networks have a base for images."""


ALGORITHMS: dict[str, Algorithm] = {
    "happo": Algorithm("on_policy_ha", PPO, VCritic),
    "mappo": Algorithm("on_policy_ma", PPO, VCritic, share_param=True),
    "haa2c": Algorithm("on_policy_ha", A2C, VCritic),
    "hatrpo": Algorithm("on_policy_ha", TRPO, VCritic),
}


def _mpe(args: EnvArgs, num_envs: int, render: bool) -> VectorEnv:
    from harl.envs.mpe import MPEVectorEnv

    assert isinstance(args, MPEConfig)
    return MPEVectorEnv(
        num_envs=num_envs,
        scenario=args.scenario,
        continuous_actions=args.continuous_actions,
        physics=args.physics,
        state_type=state_type(args),
        max_cycles=args.kwargs.max_cycles,
        local_ratio=args.kwargs.local_ratio,
        N=args.kwargs.N,
    )


def _pettingzoo(args: EnvArgs, num_envs: int, render: bool) -> VectorEnv:
    from harl.envs.parallel import make_parallel_vector_env

    assert isinstance(args, PettingZooConfig)
    return make_parallel_vector_env(args.entry_point, dict(args.kwargs), num_envs, state_type(args), render=render)


ENVIRONMENTS: dict[str, Callable[[EnvArgs, int, bool], VectorEnv]] = {"mpe": _mpe, "pettingzoo": _pettingzoo}


def state_type(args: EnvArgs) -> str:
    """EP or FP as configured; individual rewards need a value for each agent, so they make it FP."""
    return "FP" if args.reward == "individual" else args.state_type


def make_envs(args: EnvArgs, num_envs: int, render: bool = False) -> VectorEnv:
    """Build the environments that the `env` section describes.

    Args:
        args: the section.
        num_envs: how many copies.
        render: whether `VectorEnv.render` will be called.
    """
    return ENVIRONMENTS.get(args.name, _pettingzoo)(args, num_envs, render)


def unsupported(config: Config, layout: Layout) -> list[str]:
    """Why this algorithm cannot train these agents; empty if it can. Each reason names what would do."""
    name = config.algo.algo.name
    algorithm = ALGORITHMS[name]
    problems = []
    for agent, space in zip(layout.agents, layout.action_spaces, strict=True):
        if not isinstance(space, algorithm.action_spaces):
            able = [other for other, entry in ALGORITHMS.items() if isinstance(space, entry.action_spaces)]
            problems.append(
                f"env: {agent} has the action space {space}, which algo.name={name} cannot handle; "
                f"allowed: {', '.join(kind.__name__ for kind in algorithm.action_spaces)}"
                + (f"; algorithms that can: {', '.join(able)}" if able else "")
            )
    problems += _image_problems(config, algorithm, layout)
    if config.algo.algo.share_param:
        problems += _sharing_problems(name, algorithm, layout)
    return problems


def _image_problems(config: Config, algorithm: Algorithm, layout: Layout) -> list[str]:
    problems = []
    name, kernel = config.algo.algo.name, config.algo.model.cnn_kernel_size
    for what, shape in (("observations", layout.obs_shape), ("states", layout.share_obs_shape)):
        if len(shape) == 1:
            continue
        if len(shape) != 3 or not algorithm.images:
            able = "vectors or images (channels, height, width)" if algorithm.images else "vectors"
            problems.append(
                f"env: {what} have the shape {shape}; the networks of algo.name={name} take {able} (flatten them in "
                "the environment)"
            )
        elif kernel > min(shape[1:]):
            problems.append(
                f"model.cnn_kernel_size={kernel}: the images ({what}) have {shape[1]} x {shape[2]} pixels; allowed: at "
                f"most {min(shape[1:])}"
            )
    return problems


def _sharing_problems(name: str, algorithm: Algorithm, layout: Layout) -> list[str]:
    if not algorithm.share_param:
        return [
            f"algo.share_param=True: {name} updates one agent after the other, which has no meaning for one network; "
            "allowed: algo.share_param=false, or algo=mappo"
        ]
    first = (layout.observation_spaces[0], layout.action_spaces[0])
    return [
        f"algo.share_param=True: {agent} has observations {observation} and actions {action}, {layout.agents[0]} has "
        f"{first[0]} and {first[1]}; one network needs equal spaces; allowed here: algo.share_param=false"
        for agent, observation, action in zip(
            layout.agents[1:], layout.observation_spaces[1:], layout.action_spaces[1:], strict=True
        )
        if (observation, action) != first
    ]
