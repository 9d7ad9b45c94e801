"""Four updates of each off-policy runner against recorded updates of the original implementation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.buffers.replay import ReplayBatch
from harl.envs.api import Layout
from harl.registry import ALGORITHMS
from tests.runners.bare import bare_runner
from tests.runners.test_parity import FOLDER, check, load, parameters, space_of


def cases(kind: str) -> list[str]:
    """Cases with this array in their first batch."""
    names = [path.stem for path in sorted(FOLDER.glob("*.npz"))]
    return [name for name in names if name.split("_")[0] in ALGORITHMS and kind in load(name)[1]]


def runner_for(meta: dict[str, Any], space_list: list[spaces.Space[Any]]) -> Any:
    """A bare runner with the original's hyper-parameters."""
    box = spaces.Box(-np.inf, np.inf, (meta["obs_dim"],), np.float32)
    layout = Layout(
        agents=tuple(f"agent_{i}" for i in range(meta["A"])),
        observation_spaces=(box,) * meta["A"],
        action_spaces=tuple(space_list),
        obs_shape=(meta["obs_dim"],),
        share_obs_shape=(meta["share_obs_dim"],),
        state_type=meta.get("state_type", "EP"),
        has_masks=False,
    )
    given = meta["algo_args"]
    values: dict[str, Any] = {f"algo.{key}": value for key, value in given["algo"].items()}
    values |= {f"algo.{k}" if k in ("lr", "critic_lr") else f"model.{k}": v for k, v in given["model"].items()}
    values |= {"algo.buffer_size": 1000, "env.reward": "shared_mean"}
    values.pop("algo.use_policy_active_masks", None)
    if meta["algo"] == "had3qn":
        values["algo.regress_at"] = "greedy"
    if meta["algo"] in ("maddpg", "matd3"):
        del values["algo.fixed_order"]
    if "value_norm" in meta:
        values["algo.use_valuenorm"] = meta["value_norm"]
    return bare_runner(layout, [f"algo={meta['algo']}", *(f"{k}={json.dumps(v)}" for k, v in values.items())])


def batch_of(arrays: dict[str, np.ndarray], s: int, agents: int) -> ReplayBatch:
    """A recorded batch; what is not recorded was all ones."""
    data = {key.split("/")[1]: torch.from_numpy(v) for key, v in arrays.items() if key.startswith(f"batch{s}/")}
    rows = len(data["rewards"])
    ones = torch.ones(agents, rows, 1)
    return ReplayBatch(
        obs=data.get("obs", data["next_obs"]),
        next_obs=data["next_obs"],
        share_obs=data["share_obs"],
        next_share_obs=data["next_share_obs"],
        actions=data["actions"],
        available_actions=None,
        next_available_actions=None,
        rewards=data["rewards"],
        discounts=data["gammas"] * (~data["terms"]).float(),
        valid=data.get("valid", ones),
        next_valid=ones,
        index=torch.arange(rows),
    )


def load_learners(runner: Any, arrays: dict[str, np.ndarray]) -> None:
    for i, actor in enumerate(runner.team.own):
        actor.network.load_state_dict(parameters(arrays, f"before/actor{i}"))
        if actor.has_target:
            actor.target_network.load_state_dict(parameters(arrays, f"before/target_actor{i}"))
    for suffix, online, slow in critics(runner):
        online.load_state_dict(parameters(arrays, f"before/critic{suffix}"))
        slow.load_state_dict(parameters(arrays, f"before/target_critic{suffix}"))


def critics(runner: Any) -> list[tuple[str, torch.nn.Module, torch.nn.Module]]:
    """Suffix in the recorded names, network, slow network."""
    critic = runner.critic
    if hasattr(critic, "network"):
        return [("", critic.network, critic.target_network)]
    return list(zip(("", "2"), critic.networks, critic.target_networks, strict=False))


def check_critics(runner: Any, arrays: dict[str, np.ndarray], when: str) -> None:
    for suffix, online, slow in critics(runner):
        check(online.state_dict(), parameters(arrays, f"{when}/critic{suffix}"), f"{when}: critic{suffix}")
        check(slow.state_dict(), parameters(arrays, f"{when}/target_critic{suffix}"), f"{when}: slow critic{suffix}")


@pytest.mark.parametrize("name", cases("after3/actor0/pi.mlp.0.weight") + cases("after3/actor0/base.mlp.0.weight"))
def test_updates_equal_original(name: str) -> None:
    meta, arrays = load(name)
    runner = runner_for(meta, [space_of(text) for text in meta["action_spaces"]])
    load_learners(runner, arrays)
    batches = [batch_of(arrays, s, meta["A"]) for s in range(meta["steps"])]
    runner.buffer.sample = lambda size: batches[runner.total_it - 1]

    for s in range(meta["steps"]):
        runner.train()
        if f"after{s}/critic" not in {"/".join(key.split("/")[:2]) for key in arrays}:
            continue
        for i, actor in enumerate(runner.team.own):
            check(actor.network.state_dict(), parameters(arrays, f"after{s}/actor{i}"), f"{s}: actor {i}")
            slow = actor.target_network.state_dict()
            check(slow, parameters(arrays, f"after{s}/target_actor{i}"), f"{s}: slow actor {i}")
        check_critics(runner, arrays, f"after{s}")


@pytest.mark.parametrize("name", cases("batch0/next_logp"))
def test_components_equal_original(name: str) -> None:
    meta, arrays = load(name)
    width = arrays["batch0/next_actions"].shape[-1]
    runner = runner_for(meta, [spaces.Box(-1.0, 1.0, (width,), np.float32)] * meta["A"])
    load_learners(runner, arrays)
    for s in range(3):
        batch, entries, log_probs = batch_of(arrays, s, meta["A"]), [], []
        for i, actor in enumerate(runner.team.own):
            obs, noise = batch.next_obs[i], torch.from_numpy(arrays[f"batch{s}/eps"][i])
            with torch.no_grad():
                action, log_prob = actor.network(obs, noise)
                mode, _ = actor.network(obs, None)
            expected = arrays[f"batch{s}/next_actions"][i], arrays[f"batch{s}/next_logp"][i]
            np.testing.assert_allclose(action, expected[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(log_prob, expected[1], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(mode, arrays[f"batch{s}/deterministic_actions"][i], rtol=1e-4, atol=1e-5)
            entries.append(action)
            log_probs.append(log_prob)
        runner.critic.train(batch, entries, log_probs)
        runner.critic.follow()
        check_critics(runner, arrays, f"after{s}")
