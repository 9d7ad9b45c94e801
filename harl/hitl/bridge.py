"""What runners and people's bridges say to each other. Imports no socket, server or page.

Letters used for shapes: N environments, A agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from harl.envs.api import EnvStep, FloatArray, Layout


class PeopleError(RuntimeError):
    """The run was told to wait for people, and they did not come."""


class Source(IntEnum):
    """Who decided an action."""

    POLICY = 0
    HUMAN = 1
    DEFAULT = 2
    """Nobody: the action that stands for doing nothing, in place of an absent driver."""
    PREVIOUS = 3
    """Nobody: the last action again, in place of an absent driver."""


class Override(NamedTuple):
    """What the environments are given in place of what the policies proposed."""

    actions: FloatArray
    """(N, A, action_dim) executable actions; the proposal itself, the same array, where nobody drove anywhere."""
    source: NDArray[np.int8] | None
    """(N, A) `Source` of each; None where the policies decided everything."""
    policy_mask: FloatArray | None
    """(N, A, 1). 0 where somebody else than the policy decided; None where the policies decided everything."""
    seen_ago: NDArray[np.int64] | None = None
    """(N, A) steps since what the driver had seen, 0 where nobody drives; None where that is not known."""


class Credit(NamedTuple):
    """An amendment of the reward of an earlier step."""

    env_steps: int
    """The count of environment steps with which that step's `override_actions` was called."""
    env: int
    agent: int
    delta: float


class Standing(NamedTuple):
    """Where the run and its episodes stand."""

    env_steps: int
    """Environment steps taken so far."""
    episode: NDArray[np.int64]
    """(N,) the number of each, as its environment counts them."""
    step: NDArray[np.int64]
    """(N,) steps that it has."""
    returns: NDArray[np.float64]
    """(N, A) raw rewards so far."""


@dataclass(frozen=True)
class Stage:
    """What a bridge may know and ask of whoever steps the environments."""

    layout: Layout
    num_envs: int
    purpose: str
    """`train`, or `evaluate`: then nothing is learned, whatever is configured."""
    title: str
    """For people, as `happo on mpe/simple_spread`."""
    env_name: str
    scenario: str
    algo: str
    folder: Path
    """The run folder; recordings go to `people/` in it."""
    sums_rewards: bool
    """Whether the rewards of all agents are added up before they are learned from (`env.reward=shared_sum`)."""
    total_steps: int
    """Environment steps at which the run ends; 0 where it has no such end."""
    render: Callable[[int], NDArray[np.uint8]]
    """Picture (H, W, 3) of an environment as it is now."""
    scene: Callable[[int], dict[str, Any] | None]
    """Description of an environment as it is now that the page can draw, None where there is none."""
    earliest: Callable[[], int]
    """Count of environment steps of the earliest step whose reward can still be amended."""
    stopping: Callable[[], bool]
    """Whether the run was asked to stop: nobody may wait any longer."""
    log_probs: Callable[[FloatArray, FloatArray | None, FloatArray], FloatArray | None]
    """(N, A, …) observations, masks and actions → (N, A) log-probabilities of the current policies; None for those
    that have none."""
    notice: Callable[[str], None]
    """Write a line into the log of the run."""
    metrics: Callable[[dict[str, float]], None]
    """Take numbers into the means of the next line of the log."""
    env_state: Callable[[], Mapping[str, Any] | None] = lambda: None
    """State of the environments as `VectorEnv.get_state` gives it; None where it cannot be saved."""
    watch_ends: Callable[[Iterable[int]], object] = lambda envs: False
    """Ask for the last pictures of episodes of these environments; see `VectorEnv.watch_ends`."""
    render_end: Callable[[int], NDArray[np.uint8] | None] = lambda env: None
    """Picture (H, W, 3) of the last state of the episode that ended in the last step, None where it was not kept."""
    seed_of: Callable[[int], int | None] = lambda env: None
    """Seed with which an environment was reset last, where known."""
    standing: Standing | None = None
    """Where a run that is continued stands when people join; None where everything begins."""


class Bridge(Protocol):
    """How people take part. All methods are called by the thread that steps the environments, and never raise because
    of what people or the network do.

    In every step: `override_actions`, the step itself, `discarded`, `override_rewards`, `publish`. Before an on-policy
    update, which ends the time in which rewards can be amended: `late_feedback`.
    """

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """The environments were started, or started anew."""

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        """Who drives, and what they do.

        Args:
            env_steps: environment steps taken so far; names the step in `Credit`.
            obs: (N, A, *obs_shape) what the agents see.
            available_actions: (N, A, action_number) or None.
            proposed: (N, A, action_dim) executable actions of the policies.
        """

    def override_rewards(self, env_steps: int, rewards: FloatArray) -> tuple[FloatArray, Sequence[Credit]]:
        """Rewards (N, A, 1) to learn from in this step, and amendments of earlier ones.

        Takes the same `env_steps` as the step's `override_actions`.
        """

    def publish(self, outcome: EnvStep) -> None:
        """Show and record the step."""

    def late_feedback(self) -> Sequence[Credit]:
        """Amendments of the steps so far that are still to come; may wait for them, within a limit."""

    def discarded(self) -> Sequence[int]:
        """Environments whose running episode, to which the step belongs that was just taken, a person has discarded
        since the last call; nothing of it may be learned from or counted, and it is broken off where that is possible.
        """

    def close(self, reason: str) -> None:
        """The run is over; may be called twice."""
