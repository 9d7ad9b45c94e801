"""The rollout buffer of on-policy runners, one class for EP and FP states.

T steps, N environments, A agents. Everything lives in preallocated contiguous tensors; on the CPU the environments'
arrays are copied in through numpy views of the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from harl.envs.api import EnvStep, Layout


@dataclass(slots=True)
class ActorData:
    """What one actor learns from: M rows, one for each step of each environment."""

    obs: Tensor
    """(M, obs_dim) of the agent's own width."""
    actions: Tensor
    """(M, action_dim) raw samples of the policy, of the agent's own width."""
    log_probs: Tensor
    """(M, factors) log-probabilities under the policy that acted."""
    advantages: Tensor
    """(M, 1)"""
    weights: Tensor
    """(M, 1). 0 where the agent was not in the episode or did not decide itself, else 1."""
    decided: Tensor
    """(M, 1). 0 where somebody else decided for the agent, else 1."""
    available_actions: Tensor | None
    """(M, number of actions) or None."""
    factor: Tensor | None = None
    """(M, 1). Product of the ratios of agents updated earlier (Kuba et al. 2022, eq. 11); None stands for 1."""

    def rows(self, index: Tensor | slice) -> ActorData:
        """The same record for some of the rows."""
        return ActorData(
            self.obs[index],
            self.actions[index],
            self.log_probs[index],
            self.advantages[index],
            self.weights[index],
            self.decided[index],
            None if self.available_actions is None else self.available_actions[index],
            None if self.factor is None else self.factor[index],
        )

    @staticmethod
    def concatenate(parts: list[ActorData]) -> ActorData:
        """Rows of several agents with equal widths, one after the other."""
        masks = [part.available_actions for part in parts]
        factors = [part.factor for part in parts]
        return ActorData(
            torch.cat([part.obs for part in parts]),
            torch.cat([part.actions for part in parts]),
            torch.cat([part.log_probs for part in parts]),
            torch.cat([part.advantages for part in parts]),
            torch.cat([part.weights for part in parts]),
            torch.cat([part.decided for part in parts]),
            None if masks[0] is None else torch.cat([mask for mask in masks if mask is not None]),
            None if factors[0] is None else torch.cat([factor for factor in factors if factor is not None]),
        )


@dataclass(slots=True)
class CriticData:
    """What the critic learns from: M rows."""

    share_obs: Tensor
    """(M, share_obs_dim)"""
    value_preds: Tensor
    """(M, 1) output of the network when it was asked during the rollout (in the normaliser's units)."""
    returns: Tensor
    """(M, 1) targets on the scale of rewards."""
    weights: Tensor | None
    """(M, 1), 0 for states of agents that had left (FP); None where every row counts."""

    def rows(self, index: Tensor | slice) -> CriticData:
        """The same record for some of the rows."""
        return CriticData(
            self.share_obs[index],
            self.value_preds[index],
            self.returns[index],
            None if self.weights is None else self.weights[index],
        )


class RolloutBuffer:
    """Storage of one rollout.

    Args:
        layout: what the environments look like.
        episode_length: T.
        num_envs: N.
        device: where the tensors live.
    """

    STEP_FIELDS = ("actions", "action_log_probs", "rewards", "terminated", "truncated", "ended", "policy_mask")
    POLICY_FIELDS = ("obs", "available_actions", "actions", "action_log_probs")
    SLOT_FIELDS = ("obs", "share_obs", "active", "available_actions")

    def __init__(self, layout: Layout, episode_length: int, num_envs: int, device: torch.device | str = "cpu") -> None:
        T, N, A = episode_length, num_envs, layout.num_agents
        self.layout, self.episode_length, self.num_envs = layout, T, N
        self.per_agent_values = layout.state_type == "FP"
        state_axes = (A,) if self.per_agent_values else ()

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.obs = zeros(T + 1, N, A, *layout.obs_shape)
        self.share_obs = zeros(T + 1, N, *state_axes, *layout.share_obs_shape)
        self.active = torch.ones(T + 1, N, A, 1, device=device)
        self.available_actions = (
            torch.ones(T + 1, N, A, layout.action_number, device=device) if layout.has_masks else None
        )
        self.actions = zeros(T, N, A, layout.action_dim)
        self.action_log_probs = zeros(T, N, A, layout.action_dim)
        self.policy_mask = torch.ones(T, N, A, 1, device=device)
        self.rewards = zeros(T, N, A, 1)
        self.terminated = zeros(T, N, A, dtype=torch.bool)
        self.truncated = zeros(T, N, A, dtype=torch.bool)
        self.ended = zeros(T, N, dtype=torch.bool)
        self.value_preds = zeros(T + 1, N, *state_axes, 1)
        self.returns = zeros(T, N, *state_axes, 1)
        # Indexing a tensor costs as much as a small product: the views of all steps are made once.
        self.views = {
            name: tensor.unbind(0) for name in self.POLICY_FIELDS if (tensor := getattr(self, name)) is not None
        }
        """What the policies read and write in each step, by field."""
        self.final_share_obs: list[tuple[int, Tensor, Tensor]] = []
        """Last states of ended episodes: (step, indices of the environments, their rows of share_obs)."""
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        if self.obs.device.type == "cpu":
            names = (*self.SLOT_FIELDS, *self.STEP_FIELDS)
            self._arrays = {name: getattr(self, name).numpy() for name in names if getattr(self, name) is not None}

    @property
    def nbytes(self) -> int:
        """Memory that the buffer takes."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _write(self, name: str, t: int, array: np.ndarray[Any, Any]) -> None:
        if self._arrays:
            self._arrays[name][t] = array
        else:
            getattr(self, name)[t].copy_(torch.from_numpy(np.ascontiguousarray(array)))

    def _states(self, share_obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return share_obs if self.per_agent_values else share_obs[:, 0]

    def set_first(self, step: EnvStep) -> None:
        """Write what the agents see before the first action into slot 0."""
        self._write("obs", 0, step.obs)
        self._write("share_obs", 0, self._states(step.share_obs))
        self._write("active", 0, step.active)
        if step.available_actions is not None:
            self._write("available_actions", 0, step.available_actions)

    def insert(self, t: int, step: EnvStep) -> None:
        """Write the outcome of step t, and what the agents see after it into slot t + 1."""
        self._write("obs", t + 1, step.obs)
        self._write("share_obs", t + 1, self._states(step.share_obs))
        self._write("active", t + 1, step.active)
        if step.available_actions is not None:
            self._write("available_actions", t + 1, step.available_actions)
        self._write("rewards", t, step.rewards)
        self._write("terminated", t, step.terminated)
        self._write("truncated", t, step.truncated)
        self._write("ended", t, step.ended)
        if step.final_share_obs is not None:
            envs = np.flatnonzero(step.ended)
            rows = torch.from_numpy(self._states(step.final_share_obs)[envs].copy())
            self.final_share_obs.append((t, torch.from_numpy(envs), rows.to(self.obs.device)))

    def after_update(self) -> None:
        """Start the next rollout where this one stopped."""
        for name in self.SLOT_FIELDS:
            tensor = getattr(self, name)
            if tensor is not None:
                tensor[0].copy_(tensor[-1])
        self.policy_mask.fill_(1.0)
        self.final_share_obs.clear()

    def weights(self) -> Tensor:
        """(T, N, A, 1): 1 where the agent was in the episode and its own policy decided."""
        return self.active[:-1] * self.policy_mask

    def actor_data(self, agent: int, advantages: Tensor, factor: Tensor | None = None) -> ActorData:
        """Rows of one agent, at its own widths.

        Args:
            agent: index of the agent.
            advantages: (T, N, 1) for a team value or (T, N, A, 1).
            factor: (T·N, 1) or None.
        """
        space = self.layout
        obs = self.obs[:-1, :, agent]
        if len(space.obs_shape) == 1:
            obs = obs[..., : space.obs_dims[agent]]
        masks = self.available_actions
        mask_width = space.action_numbers[agent]
        if advantages.dim() == 4:
            advantages = advantages[:, :, agent]
        return ActorData(
            obs=obs.flatten(0, 1),
            actions=self.actions[:, :, agent, : space.action_dims[agent]].flatten(0, 1),
            log_probs=self.action_log_probs[:, :, agent, : space.action_dims[agent]].flatten(0, 1),
            advantages=advantages.flatten(0, 1),
            weights=self.weights()[:, :, agent].flatten(0, 1),
            decided=self.policy_mask[:, :, agent].flatten(0, 1),
            available_actions=(
                None if masks is None or mask_width == 0 else masks[:-1, :, agent, :mask_width].flatten(0, 1)
            ),
            factor=factor,
        )

    def critic_data(self) -> CriticData:
        """All states of the rollout, one row for each value."""
        return CriticData(
            share_obs=self._flat(self.share_obs[:-1], len(self.layout.share_obs_shape)),
            value_preds=self._flat(self.value_preds[:-1], 1),
            returns=self._flat(self.returns, 1),
            weights=self._flat(self.active[:-1], 1) if self.per_agent_values else None,
        )

    @staticmethod
    def _flat(tensor: Tensor, kept_axes: int) -> Tensor:
        return tensor.flatten(0, tensor.dim() - kept_axes - 1)

    def get_state(self, t: int) -> dict[str, Any]:
        """What the rest of the rollout depends on after t of its steps."""
        slots = {name: getattr(self, name)[: t + 1].cpu().clone() for name in self._names(self.SLOT_FIELDS)}
        steps = {name: getattr(self, name)[:t].cpu().clone() for name in self.STEP_FIELDS}
        return {**slots, **steps, "final_share_obs": [list(entry) for entry in self.final_share_obs]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with what `get_state` gave."""
        for name in (*self._names(self.SLOT_FIELDS), *self.STEP_FIELDS):
            getattr(self, name)[: len(state[name])].copy_(state[name])
        device = self.obs.device
        self.final_share_obs = [(t, envs, rows.to(device)) for t, envs, rows in state["final_share_obs"]]

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if getattr(self, name) is not None)
