"""The replay buffer of off-policy runners, one class for EP and FP states.

N environments, A agents. A ring of slots, each with one transition of every environment; row s·N + e is the one of
environment e in slot s. Next observations, states and masks are stored with each transition, so that the last ones of
an episode are never confused with the first ones of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl.buffers.replay_marks import PeopleMarks
from harl.buffers.replay_records import (
    Records,
    after_fields,
    available_memory,
    before_fields,
    row_bytes,
    with_states,
    without_states,
)
from harl.buffers.replay_returns import ReturnWindow
from harl.envs.api import EnvStep, Layout


@dataclass(slots=True)
class ReplayBatch:
    """B transitions; tensors are float32, contiguous copies. Targets are y = rewards + discounts · Q(next)."""

    obs: Tensor
    """(A, B, *obs_shape) what each agent saw; images keep their values 0 to 255."""
    next_obs: Tensor
    """Like `obs`, at the state to bootstrap from: after the steps looked ahead, the final one where they ended."""
    share_obs: Tensor
    """EP (B, *share_obs_shape), FP (A, B, *share_obs_shape)."""
    next_share_obs: Tensor
    """Like `share_obs`, at the state to bootstrap from."""
    actions: Tensor
    """(A, B, action_dim) as they were executed."""
    available_actions: Tensor | None
    """(A, B, action_number) or None."""
    next_available_actions: Tensor | None
    """Like `available_actions`, at the state to bootstrap from."""
    rewards: Tensor
    """EP (B, 1), FP (A, B, 1): Σ_j γ^j r_j over the steps looked ahead; FP: 0 for agents that were not there."""
    discounts: Tensor
    """Like `rewards`: γ^(steps looked ahead), 0 where the team (FP: the agent) terminated or was not there."""
    valid: Tensor
    """(A, B, 1). 1 where the agent was in the episode in the first step."""
    next_valid: Tensor
    """(A, B, 1). 1 where the agent is in the episode at the state to bootstrap from."""
    index: Tensor
    """(B,) int64, the rows of the buffer."""
    imitate: Tensor | None = None
    """(A, B, 1): weight of −log π(action | obs) in the agent's loss, above 0 where a person drove it, or None."""
    teachers: Sequence[Sequence[int]] | None = None
    """Whose rows of `imitate` each agent imitates; None for its own alone."""


class Seen(Protocol):
    """What the agents acted on; shapes as in `EnvStep`, which has it all."""

    obs: Any
    share_obs: Any
    available_actions: Any
    active: Any


class ReplayBuffer:
    """Storage of the last transitions.

    Args:
        layout: what the environments look like.
        capacity: transitions to keep, rounded down to whole steps of all environments.
        num_envs: N.
        n_step: steps to look ahead; fewer where an episode ends or the newest transition is reached. With FP and
            `time_limit` "bootstrap" the look ahead also ends where an agent is cut out of an episode that goes on.
        gamma: discount factor of one step.
        reward: what a learner earns: "shared_sum", "shared_mean" (over all agents) or, with FP, "individual".
        time_limit: "bootstrap", a truncated episode is valued by its final state, or "ignore", it counts as over.
            With EP an end counts as truncation if any agent that was there was truncated and not terminated.
        generator: draws the samples; its state is the caller's to save.
        device: where the transitions live.
        people: whether it is noted who was driven by a person, and transitions can be forgotten.

    Raises:
        ValueError: an argument that makes no sense, or more than fits in memory; nothing was allocated then.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        num_envs: int,
        n_step: int,
        gamma: float,
        reward: str,
        time_limit: str,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        people: bool = False,
    ) -> None:
        if capacity < 1 or capacity < num_envs:
            raise ValueError(
                f"a replay buffer of {capacity} transitions has no room for one step of {num_envs} environments; it "
                f"takes at least {max(num_envs, 1)}"
            )
        self.layout, self.num_envs, self.generator = layout, num_envs, generator
        self.device = torch.device(device)
        self.slots = capacity // num_envs
        self._window = ReturnWindow(layout, num_envs, n_step, gamma, reward, time_limit, self.slots)
        self.check_memory(layout, capacity, device)
        self.filled = 0
        """Slots that hold transitions: the first ones."""
        self.head = 0
        """The slot that is written next."""
        self.per_agent_values = layout.state_type == "FP"
        self._before = Records(before_fields(layout), self.slots, num_envs, self.device)
        self._after = Records(after_fields(layout), self.slots, num_envs, self.device)
        self.people = PeopleMarks(self.slots, num_envs, layout.num_agents, self.device) if people else None

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        forgotten = 0 if self.people is None else self.people.forgotten_count
        return self.filled * self.num_envs - forgotten

    @property
    def n_step(self) -> int:
        """The most steps that a sum of rewards covers."""
        return self._window.n_step

    @property
    def nbytes(self) -> int:
        """Memory that the buffer takes when it is full."""
        return self._before.nbytes + self._after.nbytes

    @staticmethod
    def estimate(layout: Layout, capacity: int) -> int:
        """Bytes that `capacity` transitions take."""
        return capacity * row_bytes(layout)

    @staticmethod
    def check_memory(layout: Layout, capacity: int, device: torch.device | str = "cpu") -> None:
        """Raise `ValueError` if `capacity` transitions take more memory than the device has left."""
        needed, available = ReplayBuffer.estimate(layout, capacity), available_memory(torch.device(device))
        if available is not None and needed > available:
            raise ValueError(
                f"a replay buffer of {capacity:,} transitions takes {needed / 2**30:,.1f} GiB "
                f"({row_bytes(layout):,} bytes each), but only {available / 2**30:,.1f} GiB are available on {device}; "
                f"at most {available // row_bytes(layout):,} transitions fit: lower buffer_size"
            )

    def insert(self, before: Seen, actions: NDArray[Any], step: EnvStep) -> None:
        """Store one step of every environment, over the oldest one where the ring is full.

        Args:
            before: what the agents acted on.
            actions: (N, A, action_dim) that were executed.
            step: what came of it.

        Raises:
            ValueError: a shape is wrong, or an episode ended without its final observation, state or masks.
        """
        active = before.active[..., 0] > 0
        if self.people is not None:
            self.people.clear(self.head)
        self._write_seen(self._before, "", before.obs, before.share_obs, before.available_actions)
        self._before.write("actions", self.head, actions)
        self._before.write("valid", self.head, before.active)
        obs, share_obs, masks = step.obs, step.share_obs, step.available_actions
        if step.ended.any():
            obs = _final(step, "final_obs", obs)
            share_obs = _final(step, "final_share_obs", share_obs)
            masks = None if masks is None else _final(step, "final_available_actions", masks)
        self._write_seen(self._after, "next_", obs, share_obs, masks)
        stays = np.where(step.ended[:, None], active & ~step.terminated, step.active[..., 0] > 0)
        self._after.write("next_valid", self.head, stays[..., None])
        self._window.push(active, step)
        self._write_returns()
        self.filled = min(self.filled + 1, self.slots)
        self.head = (self.head + 1) % self.slots

    def _write_seen(
        self, records: Records, prefix: str, obs: NDArray[Any], share_obs: NDArray[Any], masks: NDArray[Any] | None
    ) -> None:
        records.write(f"{prefix}obs", self.head, obs)
        if self.layout.state_is_observations:
            if share_obs.shape[2:] != self.layout.share_obs_shape:
                raise ValueError(
                    f"replay buffer: share_obs has shape {share_obs.shape}, expected (N, A) and "
                    f"{self.layout.share_obs_shape}"
                )
        else:
            records.write(f"{prefix}share_obs", self.head, share_obs if self.per_agent_values else share_obs[:, 0])
        if self.layout.has_masks:
            if masks is None:
                raise ValueError("replay buffer: the environments give action masks, but this step has none")
            records.write(f"{prefix}available_actions", self.head, masks)

    def _write_returns(self) -> None:
        """Write what the last n steps have earned by now."""
        window, count = self._window, self._window.count
        slots = (self.head - np.arange(count)) % self.slots
        for name, sums in (("rewards", window.sums), ("discounts", window.discounts())):
            self._before.write(name, slots, sums[:count, ..., None] if self.per_agent_values else sums[:count])
        self._before.write("steps", slots, window.steps[:count, :, None])

    def break_episodes(self) -> None:
        """Say that the environments were reset from outside: the next step does not follow the last one.

        Transitions then look ahead to here at most, and bootstrap from what was seen last.
        """
        self._window.close()

    def end_sums(self, envs: NDArray[np.bool_]) -> None:
        """Let no sum of the environments (N,) grow beyond the newest step: somebody else acts from here on."""
        self._window.close(envs)

    def amend(self, back: int, env: int, agent: int, delta: float) -> NDArray[np.float64] | None:
        """Add to an agent's reward of an earlier step, discounted, in every sum that contains it.

        Args:
            back: how many steps before the newest one; 0 is the newest.
            env, agent: where and whose.
            delta: what is added.

        Returns:
            (R,) what each learner (EP: the team, FP: every agent) gets for that step; None where it is not there.
        """
        if not 0 <= back < self.filled:
            return None
        window, records = self._window, self._before
        gains = window.shares(agent, delta)
        if self.per_agent_values:
            gains = gains * records.at("valid", (self.head - 1 - back) % self.slots, env)[:, 0].astype(np.float64)
        for ahead in range(min(window.n_step, self.filled - back)):
            start = back + ahead
            slot = (self.head - 1 - start) % self.slots
            if records.at("steps", slot, env)[0] <= ahead:
                break  # somewhere between, all sums ended
            change = window.discounted(gains, ahead)
            if self.per_agent_values:
                change = change * records.at("valid", slot, env)[:, 0]
            if start < window.count:
                window.sums[start, env] += change
            sums = records.at("rewards", slot, env)
            records.put("rewards", slot, env, sums + change.reshape(sums.shape))
        return gains

    def forget(self, back: int, env: int) -> None:
        """Let the newest step of an environment and `back` steps before it never be drawn."""
        assert self.people is not None
        count = min(back + 1, self.filled)
        slots = (self.head - 1 - np.arange(count)) % self.slots
        self.people.forget(slots * self.num_envs + env)

    def lengths(self, index: Tensor) -> Tensor:
        """(B,) int64: how many steps the sums of the rows `index` cover."""
        return self._before.select(index)["steps"].squeeze(1).long()

    def sample(self, batch_size: int) -> ReplayBatch:
        """Transitions drawn uniformly with replacement; the cost depends on their number alone.

        Raises:
            ValueError: the buffer is empty.
        """
        if not len(self):
            raise ValueError("the replay buffer is empty: insert a step before a batch is sampled")
        index = torch.randint(len(self), (batch_size,), generator=self.generator, device=self.generator.device)
        index = index.to(self.device)
        if self.people is not None and self.people.forgotten_count:
            index = self.people.remembered(self.filled * self.num_envs)[index]
        return self.gather(index)

    def gather(self, index: Tensor) -> ReplayBatch:
        """The transitions of the rows `index` (B,), int64."""
        before = self._before.select(index)
        steps = before.pop("steps").squeeze(1)
        last = index
        if self._window.n_step > 1:
            last = (index + (steps.long() - 1) * self.num_envs) % (self.slots * self.num_envs)
        fields = with_states(self.layout, before | self._after.select(last))
        if not self.layout.has_masks:
            fields |= dict.fromkeys(("available_actions", "next_available_actions"))
        return ReplayBatch(**fields, index=index)

    def get_state(self) -> dict[str, Any]:
        """Copies of the transitions that are there, and what the next ones depend on."""
        return {
            "settings": self._settings(),
            "filled": self.filled,
            "head": self.head,
            "window": self._window.get_state(),
            "before": self._before.get_state(self.filled * self.num_envs),
            "after": self._after.get_state(self.filled * self.num_envs),
            **({} if self.people is None else {"people": self.people.get_state()}),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` gave.

        Raises:
            ValueError: it is of a buffer that was built with other arguments.
        """
        saved, own = dict(state["settings"]), self._settings()
        wider = self.layout.state_is_observations and "share_obs" in saved["record"]
        if wider:
            saved["record"] = {name: shape for name, shape in saved["record"].items() if name in own["record"]}
        different = [f"{name} is {saved[name]} there, {own[name]} here" for name in own if saved[name] != own[name]]
        if different:
            raise ValueError(f"the saved replay buffer does not fit this one: {'; '.join(different)}")
        if wider:
            state = without_states(self.layout, state)
        self.filled, self.head = state["filled"], state["head"]
        self._window.set_state(state["window"])
        self._before.set_state(state["before"])
        self._after.set_state(state["after"])
        if self.people is not None and "people" in state:
            self.people.set_state(state["people"])

    def _settings(self) -> dict[str, Any]:
        """What a saved buffer and this one must have in common."""
        return {
            "transitions": self.slots * self.num_envs,
            "num_envs": self.num_envs,
            "record": {**self._before.shapes, **self._after.shapes},
            **self._window.settings,
        }


def _final(step: EnvStep, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """`values` with those at the end of the episode where it ended."""
    final = getattr(step, name)
    if final is None:
        raise ValueError(
            f"replay buffer: episodes ended in environments {np.flatnonzero(step.ended)}, but {name} is None"
        )
    return np.where(step.ended.reshape(-1, *[1] * (values.ndim - 1)), final, values)
