"""One episode of a room: frame, people's answers, learning, step, and again, as fast as the experiment wants it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from harl.hitl.sharpie_site.environments import UnfitAction, agents_of, fit_action, space_of
from harl.hitl.sharpie_site.frames import frame_text, send_again, step_members
from harl.hitl.sharpie_site.journal import Journal
from harl.hitl.sharpie_site.mapping import AgentEntry
from harl.hitl.sharpie_site.messages import end_flags, log
from harl.hitl.sharpie_site.overrides import get_policy_actions, override_actions, override_rewards
from harl.hitl.sharpie_site.people import People
from harl.hitl.sharpie_site.pictures import encode
from harl.hitl.sharpie_site.serving import NotServed
from harl.hitl.sharpie_site.settings import Role
from harl.hitl.sharpie_site.updates import Transition, Updates


@dataclass
class Decision:
    """What is executed in a step, and who said so."""

    actions: dict[str, Any]
    proposals: dict[str, Any]
    """What the policies would have done."""
    source: dict[str, str]
    """Role → `policy`, `human`, `default` or `previous`."""


class Chooser:
    """Decides each agent's action from policies, people, and what stands in for absent people.

    Args:
        env: tells spaces where it knows them.
        settings: agents as the site describes them.
        policies: role → policy.
        entries: role → entry of the mapping.
        absent: who acts for a person who does not answer.
    """

    def __init__(
        self,
        env: Any,
        settings: Mapping[str, Any],
        policies: Mapping[str, Any],
        entries: Mapping[str, AgentEntry],
        absent: str,
    ) -> None:
        self.env, self.policies, self.absent = env, policies, absent
        self.roles = {name: Role.read(name, value) for name, value in settings.items()}
        self.drivers = [name for name, role in self.roles.items() if role.participant and role.inputs_type == "actions"]
        names = [*self.roles, *agents_of(env)]
        self.spaces = {name: space for name in names if (space := space_of(env, name)) is not None}
        self.shared = {name: self._is_shared(name, entries.get(name)) for name in self.drivers}
        self._previous: dict[str, Any] = {}
        self._reported: set[str] = set()
        lost = [name for name in agents_of(env) if name not in policies and name not in self.drivers]
        if lost:
            raise NotServed(f"nobody acts for {', '.join(lost)}: neither a person nor an agent of the mapping")

    def _is_shared(self, name: str, entry: AgentEntry | None) -> bool:
        if entry is not None and entry.shared is not None:
            return entry.shared
        return self.roles[name].has_policy

    def fit(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs without actions that are none; each role's first such is logged."""
        fitting = dict(inputs)
        for name in self.drivers:
            if name in fitting and name in self.spaces and not self._leaves_to_policy(name, fitting[name]):
                try:
                    fitting[name] = fit_action(self.spaces[name], fitting[name])
                except UnfitAction as error:
                    if name not in self._reported:
                        self._reported.add(name)
                        log.warning("ignored: input for %s: %s", name, error)
                    del fitting[name]
        return fitting

    def _leaves_to_policy(self, name: str, value: Any) -> bool:
        return name in self.policies and self.shared[name] and self.roles[name].is_default(value)

    def decide(self, obs: Any, inputs: Mapping[str, Any]) -> Decision:
        """The actions of the next step; `inputs` are those that `fit` gave."""
        here = self._here()
        policies = {name: policy for name, policy in self.policies.items() if name in here}
        proposals = get_policy_actions(obs, policies, inputs, self.roles)
        actions, source, given = dict(proposals), dict.fromkeys(proposals, "policy"), dict(inputs)
        for name in self.drivers:
            if name not in here:
                given.pop(name, None)
                continue
            if name in inputs and not self._leaves_to_policy(name, inputs[name]):
                actions.pop(name, None)  # so that a person's action is taken even if it is the one for no key
                source[name] = "human"
                self._previous[name] = inputs[name]
            elif name not in inputs:
                value, source[name] = self._stand_in(name)
                if source[name] != "policy":
                    actions.pop(name, None)
                    given[name] = value
        return Decision(override_actions(self.roles, given, actions), proposals, source)

    def _here(self) -> set[str]:
        """Agents that act in the coming step: all, or those that have not left a PettingZoo environment's episode."""
        everybody = {*self.policies, *self.drivers}
        agents = getattr(self.env, "agents", None) if agents_of(self.env) else None
        return everybody if agents is None else everybody & set(agents)

    def _stand_in(self, name: str) -> tuple[Any, str]:
        if self.absent == "policy" and name in self.policies:
            return None, "policy"
        if self.absent == "previous" and name in self._previous:
            return self._previous[name], "previous"
        return self._nothing(name), "default"

    def _nothing(self, name: str) -> Any:
        """The action for no key, or, where that is none, the one that does least."""
        role = self.roles[name]
        value = [role.default] if role.several_keys else role.default
        space = self.spaces.get(name)
        if space is None:
            return value
        try:
            return fit_action(space, value)
        except UnfitAction:
            if isinstance(space, spaces.Box):
                return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
            return space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else value


class Episode:
    """Steps an environment through one episode for the people of a room.

    Args:
        websocket: connection to the room.
        env: see `harl.hitl.sharpie_site.environments`.
        chooser: decides actions.
        people: gathers answers.
        updates: learning of the policies.
        fps: frames a second, at most.
        journal: what happened is written there.
    """

    def __init__(
        self,
        websocket: Any,
        env: Any,
        chooser: Chooser,
        people: People,
        updates: Updates,
        fps: float,
        journal: Journal,
    ) -> None:
        self.websocket, self.env, self.chooser, self.people = websocket, env, chooser, people
        self.updates, self.journal = updates, journal
        self._between = 1.0 / fps
        self._next = 0.0

    def play(self) -> int:
        """Play to the end; returns the number of steps. What ends it early is raised; no transition is lost by it."""
        steps = 0
        obs = self.env.reset()[0]
        self.journal.write("reset", observations=obs)
        pending: Transition | None = None
        self.people.settle()
        self._show(1, (False, False), step_members(obs, {}, 0))
        try:
            while True:
                over = pending is not None and pending.done
                inputs = self.people.last() if over else self.people.answers(self._show_again)
                if pending is not None:
                    self._learn(steps, pending, inputs)
                    pending = None
                if over:
                    return steps
                fitting = self.chooser.fit(inputs)
                decision = self.chooser.decide(obs, fitting)
                after, rewards, terminated, truncated, _ = self.env.step(decision.actions)
                steps += 1
                over_flags = end_flags(terminated, truncated)
                pending = Transition(obs, decision.actions, rewards, after, *over_flags)
                obs = after
                told = step_members(after, decision.actions, rewards)
                try:
                    self._show(steps + 1, over_flags, told)
                finally:  # written while people look at the frame
                    self.journal.write(
                        "step", told, step=steps, inputs=inputs, proposals=decision.proposals, source=decision.source,
                        terminated=over_flags[0], truncated=over_flags[1],
                    )  # fmt: skip
        finally:
            if pending is not None:
                self.updates.add(steps, pending)
            self.updates.flush()

    def _show(self, number: int, over: tuple[bool, bool], told: str) -> None:
        """Send a frame when its time has come, with answers to older ones forgotten."""
        if (left := self._next - time.monotonic()) > 0:  # a sleep of no length would still give the processor away
            time.sleep(left)
        self._next = max(self._next, time.monotonic() - self._between) + self._between
        self.people.clear()
        self.websocket.send(frame_text(encode(self.env.render()), number, over, told))

    def _show_again(self) -> None:
        send_again(self.websocket, self.env)

    def _learn(self, step: int, made: Transition, inputs: Mapping[str, Any]) -> None:
        """The answer to a frame judges the step that the frame shows."""
        final = override_rewards(self.chooser.roles, inputs, made.rewards)
        roles = self.chooser.roles
        if any(roles[name].inputs_type == "reward" and not roles[name].is_default(inputs[name]) for name in inputs):
            self.journal.write("reward", step=step, inputs=inputs, rewards=final)
        self.updates.add(
            step, Transition(made.obs, made.actions, final, made.next_obs, made.terminated, made.truncated)
        )
