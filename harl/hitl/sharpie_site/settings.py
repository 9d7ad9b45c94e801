"""What a site says about an experiment, checked: agents, frame rate, and where its files are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harl.hitl.sharpie_site.messages import ProtocolError

INPUT_KINDS = ("actions", "reward", "other")
MOST_AGENTS = 1000
NEVER, AT_THE_END = 0, -2
"""Intervals of updates beside every n-th step."""


@dataclass(frozen=True)
class Role:
    """One agent of an experiment, as the site describes it."""

    participant: bool
    """Whether a person sits there."""
    inputs_type: str
    """What the person's input is: an action, a reward, or something else that the policy is told."""
    default: Any
    """The value that stands for no key."""
    several_keys: bool
    """Whether inputs are lists of the values of all pressed keys."""
    textual: bool
    has_policy: bool
    """Whether the site names a policy: then no key leaves the agent to it."""
    interval: int
    """Updates every n-th step, `AT_THE_END` of an episode, or `NEVER`."""
    largest: float = 1.0
    """The largest input that the keys can make, at least 1; all keys together where there may be several."""

    @classmethod
    def read(cls, role: str, settings: Any) -> Role:
        """From the dict of the site, or what was read from it already; raises `ProtocolError`."""
        if isinstance(settings, cls):
            return settings
        if not isinstance(settings, Mapping):
            raise ProtocolError(f"settings of agent {role!r} are a {type(settings).__name__}, not an object")
        kind = settings.get("inputs_type", "actions")
        if kind not in INPUT_KINDS:
            raise ProtocolError(f"inputs_type of agent {role!r} is {kind!r}; known: {', '.join(INPUT_KINDS)}")
        keys = settings.get("keyboard_inputs") or {}
        if not isinstance(keys, Mapping):
            raise ProtocolError(f"keyboard_inputs of agent {role!r} are a {type(keys).__name__}, not an object")
        policy = settings.get("policy")
        if policy is not None and not isinstance(policy, Mapping):
            raise ProtocolError(f"policy of agent {role!r} is a {type(policy).__name__}, not an object")
        return cls(
            participant=bool(settings.get("participant", False)),
            inputs_type=kind,
            default=keys.get("default", 0),
            several_keys=bool(settings.get("multiple_keyboard_inputs", False)),
            textual=bool(settings.get("textual_inputs", False)),
            has_policy=policy is not None,
            interval=NEVER if policy is None else _interval(role, policy.get("checkpoint_interval", NEVER)),
            largest=_largest(keys, bool(settings.get("multiple_keyboard_inputs", False))),
        )

    def is_default(self, value: Any) -> bool:
        """Whether an input says that nothing was pressed or written."""
        if value is None:
            return True
        if self.several_keys and isinstance(value, list):
            return all(_same(item, self.default) for item in value)
        return _same(value, self.default)


def _largest(keys: Mapping[str, Any], several: bool) -> float:
    sizes = [abs(value) for value in keys.values() if isinstance(value, int | float) and math.isfinite(value)]
    return max(1.0, *([sum(sizes)] if several else sizes), 0.0)


def _same(one: Any, other: Any) -> bool:
    """Equal, and a boolean only to a boolean: `True == 1` in Python."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _interval(role: str, value: Any) -> int:
    if value is None:
        return NEVER
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and value != AT_THE_END):
        raise ProtocolError(
            f"checkpoint_interval of agent {role!r} is {value!r}; known: a number of steps, {AT_THE_END} (at the end "
            f"of an episode), {NEVER} (never)"
        )
    return value


def read_roles(agents_settings: Any) -> dict[str, Role]:
    """All agents of an experiment; raises `ProtocolError`."""
    if not isinstance(agents_settings, Mapping) or len(agents_settings) > MOST_AGENTS:
        raise ProtocolError("settings of agents must be an object, role → settings")
    return {str(role): Role.read(str(role), settings) for role, settings in agents_settings.items()}


@dataclass(frozen=True)
class Tempo:
    """How fast an experiment goes."""

    target_fps: float
    """Frames a second, at most."""
    wait_for_inputs: bool
    """Whether every frame waits until somebody presses a key."""

    @classmethod
    def read(cls, settings: Any) -> Tempo:
        """From the site's settings of the experiment; raises `ProtocolError`."""
        if not isinstance(settings, Mapping):
            raise ProtocolError(f"settings of the experiment are a {type(settings).__name__}, not an object")
        fps = settings.get("target_fps", 24.0)
        number = isinstance(fps, int | float) and not isinstance(fps, bool)
        if not number or not math.isfinite(fps) or fps <= 0:
            raise ProtocolError(f"target_fps is {fps!r}; it must be a number above 0")
        return cls(float(fps), bool(settings.get("wait_for_inputs", False)))


def files_of(section: Any, where: str) -> dict[str, tuple[str, str | None]]:
    """Name → (path, content or None) of the files that a section of the settings lists; raises `ProtocolError`."""
    files = section.get("files", {}) if isinstance(section, Mapping) else None
    if not isinstance(files, Mapping):
        raise ProtocolError(f"{where} lists no files")
    found: dict[str, tuple[str, str | None]] = {}
    for name, file in files.items():
        path = file.get("path") if isinstance(file, Mapping) else None
        content = file.get("content") if isinstance(file, Mapping) else None
        if not isinstance(path, str) or not (content is None or isinstance(content, str)):
            raise ProtocolError(f"file {name!r} of {where} needs a path, and a text or null as content")
        found[str(name)] = (path, content)
    return found
