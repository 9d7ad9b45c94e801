"""What off-policy runners and actors ask of a critic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from harl.algorithms.base import FlatOptimizer
from harl.buffers.replay import ReplayBatch
from harl.models.flat import FlatParameters


class Critic(ABC):
    """Q of a team, and the slow copy of it that targets are made of.

    Attributes:
        flat, target_flat: parameters of the networks and of the slow ones, a row each.
        optimizer: steps all networks together.
    """

    flat: FlatParameters
    target_flat: FlatParameters
    optimizer: FlatOptimizer
    polyak: float

    @abstractmethod
    def train(
        self, batch: ReplayBatch, entries: Sequence[Tensor], log_probs: Sequence[Tensor | None]
    ) -> dict[str, Tensor]:
        """One gradient step towards y = R + discount · Q̄(s', a').

        Args:
            batch: transitions.
            entries: next actions of all agents, (B, width) each.
            log_probs: their log-probabilities (B, 1), None where actions are not random.

        Returns:
            Scalars to report.
        """

    @abstractmethod
    def look_at(self, batch: ReplayBatch) -> None:
        """Work out, once, what is the same for all agents that are improved on this batch with this critic."""

    @abstractmethod
    def value_for(self, i: int, batch: ReplayBatch, entries: Sequence[Tensor]) -> Tensor:
        """What agent i maximises, (B, 1), if all agents did `entries`; with FP states, seen from agent i's own.

        Needs `look_at` with the same batch since the critic was last changed.
        """

    @abstractmethod
    def encode(self, batch: ReplayBatch) -> list[Tensor]:
        """Entries of the actions that were taken."""

    def adapt(self, batch: ReplayBatch, actors: Sequence[Any]) -> dict[str, Tensor]:
        """What else is learned after the actors; nothing here."""
        return {}

    def follow(self) -> None:
        """Move the slow networks towards the current ones."""
        self.target_flat.follow(self.flat, self.polyak)

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Weights, slow weights, optimiser and what else it learns."""

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a state; without an optimiser in it, the weights alone."""
