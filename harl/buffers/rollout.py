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

from harl.buffers.sequences import Recurrence, Rows

if TYPE_CHECKING:
    from harl.envs.api import EnvStep, Layout


@dataclass(slots=True)
class ActorData(Rows):
    """What one actor learns from: M rows, one for each step of each environment.

    With memory: N sequences of T steps, so that (M, …) becomes (N, T, …); see `Rows`.
    """

    obs: Tensor
    """(M, obs_dim) of the agent's own width, or (M, C, H, W)."""
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
    hidden: Tensor | None = None
    """See `Rows`."""
    masks: Tensor | None = None
    """See `Rows`."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """What the policy is called with."""
        return self.obs, self.available_actions, self.first_hidden, self.masks


@dataclass(slots=True)
class CriticData(Rows):
    """What the critic learns from: M rows; with memory sequences of T steps, one for each value."""

    share_obs: Tensor
    """(M, share_obs_dim) or (M, C, H, W)"""
    value_preds: Tensor
    """(M, 1) output of the network when it was asked during the rollout (in the normaliser's units)."""
    returns: Tensor
    """(M, 1) targets on the scale of rewards."""
    weights: Tensor | None
    """(M, 1), 0 for states of agents that had left (FP) and for those left out; None where every row counts."""
    hidden: Tensor | None = None
    """See `Rows`."""
    masks: Tensor | None = None
    """See `Rows`."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What the value network is called with."""
        return self.share_obs, self.first_hidden, self.masks


class RolloutBuffer:
    """Storage of one rollout.

    Args:
        layout: what the environments look like.
        episode_length: T.
        num_envs: N.
        device: where the tensors live.
        recurrence: memory of the networks; None for none.
    """

    STEP_FIELDS = ("actions", "action_log_probs", "rewards", "terminated", "truncated", "ended", "policy_mask")
    POLICY_FIELDS = ("obs", "available_actions", "actions", "action_log_probs", "hidden", "masks")
    SLOT_FIELDS = ("obs", "share_obs", "active", "available_actions", "hidden", "masks")

    def __init__(
        self,
        layout: Layout,
        episode_length: int,
        num_envs: int,
        device: torch.device | str = "cpu",
        recurrence: Recurrence | None = None,
    ) -> None:
        T, N, A = episode_length, num_envs, layout.num_agents
        self.layout, self.episode_length, self.num_envs = layout, T, N
        self.per_agent_values = layout.state_type == "FP"
        self.recurrence = recurrence
        state_axes = (A,) if self.per_agent_values else ()
        pixels = all(space.dtype == np.uint8 for space in layout.observation_spaces)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        def seen(*axes: int, shape: tuple[int, ...]) -> Tensor:
            """Images of bytes stay bytes: a quarter of the memory."""
            return zeros(*axes, *shape, dtype=torch.uint8 if pixels and len(shape) == 3 else torch.float32)

        self.obs = seen(T + 1, N, A, shape=layout.obs_shape)
        self.share_obs = seen(T + 1, N, *state_axes, shape=layout.share_obs_shape)
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
        self.hidden: Tensor | None = None
        """(T + 1, N, A, layers, width) hidden states of the policies before each step."""
        self.masks: Tensor | None = None
        """(T + 1, N, 1): 0 where the step is the first one of an episode, so that nothing is remembered."""
        self.critic_hidden: Tensor | None = None
        """(T / chunk_length + 1, N, layers, width), FP (…, N, A, layers, width): hidden states of the critic before
        the first step of each chunk, and before the next rollout; all but the first follow from `share_obs`."""
        if recurrence is not None:
            memory = (recurrence.layers, recurrence.width)
            self.hidden, self.masks = zeros(T + 1, N, A, *memory), zeros(T + 1, N, 1)
            self.critic_hidden = zeros(T // recurrence.chunk_length + 1, N, *state_axes, *memory)
        # Indexing a tensor costs as much as a small product: the views of all steps are made once.
        self.views = {
            name: tensor.unbind(0) for name in self.POLICY_FIELDS if (tensor := getattr(self, name)) is not None
        }
        """What the policies read and write in each step, by field."""
        self.value_weights: Tensor | None = None
        """Like `returns`: 0 where the value is not learned from; None where every one is. Holds for one update."""
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

    def array(self, name: str, t: int) -> np.ndarray[Any, Any]:
        """Slot t of a field, not to be written to: the buffer's own memory on the CPU, else a copy."""
        slot: np.ndarray[Any, Any] = self._arrays[name][t] if self._arrays else getattr(self, name)[t].cpu().numpy()
        return slot

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
        if self.masks is not None:
            self.masks[0].zero_()

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
        if self.masks is not None:
            self._write("masks", t + 1, ~step.ended[:, None])
        if step.final_share_obs is not None:
            envs = np.flatnonzero(step.ended)
            rows = torch.from_numpy(self._states(step.final_share_obs)[envs].copy())
            self.final_share_obs.append((t, torch.from_numpy(envs), rows.to(self.share_obs)))

    def after_update(self) -> None:
        """Start the next rollout where this one stopped."""
        for name in self.SLOT_FIELDS:
            tensor = getattr(self, name)
            if tensor is not None:
                tensor[0].copy_(tensor[-1])
        if self.critic_hidden is not None:
            self.critic_hidden[0].copy_(self.critic_hidden[-1])
        self.policy_mask.fill_(1.0)
        self.value_weights = None
        self.final_share_obs.clear()

    def weights(self) -> Tensor:
        """(T, N, A, 1): 1 where the agent was in the episode and its own policy decided."""
        return self.active[:-1] * self.policy_mask

    def actor_data(self, agent: int, advantages: Tensor, factor: Tensor | None = None) -> ActorData:
        """Rows of one agent, at its own widths; with memory whole sequences, to be cut by `Rows.chunks`.

        Args:
            agent: index of the agent.
            advantages: (T, N, 1) for a team value or (T, N, A, 1).
            factor: (T·N, 1), with memory (N, T, 1), or None.
        """
        space = self.layout
        obs = self.obs[:-1, :, agent]
        if len(space.obs_shape) == 1:
            obs = obs[..., : space.obs_dims[agent]]
        masks = self.available_actions
        mask_width = space.action_numbers[agent]
        if advantages.dim() == 4:
            advantages = advantages[:, :, agent]
        data = ActorData(
            obs=self.arranged(obs),
            actions=self.arranged(self.actions[:, :, agent, : space.action_dims[agent]]),
            log_probs=self.arranged(self.action_log_probs[:, :, agent, : space.action_dims[agent]]),
            advantages=self.arranged(advantages),
            weights=self.arranged(self.weights()[:, :, agent]),
            decided=self.arranged(self.policy_mask[:, :, agent]),
            available_actions=(
                None if masks is None or mask_width == 0 else self.arranged(masks[:-1, :, agent, :mask_width])
            ),
            factor=factor,
        )
        if self.recurrence is not None and self.hidden is not None and self.masks is not None:
            data.hidden = self.arranged(self.hidden[: -1 : self.recurrence.chunk_length, :, agent])
            data.masks = self.arranged(self.masks[:-1])
        return data

    def arranged(self, of_steps: Tensor) -> Tensor:
        """(T, N, …) as (T·N, …) rows, or with memory as (N, T, …) sequences."""
        return of_steps.flatten(0, 1) if self.recurrence is None else of_steps.transpose(0, 1)

    def critic_data(self) -> CriticData:
        """All states of the rollout, one row for each value; with memory one sequence for each value of a step."""
        weights = self.active[:-1] if self.per_agent_values else None
        if self.value_weights is not None:
            weights = self.value_weights if weights is None else weights * self.value_weights
        data = CriticData(
            share_obs=self.by_value(self.share_obs[:-1]),
            value_preds=self.by_value(self.value_preds[:-1]),
            returns=self.by_value(self.returns),
            weights=None if weights is None else self.by_value(weights),
        )
        if self.critic_hidden is not None and self.masks is not None:
            data.hidden, data.masks = self.by_value(self.critic_hidden[:-1]), self.value_masks()[:, :-1]
        return data

    def by_value(self, of_states: Tensor) -> Tensor:
        """(T, N, …), FP (T, N, A, …), as rows (T·N, …) or (T·N·A, …); with memory as sequences (N, T, …), (N·A, T, …).

        As many steps as there are: also for all T + 1 slots.
        """
        if self.recurrence is None:
            return of_states.flatten(0, 2 if self.per_agent_values else 1)
        if self.per_agent_values:
            return of_states.movedim(0, 2).flatten(0, 1)
        return of_states.transpose(0, 1)

    def value_masks(self) -> Tensor:
        """With memory, the masks of all slots for each value: (N, T + 1, 1), FP (N·A, T + 1, 1)."""
        assert self.masks is not None
        masks = self.masks.transpose(0, 1)
        return masks.repeat_interleave(self.layout.num_agents, 0) if self.per_agent_values else masks

    def get_state(self, t: int) -> dict[str, Any]:
        """What the rest of the rollout depends on after t of its steps."""
        slots = {name: getattr(self, name)[: t + 1].cpu().clone() for name in self._names(self.SLOT_FIELDS)}
        steps = {name: getattr(self, name)[:t].cpu().clone() for name in self.STEP_FIELDS}
        state = {**slots, **steps, "final_share_obs": [list(entry) for entry in self.final_share_obs]}
        if self.critic_hidden is not None:
            state["critic_hidden"] = self.critic_hidden[0].cpu().clone()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with what `get_state` gave."""
        for name in (*self._names(self.SLOT_FIELDS), *self.STEP_FIELDS):
            getattr(self, name)[: len(state[name])].copy_(state[name])
        if self.critic_hidden is not None:
            self.critic_hidden[0].copy_(state["critic_hidden"])
        device = self.obs.device
        self.final_share_obs = [(t, envs, rows.to(device)) for t, envs, rows in state["final_share_obs"]]

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if getattr(self, name) is not None)
