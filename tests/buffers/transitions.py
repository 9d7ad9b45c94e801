"""Transitions made up in memory for the tests of the replay buffer, and what they must be sampled as."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from harl.buffers.replay import ReplayBatch, ReplayBuffer
from harl.envs.api import EnvStep, Layout

GAMMA = 0.9
TEAM_FIELDS = ("share_obs", "next_share_obs", "rewards", "discounts")
"""Fields without an axis of agents, with EP."""


def layout_of(
    agents: int = 3, obs: int = 4, state: int = 5, state_type: str = "EP", has_masks: bool = False, choices: int = 3
) -> Layout:
    return Layout(
        agents=tuple(f"agent_{i}" for i in range(agents)),
        observation_spaces=tuple(spaces.Box(-np.inf, np.inf, (obs,), np.float32) for _ in range(agents)),
        action_spaces=tuple(spaces.Discrete(choices) for _ in range(agents)),
        obs_shape=(obs,),
        share_obs_shape=(state,),
        state_type=state_type,
        has_masks=has_masks,
    )


def image_layout(shape: tuple[int, int, int], dtype: type = np.uint8, agents: int = 1) -> Layout:
    return Layout(
        agents=tuple(f"agent_{i}" for i in range(agents)),
        observation_spaces=tuple(spaces.Box(0, 255, shape, dtype) for _ in range(agents)),
        action_spaces=tuple(spaces.Discrete(2) for _ in range(agents)),
        obs_shape=shape,
        share_obs_shape=(agents * shape[0], *shape[1:]),
        state_type="EP",
        has_masks=False,
    )


def buffer_of(layout: Layout, capacity: int = 40, num_envs: int = 2, n_step: int = 1, **options: Any) -> ReplayBuffer:
    values: dict[str, Any] = {"gamma": GAMMA, "reward": "shared_sum", "time_limit": "bootstrap"} | options
    values.setdefault("generator", torch.Generator().manual_seed(0))
    return ReplayBuffer(layout, capacity, num_envs, n_step, **values)


class World:
    """Environments whose agents leave and whose episodes end at random; all arrays are made anew in every step.

    `history[e]` lists what happened in environment e: one dict of that environment's rows for each step.
    """

    def __init__(self, layout: Layout, num_envs: int, seed: int = 0, leaves: float = 0.08, ends: float = 0.1) -> None:
        self.layout, self.num_envs, self.leaves, self.ends = layout, num_envs, leaves, ends
        self.rng = np.random.default_rng(seed)
        self.history: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
        self.seen = self.quiet(self.view(), np.ones((num_envs, layout.num_agents, 1), np.float32))

    def view(self) -> dict[str, Any]:
        """Made-up observations, states and masks."""
        head = (self.num_envs, self.layout.num_agents)
        state = self.rng.normal(size=(*head, *self.layout.share_obs_shape)).astype(np.float32)
        if self.layout.state_type == "EP":
            state = np.broadcast_to(state[:, :1], state.shape)
        masks = (self.rng.random((*head, self.layout.action_number)) < 0.5).astype(np.float32)
        return {
            "obs": self.rng.normal(size=(*head, *self.layout.obs_shape)).astype(np.float32),
            "share_obs": state,
            "available_actions": masks if self.layout.has_masks else None,
        }

    def quiet(self, view: dict[str, Any], active: np.ndarray[Any, Any]) -> EnvStep:
        """A record in which nothing was earned and nothing ended."""
        no = np.zeros(active.shape[:2], np.bool_)
        return EnvStep(**view, active=active, rewards=active * 0, terminated=no, truncated=no, ended=no[:, 0])

    def step(self, *buffers: ReplayBuffer) -> EnvStep:
        """One step of all environments, inserted into the buffers and written into the history."""
        head = (self.num_envs, self.layout.num_agents)
        before, active = self.seen, self.seen.active[..., 0] > 0
        terminated = active & (self.rng.random(head) < self.leaves)
        truncated = active & (self.rng.random(head) < self.leaves)
        limit = self.rng.random(self.num_envs) < self.ends
        truncated |= active & limit[:, None]
        stays = active & ~terminated & ~truncated
        ended = ~stays.any(1)
        stays[ended] = True
        final = {f"final_{name}": value for name, value in self.view().items()} if ended.any() else {}
        step = EnvStep(
            **self.view(),
            active=stays[..., None].astype(np.float32),
            rewards=(self.rng.normal(size=head) * active)[..., None].astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            **final,
        )
        actions = self.rng.integers(3, size=(*head, self.layout.action_dim)).astype(np.float32)
        for buffer in buffers:
            buffer.insert(before, actions, step)
        for e in range(self.num_envs):
            nxt = "final_" if ended[e] else ""
            views = ("obs", "share_obs", "available_actions")
            seen = {name: getattr(before, name)[e] for name in views if getattr(before, name) is not None}
            later = {f"next_{name}": getattr(step, nxt + name)[e] for name in seen}
            record = {"actions": actions[e], "active": active[e], "ended": ended[e], "rewards": step.rewards[e, :, 0]}
            record |= {"terminated": terminated[e], "truncated": truncated[e], "goes_on": step.active[e, :, 0] > 0}
            self.history[e].append(seen | later | record)
        self.seen = step
        return step


def expected_row(
    records: list[dict[str, Any]], layout: Layout, n_step: int, reward: str, bootstrap: bool
) -> dict[str, Any]:
    """What the first of the `records` of one environment (the rest follow it) must be sampled as."""
    first, per_agent = records[0], layout.state_type == "FP"
    learners = range(layout.num_agents) if per_agent else [None]
    earned, going = [0.0 for _ in learners], [bool(first["active"][i]) if per_agent else True for i in learners]
    for ahead in range(min(n_step, len(records))):
        last = records[ahead]
        cut = [t and not d and a for t, d, a in zip(last["truncated"], last["terminated"], last["active"], strict=True)]
        for k, i in enumerate(learners):
            if not going[k]:
                continue
            rewards = last["rewards"]
            one = rewards[i] if reward == "individual" else rewards.sum() / (1 if reward == "shared_sum" else len(cut))
            earned[k] += GAMMA**ahead * float(one)
            if i is None:
                going[k] = not last["ended"] or (bootstrap and any(cut))
            else:
                going[k] = not last["terminated"][i] and (bootstrap or not cut[i])
        if last["ended"] or (per_agent and bootstrap and any(cut)):
            break
    result = {name: first[name] for name in ("obs", "share_obs", "available_actions", "actions") if name in first}
    result |= {name: value for name, value in last.items() if name.startswith("next_")}
    present = last["active"] & ~last["terminated"] if last["ended"] else last["goes_on"]
    result |= {"valid": first["active"][:, None], "next_valid": present[:, None]}
    shape = (-1, 1) if per_agent else (1,)
    result["rewards"] = np.array(earned).reshape(shape)
    result["discounts"] = np.array([GAMMA ** (ahead + 1) * alive for alive in going]).reshape(shape)
    if not per_agent:
        result |= {name: result[name][0] for name in ("share_obs", "next_share_obs")}
    return result


def assert_matches(buffer: ReplayBuffer, world: World, n_step: int, reward: str, bootstrap: bool) -> None:
    """Compare every row of the buffer with the reference."""
    batch = buffer.gather(torch.arange(len(buffer)))
    taken = len(world.history[0])
    for row in range(len(buffer)):
        slot, e = divmod(row, buffer.num_envs)
        # The latest step that was written into this slot.
        t = taken - 1 - (taken - 1 - slot) % buffer.slots
        expected = expected_row(world.history[e][t:], buffer.layout, n_step, reward, bootstrap)
        names = {field.name for field in fields(ReplayBatch) if getattr(batch, field.name) is not None}
        assert names == {*expected, "index"}
        for name, value in expected.items():
            tensor = getattr(batch, name)
            team = world.layout.state_type == "EP" and name in TEAM_FIELDS
            one = tensor[row] if team else tensor[:, row]
            np.testing.assert_allclose(one, value, rtol=2e-6, atol=1e-6, err_msg=f"{name} of row {row}, step {t}")


def still(layout: Layout, obs: list[float], **changes: Any) -> EnvStep:
    """A record of len(obs) environments in which each agent sees one number everywhere."""
    head = (len(obs), layout.num_agents)
    array = np.broadcast_to(np.array(obs, np.float32)[:, None, None], (*head, 1))
    no = np.zeros(head, np.bool_)
    step = EnvStep(
        obs=array * np.ones(layout.obs_shape, np.float32),
        share_obs=array * np.ones(layout.share_obs_shape, np.float32),
        available_actions=np.ones((*head, layout.action_number), np.float32) if layout.has_masks else None,
        active=np.ones((*head, 1), np.float32),
        rewards=np.ones((*head, 1), np.float32),
        terminated=no,
        truncated=no,
        ended=no[:, 0],
    )
    return replace(step, **changes)


def cut(layout: Layout, obs: list[float], final: list[float], terminated: bool = False) -> EnvStep:
    """Like `still`, but all episodes end: by the time limit, or by a terminal state."""
    last, yes = still(layout, final), np.ones((len(obs), layout.num_agents), np.bool_)
    return still(
        layout,
        obs,
        terminated=yes & terminated,
        truncated=yes & (not terminated),
        ended=yes[:, 0],
        final_obs=last.obs,
        final_share_obs=last.share_obs,
        final_available_actions=last.available_actions,
    )


def no_op(layout: Layout, num_envs: int) -> np.ndarray[Any, Any]:
    return np.zeros((num_envs, layout.num_agents, layout.action_dim), np.float32)


def assert_equal_batches(one: ReplayBatch, other: ReplayBatch) -> None:
    for field in fields(ReplayBatch):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert (a is None and b is None) or torch.equal(a, b), field.name
