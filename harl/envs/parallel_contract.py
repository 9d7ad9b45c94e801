"""What a PettingZoo `ParallelEnv` promises, checked: one small function for each promise, in plain words.

They are on the hot path of every step, so they compare types, lengths and keys and look no deeper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harl.envs.api import EnvError

Agents = frozenset[Any]

RESET_FORM = "reset(seed=..., options=...) must return (observations, infos), two dicts keyed by agent"
STEP_FORM = (
    "step(actions) must return (observations, rewards, terminations, truncations, infos), five dicts keyed by agent"
)
API_VERSION = "the PettingZoo ParallelEnv API since version 1.23 (Gymnasium 0.26)"


def unpack_reset(result: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Observations and infos of a reset."""
    if not isinstance(result, tuple) or len(result) != 2:
        received = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
        raise EnvError(f"{RESET_FORM}, by {API_VERSION}; received {received}")
    return result


def unpack_step(result: Any) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]:
    """Observations, rewards, terminations, truncations and infos of a step."""
    if not isinstance(result, tuple) or len(result) != 5:
        received = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
        old = " (the old form with one `done`)" if isinstance(result, tuple) and len(result) == 4 else ""
        raise EnvError(f"{STEP_FORM}, by {API_VERSION}; received {received}{old}")
    return result


def check_keys(what: str, mapping: Any, agents: Agents) -> None:
    """`mapping` is a dict whose keys are agents."""
    if not isinstance(mapping, dict):
        raise EnvError(f"{what} must be a dict keyed by agent, received {type(mapping).__name__}")
    if not mapping.keys() <= agents:
        unknown = sorted(repr(key) for key in mapping.keys() - agents)
        raise EnvError(
            f"{what} holds {', '.join(unknown)}, which is no agent; the keys must be from possible_agents: "
            f"{', '.join(sorted(repr(agent) for agent in agents))}"
        )


def check_infos(infos: Any, agents: Agents, present: Any) -> None:
    """`infos` is empty, or holds a dict for agents; other keys are the environment's own common numbers.

    `present` are the agents that have an observation: where there are any, one flat dict for all is refused.
    """
    expected = "infos must be a dict with one dict for each agent, as {'agent_0': {...}, 'agent_1': {...}}"
    if not isinstance(infos, dict):
        length = f" of length {len(infos)}" if isinstance(infos, (list, tuple)) else ""
        raise EnvError(f"{expected}; received {type(infos).__name__}{length}")
    if not infos:
        return
    named = 0
    for agent in agents:
        if agent in infos:
            named += 1
            if not isinstance(infos[agent], dict):
                raise EnvError(f"{expected}; for agent {agent!r} received {type(infos[agent]).__name__}")
    if not named and present:
        keys = ", ".join(repr(key) for key in list(infos)[:5])
        raise EnvError(
            f"{expected}; received one dict without any agent, with the keys {keys}. Numbers of the whole team may "
            "stand beside the agents' dicts"
        )


def reward_value(agent: Any, value: Any) -> float:
    """The reward as a number."""
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.number, np.bool_)) or (
        isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiub"
    ):
        return float(value.item() if isinstance(value, np.ndarray) else value)
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    raise EnvError(f"agent {agent!r}: its reward must be one number, received {type(value).__name__}{shape}")


def flag_value(what: str, agent: Any, flags: dict[Any, Any]) -> bool:
    """An end flag as a bool."""
    value = flags[agent]
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise EnvError(f"agent {agent!r}: {what} must be True or False, received {value!r}")


def possible_agents(env: Any) -> list[Any]:
    """The fixed list of all agents that can ever take part."""
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise EnvError(
            f"{type(env).__name__} has no possible_agents; set it in __init__ to the list of all agents that can ever "
            "take part: each keeps one slot of the arrays"
        )
    names = [str(agent) for agent in agents]
    if len(set(names)) < len(names):
        raise EnvError(f"possible_agents holds an agent twice: {names}")
    return list(agents)


def listed_agents(env: Any, agents: Agents) -> list[Any]:
    """A copy of `env.agents`, the agents that take part in the coming step."""
    listed = getattr(env, "agents", None)
    if listed is None:
        raise EnvError(
            f"{type(env).__name__} has no `agents`, the list of the agents that take part in the coming step"
        )
    listed = list(listed)
    if not agents.issuperset(listed):
        unknown = ", ".join(repr(agent) for agent in listed if agent not in agents)
        raise EnvError(f"env.agents holds {unknown}, which is not in possible_agents")
    return listed


def numeric_metrics(infos: dict[Any, Any], agents: Agents, limit: int) -> dict[str, float]:
    """Numbers found in infos, at most `limit` names; the values are copied, nothing of infos is kept.

    A key of infos that is no agent is a number of the whole team; numbers in the agents' dicts are averaged over the
    agents that report them, under their own name. Of two with one name the team's counts.
    """
    common: dict[str, float] = {}
    sums: dict[str, list[float]] = {}
    for key, value in infos.items():
        if key not in agents:
            if isinstance(key, str) and isinstance(value, (int, float, np.number, np.bool_)):
                common[key] = _real(value)
            continue
        for name, number in value.items():
            if isinstance(number, (int, float, np.number, np.bool_)) and isinstance(name, str):
                sums.setdefault(name, []).append(_real(number))
    metrics = {name: sum(values) / len(values) for name, values in sums.items()}
    metrics.update(common)
    if len(metrics) > limit:
        return dict(list(metrics.items())[:limit])
    return metrics


def _real(value: Any) -> float:
    return float(value.real)
