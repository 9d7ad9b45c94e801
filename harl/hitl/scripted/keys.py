"""Pressing keys: from the words of a key legend to an action, as the page puts it together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

Action = int | list[float]


class Keys:
    """The controls of one agent.

    Args:
        about: what `welcome` says of the agent: `action_space`, `controls`, `combine`, `noop`.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._space: Mapping[str, Any] = about["action_space"]
        self._controls = {control["label"]: control for control in about["controls"]}
        self._combine, self.noop = about["combine"], about["noop"]

    @property
    def kind(self) -> str:
        """`discrete`, `multidiscrete` or `box`."""
        return str(self._space["kind"])

    @property
    def space(self) -> str:
        """What actions there are, in words."""
        return space_in_words(self._space)

    @property
    def labels(self) -> tuple[str, ...]:
        """What can be pressed."""
        return tuple(self._controls)

    def action(self, pressed: Iterable[str]) -> Action:
        """What holding these down does; labels that there are no keys for do nothing."""
        held = [self._controls[label]["action"] for label in pressed if label in self._controls]
        if not held:
            return _plain(self.noop)
        if self._combine == "last":
            return _plain(held[-1])
        total = np.array(self.noop, np.float64)
        for action in held:
            if self._combine == "sum":
                total = total + np.array(action, np.float64)
            else:
                chosen = np.array([np.nan if value is None else value for value in action], np.float64)
                total = np.where(np.isnan(chosen), total, chosen)
        if self._space["kind"] == "box":
            total = np.clip(total, _bounds(self._space["low"], -np.inf), _bounds(self._space["high"], np.inf))
            return [float(number) for number in total]
        return int(total) if total.ndim == 0 else [int(number) for number in total]

    def share(self, label: str, action: float | Sequence[float]) -> float:
        """How far an action, as frames tell it, does what holding this key down does: 0 not at all, 1 wholly."""
        if label not in self._controls:
            return 0.0
        if self._space["kind"] == "discrete":
            return float(label in self._held.get(int(action), ()))  # type: ignore[arg-type]
        own, done = self._controls[label]["action"], np.array(action, np.float64)
        if self._space["kind"] == "multidiscrete":
            return float(all(want is None or want == did for want, did in zip(own, done, strict=True)))
        way = np.array(own, np.float64) - np.array(self.noop, np.float64)
        return float(np.clip((done - self.noop) @ way / (way @ way), 0.0, 1.0))

    @cached_property
    def _held(self) -> dict[int, tuple[str, ...]]:
        """Of a Discrete space: which keys, of each group at most one, make an action."""
        groups: dict[str, list[str | None]] = {}
        for label, control in self._controls.items():
            groups.setdefault(control.get("group", ""), [None]).append(label)
        held = {}
        for chosen in itertools.product(*groups.values()):
            labels = tuple(label for label in chosen if label is not None)
            held[int(self.action(labels))] = labels  # type: ignore[arg-type]
        return held

    def random(self, rng: np.random.Generator) -> Action:
        """Any action at all."""
        if self._space["kind"] == "discrete":
            return int(rng.integers(self._space["n"]))
        if self._space["kind"] == "multidiscrete":
            return [int(number) for number in rng.integers(self._space["nvec"])]
        low, high = _bounds(self._space["low"], -1.0), _bounds(self._space["high"], 1.0)
        return [float(number) for number in rng.uniform(low, high)]

    def same(self, one: Any, other: Any) -> bool:
        """Whether two actions are the same; of a Box, whether they are close."""
        tolerance = 0.25 if self._space["kind"] == "box" else 0.0
        first, second = np.atleast_1d(np.array(one, np.float64)), np.atleast_1d(np.array(other, np.float64))
        return first.shape == second.shape and bool((np.abs(first - second) <= tolerance).all())


def space_in_words(space: Mapping[str, Any]) -> str:
    """What actions there are in a space, as `welcome` tells of it; two are the same where the words are."""
    if space["kind"] == "discrete":
        return f"a choice of {space['n']}"
    if space["kind"] == "multidiscrete":
        return f"choices of {', '.join(str(number) for number in space['nvec'])}"
    low, high = _bounds(space["low"], -np.inf).tolist(), _bounds(space["high"], np.inf).tolist()
    return f"{len(low)} numbers from {low} to {high}"


def _plain(action: Any) -> Action:
    return [float(number) for number in action] if isinstance(action, list | tuple) else int(action)


def _bounds(values: Any, missing: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([missing if value is None else value for value in values], np.float64)
