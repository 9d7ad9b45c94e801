"""The last rows of a table, in memory that grows with what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_FIRST_SIZE = 256


class GrowingRing:
    """Rows of named tensors; when `capacity` of them are there, new ones take the place of the oldest.

    Args:
        capacity: the most rows to keep.
        device: where they live.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self.capacity, self.device = capacity, torch.device(device)
        self._tensors: dict[str, Tensor] = {}
        self._count = 0
        self._head = 0
        """The place that is written next."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def column(self, name: str) -> Tensor:
        """(rows, …) of one name, in the order of their places; a view."""
        return self._tensors[name][: self._count]

    def rows(self, index: Tensor | slice) -> dict[str, Tensor]:
        """The rows at some places, by name; copies where `index` is a tensor."""
        return {name: tensor[: self._count][index] for name, tensor in self._tensors.items()}

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Append rows (B, …), the same names each time; of more than `capacity` the last ones are kept."""
        count = len(next(iter(rows.values())))
        if count > self.capacity:
            rows = {name: tensor[count - self.capacity :] for name, tensor in rows.items()}
            count = self.capacity
        if not count:
            return
        self._make_room(rows, min(self.capacity, self._count + count))
        places = (self._head + torch.arange(count, device=self.device)) % self.capacity
        for name, tensor in rows.items():
            self._tensors[name][places] = tensor.to(self.device, self._tensors[name].dtype)
        self._count = min(self.capacity, self._count + count)
        self._head = (self._head + count) % self.capacity

    def _make_room(self, rows: Mapping[str, Tensor], needed: int) -> None:
        size = len(next(iter(self._tensors.values()))) if self._tensors else 0
        if needed <= size:
            return
        size = min(self.capacity, max(needed, 2 * size, _FIRST_SIZE))
        for name, tensor in rows.items():
            grown = torch.zeros(size, *tensor.shape[1:], dtype=tensor.dtype, device=self.device)
            if name in self._tensors:
                grown[: self._count] = self._tensors[name][: self._count]
            self._tensors[name] = grown

    def keep(self, wanted: Tensor) -> None:
        """Drop all rows but those where `wanted` (rows,) is true."""
        if bool(wanted.all()):
            return
        order = torch.arange(self._count, device=self.device)
        if self._count == self.capacity:
            order = (order + self._head) % self.capacity  # oldest first
        left = order[wanted[order]]
        for tensor in self._tensors.values():
            tensor[: len(left)] = tensor[left]
        self._count = self._head = len(left)

    def get_state(self) -> dict[str, Any]:
        """Copies of the rows in their places."""
        tensors = {name: tensor[: self._count].cpu().clone() for name, tensor in self._tensors.items()}
        return {"head": self._head, "tensors": tensors}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave; of more rows than there is room for, the newest ones."""
        tensors: dict[str, Tensor] = state["tensors"]
        self._tensors, self._count, self._head = {}, 0, 0
        if not tensors or not len(next(iter(tensors.values()))):
            return
        count, head = len(next(iter(tensors.values()))), state["head"]
        if count == self.capacity:
            self.add(tensors)
            self._head = head % self.capacity
        else:
            oldest_first = (head + torch.arange(count)) % count
            self.add({name: tensor[oldest_first] for name, tensor in tensors.items()})
