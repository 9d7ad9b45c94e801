"""Learning of policies that are Python objects: whole transitions, at the intervals that the site sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harl.hitl.sharpie_site.messages import end_flags, log
from harl.hitl.sharpie_site.overrides import get_agent_data
from harl.hitl.sharpie_site.settings import AT_THE_END


@dataclass(frozen=True)
class Transition:
    """One step of all agents."""

    obs: Any
    actions: Any
    """What was executed."""
    rewards: Any
    """What is learned from: people's where they gave any."""
    next_obs: Any
    terminated: bool
    truncated: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def update_single_agent(agent_name: str, policy_module: Any, s: Any, a: Any, r: Any, s_prime: Any, done: bool) -> None:
    """Show one agent's part of a transition to its policy, where that has an `update`; its faults are logged."""
    update = getattr(policy_module, "update", None)
    if update is None:
        return
    own = [get_agent_data(agent_name, data) for data in (s, a, r)]
    try:
        update(*own, done, get_agent_data(agent_name, s_prime))
    except Exception:
        log.exception("the update of %s's policy failed", agent_name)


def is_due(interval: int, step: int, done: bool) -> bool:
    """Whether an update falls on this step: every n-th for n > 0, at the end for -2, never for 0."""
    return done if interval == AT_THE_END else interval > 0 and step % interval == 0


def train_policies(
    policy_modules: Mapping[str, Any],
    intervals: Mapping[str, int],
    step: int,
    s: Any,
    a: Any,
    r: Any,
    term: Any,
    trunc: Any,
    settings: Any,
    s_prime: Any = None,
) -> None:
    """Show a transition to the policies whose update falls on this step.

    Args:
        policy_modules: role → policy.
        intervals: role → every how many steps, -2 for the end of an episode, 0 for never.
        step: number of the step, from 1.
        s, a, r: observations, executed actions and rewards, by agent or for all.
        term, trunc: whether the episode ended with this step.
        settings: not used; the platform's function has it.
        s_prime: observations after the step. Policies get None where it is not given, never the reward.
    """
    done = any(end_flags(term, trunc))
    for name, policy in policy_modules.items():
        if is_due(intervals.get(name, 0), step, done):
            update_single_agent(name, policy, s, a, r, s_prime, done)


@dataclass
class Updates:
    """Keeps the transitions of an episode until their update falls due, so that none is lost."""

    policies: Mapping[str, Any]
    intervals: Mapping[str, int]
    _kept: dict[str, list[Transition]] = field(default_factory=dict)

    def add(self, step: int, transition: Transition) -> None:
        """Take one transition, and show each policy all of its own where an update is due."""
        for name in self.policies:
            interval = self.intervals.get(name, 0)
            if interval == 0:
                continue
            self._kept.setdefault(name, []).append(transition)
            if transition.done or is_due(interval, step, False):
                self._show(name)

    def flush(self) -> None:
        """The episode broke off: what has come so far is learned from all the same."""
        for name in list(self._kept):
            self._show(name)

    def _show(self, name: str) -> None:
        for kept in self._kept.pop(name, []):
            update_single_agent(
                name, self.policies[name], kept.obs, kept.actions, kept.rewards, kept.next_obs, kept.done
            )
