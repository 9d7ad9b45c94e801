"""What the critic says of a rollout, and of the states in which episodes ended."""

from __future__ import annotations

import torch
from torch import Tensor

from harl.algorithms.critics.v_critic import VCritic
from harl.buffers.rollout import RolloutBuffer


class Valuer:
    """Asks the critic once a rollout: values depend on no action, so that nothing is lost by waiting.

    A critic with memory goes through each environment's rollout from the hidden state that the last one left.
    """

    def __init__(self, critic: VCritic) -> None:
        self.critic = critic
        self._after: Tensor | None = None
        """With memory: hidden states after each slot, (sequences, T + 1, layers, width)."""

    @torch.no_grad()
    def fill(self, buffer: RolloutBuffer) -> None:
        """Write the values of all T + 1 slots, and with memory the hidden states before each chunk, into the buffer."""
        states = buffer.by_value(buffer.share_obs)
        if buffer.critic_hidden is None or buffer.recurrence is None:
            buffer.value_preds.copy_(self.critic.get_values(states).view_as(buffer.value_preds))
            return
        first = buffer.critic_hidden[0].flatten(0, -3)
        values, self._after = self.critic.get_sequence_values(states, first, buffer.value_masks())
        buffer.by_value(buffer.value_preds).copy_(values)
        length = buffer.recurrence.chunk_length
        buffer.by_value(buffer.critic_hidden)[:, 1:].copy_(self._after[:, length - 1 : -1 : length])

    @torch.no_grad()
    def finals(self, buffer: RolloutBuffer) -> tuple[Tensor, Tensor, Tensor]:
        """Network outputs for the last states of ended episodes, remembering those episodes.

        Returns:
            Steps (E,) and environments (E,) in which they ended, and outputs (E, 1), FP (E, A, 1).
        """
        ends = buffer.final_share_obs
        states = torch.cat([rows for _, _, rows in ends])
        steps = torch.cat([torch.full_like(envs, t) for t, envs, _ in ends]).to(states.device)
        envs = torch.cat([envs for _, envs, _ in ends]).to(states.device)
        flat = states.flatten(0, 1) if buffer.per_agent_values else states
        if self._after is None:
            values = self.critic.get_values(flat)
        else:
            memory = self._after.view(buffer.num_envs, -1, *self._after.shape[1:])[envs, :, steps].flatten(0, 1)
            goes_on = torch.ones(len(flat), 1, 1, device=flat.device)
            values = self.critic.get_sequence_values(flat.unsqueeze(1), memory, goes_on)[0].squeeze(1)
        return steps, envs, values.view(len(states), *buffer.value_preds.shape[2:])
