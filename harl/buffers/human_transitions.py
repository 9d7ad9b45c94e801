"""Transitions in which people drove, kept for replay; B rows, A agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from harl.buffers.possible import possible
from harl.buffers.replay import ReplayBatch
from harl.buffers.replay_records import after_fields, before_fields, with_states
from harl.buffers.ring import GrowingRing
from harl.envs.api import Layout

_MASKS = ("available_actions", "next_available_actions")
_OWN = ("env", "step", "length", "apart", "driven")
"""Columns that are no part of a batch."""


class HumanTransitions:
    """Whole transitions in which a person drove somebody: the second buffer that batches are drawn from (RLPD).

    Args:
        layout: what the environments look like.
        capacity: the most transitions to keep.
        gamma: discount factor of one step.
        generator: draws the samples; its state is saved with the transitions.
        device: where they live.
        teachers: whose transitions each agent imitates, where they are imitated; None for its own alone.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        gamma: float,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        teachers: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.layout, self.gamma, self.generator, self.teachers = layout, gamma, generator, teachers
        self._per_agent_values = layout.state_type == "FP"
        fields = [field for field in (*before_fields(layout), *after_fields(layout)) if field.name != "steps"]
        self._names = [field.name for field in fields]
        self._agents_first = {field.name for field in fields if field.per_agent}
        self._ring = GrowingRing(capacity, device)

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, batch: ReplayBatch, envs: Tensor, steps: Tensor, lengths: Tensor, apart: int, driven: Tensor) -> None:
        """Keep the transitions of a batch.

        Args:
            batch: they, complete: their sums of rewards do not grow any more.
            envs, steps: (B,) int64: where (-1 for recordings), and the count of environment steps before each.
            lengths: (B,) int64: how many steps of its environment each sum of rewards covers.
            apart: environment steps between two steps of one environment.
            driven: (B, A) bool: whose actions may be imitated. Those that the agent could not do are not.
        """
        names = [name for name in self._names if getattr(batch, name) is not None]
        rows = {name: self._turned(name, getattr(batch, name)) for name in names}
        own = {"env": envs, "step": steps, "length": lengths, "apart": torch.full_like(steps, apart)}
        self._ring.add(rows | own | {"driven": driven & self._possible(batch)})

    def _possible(self, batch: ReplayBatch) -> Tensor:
        """(B, A) whether the action is one that the agent could do."""
        masks = batch.available_actions
        found = [
            possible(space, batch.actions[i], None if masks is None else masks[i])
            for i, space in enumerate(self.layout.action_spaces)
        ]
        return torch.stack(found, dim=1)

    def _turned(self, name: str, tensor: Tensor) -> Tensor:
        """(A, B, …) as (B, A, …) and back; what has no axis of agents as it is."""
        return tensor.transpose(0, 1) if name in self._agents_first else tensor

    def sample(self, size: int, bc_coef: float = 0.0) -> ReplayBatch:
        """Transitions drawn uniformly with replacement; their `index` is -1, as they are no rows of the replay.

        With `bc_coef` above 0 each agent is to imitate those in which it was driven; their weights add up to that.
        """
        chosen = torch.randint(len(self), (size,), generator=self.generator, device=self.generator.device)
        rows = self._ring.rows(chosen.to(self._ring.device))
        values: dict[str, Any] = dict.fromkeys(_MASKS)
        values |= {name: self._turned(name, rows[name]).contiguous() for name in rows if name not in _OWN}
        values = with_states(self.layout, values)
        imitate = None
        if bc_coef > 0:
            driven = rows["driven"].t().unsqueeze(-1).float()
            imitate = bc_coef * driven / driven.sum(1, keepdim=True).clamp(min=1.0)
        return ReplayBatch(**values, index=torch.full_like(rows["step"], -1), imitate=imitate, teachers=self.teachers)

    def mixed(self, batch: ReplayBatch, size: int, bc_coef: float = 0.0) -> ReplayBatch:
        """The batch with `size` transitions of this buffer behind its own; only they are imitated, see `sample`."""
        human = self.sample(size, bc_coef)
        values: dict[str, Any] = dict.fromkeys(_MASKS)
        for name in (*self._names, "index"):
            first = getattr(batch, name)
            if first is not None:
                values[name] = torch.cat([first, getattr(human, name)], dim=int(name in self._agents_first))
        values = with_states(self.layout, values)
        if human.imitate is not None:
            values["imitate"] = torch.cat([torch.zeros_like(batch.valid), human.imitate], dim=1)
        return ReplayBatch(**values, teachers=human.teachers)

    def amend(self, env: int, step: int, gains: NDArray[Any]) -> None:
        """Add to the reward of a step, in every sum that contains it.

        Args:
            env, step: where, and the count of environment steps before it.
            gains: (R,) what each learner gets: the team (EP) or every agent (FP).
        """
        if not len(self):
            return
        since = step - self._ring.column("step")
        ahead = torch.div(since, self._ring.column("apart"), rounding_mode="floor")
        inside = (since >= 0) & (ahead < self._ring.column("length"))
        hit = (inside & (self._ring.column("env") == env)).nonzero()[:, 0]
        change = torch.from_numpy(gains).to(self._ring.device) * self.gamma ** ahead[hit].unsqueeze(1).double()
        rewards = self._ring.column("rewards")
        if self._per_agent_values:
            change = change.unsqueeze(2) * self._ring.column("valid")[hit]
        rewards[hit] += change.to(rewards.dtype)

    def forget(self, env: int, since: int) -> None:
        """Drop what came from environment `env` at `since` environment steps or later."""
        if len(self._ring):
            self._ring.keep((self._ring.column("env") != env) | (self._ring.column("step") < since))

    def get_state(self) -> dict[str, Any]:
        """The transitions, and where the draws stand."""
        return {"rows": self._ring.get_state(), "generator": self.generator.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        rows = dict(state["rows"])
        if rows["tensors"] and "driven" not in rows["tensors"]:
            # From before it was noted who was driven; such a run imitates nobody.
            nobody = torch.zeros(len(rows["tensors"]["step"]), self.layout.num_agents, dtype=torch.bool)
            rows["tensors"] = {**rows["tensors"], "driven": nobody}
        # From before states made of observations were left out, there may be more columns.
        known = {*self._names, *_OWN}
        rows["tensors"] = {name: tensor for name, tensor in rows["tensors"].items() if name in known}
        self._ring.set_state(rows)
        self.generator.set_state(state["generator"])
