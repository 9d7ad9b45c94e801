"""The policies of all agents, acting together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl.algorithms.inputs import mlp_spec, observed
from harl.config import ModelConfig
from harl.envs.api import Layout
from harl.models.distributions import Distribution
from harl.models.gru import kept
from harl.models.policy import StochasticPolicy
from harl.models.stacked import StackedPolicies, equal_networks


@dataclass(slots=True)
class _Group:
    """Agents whose networks are equal in shape (or are one network) and act in one forward pass."""

    agents: list[int]
    columns: Any
    """How the agents' entries are picked from (N, A, …): a slice where they are neighbours, else indices."""
    stacked: StackedPolicies
    shared: bool
    obs_width: int
    """Width of a vector, or channels of an image."""
    mask_width: int
    action_width: int

    def rows(self, array: Tensor, width: int) -> Tensor:
        """(N, A, ≥ width, …) → (networks, rows of a network, width, …)."""
        own = self.own(array, width)
        return own.reshape(1, -1, *own.shape[2:]) if self.shared else own.transpose(0, 1)

    def put(self, array: Tensor, values: Tensor) -> None:
        """The inverse of `rows`, into an existing (N, A, ≥ width, …) array."""
        width = values.shape[2]
        values = values.view(len(array), -1, *values.shape[2:]) if self.shared else values.transpose(0, 1)
        if isinstance(self.columns, slice):
            self.own(array, width).copy_(values)
        else:
            array[:, self.columns, :width] = values

    def distribution(
        self, obs: Tensor, available_actions: Tensor | None, hidden: Tensor | None
    ) -> tuple[Distribution, Tensor | None]:
        """The agents' distributions (networks, rows of a network, …), and with memory the hidden states afterwards."""
        masks = None
        if available_actions is not None and self.mask_width:
            masks = self.rows(available_actions, self.mask_width)
        rows = self.rows(obs, self.obs_width)
        if hidden is None:
            return self.stacked.distribution(rows, masks), None
        return self.stacked.remembering(rows, masks, self.rows(hidden, hidden.shape[2]))

    def own(self, array: Tensor, width: int) -> Tensor:
        """The part of (N, A, ≥ width, …) that is these agents'; without indexing where it is everything."""
        if len(self.agents) == array.shape[1] and width == array.shape[2]:
            return array
        return array[:, self.columns, :width]


@dataclass(slots=True)
class TeamMemory:
    """What the recurrent policies of N environments remember, and where they note what they will.

    Whoever steps the environments says by `masks` which episodes ended; the policies do the rest.
    """

    before: Tensor
    """(N, A, layers, width) hidden states before the step."""
    masks: Tensor
    """(N, 1), 1 = the episode goes on, 0 = it ended before this step."""
    after: Tensor
    """(N, A, layers, width) for the hidden states after the step; may be `before` itself."""

    def note_ends(self, ended: NDArray[np.bool_]) -> None:
        """Say in which environments (N,) the episode has ended within the last step."""
        self.masks.copy_(torch.from_numpy(~ended[:, None]))


class Acting(Protocol):
    """A team that acts, whatever it is made of."""

    layout: Layout
    device: torch.device
    networks: Any
    """The policies' networks: one an agent, or one for all."""

    def refresh(self) -> None:
        """Take over changed weights before acting."""

    def new_memory(self, num_envs: int) -> TeamMemory | None:
        """Memory at the start of episodes in N environments; None for policies that remember nothing."""

    def act(
        self,
        obs: Tensor,
        available_actions: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
        *,
        memory: TeamMemory | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Actions (N, A, action_dim), and their log-probabilities where the policies have them.

        `memory` is what `new_memory` made.
        """

    def log_probs(
        self, obs: Tensor, available_actions: Tensor | None, actions: Tensor, hidden: Tensor | None = None
    ) -> Tensor | None:
        """Log-probabilities (N, A, action_dim), summed over the last axis those of the actions (N, A, action_dim).

        None for policies that have none. `hidden` (N, A, layers, width) is what recurrent policies remember before the
        step; where it is not given, nothing.
        """


class Team:
    """One stochastic policy an agent, or one for all of them.

    Args:
        layout: agents, spaces and widths.
        model: the `model` section.
        share_param: whether all agents use one network.
        device: where the networks live.
    """

    def __init__(self, layout: Layout, model: ModelConfig, share_param: bool, device: torch.device) -> None:
        self.layout, self.shared, self.device = layout, share_param, device
        count = 1 if share_param else layout.num_agents
        spec = mlp_spec(model)
        self.memory_shape = (spec.recurrent_layers, spec.hidden_sizes[-1]) if spec.recurrent_layers else None
        """Layers and width of what each policy remembers; None for feed-forward policies."""
        self.networks = [
            StochasticPolicy(
                observed(layout, i),
                layout.action_spaces[i],
                spec,
                model.gain,
                model.std_x_coef,
                model.std_y_coef,
            ).to(device)
            for i in range(count)
        ]
        self._action_dim = layout.action_dim
        self.groups = self._group()

    def _group(self) -> list[_Group]:
        everyone = list(range(self.layout.num_agents))
        if self.shared:
            return [self._make_group(everyone, self.networks)]
        kinds: list[list[int]] = []
        for i in everyone:
            match = next((kind for kind in kinds if equal_networks(self.networks[kind[0]], self.networks[i])), None)
            if match is None:
                kinds.append([i])
            else:
                match.append(i)
        return [self._make_group(kind, [self.networks[i] for i in kind]) for kind in kinds]

    def _make_group(self, agents: list[int], networks: list[StochasticPolicy]) -> _Group:
        first, last = agents[0], agents[-1]
        neighbours = agents == list(range(first, last + 1))
        return _Group(
            agents=agents,
            columns=slice(first, last + 1) if neighbours else torch.tensor(agents, device=self.device),
            stacked=StackedPolicies(networks),
            shared=self.shared,
            obs_width=self.layout.obs_dims[first] if len(self.layout.obs_shape) == 1 else self.layout.obs_shape[0],
            mask_width=self.layout.action_numbers[first],
            action_width=self.layout.action_dims[first],
        )

    def location(self, network: int) -> tuple[StackedPolicies, int]:
        """The stack that holds a network's parameters, and the row there."""
        for group in self.groups:
            if network in group.agents:
                return group.stacked, group.agents.index(network)
        raise IndexError(f"there is no network {network}")

    def new_memory(self, num_envs: int) -> TeamMemory | None:
        """Memory at the start of episodes in N environments; None for feed-forward policies."""
        if self.memory_shape is None:
            return None
        hidden = torch.zeros(num_envs, self.layout.num_agents, *self.memory_shape, device=self.device)
        return TeamMemory(hidden, torch.zeros(num_envs, 1, device=self.device), hidden)

    def refresh(self) -> None:
        """Take over changed weights before acting."""
        for group in self.groups:
            group.stacked.refresh()

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        available_actions: Tensor | None = None,
        deterministic: bool = False,
        generator: torch.Generator | None = None,
        actions: Tensor | None = None,
        log_probs: Tensor | None = None,
        memory: TeamMemory | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Actions of all agents.

        Args:
            obs: (N, A, obs_dim), or images (N, A, C, H, W).
            available_actions: (N, A, action_number) or None.
            deterministic: the mode in place of a sample.
            generator: source of the samples.
            actions, log_probs: (N, A, action_dim) tensors to write to; made where they are not given.
            memory: what recurrent policies remember; the hidden states after the step are written to `memory.after`.

        Returns:
            actions (unclipped) and their log-probabilities for each factor, both (N, A, action_dim); columns beyond
            an agent's width are 0.
        """
        if actions is None or log_probs is None:
            shape = (*obs.shape[:2], self._action_dim)
            actions, log_probs = torch.zeros(shape, device=obs.device), torch.zeros(shape, device=obs.device)
        hidden = None if memory is None else kept(memory.before, memory.masks[:, None, None])
        for group in self.groups:
            distribution, after = group.distribution(obs, available_actions, hidden)
            if memory is not None and after is not None:
                group.put(memory.after, after)
            chosen = distribution.mode() if deterministic else distribution.sample(generator)
            group.put(actions, chosen)
            group.put(log_probs, distribution.log_prob(chosen))
        return actions, log_probs

    @torch.no_grad()
    def log_probs(
        self, obs: Tensor, available_actions: Tensor | None, actions: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities (N, A, action_dim) of given actions, factor by factor; see `Acting.log_probs`."""
        if hidden is None and self.memory_shape is not None:
            hidden = actions.new_zeros((*actions.shape[:2], *self.memory_shape))
        result = torch.zeros_like(actions)
        for group in self.groups:
            distribution, _ = group.distribution(obs, available_actions, hidden)
            group.put(result, distribution.log_prob(group.rows(actions, group.action_width)))
        return result
