"""Off-policy learners in environments that return given records, so that each target is a number by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harl.envs.api import EnvStep, Layout
from harl.runners.seen import Seen
from tests.algorithms.learners import kind_for, learners, team_layout

STEPS = ("terminated", "truncated")


class Script:
    """Environments that return given records."""

    def __init__(self, steps: list[EnvStep]) -> None:
        self.steps = steps

    def step(self, actions: np.ndarray[Any, Any]) -> EnvStep:
        return self.steps.pop(0)


def record(layout: Layout, state: float, reward: float = 1.0, final: float | None = None, **flags: Any) -> EnvStep:
    """One environment's step: the state is one number everywhere, which is what the slow critics say of it.

    `final` is the last state of an episode that ends here; flags are lists of one entry an agent.
    """
    agents = layout.num_agents

    def filled(shape: tuple[int, ...], value: float) -> np.ndarray[Any, Any]:
        return np.full((1, agents, *shape), value, np.float32)

    ends = {name: np.array([flags.get(name, [False] * agents)]) for name in STEPS}
    return EnvStep(
        obs=filled(layout.obs_shape, 0.0),
        share_obs=filled(layout.share_obs_shape, state),
        available_actions=None,
        active=np.array(flags.get("active", [1.0] * agents), np.float32).reshape(1, agents, 1),
        rewards=np.array(flags.get("rewards", [reward / agents] * agents), np.float32).reshape(1, agents, 1),
        ended=np.array([final is not None]),
        final_obs=None if final is None else filled(layout.obs_shape, 0.0),
        final_share_obs=None if final is None else filled(layout.share_obs_shape, final),
        **ends,
    )


def of_state(share_obs: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return share_obs[..., :1]


def prepared(algo: str, layout: Layout, **overrides: Any) -> Any:
    """Learners whose slow critic says of each state what it shows, whose critic says 0, without entropy."""
    given: dict[str, Any] = {"train__n_rollout_threads": 1, "algo__n_step": 1, "algo__gamma": 0.99} | overrides
    if algo == "hasac":
        given = {"algo__alpha": 1e-12, "algo__use_valuenorm": False, "algo__use_huber_loss": False} | given
    runner = learners(algo, layout, **given)
    critic = runner.critic
    if algo == "had3qn":
        width = critic.network.dueling_a.mlp[-2].out_features
        critic.target_network.forward = lambda share_obs: of_state(share_obs).expand(*share_obs.shape[:-1], width)
    else:
        for network in critic.target_networks:
            network.forward = of_state
    critic.flat.values.zero_()
    return runner


def play(runner: Any, *steps: EnvStep) -> None:
    """Take these steps; the first one is what the environments begin with."""
    runner.now = Seen.of(steps[0])
    runner.envs = Script(list(steps[1:]))
    for _ in steps[1:]:
        runner.step(runner.sample_actions())


def targets(runner: Any) -> list[float]:
    """What the critic learns towards in each transition: with a Q of 0, the root of its loss, signed by its step."""
    found, critic = [], runner.critic
    network = critic.network.dueling_v if hasattr(critic, "network") else critic.networks[0]
    bias = list(network.parameters())[-1]
    for row in range(len(runner.buffer)):
        batch = runner.buffer.gather(torch.tensor([row]))
        runner.buffer.sample = lambda size, batch=batch: batch
        critic.flat.values.zero_()
        critic.optimizer.adam.state.clear()
        runner.train_critic()
        loss = runner.reports._values[runner.reports._labels.index(("critic", "critic", "value_loss"))].item()
        runner.reports.drain()
        found.append(loss**0.5 if bias.item() > 0 else -(loss**0.5))
    return found


def target(algo: str, *steps: EnvStep, layout: Layout, **overrides: Any) -> float:
    runner = prepared(algo, layout, **overrides)
    play(runner, *steps)
    return targets(runner)[0]


def team(algo: str, agents: int = 2, state_type: str = "EP") -> Layout:
    return team_layout(kind_for(algo), agents, state_type)
