"""What people did to a rollout, beside the rollout buffer: T steps, N environments, A agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harl.envs.api import Layout


class Overrides:
    """Who drove in each step, what the policies had proposed, and which steps were discarded.

    Args:
        layout: what the environments look like.
        episode_length, num_envs: T and N.
        device: where the rollout lives.
    """

    def __init__(self, layout: Layout, episode_length: int, num_envs: int, device: torch.device | str = "cpu") -> None:
        head = (episode_length, num_envs, layout.num_agents)
        self.source = np.zeros(head, np.int8)
        """(T, N, A) who decided, as `harl.hitl.bridge.Source`; 0 = the policy, and agents that had left."""
        self.proposals = torch.zeros(*head, layout.action_dim, device=device)
        """(T, N, A, action_dim) samples of the policies where somebody else decided, as drawn; 0 elsewhere."""
        self.unseen = np.zeros(head, np.bool_)
        """(T, N, A) steps of people that are not imitated: they had not seen what they acted on."""
        self.discarded = np.zeros(head[:2], np.bool_)
        """(T, N) steps that must not be learned from."""
        self.any = False
        """Whether anything of this was written in this rollout."""

    def clear(self) -> None:
        """Start the next rollout."""
        if self.any:
            self.source[...], self.unseen[...], self.discarded[...], self.any = 0, False, False, False
            self.proposals.zero_()

    def trace(self, per_agent_values: bool) -> Tensor | None:
        """Where advantages may be traced on: 0 where step t + 1 is another driver's; None where that is everywhere.

        (T, N, 1), where a change of any agent counts, or with a value for each agent (T, N, A, 1).
        """
        if not self.any:
            return None
        # Of one kind: actions that stand in for an absent driver.
        driver = np.minimum(self.source, 2)
        same = np.ones(driver.shape, np.float32)
        same[:-1] = driver[:-1] == driver[1:]
        if same.all():
            return None
        return torch.from_numpy(same[..., None] if per_agent_values else same.min(2, keepdims=True))

    def get_state(self, t: int) -> dict[str, Any]:
        """What was written in the first t steps."""
        return {
            "source": self.source[:t].copy(),
            "proposals": self.proposals[:t].cpu().clone(),
            "unseen": self.unseen[:t].copy(),
            "discarded": self.discarded[:t].copy(),
            "any": self.any,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with what `get_state` gave."""
        t = len(state["source"])
        self.source[:t], self.discarded[:t], self.any = state["source"], state["discarded"], state["any"]
        self.unseen[:t] = state.get("unseen", False)  # checkpoints from before it was known have none
        self.proposals[:t].copy_(state["proposals"])
