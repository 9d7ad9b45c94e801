"""Whose action is taken, and which reward counts: people's inputs over policies and environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harl.hitl.sharpie_site.messages import log
from harl.hitl.sharpie_site.settings import Role


def get_agent_data(agent_name: str, data: Any, default: Any = 0) -> Any:
    """An agent's part of what may be a dict by agent; anything else is everybody's."""
    return data.get(agent_name, default) if isinstance(data, Mapping) else data


def get_policy_actions(
    obs: Any,
    policy_modules: Mapping[str, Any],
    participant_inputs: Mapping[str, Any] | None = None,
    agents_settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What each policy would do.

    Args:
        obs: what the agents see, by agent or one for all.
        policy_modules: role → object with `predict(observation)`; where people's inputs are of the kind `other`, it is
            `predict(observation, participant_input=…)`.
        participant_inputs: role → input.
        agents_settings: role → settings of the site; None where there are no people.
    """
    inputs, settings = participant_inputs or {}, agents_settings or {}
    actions = {}
    for name, policy in policy_modules.items():
        own = obs.get(name, obs) if isinstance(obs, Mapping) else obs
        if name in inputs and name in settings and Role.read(name, settings[name]).inputs_type == "other":
            actions[name] = policy.predict(own, participant_input=inputs[name])
        else:
            actions[name] = policy.predict(own)
    return actions


def override_actions(
    agents_settings: Mapping[str, Any], participant_inputs: Mapping[str, Any], policy_actions: Any
) -> Any:
    """The actions with those of people in place of the policies' own.

    Where an agent has a policy, an input that stands for no key (also as a list of nothing else) leaves it to the
    policy. Inputs of other kinds, and those of roles that the settings do not know, change nothing. One action that is
    not by agent is replaced as a whole.
    """
    actions = dict(policy_actions) if isinstance(policy_actions, Mapping) else policy_actions
    for name, value in participant_inputs.items():
        if name not in agents_settings:
            continue
        role = Role.read(name, agents_settings[name])
        if role.inputs_type != "actions":
            continue
        if not isinstance(actions, dict):
            actions = value
        elif name not in actions or not role.is_default(value):
            actions[name] = value
    return actions


def override_rewards(agents_settings: Mapping[str, Any], participant_inputs: Mapping[str, Any], env_reward: Any) -> Any:
    """The reward with what people gave in place of the environment's.

    No key is no reward: it leaves the environment's. A reward for one of several agents turns a common one into one by
    agent, so that the others keep theirs. Several keys at once count by their sum.
    """
    given = {}
    for name, value in participant_inputs.items():
        if name not in agents_settings:
            continue
        role = Role.read(name, agents_settings[name])
        if role.inputs_type != "reward" or role.is_default(value):
            continue
        number = _number(value)
        if number is None:
            log.warning("ignored: a reward for %s that is no number: %.80r", name, value)
        else:
            given[name] = number
    if not given:
        return dict(env_reward) if isinstance(env_reward, Mapping) else env_reward
    if isinstance(env_reward, Mapping):
        return {**env_reward, **given}
    if set(agents_settings) == set(given) and len(given) == 1:
        return next(iter(given.values()))
    return {**dict.fromkeys(agents_settings, env_reward), **given}


def _number(value: Any) -> float | int | None:
    if isinstance(value, list):
        parts = [_number(item) for item in value]
        return None if None in parts else sum(part for part in parts if part is not None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
