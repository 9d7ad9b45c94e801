"""The central state (`share_obs`) of a `ParallelEnv`: where it comes from, and how it is written into the arrays."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv

from harl.envs.api import EnvError, FloatArray
from harl.envs.parallel_codec import NUMBER_KINDS, ObservationCodec

logger = logging.getLogger(__name__)

OBSERVATIONS = "observations"
"""The observations of all agents one after the other, each at its true width (images: their channels)."""
STATE = "state"
"""One array from `env.state()`, flattened."""
PER_AGENT = "state per agent"
"""`env.state()` gives one array for each agent."""


@dataclass(frozen=True)
class StatePlan:
    """Where the central state comes from and what shape it has; equal for all copies of an environment."""

    source: str
    """OBSERVATIONS, STATE or PER_AGENT."""
    state_type: str
    """"EP": one state for all. "FP": one for each agent, with a one-hot agent id appended if the source has none."""
    size: int
    """Entries along the first axis of the state without the agent id."""
    shape: tuple[int, ...]
    """Shape of one agent's entry in `share_obs`."""
    raw_shape: tuple[int, ...] | None
    """Shape that `env.state()` returned at the start, for STATE, and has to keep."""
    columns: NDArray[np.int64] | None
    """Positions of true observation columns in the flat padded observations; None where nothing is padded."""

    def write(self, env: Any, agents: list[Any], obs: FloatArray, out: FloatArray) -> None:
        """Write the state of now; `obs` is (A, *obs_shape), `out` is (*shape) for EP, (A, *shape) for FP.

        Zeros of the one-hot agent id are not written: `out` begins as zeros and belongs to this plan alone.
        """
        if self.source == PER_AGENT:
            self._write_per_agent(env, agents, out)
            return
        if self.source == STATE:
            array = _numbers(env.state(), "env.state()")
            if array.shape != self.raw_shape:
                raise EnvError(
                    f"env.state() returned shape {array.shape}, declared {self.raw_shape}; it must keep its shape "
                    "through the whole episode, also when agents have left"
                )
            base = array.reshape(-1)
        else:
            base = obs.reshape(-1) if self.columns is None else obs.reshape(-1)[self.columns]
        if self.state_type == "EP":
            out[...] = base.reshape(out.shape)
            return
        out[:, : self.size] = base.reshape(self.size, *self.shape[1:])
        for index in range(len(agents)):
            out[index, self.size + index] = 1.0

    def _write_per_agent(self, env: Any, agents: list[Any], out: FloatArray) -> None:
        states = env.state()
        keyed = states if isinstance(states, dict) else dict(zip(agents, states, strict=True))
        declared = getattr(env, "state_space", None)
        for index, agent in enumerate(agents):
            out[index] = 0.0
            if agent in keyed:
                array = _numbers(keyed[agent], f"env.state() of agent {agent!r}")
                _check_declared(declared, array.shape, agent)
                if array.size > self.size:
                    raise EnvError(
                        f"agent {agent!r}: env.state() returned {array.size} numbers for it, more than the widest "
                        f"agent had at the start ({self.size})"
                    )
                out[index, : array.size] = array.reshape(-1)


def plan_state(env: Any, agents: list[Any], codecs: list[ObservationCodec], state_type: str) -> StatePlan:
    """Find out how an environment that has just been reset gives its central state.

    Raises:
        EnvError: `state()` and `state_space` disagree, or a state per agent was given for `state_type` EP.
    """
    if state_type not in ("EP", "FP"):
        raise EnvError(f"state_type {state_type!r} is unknown; allowed: EP, FP")
    id_size = len(agents) if state_type == "FP" else 0
    try:
        states = env.state()
    except (NotImplementedError, AttributeError) as error:
        # PettingZoo's own placeholder raises either; an AttributeError within a state() of the user's is a fault.
        if isinstance(error, AttributeError) and _has_own_state(env):
            raise
        logger.info("%s has no state(): the central state is all observations joined", type(env).__name__)
        return _plan_observations(codecs, state_type, id_size)
    if isinstance(states, dict) or _is_per_agent_array(states, state_type, len(agents)):
        if state_type == "EP":
            raise EnvError("env.state() returns one state for each agent; set env.state_type=FP to use them")
        keyed = states if isinstance(states, dict) else dict(zip(agents, states, strict=True))
        if not set(keyed) <= set(agents) or not keyed:
            raise EnvError(f"env.state() is keyed by {list(keyed)}, expected the agents {agents}")
        declared = getattr(env, "state_space", None)
        arrays = {agent: _numbers(value, f"env.state() of agent {agent!r}") for agent, value in keyed.items()}
        for agent, array in arrays.items():
            _check_declared(declared, array.shape, agent)
        size = max(array.size for array in arrays.values())
        return StatePlan(PER_AGENT, state_type, size, (size,), None, None)
    array = _numbers(states, "env.state()")
    _check_declared(getattr(env, "state_space", None), array.shape, None)
    return StatePlan(STATE, state_type, array.size, (array.size + id_size,), array.shape, None)


def _plan_observations(codecs: list[ObservationCodec], state_type: str, id_size: int) -> StatePlan:
    if codecs[0].is_image:
        channels, *plane = codecs[0].shape
        size = channels * len(codecs)
        return StatePlan(OBSERVATIONS, state_type, size, (size + id_size, *plane), None, None)
    widths = [codec.width for codec in codecs]
    widest, size = max(widths), sum(widths)
    columns = None
    if size < widest * len(codecs):
        columns = np.concatenate([np.arange(width) + index * widest for index, width in enumerate(widths)])
    return StatePlan(OBSERVATIONS, state_type, size, (size + id_size,), None, columns)


def _has_own_state(env: Any) -> bool:
    method = getattr(type(getattr(env, "unwrapped", env)), "state", None)
    return method not in (None, ParallelEnv.state, AECEnv.state)


def _is_per_agent_array(states: Any, state_type: str, num_agents: int) -> bool:
    shape: tuple[int, ...] = getattr(states, "shape", ())
    return state_type == "FP" and len(shape) == 2 and shape[0] == num_agents


def _check_declared(space: Any, received: tuple[int, ...], agent: Any) -> None:
    """Compare a state's shape with `state_space`, which may hold the state of one agent, or a Dict of them by agent."""
    if agent is not None and hasattr(space, "spaces") and agent in space.spaces:
        space = space.spaces[agent]
    declared = getattr(space, "shape", None)
    if declared is None or declared == received or (agent is not None and declared[1:] == received):
        return
    whose = "env.state()" if agent is None else f"agent {agent!r}: env.state()"
    raise EnvError(f"{whose} returned shape {received}, but state_space declares {declared}")


def _numbers(value: Any, what: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in NUMBER_KINDS:
        raise EnvError(f"{what} must be an array of numbers, received {type(value).__name__}")
    return array
