"""What people did to the transitions of a replay buffer: whom they drove, and what they discarded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class PeopleMarks:
    """Marks beside a ring of slots, each with one transition of N environments; row s·N + e as in the buffer.

    Args:
        slots, num_envs, num_agents: size of the ring, N and A.
        device: where the transitions live.
    """

    def __init__(self, slots: int, num_envs: int, num_agents: int, device: torch.device) -> None:
        self.device, self.num_envs = device, num_envs
        self.driven = np.zeros((slots, num_envs, num_agents), np.bool_)
        """Whether a person drove the agent."""
        self.unseen = np.zeros_like(self.driven)
        """Whether the person had not seen what they acted on, so that it is not imitated."""
        self._forgotten = np.zeros(slots * num_envs, np.bool_)
        self.forgotten_count = 0
        """Rows that must not be drawn."""
        self._remembered: Tensor | None = None

    def clear(self, slot: int) -> None:
        """Forget the marks of a slot: it gets a new step."""
        self.driven[slot] = self.unseen[slot] = False
        self._remembered = None
        if self.forgotten_count:
            rows = self._forgotten[slot * self.num_envs : (slot + 1) * self.num_envs]
            self.forgotten_count -= int(rows.sum())
            rows[:] = False

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Say that rows must not be drawn."""
        self.forgotten_count += int((~self._forgotten[rows]).sum())
        self._forgotten[rows] = True
        self._remembered = None

    def is_forgotten(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows must not be drawn."""
        return self._forgotten[rows]

    def remembered(self, count: int) -> Tensor:
        """Those of the first `count` rows that may be drawn."""
        if self._remembered is None:
            self._remembered = torch.from_numpy(np.flatnonzero(~self._forgotten[:count])).to(self.device)
        return self._remembered

    def get_state(self) -> dict[str, Any]:
        """The marks, for a checkpoint."""
        return {"driven": self.driven.copy(), "unseen": self.unseen.copy(), "forgotten": self._forgotten.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the marks of a checkpoint."""
        self.driven[...], self._forgotten[...] = state["driven"], state["forgotten"]
        self.unseen[...] = state.get("unseen", False)  # checkpoints from before it was known have none
        self.forgotten_count, self._remembered = int(self._forgotten.sum()), None
