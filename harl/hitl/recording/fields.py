"""What a recording holds of each step: names, shapes, types, and what stands where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl.envs.api import FloatArray, Layout

FORMAT = 1
"""Version of the files of a recording."""
NOBODY = -1
"""Index in `controller` where no person drove."""
POLICY, HUMAN = 0, 1
"""In `source`, as `harl.hitl.bridge.Source`."""


@dataclass(slots=True)
class StepRecord:
    """One step of one environment, all agents. Letters: A agents. Arrays are copied.

    What is None is unknown, or did not happen, and is recorded as the field's empty value.
    """

    env: int
    """Index of the environment."""
    env_steps: int
    """Environment steps of the whole run before this one; names the version of the policies."""
    proposed: FloatArray
    """(A, action_dim) what the policies proposed."""
    executed: FloatArray
    """(A, action_dim) what the environment was given."""
    reward: FloatArray
    """(A,) raw reward of the environment."""
    obs: FloatArray
    """(A, *obs_shape) what agents see after the step; the last observation of the episode where it ended."""
    share_obs: FloatArray
    """(A, *share_obs_shape) state after the step, likewise."""
    terminated: NDArray[np.bool_]
    """(A,)."""
    truncated: NDArray[np.bool_]
    """(A,)."""
    available_actions: FloatArray | None = None
    """(A, action_number) allowed after the step; None where there are no masks."""
    source: NDArray[np.int8] | None = None
    """(A,) `harl.hitl.bridge.Source`; None: the policies decided everything."""
    controllers: Sequence[str | None] | None = None
    """Pseudonym of the person who drove each agent."""
    active: NDArray[Any] | None = None
    """(A,) 0 for agents that had left the episode before the step; None: all took part."""
    log_prob_proposed: FloatArray | None = None
    """(A,) log-probability of the proposal under the policies of that time."""
    log_prob_executed: FloatArray | None = None
    """(A,) log-probability of what was executed under the same policies."""
    human_raw: FloatArray | None = None
    """(A,) sum of the values of the feedback given while this step was shown; NaN: none."""
    human_credited: FloatArray | None = None
    """(A,) share of feedback that was credited to this step."""
    weight: float = 0.0
    """Reward that one unit of credited feedback was worth."""
    reward_learned: FloatArray | None = None
    """(A,) reward that was learned from; None: the raw one."""
    seen_step: NDArray[np.int32] | None = None
    """(A,) step that the person saw when giving the input; -1: no input."""
    seq: NDArray[np.int64] | None = None
    """(A,) number of the input; -1: no input."""
    t_received: NDArray[np.float64] | None = None
    """(A,) when the input came, in seconds of the monotonic clock; NaN: no input."""
    t_applied: NDArray[np.float64] | None = None
    """(A,) when the input took effect, on the same clock."""
    rtt_ms: FloatArray | None = None
    """(A,) median round trip to the person who drove, milliseconds."""
    t_wall: float | None = None
    """Wall time of the step, seconds; None: now."""
    watched: bool = False
    """Whether anybody saw this environment in this step."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a recording; its first axis is time."""

    name: str
    shape: tuple[int, ...]
    """Of one step."""
    dtype: str
    empty: float
    """What stands where nothing is known."""
    meaning: str


def step_fields(layout: Layout) -> tuple[Field, ...]:
    """Arrays with T rows, one for each step."""
    agents, action = (layout.num_agents,), (layout.num_agents, layout.action_dim)
    nan = float("nan")
    return (
        Field("env_steps", (), "<i8", -1, "environment steps of the run before this one"),
        Field("t_wall", (), "<f8", nan, "wall time of the step"),
        Field("proposed", action, "<f4", nan, "what the policies proposed"),
        Field("executed", action, "<f4", nan, "what the environment was given"),
        Field("source", agents, "|i1", 0, "0 policy, 1 human, 2 default, 3 previous"),
        Field("controller", agents, "<i2", NOBODY, "who drove: index in `controllers` of the episode"),
        Field("active", agents, "|b1", 1, "whether the agent took part"),
        Field("log_prob_proposed", agents, "<f4", nan, "log-probability of the proposal"),
        Field("log_prob_executed", agents, "<f4", nan, "log-probability of what was executed"),
        Field("reward", agents, "<f4", 0, "raw reward of the environment"),
        Field("human_raw", agents, "<f4", nan, "sum of the feedback given while the step was shown"),
        Field("human_credited", agents, "<f4", 0, "share of feedback credited to the step"),
        Field("weight", (), "<f4", 0, "reward that a unit of credited feedback was worth"),
        Field("reward_learned", agents, "<f4", nan, "reward that was learned from"),
        Field("seen_step", agents, "<i4", -1, "step that was seen when the input was given"),
        Field("seq", agents, "<i8", -1, "number of the input"),
        Field("t_received", agents, "<f8", nan, "monotonic time at which the input came"),
        Field("t_applied", agents, "<f8", nan, "monotonic time at which it took effect"),
        Field("rtt_ms", agents, "<f4", nan, "median round trip to the driver"),
        Field("terminated", agents, "|b1", 0, "the agent's episode ended by a terminal state"),
        Field("truncated", agents, "|b1", 0, "the agent's episode was cut"),
    )


def view_fields(layout: Layout) -> tuple[Field, ...]:
    """Arrays with T + 1 rows: before the first step and after each. A state that all agents share is kept once."""
    agents = (layout.num_agents,)
    state = layout.share_obs_shape if layout.state_type == "EP" else agents + layout.share_obs_shape
    fields = [
        Field("obs", agents + layout.obs_shape, "<f4", 0, "what agents see"),
        Field("share_obs", state, "<f4", 0, "central state"),
    ]
    if layout.has_masks:
        fields.append(Field("available_actions", (*agents, layout.action_number), "|b1", 1, "allowed actions"))
    return tuple(fields)


def takeover_starts(source: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Where people took over: a person drives the agent, and the policy drove its step before in the same episode.

    Whoever drives on from the episode before, or takes an agent from another person, takes it from no policy.

    Args:
        source: (T, A), of one episode.

    Returns:
        (T, A) S_t of docs/people.md.
    """
    starts = np.zeros(source.shape, np.bool_)
    np.logical_and(source[1:] == HUMAN, source[:-1] == POLICY, out=starts[1:])
    return starts


def takeover_ends(source: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Last steps, (T, A), of people's driving: nobody drives the agent's next one, or there is none."""
    human: NDArray[np.bool_] = np.equal(source, HUMAN)
    ends = human.copy()
    ends[:-1] &= ~human[1:]
    return ends
