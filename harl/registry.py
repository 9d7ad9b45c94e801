"""Algorithm and environment names, what stands behind them, and what they support.

An algorithm is a line of `ALGORITHMS`: the runner says in which order agents are updated, the actor has the loss, the
critic says what is estimated. An environment is a line of `ENVIRONMENTS`; installed packages add names of their own by
an entry point in the group `harl.envs`, whose value is a factory of a PettingZoo `ParallelEnv`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces

from harl.algorithms.actors.a2c import A2C
from harl.algorithms.actors.d3qn import D3QN
from harl.algorithms.actors.ddpg import DDPG
from harl.algorithms.actors.off_policy import OffPolicyActor
from harl.algorithms.actors.on_policy import OnPolicyActor
from harl.algorithms.actors.ppo import PPO
from harl.algorithms.actors.sac import SAC
from harl.algorithms.actors.td3 import TD3
from harl.algorithms.actors.trpo import TRPO
from harl.algorithms.critics.joint_q_critic import LARGEST_JOINT, JointQCritic, joint_actions
from harl.algorithms.critics.q_base import Critic
from harl.algorithms.critics.q_critic import QCritic, TwinQCritic
from harl.algorithms.critics.soft_q_critic import SoftTwinQCritic
from harl.algorithms.critics.v_critic import VCritic
from harl.algorithms.off_policy_team import OffPolicyTeam
from harl.algorithms.team import Acting, Team
from harl.config import AlgoArgs, Config, EnvArgs, ModelConfig, MPEConfig, OnPolicyAlgoConfig, PettingZooConfig
from harl.envs.api import Layout, VectorEnv
from harl.models.init import ACTIVATIONS


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One line of the table of algorithms."""

    runner: str
    """Which runner: `on_policy_ha`, `on_policy_ma`, `off_policy_ha` or `off_policy_ma`."""
    actor: type[OnPolicyActor] | type[OffPolicyActor]
    critic: type[VCritic] | type[Critic]
    action_spaces: tuple[type[spaces.Space], ...] = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)  # type: ignore[type-arg]
    """Kinds of action spaces that the actor has a distribution for."""
    share_param: bool = False
    """Whether agents may use one network."""
    images: bool = True
    """Whether networks have a base for images."""
    bounded: bool = False
    """Whether the policy maps into the bounds of a Box, so that every Box has to have them."""
    has_policy: bool = True
    """Whether there is a policy that what people did can be made more likely of, and not only values to act by."""


ALGORITHMS: dict[str, Algorithm] = {
    "happo": Algorithm("on_policy_ha", PPO, VCritic),
    "mappo": Algorithm("on_policy_ma", PPO, VCritic, share_param=True),
    "haa2c": Algorithm("on_policy_ha", A2C, VCritic),
    "hatrpo": Algorithm("on_policy_ha", TRPO, VCritic),
    "haddpg": Algorithm("off_policy_ha", DDPG, QCritic, bounded=True, images=False),
    "maddpg": Algorithm("off_policy_ma", DDPG, QCritic, bounded=True, share_param=True, images=False),
    "hatd3": Algorithm("off_policy_ha", TD3, TwinQCritic, bounded=True, images=False),
    "matd3": Algorithm("off_policy_ma", TD3, TwinQCritic, bounded=True, share_param=True, images=False),
    "hasac": Algorithm("off_policy_ha", SAC, SoftTwinQCritic, bounded=True, images=False),
    "had3qn": Algorithm("off_policy_ha", D3QN, JointQCritic, (spaces.Discrete,), images=False, has_policy=False),
}


def on_policy_parts(entry: Algorithm) -> tuple[type[OnPolicyActor], type[VCritic]]:
    """Actor and critic of an on-policy algorithm."""
    return cast(tuple[type[OnPolicyActor], type[VCritic]], (entry.actor, entry.critic))


def off_policy_parts(entry: Algorithm) -> tuple[type[OffPolicyActor], Any]:
    """Actor and critic of an off-policy algorithm; critics are built from (layout, model, algo, device)."""
    return cast(type[OffPolicyActor], entry.actor), entry.critic


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


def build_team(args: AlgoArgs, layout: Layout, device: torch.device, generator: torch.Generator) -> Acting:
    """The policies that an algorithm gives these agents, with fresh weights."""
    entry, algo, model = ALGORITHMS[args.algo.name], args.algo, args.model
    if isinstance(algo, OnPolicyAlgoConfig) and isinstance(model, ModelConfig):
        return Team(layout, model, algo.share_param, device)
    return OffPolicyTeam(layout, args, off_policy_parts(entry)[0], device, generator)


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
    if algorithm.bounded:
        problems += _unbounded(name, layout)
    if algorithm.actor is SAC:
        problems += _activation_problems(config.algo.model.activation_func, layout)  # type: ignore[union-attr]
    if algorithm.critic is JointQCritic and not problems and joint_actions(layout) > LARGEST_JOINT:
        problems.append(
            f"env: these agents have {' x '.join(str(n) for n in layout.action_numbers)} = {joint_actions(layout):,} "
            f"joint actions, and algo.name={name} has an output for each; allowed: {LARGEST_JOINT:,}; without such a "
            "limit: algo=happo, algo=hasac"
        )
    if config.algo.algo.share_param:
        problems += _sharing_problems(name, algorithm, layout)
    return problems


def _image_problems(config: Config, algorithm: Algorithm, layout: Layout) -> list[str]:
    name, model = config.algo.algo.name, config.algo.model
    if len(layout.obs_shape) == 3 and not algorithm.images:
        others = ", ".join(other for other, entry in ALGORITHMS.items() if entry.images)
        return [
            f"env: observations of shape {layout.obs_shape} are images; the networks of algo.name={name} take vectors "
            f"(flatten them in the environment); algorithms that take images: {others}"
        ]
    able = "vectors or images (channels, height, width)" if algorithm.images else "vectors"
    kernel = model.cnn_kernel_size if isinstance(model, ModelConfig) else 0
    problems = []
    for what, shape in (("observations", layout.obs_shape), ("states", layout.share_obs_shape)):
        if len(shape) == 1:
            continue
        if len(shape) != 3 or not algorithm.images:
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


def _activation_problems(activation: str, layout: Layout) -> list[str]:
    discrete = [
        agent
        for agent, space in zip(layout.agents, layout.action_spaces, strict=True)
        if not isinstance(space, spaces.Box)
    ]
    if activation in ACTIVATIONS or not discrete:
        return []
    return [
        f"model.activation_func={activation}: does not go with the discrete actions of {', '.join(discrete)}; allowed "
        f"for their policies: {', '.join(ACTIVATIONS)}"
    ]


def _unbounded(name: str, layout: Layout) -> list[str]:
    problems = []
    for agent, space in zip(layout.agents, layout.action_spaces, strict=True):
        if isinstance(space, spaces.Box):
            free = np.flatnonzero(~(np.isfinite(space.low) & np.isfinite(space.high)))
            if len(free):
                problems.append(
                    f"env: dimension {', '.join(map(str, free))} of the actions of {agent} has no bounds ({space}), "
                    f"and algo.name={name} maps into them; allowed: finite bounds, or algo=happo, algo=mappo"
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
