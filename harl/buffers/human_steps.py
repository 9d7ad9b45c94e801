"""Steps that people drove, kept for imitation; B rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harl.buffers.possible import possible
from harl.buffers.ring import GrowingRing
from harl.buffers.sequences import Rows
from harl.envs.api import Layout


@dataclass(slots=True)
class HumanRows(Rows):
    """Steps that people drove, for one actor to imitate: B rows, or with memory B sequences of one step."""

    obs: Tensor
    """(B, obs_dim) of the actor's own width, or (B, C, H, W)."""
    actions: Tensor
    """(B, action_dim)"""
    available_actions: Tensor | None
    """(B, number of actions) or None."""
    hidden: Tensor | None = None
    """See `Rows`: as it was when the person acted."""
    masks: Tensor | None = None
    """See `Rows`."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """What the policy is called with."""
        return self.obs, self.available_actions, self.first_hidden, self.masks


class HumanSteps:
    """What people saw and did, agent by agent: D_I of the imitation loss.

    Args:
        layout: what the environments look like.
        capacity: the most steps to keep.
        generator: draws the samples; its state is saved with the steps.
        memory: (layers, width) of what recurrent policies remember, None for others.
        device: where the steps live.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        generator: torch.Generator,
        memory: tuple[int, int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layout, self.generator, self.memory = layout, generator, memory
        self._ring = GrowingRing(capacity, device)

    def __len__(self) -> int:
        return len(self._ring)

    def add(
        self,
        obs: Tensor,
        actions: Tensor,
        available_actions: Tensor | None,
        hidden: Tensor | None,
        agents: Tensor,
        envs: Tensor,
        steps: Tensor,
    ) -> None:
        """Keep B steps of single agents.

        Args:
            obs: (B, *obs_shape).
            actions: (B, action_dim).
            available_actions: (B, action_number) or None. Steps with an action that was not available are left out.
            hidden: (B, layers, width) before the step; None also where nothing is known of them.
            agents, envs, steps: (B,) int64: who, where (-1 for recordings), and the count of environment steps then.
        """
        rows = {"obs": obs, "actions": actions, "agent": agents, "env": envs, "step": steps}
        if available_actions is not None:
            rows["available_actions"] = available_actions
        if self.memory is not None:
            rows["hidden"] = torch.zeros(len(obs), *self.memory) if hidden is None else hidden
        wanted = torch.zeros_like(agents, dtype=torch.bool)
        for i, space in enumerate(self.layout.action_spaces):
            wanted |= (agents == i) & possible(space, actions, available_actions)
        self._ring.add({name: tensor[wanted] for name, tensor in rows.items()})

    def forget(self, env: int, since: int) -> None:
        """Drop what came from environment `env` at `since` environment steps or later."""
        if len(self._ring):
            self._ring.keep((self._ring.column("env") != env) | (self._ring.column("step") < since))

    def of(self, agents: Sequence[int]) -> Tensor:
        """Places (B,) of the steps of some agents."""
        if not len(self._ring):
            return torch.empty(0, dtype=torch.int64)
        return torch.isin(self._ring.column("agent"), torch.tensor(agents, device=self._ring.device)).nonzero()[:, 0]

    def draw(self, places: Tensor, size: int, agent: int) -> HumanRows:
        """Steps at `places` for an actor of this agent's widths: all of them, or `size` drawn with replacement."""
        if len(places) > size:
            chosen = torch.randint(len(places), (size,), generator=self.generator, device=self.generator.device)
            places = places[chosen.to(places.device)]
        rows, layout = self._ring.rows(places), self.layout
        obs, width = rows["obs"], layout.action_numbers[agent]
        if len(layout.obs_shape) == 1:
            obs = obs[:, : layout.obs_dims[agent]]
        result = HumanRows(
            obs=obs,
            actions=rows["actions"][:, : layout.action_dims[agent]],
            available_actions=rows["available_actions"][:, :width] if "available_actions" in rows and width else None,
        )
        if self.memory is not None:
            for name in ("obs", "actions", "available_actions"):
                tensor = getattr(result, name)
                setattr(result, name, None if tensor is None else tensor.unsqueeze(1))
            result.hidden = rows["hidden"].unsqueeze(1)
            result.masks = torch.ones(len(obs), 1, 1, device=obs.device)
        return result

    def get_state(self) -> dict[str, Any]:
        """The steps, and where the draws stand."""
        return {"rows": self._ring.get_state(), "generator": self.generator.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self._ring.set_state(state["rows"])
        self.generator.set_state(state["generator"])
