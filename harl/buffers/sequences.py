"""Rows of a rollout, and sequences of steps for networks with memory.

Sequences stand along the first axis and their steps along the second one. So a minibatch is a choice along the first
axis either way, agents are pooled by joining there, and a sequence is cut into chunks by a reshape: there is nothing
that could mix time with agents (fault D-02 of the original).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Recurrence(NamedTuple):
    """Memory of the networks, as far as a buffer has to know."""

    layers: int
    """Recurrent layers."""
    width: int
    """Numbers that each layer remembers."""
    chunk_length: int
    """Steps of a chunk; the length of the rollout where sequences are learned from as a whole."""


class Rows:
    """A record of tensors with one leading axis over rows (M, …), or over sequences of steps (S, L, …).

    Subclasses are dataclasses with slots whose fields are tensors or None, two of which are here.
    """

    __slots__ = ()

    hidden: Tensor | None
    """(S, K, layers, width) hidden states before K steps at equal distances, the first one being the first; None
    without memory."""
    masks: Tensor | None
    """(S, L, 1), 0 where the episode ended before the step; None without memory."""

    def rows(self, index: Tensor | slice) -> Self:
        """The same record for some of the rows or sequences."""
        return self._each(lambda _, tensor: tensor[index])

    def chunks(self) -> Self:
        """Each sequence cut into K, where the hidden states are known: (S K, L / K, …). Rows stay rows."""
        if self.hidden is None:
            return self
        count = self.hidden.shape[1]

        def cut(name: str, tensor: Tensor) -> Tensor:
            sequences, length = tensor.shape[:2]
            return tensor.reshape(sequences * count, length // count, *tensor.shape[2:])

        return self._each(cut)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Rows or sequences of several agents with equal widths, one after the other."""
        return parts[0]._each(lambda name, _: torch.cat([getattr(part, name) for part in parts]))

    @property
    def first_hidden(self) -> Tensor | None:
        """(S, layers, width) hidden states before the first steps."""
        return None if self.hidden is None else self.hidden[:, 0]

    def _each(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        names: tuple[str, ...] = type(self).__slots__
        values = {name: getattr(self, name) for name in names}
        return type(self)(**{name: None if value is None else change(name, value) for name, value in values.items()})
