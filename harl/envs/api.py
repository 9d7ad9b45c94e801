"""The contract between environments and runners: `VectorEnv` and the record `EnvStep`.

Letters used for shapes: N environments, A agents; `obs_dim`, `share_obs_dim`, `action_dim` and `action_number` are
the widths of the *widest* agent (see `harl.envs.api.Layout`). Agents that differ share the arrays at that width;
columns beyond an agent's own width are zero and are never shown to its network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


class EnvError(RuntimeError):
    """An environment broke the contract; the message names the environment, the agent and what was expected."""


@dataclass(slots=True)
class EnvStep:
    """What N environments return from `reset` or `step`.

    The arrays belong to the environment and may be overwritten by its next `step`: copy what you keep.
    """

    obs: FloatArray
    """(N, A, *obs_shape). What each agent sees now; after the end of an episode, the first one of the next."""
    share_obs: FloatArray
    """(N, A, *share_obs_shape). Central state. EP: the same for all agents (may be a broadcast view); FP: one each."""
    available_actions: FloatArray | None
    """(N, A, action_number), 1 = allowed, or None where every action is always allowed."""
    active: FloatArray
    """(N, A, 1). 1 for agents that take part in the coming step, 0 for those that have left this episode."""
    rewards: FloatArray
    """(N, A, 1). Raw reward of each agent for the step just taken; 0 for agents that had left before it."""
    terminated: BoolArray
    """(N, A). The agent's episode ended in this step by a terminal state (only in the step in which it happens)."""
    truncated: BoolArray
    """(N, A). The agent's episode was cut in this step, by a time limit (only in the step in which it happens)."""
    ended: BoolArray
    """(N,). The whole episode is over; the environment has been reset within this step."""
    final_obs: FloatArray | None = None
    """Like `obs`: the last observation of the ended episode, valid in rows where `ended`; None if none ended."""
    final_share_obs: FloatArray | None = None
    """Like `share_obs`, for the same rows."""
    final_available_actions: FloatArray | None = None
    """Like `available_actions`, for the same rows."""
    metrics: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Numbers that the environment reports for this step, each (N,); NaN where an environment reports nothing."""
    broken_off: BoolArray | None = None
    """(N,). Episodes that `ended` since they were broken off from outside after this step, see `VectorEnv.restart`;
    None where none was. Not set by environments."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, spaces and widths of the agents of an environment; what networks and buffers are built from."""

    agents: tuple[str, ...]
    observation_spaces: tuple[spaces.Space[Any], ...]
    """True spaces, one per agent (Box of any rank, or Discrete which is seen one-hot)."""
    action_spaces: tuple[spaces.Space[Any], ...]
    """True spaces, one per agent: Discrete, MultiDiscrete or one-dimensional Box. Kinds may differ."""
    obs_shape: tuple[int, ...]
    """Shape of one agent's entry in `obs`: (obs_dim,) of the widest agent, or (C, H, W)."""
    share_obs_shape: tuple[int, ...]
    """Shape of one agent's entry in `share_obs`."""
    state_type: str
    """"EP" (environment-provided, one state for all) or "FP" (feature-pruned, one state per agent)."""
    has_masks: bool
    """Whether `available_actions` is given."""
    meanings: tuple[tuple[str, ...] | None, ...] | None = None
    """For people: what each agent's action does, in words, where the environment says so. One entry for each index of
    a Discrete (of a MultiDiscrete: of all components, one after the other) or each column of a Box; what is done at
    the same time is separated by ` & `, as `left & say B`."""
    state_is_observations: bool = False
    """EP: whether `share_obs` is always the observations of all agents side by side, each at its own width (images:
    their channels); a replay buffer then keeps them once."""

    def __post_init__(self) -> None:
        if self.state_is_observations and (self.state_type != "EP" or self.share_obs_shape != self._joined_shape()):
            raise ValueError(
                f"layout: state_is_observations needs state_type EP and share_obs_shape {self._joined_shape()}, the "
                f"observations side by side; received {self.state_type} and {self.share_obs_shape}"
            )

    def _joined_shape(self) -> tuple[int, ...]:
        """Shape of all observations side by side."""
        if len(self.obs_shape) > 1:
            return (self.num_agents * self.obs_shape[0], *self.obs_shape[1:])
        return (sum(self.obs_dims),)

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def action_dims(self) -> tuple[int, ...]:
        """Columns that each agent's action takes: 1 for Discrete, one per component or dimension otherwise."""
        return tuple(action_width(space) for space in self.action_spaces)

    @property
    def action_dim(self) -> int:
        """Columns of the action array: the widest agent's."""
        return max(self.action_dims)

    @property
    def action_numbers(self) -> tuple[int, ...]:
        """Length of each agent's action mask: n for Discrete, the sum over components for MultiDiscrete, 0 for Box."""
        return tuple(mask_width(space) for space in self.action_spaces)

    @property
    def action_number(self) -> int:
        """Width of `available_actions`: the widest agent's mask."""
        return max(self.action_numbers)

    @property
    def obs_dims(self) -> tuple[int, ...]:
        """Each agent's own flat observation width."""
        return tuple(obs_width(space) for space in self.observation_spaces)

    def action_bounds(self) -> tuple[FloatArray, FloatArray]:
        """Lowest and highest executable value of each action column, both (A, action_dim) float32.

        Discrete columns and columns beyond an agent's width are unbounded.
        """
        low = np.full((self.num_agents, self.action_dim), -np.inf, np.float32)
        high = np.full((self.num_agents, self.action_dim), np.inf, np.float32)
        for i, space in enumerate(self.action_spaces):
            if isinstance(space, spaces.Box):
                low[i, : space.shape[0]] = space.low
                high[i, : space.shape[0]] = space.high
        return low, high


def action_width(space: spaces.Space[Any]) -> int:
    """Columns of the action array that an action of this space takes."""
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec)
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return int(space.shape[0])
    raise TypeError(f"action space {space} is not supported; allowed: Discrete, MultiDiscrete, one-dimensional Box")


def mask_width(space: spaces.Space[Any]) -> int:
    """Length of the action mask of this space; components of a MultiDiscrete are concatenated."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return 0


def obs_width(space: spaces.Space[Any]) -> int:
    """Flat width of an observation of this space; a Discrete observation is seen one-hot."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape, dtype=np.int64))
    raise TypeError(f"observation space {space} is not supported; allowed: Box, Discrete")


class VectorEnv(ABC):
    """N copies of one multi-agent environment, stepped together.

    The whole contract is `reset` and `step`; whoever can also saves its state, restarts and shows itself:

    - `reset(seeds)` starts a new episode in every environment. `seeds` holds one integer (0 to 2**63 - 1) per
      environment, or is None to go on with the random streams that the environments have. Resetting twice with the
      same seeds gives the same sequence of episodes. Later episodes of an environment differ from each other.
    - `step(actions)` takes (N, A, action_dim) float32: an index for Discrete and for every component of a
      MultiDiscrete, and values within the agent's own bounds for Box. Entries of agents that are not active, and
      columns beyond an agent's width, are ignored. Environments whose episode ends are reset within the step: see
      `EnvStep.ended` and `EnvStep.final_obs`.

    Both raise `EnvError` where the wrapped environment does not keep its own promises.
    """

    layout: Layout
    num_envs: int
    name: str
    """What the environment is called in run folders and messages, as `mpe`."""
    scenario: str
    """The task within the environment, as `simple_spread`."""
    episode_limit: int | None = None
    """Steps after which an episode is truncated, where known."""
    can_save_state: bool = False
    """Whether `get_state` and `set_state` restore a run to the bit."""
    can_restart: bool = False
    """Whether `restart` can be called."""

    @abstractmethod
    def reset(self, seeds: list[int] | None = None) -> EnvStep:
        """Start an episode in every environment; rewards are 0 and no end is flagged in the record."""

    @abstractmethod
    def step(self, actions: FloatArray) -> EnvStep:
        """Take one step in every environment."""

    def restart(self, envs: Sequence[int]) -> EnvStep:
        """Break off the running episode of some environments and begin their next one; the others stay as they are.

        The next episode is the one that would have followed, by the random stream that the environment has. An
        environment without this goes on to the end of an episode that a person has discarded.

        Args:
            envs: their indices.

        Returns:
            As of `reset`: what all environments show now, rewards 0 and no end flagged.

        Raises:
            EnvError: the environments cannot, or were never reset.
            ValueError: there is no such environment.
        """
        raise EnvError(f"{self.name} cannot restart single environments")

    def get_state(self) -> dict[str, Any]:
        """Everything that the next steps depend on: plain numbers, strings, lists, dicts and numpy arrays."""
        raise EnvError(f"{self.name} cannot save its state")

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` gave."""
        raise EnvError(f"{self.name} cannot load a state")

    def render(self, env_index: int = 0) -> NDArray[np.uint8]:
        """Picture (H, W, 3) of one environment, without a display; it may be read-only."""
        raise EnvError(f"{self.name} cannot be rendered")

    def scene(self, env_index: int = 0) -> dict[str, Any] | None:
        """What one environment looks like now, for whoever draws it; None where an environment cannot tell.

        Much cheaper than `render`. Plain JSON: `bounds` [xmin, ymin, xmax, ymax] of what has to be visible, y upwards,
        and `shapes`, drawn in this order. All have `id`, unique and the same as long as it is the same thing, `kind`,
        and may have `agent`, the name of the agent that it is or belongs to. Colours are `#rrggbb`, lengths in the
        unit of `bounds`.

        - `circle`: `x`, `y`, `r`, `fill`, `label` (or None), and perhaps `alpha`, 0 to 1;
        - `line`: `x1`, `y1`, `x2`, `y2`, `stroke`;
        - `text`: `x`, `y`, `text`.
        """
        return None

    def watch_ends(self, env_indices: Iterable[int]) -> bool:
        """Say of which environments somebody wants to see how episodes end: `render_end` is asked for these.

        It counts from the next step to the next call, and costs a picture at each end of theirs. Optional: environments
        that cannot return False, and nobody sees the last state, since the next episode begins within the step.
        """
        return False

    def render_end(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Picture (H, W, 3) of the last state of the episode that ended in the last step; None where none did, or where
        nobody watches; raises as `render` does."""
        return None

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Free what the environments hold; may be called twice."""
