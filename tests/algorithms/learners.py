"""Off-policy learners without environments, and transitions made up in memory for them."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from harl.buffers.replay import ReplayBatch
from harl.config import build_config, from_dict, to_dict
from harl.envs.api import Layout
from tests.runners.bare import bare_runner_of, layout_of

ALGORITHMS = ("haddpg", "hatd3", "hasac", "had3qn", "maddpg", "matd3")
DETERMINISTIC = ("haddpg", "hatd3", "maddpg", "matd3")
SEQUENTIAL = ("haddpg", "hatd3", "hasac", "had3qn")

UNEVEN = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
SPACES: dict[str, spaces.Space[Any]] = {
    "box": UNEVEN,
    "discrete": spaces.Discrete(5),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
}


def kind_for(algo: str) -> str:
    """A kind of action space that the algorithm is made for."""
    return "discrete" if algo == "had3qn" else "box"


def team_layout(kind: str, agents: int = 3, state_type: str = "EP", has_masks: bool = False) -> Layout:
    """Equal agents that see 4 numbers, in a state of 6."""
    return layout_of(agents, 4, 6, SPACES[kind], state_type, has_masks)


def sizes(algo: str, width: int = 16) -> dict[str, Any]:
    """Keys for small networks."""
    names = (
        ("base_hidden_sizes", "dueling_v_hidden_sizes", "dueling_a_hidden_sizes")
        if algo == "had3qn"
        else ("hidden_sizes",)
    )
    return {f"model.{name}": [width] for name in names}


def learners(algo: str, layout: Layout, **overrides: Any) -> Any:
    """A runner that cannot step; overrides are config keys with __ for the dot, as `algo__lr=0.01`."""
    values: dict[str, Any] = {
        "train.n_rollout_threads": 2,
        "algo.buffer_size": 64,
        "algo.batch_size": 32,
        "env.reward": "shared_sum",
        **sizes(algo),
    }
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    data = json.loads(_defaults(algo))
    for key, value in values.items():
        section, _, name = key.partition(".")
        assert name in data[section], key
        data[section][name] = value
    return bare_runner_of(layout, from_dict(data))


@functools.cache
def _defaults(algo: str) -> str:
    """Composing takes longer than most tests, so it is done once for each algorithm."""
    return json.dumps(to_dict(build_config([f"algo={algo}", "device.name=cpu"])))


def random_masks(layout: Layout, rows: int, random: torch.Generator) -> Tensor:
    """(A, rows, action_number): about half of the choices, the first of each component always among them."""
    masks = torch.zeros(layout.num_agents, rows, layout.action_number)
    for i, space in enumerate(layout.action_spaces):
        masks[i, :, : layout.action_numbers[i]].bernoulli_(0.5, generator=random)
        parts = space.nvec[:-1] if isinstance(space, spaces.MultiDiscrete) else []
        if layout.action_numbers[i]:
            masks[i, :, np.cumsum([0, *parts])] = 1.0
    return masks


def random_actions(layout: Layout, rows: int, random: torch.Generator) -> Tensor:
    """(A, rows, action_dim) within each agent's own space."""
    actions = torch.zeros(layout.num_agents, rows, layout.action_dim)
    for i, space in enumerate(layout.action_spaces):
        width = layout.action_dims[i]
        ranks = torch.rand(rows, width, generator=random)
        if isinstance(space, spaces.Box):
            low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
            actions[i, :, :width] = low + ranks * (high - low)
        else:
            counts = torch.tensor([space.n] if isinstance(space, spaces.Discrete) else space.nvec.tolist())  # type: ignore[attr-defined]
            actions[i, :, :width] = (ranks * counts).floor()
    return actions


def random_batch(layout: Layout, rows: int = 32, seed: int = 0, absent: float = 0.0) -> ReplayBatch:
    """Made-up transitions; each agent is away in a share `absent` of the rows, and earns nothing there with FP."""
    random = torch.Generator().manual_seed(seed)
    per_agent = layout.state_type == "FP"
    head: tuple[int, ...] = (layout.num_agents, rows) if per_agent else (rows,)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    obs, next_obs = (normal(layout.num_agents, rows, *layout.obs_shape) for _ in range(2))
    for i, width in enumerate(layout.obs_dims):
        obs[i, :, width:] = next_obs[i, :, width:] = 0.0
    valid = torch.bernoulli(torch.full((layout.num_agents, rows, 1), 1.0 - absent), generator=random)
    ends = torch.bernoulli(torch.full((*head, 1), 0.8), generator=random)
    there = valid if per_agent else 1.0
    return ReplayBatch(
        obs=obs,
        next_obs=next_obs,
        share_obs=normal(*head, *layout.share_obs_shape),
        next_share_obs=normal(*head, *layout.share_obs_shape),
        actions=random_actions(layout, rows, random),
        available_actions=random_masks(layout, rows, random) if layout.has_masks else None,
        next_available_actions=random_masks(layout, rows, random) if layout.has_masks else None,
        rewards=normal(*head, 1) * there,
        discounts=0.99 * ends * there,
        valid=valid,
        next_valid=valid.clone(),
        index=torch.arange(rows),
    )


def feed(runner: Any, *batches: ReplayBatch) -> None:
    """Let the runner learn from these, one after the other, over and over."""
    runner.buffer.sample = lambda size: batches[(runner.total_it - 1) % len(batches)]


def parameters(runner: Any) -> dict[str, Tensor]:
    """Copies of all that is learned: name → one vector."""
    result = {}
    for actor in runner.team.own:
        result[actor.name] = actor.flat.values.clone()
        if actor.has_target:
            result[f"slow {actor.name}"] = actor.target_flat.values.clone()
        if hasattr(actor, "temperature"):
            result[f"temperature of {actor.name}"] = actor.temperature.log_alpha.detach().clone()
    result["critic"] = runner.critic.flat.values.clone()
    result["slow critic"] = runner.critic.target_flat.values.clone()
    for name in ("temperature", "value_normalizer"):
        part = getattr(runner.critic, name, None)
        if isinstance(part, torch.nn.Module):
            result |= {f"{name} {key}": value.clone() for key, value in part.state_dict().items()}
        elif part is not None:
            result["temperature of critic"] = part.log_alpha.detach().clone()
    return result


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of what is not the same any more, to the bit."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def all_finite(runner: Any) -> bool:
    """Whether everything learned is a number."""
    return all(bool(vector.isfinite().all()) for vector in parameters(runner).values())
