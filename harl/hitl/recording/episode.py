"""One episode while it is being recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import FloatArray, Layout
from harl.hitl.recording.fields import HUMAN, NOBODY, Field, StepRecord, takeover_starts
from harl.hitl.recording.state import state_to_arrays

MOST_ROWS = 4096
FIRST_ROWS = 128
LABELS = ("success", "fail", "discard")
PLAIN = (
    *("env_steps", "proposed", "executed", "source", "active", "log_prob_proposed", "log_prob_executed", "reward"),
    *("human_raw", "human_credited", "weight", "reward_learned", "seen_step", "seq", "t_received", "t_applied"),
    *("rtt_ms", "terminated", "truncated"),
)
"""Fields that go from a `StepRecord` into the arrays as they are."""


class EpisodeInMemory:
    """Arrays that grow up to the size of a part, and what is counted on the way.

    Args:
        layout: whose agents they are.
        fields: arrays with a row a step.
        views: arrays with one row more.
        head: what is known of the episode at its start.
        part_bytes: size at which it is `full`.
    """

    def __init__(
        self,
        layout: Layout,
        fields: Sequence[Field],
        views: Sequence[Field],
        head: Mapping[str, Any],
        part_bytes: int,
    ) -> None:
        self._layout, self._fields, self._views = layout, fields, views
        self.head = dict(head)
        row = sum(_row_bytes(field) for field in (*fields, *views))
        self._most = max(1, min(MOST_ROWS, part_bytes // row))
        self._capacity = min(self._most, FIRST_ROWS)
        self._arrays = {field.name: _empty(field, self._capacity) for field in fields}
        self._seen = {field.name: _empty(field, self._capacity + 1) for field in views}
        self._state: dict[str, NDArray[Any]] = {}
        self.rows = 0
        """Steps since the last part."""
        self.steps = 0
        """Steps in all."""
        self.parts: list[str] = []
        self.controllers: list[str] = []
        """Pseudonyms of those who drove; `controller` counts in this list."""
        self.people: set[str] = set()
        """Pseudonyms of all who did anything."""
        self.touched = self.watched = False
        self._labels: dict[str, bool | None] = {"success": None, "discarded": False}
        agents = layout.num_agents
        self._returns, self._learned = np.zeros(agents), np.zeros(agents)
        self._human = np.zeros(agents, np.int64)
        self._interventions = np.zeros(agents, np.int64)
        self._last: NDArray[Any] | None = None
        """Source of the last step of the part before."""
        self._t_begin = self._t_end = time.time()
        self._reason, self._partial = "running", True

    @property
    def full(self) -> bool:
        """Whether there is no room for another step."""
        return self.rows >= self._most

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(array.nbytes for array in (*self._arrays.values(), *self._seen.values()))

    def see_first(
        self, obs: FloatArray, share_obs: FloatArray, masks: FloatArray | None, state: Mapping[str, Any] | None
    ) -> None:
        """What is seen before the first step."""
        self._see(0, obs, share_obs, masks)
        if state is not None:
            try:
                self._state = state_to_arrays(state)
            except TypeError as error:  # an environment of a user: its episodes are recorded all the same
                self.head["state_lost"] = str(error)

    def add(self, record: StepRecord) -> None:
        """Copy a step into the arrays."""
        if self.rows == self._capacity:
            self._resize(min(self._most, 2 * self._capacity))
        row, arrays = self.rows, self._arrays
        for name in PLAIN:
            value = getattr(record, name)
            if value is not None:
                arrays[name][row] = value
        if record.reward_learned is None:
            arrays["reward_learned"][row] = record.reward
        arrays["t_wall"][row] = self._t_end = time.time() if record.t_wall is None else record.t_wall
        if record.controllers is not None:
            arrays["controller"][row] = [self._number(name) for name in record.controllers]
        self._see(row + 1, record.obs, record.share_obs, record.available_actions)
        self.rows += 1
        self.steps += 1
        self.watched |= record.watched

    def amend(self, step: int, agent: int, delta: float, credited: float, raw: float | None) -> bool:
        """Change an earlier step; False where it is on the disk already, or never was."""
        row = step - self.head["first_step"] - (self.steps - self.rows)
        if not 0 <= row < self.rows:
            return False
        self._arrays["reward_learned"][row, agent] += delta
        self._arrays["human_credited"][row, agent] += credited
        if raw is not None:
            before = self._arrays["human_raw"][row, agent]
            self._arrays["human_raw"][row, agent] = raw if np.isnan(before) else before + raw
        self.touched = True
        return True

    def label(self, label: str) -> None:
        """Take a person's mark."""
        if label not in LABELS:
            raise ValueError(f"label {label!r} is not one of {', '.join(LABELS)}")
        self.touched = True
        if label == "discard":
            self._labels["discarded"] = True
        else:
            self._labels["success"] = label == "success"

    def finish(self, reason: str | None, partial: bool) -> None:
        """No step comes any more."""
        if reason is None:
            last = self.rows - 1
            # Agents that had left before have no flag in the last step.
            terminated = self.rows and (self._arrays["terminated"][last] | ~self._arrays["active"][last]).all()
            reason = "terminated" if terminated else "truncated"
        self._reason, self._partial = reason, partial or self.head["first_step"] > 0

    def worth_keeping(self, record: str) -> bool:
        """Whether it is to be written, `record` being `touched` or `watched`."""
        self._notice()
        return self.steps > 0 and (self.touched or (record == "watched" and self.watched))

    def shrink(self) -> None:
        """Free the memory that was kept for more steps."""
        self._resize(self.rows)

    def take_part(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """Name and arrays of the next file; the arrays are copies. Memory starts anew after it."""
        self._count()
        name = f"episodes/{self.head['number']:06d}_env-{self.head['env']}_episode-{self.head['episode']}"
        name += ".npz" if self._reason != "running" and not self.parts else f".part{len(self.parts)}.npz"
        arrays = {name: array[: self.rows].copy() for name, array in self._arrays.items()}
        arrays |= {name: array[: self.rows + 1].copy() for name, array in self._seen.items()}
        if not self.parts:
            arrays |= self._state
        about = {**self.head, "first_row": self.steps - self.rows, "controllers": self.controllers}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        for array in self._seen.values():
            array[0] = array[self.rows]
        for field in self._fields:
            self._arrays[field.name][...] = field.empty
        self.parts.append(name)
        self.rows = 0
        return name, arrays

    def describe(self) -> dict[str, Any]:
        """The line of `episodes.jsonl`."""
        agents = self._layout.agents
        return {
            **self.head,
            "files": self.parts,
            "steps": self.steps,
            "is_partial": self._partial,
            "reason": self._reason,
            **self._labels,
            "returns": dict(zip(agents, self._returns.tolist(), strict=True)),
            "returns_learned": dict(zip(agents, self._learned.tolist(), strict=True)),
            "human_steps": dict(zip(agents, self._human.tolist(), strict=True)),
            "interventions": dict(zip(agents, self._interventions.tolist(), strict=True)),
            "controllers": self.controllers,
            "people": sorted(self.people | set(self.controllers)),
            "t_begin": self._t_begin,
            "t_end": self._t_end,
        }

    def _notice(self) -> None:
        """Whether a person did anything in the steps in memory."""
        human = (self._arrays["source"][: self.rows] == 1).any()
        raw = self._arrays["human_raw"][: self.rows]
        self.touched = self.touched or bool(self.people) or bool(human) or not bool(np.isnan(raw).all())

    def _count(self) -> None:
        """Add the steps in memory, which are about to leave it, to the totals."""
        self._notice()
        rows = {name: array[: self.rows] for name, array in self._arrays.items()}
        self._returns += rows["reward"].sum(axis=0, dtype=np.float64)
        self._learned += rows["reward_learned"].sum(axis=0, dtype=np.float64)
        source = rows["source"]
        self._human += ((source == HUMAN) & rows["active"]).sum(axis=0)
        before = [] if self._last is None else [self._last[None]]
        self._interventions += takeover_starts(np.concatenate([*before, source])).sum(axis=0)
        if self.rows:
            self._last = source[-1].copy()

    def _see(self, row: int, obs: FloatArray, share_obs: FloatArray, masks: FloatArray | None) -> None:
        self._seen["obs"][row] = obs
        self._seen["share_obs"][row] = share_obs[0] if self._layout.state_type == "EP" else share_obs
        if "available_actions" in self._seen and masks is not None:
            self._seen["available_actions"][row] = masks

    def _resize(self, rows: int) -> None:
        kept = self._arrays, self._seen
        self._arrays = {field.name: _empty(field, rows) for field in self._fields}
        self._seen = {field.name: _empty(field, rows + 1) for field in self._views}
        self._capacity = rows
        for old, new, more in zip(kept, (self._arrays, self._seen), (0, 1), strict=True):
            for name, array in old.items():
                new[name][: self.rows + more] = array[: self.rows + more]

    def _number(self, name: str | None) -> int:
        if name is None:
            return NOBODY
        if name not in self.controllers:
            self.controllers.append(name)
        return self.controllers.index(name)


def _empty(field: Field, rows: int) -> NDArray[Any]:
    return np.full((rows, *field.shape), field.empty, field.dtype)


def _row_bytes(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
