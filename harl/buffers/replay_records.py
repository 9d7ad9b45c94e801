"""Where a replay buffer keeps its transitions, and how much memory they take.

A sample touches rows all over the memory, so what is read together lies together: all floats of a transition's first
half (what the agents saw and did) in one record, those of its second half (what they saw next) in another.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl.envs.api import Layout


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a record."""

    name: str
    shape: tuple[int, ...]
    """Shape in one row, the axis of agents first where there is one."""
    per_agent: bool = True
    """Whether there is an axis of agents."""
    as_bytes: bool = False
    """Whether it is stored as uint8."""

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self.as_bytes else torch.float32


def before_fields(layout: Layout) -> list[Field]:
    """First half of a transition: what the agents saw, what they did and what it earned them."""
    agents = layout.num_agents
    team = layout.state_type == "EP"
    earned = (1,) if team else (agents, 1)
    return [
        *_seen_fields(layout, ""),
        Field("actions", (agents, layout.action_dim)),
        Field("valid", (agents, 1)),
        Field("rewards", earned, not team),
        Field("discounts", earned, not team),
        Field("steps", (1,), per_agent=False),
    ]


def after_fields(layout: Layout) -> list[Field]:
    """Second half of a transition: what the agents saw next."""
    return [*_seen_fields(layout, "next_"), Field("next_valid", (layout.num_agents, 1))]


def _seen_fields(layout: Layout, prefix: str) -> list[Field]:
    agents = layout.num_agents
    team = layout.state_type == "EP"
    images = len(layout.obs_shape) == 3 and all(space.dtype == np.uint8 for space in layout.observation_spaces)
    state_shape = layout.share_obs_shape if team else (agents, *layout.share_obs_shape)
    # A state with the rank of the images is made of them: their channels, and planes of zeros and ones.
    image_state = images and len(layout.share_obs_shape) == 3
    fields = [Field(f"{prefix}obs", (agents, *layout.obs_shape), as_bytes=images)]
    if not layout.state_is_observations:
        fields.append(Field(f"{prefix}share_obs", state_shape, not team, image_state))
    if layout.has_masks:
        fields.append(Field(f"{prefix}available_actions", (agents, layout.action_number)))
    return fields


def with_states(layout: Layout, batch: dict[str, Any]) -> dict[str, Any]:
    """Fields of B transitions by name, with the states that are not stored because they are the observations."""
    if not layout.state_is_observations:
        return batch
    return batch | {f"{prefix}share_obs": _joined(layout, batch[f"{prefix}obs"]) for prefix in ("", "next_")}


def _joined(layout: Layout, obs: Tensor) -> Tensor:
    """(B, *share_obs_shape) of observations (A, B, *obs_shape)."""
    if len(layout.obs_shape) > 1:
        return torch.cat(list(obs), dim=1)
    return torch.cat([own[:, :width] for own, width in zip(obs, layout.obs_dims, strict=True)], dim=1)


def row_bytes(layout: Layout) -> int:
    """Memory of one transition."""
    return sum(field.width * field.dtype.itemsize for field in (*before_fields(layout), *after_fields(layout)))


def available_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on the device; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: all memory that there is, as an upper bound
        known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    kibibytes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    return int(kibibytes["MemAvailable"]) * 1024


class Records:
    """Records in a ring of slots; a slot is one step of N environments, slot s has the rows s·N to s·N + N - 1.

    Args:
        fields: what a record consists of; those of one dtype lie side by side.
        slots, num_envs: size of the ring and N.
        device: where the records live; the CPU's memory is taken from the system only as it is written.
    """

    def __init__(self, fields: list[Field], slots: int, num_envs: int, device: torch.device) -> None:
        self.shapes = {field.name: list(field.shape) for field in fields}
        self._groups = _side_by_side(fields)
        self._rows = [_zeros(slots * num_envs, group, device) for group in self._groups]
        self._tensors: dict[str, Tensor] = {}
        """(slots, N, *shape) by field, views of the rows."""
        for group, rows in zip(self._groups, self._rows, strict=True):
            for field, columns in zip(group, _columns(rows, group), strict=True):
                self._tensors[field.name] = columns.view(slots, num_envs, *field.shape)
        self._arrays: dict[str, NDArray[Any]] = {}
        if device.type == "cpu":
            self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows)

    def write(self, name: str, slot: int | NDArray[np.int64], values: NDArray[Any]) -> None:
        """Put `values` (N, *shape) into one slot, or (slots, N, *shape) into several.

        Raises:
            ValueError: they have another shape, or do not fit into bytes although the observation space says so.
        """
        target = self._tensors[name]
        expected = tuple(target.shape[1:]) if isinstance(slot, int) else (len(slot), *target.shape[1:])
        if values.shape != expected:
            raise ValueError(f"replay buffer: {name} has shape {values.shape}, expected {expected}")
        if target.dtype == torch.uint8 and values.dtype != np.uint8:
            values = _as_bytes(name, values)
        if self._arrays:
            self._arrays[name][slot] = values
        else:
            place = slot if isinstance(slot, int) else torch.from_numpy(slot).to(target.device)
            target[place] = torch.from_numpy(np.ascontiguousarray(values)).to(target.device, target.dtype)

    def at(self, name: str, slot: int, env: int) -> NDArray[Any]:
        """A copy of one field of one row."""
        return self._tensors[name][slot, env].cpu().numpy().copy()

    def put(self, name: str, slot: int, env: int, values: NDArray[Any]) -> None:
        """Write one field of one row."""
        self._tensors[name][slot, env] = torch.from_numpy(values).to(self._tensors[name])

    def select(self, index: Tensor) -> dict[str, Tensor]:
        """Copies of the rows (B,) by field: float32, contiguous, (B, …), or (A, B, …) for fields with agents."""
        batch = {}
        for group, rows in zip(self._groups, self._rows, strict=True):
            records = _copies(rows, index)
            for field, columns in zip(group, _columns(records, group), strict=True):
                values = columns.view(-1, *field.shape)
                if field.per_agent:
                    values = values.transpose(0, 1)
                batch[field.name] = values.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
        return batch

    def get_state(self, count: int) -> list[Tensor]:
        """Copies of the first `count` rows."""
        return [rows[:count].cpu().clone() for rows in self._rows]

    def set_state(self, state: list[Tensor]) -> None:
        """Put back what `get_state` gave."""
        for rows, saved in zip(self._rows, state, strict=True):
            rows[: len(saved)] = saved.to(rows.device)


def without_states(layout: Layout, state: dict[str, Any]) -> dict[str, Any]:
    """What a buffer has saved that stored states although they are the observations, as one saves it that does not."""
    full, narrow = replace(layout, state_is_observations=False), dict(state)
    for half, fields in (("before", before_fields(full)), ("after", after_fields(full))):
        tables = []
        for group, rows in zip(_side_by_side(fields), state[half], strict=True):
            columns = zip(group, _columns(rows, group), strict=True)
            kept = [own for field, own in columns if not field.name.endswith("share_obs")]
            tables.append(torch.cat(kept, dim=1))
        narrow[half] = tables
    return narrow


def _side_by_side(fields: list[Field]) -> list[list[Field]]:
    """The fields that share a table, those of one dtype."""
    groups = [[field for field in fields if field.as_bytes == as_bytes] for as_bytes in (False, True)]
    return [group for group in groups if group]


def _zeros(count: int, fields: list[Field], device: torch.device) -> Tensor:
    width = sum(field.width for field in fields)
    if device.type != "cpu":
        return torch.zeros(count, width, dtype=fields[0].dtype, device=device)
    # torch would write all of its zeros; numpy leaves that to the system, and asks it for large pages.
    return torch.from_numpy(np.zeros((count, width), np.uint8 if fields[0].as_bytes else np.float32))


def _copies(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of a table, one after the other."""
    if rows.is_cuda or rows.dtype == torch.uint8:
        return rows.index_select(0, index)
    # Sums of one row each: the kernel asks for rows ahead of its need, index_select waits for each of them in turn.
    # Values stay as they are, but for the sign of a zero.
    return torch.nn.functional.embedding_bag(index, rows, torch.arange(len(index), device=index.device), mode="sum")


def _columns(rows: Tensor, fields: list[Field]) -> tuple[Tensor, ...]:
    return torch.split(rows, [field.width for field in fields], dim=1)


def _as_bytes(name: str, values: NDArray[Any]) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore"):  # NaN and what is out of range is found below
        as_bytes = values.astype(np.uint8)
    if not np.array_equal(as_bytes, values):
        raise ValueError(
            f"replay buffer: {name} comes from an image space of uint8, but holds values other than the whole numbers "
            f"0 to 255 (between {values.min()} and {values.max()}); declare the observation space as float32, or do "
            "not scale the images: the networks do"
        )
    return as_bytes
