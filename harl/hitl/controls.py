"""Which key does what: default key maps for agents of every action space, and what doing nothing is.

Keys are named by place, as `KeyboardEvent.code` of browsers does, so that they do not depend on the layout. The keys
for taking over, for praise and blame and for the pace belong to the page and are not given out here: Space, Escape,
Backspace, `+`, `-`, P, `.`, `,`, `/`, Home, End, Delete, PageUp and PageDown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from harl.envs.api import Layout, action_width, mask_width

Combine = Literal["last", "sum", "component"]
Action = int | list[int] | list[float] | list[int | None]
Meanings = Sequence[str] | None

WAYS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown"}
IDLE = ("stay", "noop", "no-op", "nothing", "wait", "idle")
DIGITS = tuple(f"Digit{digit}" for digit in (*range(1, 10), 0))
LETTERS = tuple(f"Key{letter}" for letter in "QWERTYUIOASDFGHJKLZXCVBNM")
ROWS = (DIGITS, *(tuple(f"Key{letter}" for letter in row) for row in ("QWERTYUIO", "ASDFGHJKL", "ZXCVBNM")))
_PAIR_CODES = (
    *("ArrowLeft", "ArrowRight", "ArrowDown", "ArrowUp", "KeyA", "KeyD", "KeyS", "KeyW", "KeyF", "KeyH"),
    *("KeyG", "KeyT", "KeyJ", "KeyL", "KeyK", "KeyI", "KeyZ", "KeyX", "KeyC", "KeyV", "KeyB", "KeyN"),
    *("KeyQ", "KeyE", "KeyR", "KeyY", "KeyU", "KeyO", "Digit1", "Digit2", "Digit3", "Digit4"),
)
PAIRS = tuple(zip(_PAIR_CODES[::2], _PAIR_CODES[1::2], strict=True))
"""For each dimension of a Box in turn, the key that lowers and the one that raises it. Arrows and A D, S W are also
the two sticks of a gamepad."""
SIGNS = ("−", "+")
MOST_CONTROLS = 64
"""An agent with more actions than this cannot sensibly be driven by keys and buttons; the rest get none."""
NO_KEY = ""
"""Code of a control that is a button on the page alone."""


@dataclass(frozen=True, slots=True)
class Control:
    """A key and button, and what holding it does."""

    code: str
    label: str
    action: Action
    """A whole action; of a MultiDiscrete a list with None for the components that this control leaves alone."""
    group: str
    """Of the held controls of one group the last pressed counts: opposite directions never cancel out."""


class AgentControls(NamedTuple):
    """How a person drives one agent."""

    controls: tuple[Control, ...]
    combine: Combine
    """`last`: the control pressed last is the action. `sum`: what the groups add to `noop` is summed. `component`:
    every control sets its components, the others are those of `noop`."""
    noop: Action
    """The action that stands for doing nothing."""

    def describe(self) -> dict[str, Any]:
        """Plain JSON: `controls` (of `code`, `label`, `action`, `group`), `combine` and `noop`."""
        controls = [
            {"code": each.code, "label": each.label, "action": each.action, "group": each.group}
            for each in self.controls
        ]
        return {"controls": controls, "combine": self.combine, "noop": self.noop}


def layout_controls(layout: Layout, scenario: str = "") -> dict[str, AgentControls]:
    """Default key maps of all agents, by name."""
    meanings = layout.meanings or (None,) * layout.num_agents
    return {
        name: default_controls(space, own or known_meanings(scenario, space))
        for name, space, own in zip(layout.agents, layout.action_spaces, meanings, strict=True)
    }


def default_controls(space: spaces.Space[Any], meanings: Meanings = None) -> AgentControls:
    """Default key map for a space; `meanings` as one entry of `harl.envs.api.Layout.meanings`.

    Raises TypeError for spaces that agents cannot have, ValueError for meanings that do not fit the space.
    """
    nothing = noop(space, meanings)
    entries = mask_width(space) or action_width(space)
    if meanings is not None and len(meanings) != entries:
        raise ValueError(f"action space {space} has {entries} entries to give a meaning to, not {len(meanings)}")
    if isinstance(space, spaces.Discrete):
        factors = _factors(int(space.n), meanings)
        if factors is not None:
            return AgentControls(tuple(_factored_controls(*factors)), "sum", nothing)
        return AgentControls(tuple(_discrete_controls(int(space.n), meanings)), "last", nothing)
    if isinstance(space, spaces.MultiDiscrete):
        return AgentControls(tuple(_component_controls(space, meanings)), "component", nothing)
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return AgentControls(tuple(_box_controls(space, meanings)), "sum", nothing)
    raise TypeError(f"there are no controls for action space {space}; allowed: Discrete, MultiDiscrete, 1-d Box")


def noop(space: spaces.Space[Any], meanings: Meanings = None) -> Action:
    """What doing nothing is: an index that means it, else the first; zeros, or what comes nearest within bounds."""
    if isinstance(space, spaces.Discrete):
        return _idle_index(meanings, 0, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.cumsum([0, *space.nvec[:-1]])
        return [_idle_index(meanings, int(start), int(n)) for start, n in zip(starts, space.nvec, strict=True)]
    if isinstance(space, spaces.Box):
        return [float(number) for number in np.clip(0.0, space.low, space.high)]
    raise TypeError(f"nothing is known about doing nothing in action space {space}")


def known_meanings(scenario: str, space: spaces.Space[Any]) -> Meanings:
    """What actions mean in the particle worlds of `mpe2` that run through the adapter and cannot say it themselves."""
    moves = ("stay", "left", "right", "down", "up")
    if not scenario.startswith("simple"):
        return None
    if isinstance(space, spaces.Discrete) and space.n == len(moves):
        return moves
    if isinstance(space, spaces.Box) and space.shape == (len(moves),) and bool((space.low == 0).all()):
        return moves
    return None


def _idle_index(meanings: Meanings, start: int, n: int) -> int:
    if meanings is None:
        return 0
    own = meanings[start : start + n]
    return next((index for index, meaning in enumerate(own) if _is_idle(meaning)), 0)


def _is_idle(meaning: str) -> bool:
    return meaning.split(" & ")[0] in IDLE


@dataclass
class _Keys:
    """Gives out keys, each once: those that a meaning asks for, else the next of a list."""

    spare: Sequence[str]
    used: set[str] = field(default_factory=set)

    def take(self, meaning: str = "") -> str:
        wanted = WAYS.get(meaning)
        if wanted is None or wanted in self.used:
            wanted = next((code for code in self.spare if code not in self.used), NO_KEY)
        self.used.add(wanted)
        return wanted


def _discrete_controls(n: int, meanings: Meanings) -> Iterator[Control]:
    """A key for each index; where words say what they do, doing nothing needs none."""
    keys = _Keys((*DIGITS, *LETTERS))
    for index in range(min(n, MOST_CONTROLS)):
        meaning = f"action {index}" if meanings is None else meanings[index]
        if meaning not in IDLE:
            yield Control(keys.take(meaning), meaning, index, "action")


def _factors(n: int, meanings: Meanings) -> tuple[list[str], list[str]] | None:
    """The two things that each index of a Discrete does at once, if its meanings are all pairs of them in order."""
    if meanings is None or not all(meaning.count(" & ") == 1 for meaning in meanings):
        return None
    inner, outer = (
        list(dict.fromkeys(part)) for part in zip(*(meaning.split(" & ") for meaning in meanings), strict=True)
    )
    in_order = [f"{first} & {second}" for second in outer for first in inner]
    return (inner, outer) if in_order == list(meanings) and len(in_order) == n else None


def _factored_controls(inner: list[str], outer: list[str]) -> Iterator[Control]:
    keys = _Keys((*DIGITS, *LETTERS))
    for group, words, stride in (("first", inner, 1), ("second", outer, len(inner))):
        for index, word in enumerate(words):
            if word not in IDLE:
                yield Control(keys.take(word), word, index * stride, group)


def _component_controls(space: spaces.MultiDiscrete, meanings: Meanings) -> Iterator[Control]:
    """One row of keys for each component."""
    start = 0
    for component, n in enumerate(space.nvec):
        keys = _Keys(ROWS[component] if component < len(ROWS) else ())
        for index in range(min(int(n), MOST_CONTROLS)):
            label = f"{component + 1}: {index}" if meanings is None else meanings[start + index]
            action: list[int | None] = [None] * len(space.nvec)
            action[component] = index
            yield Control(keys.take(), label, action, f"component {component}")
        start += int(n)


def _box_controls(space: spaces.Box, meanings: Meanings) -> Iterator[Control]:
    """A pair of keys for each dimension; one key where it only goes one way, none for a column that does nothing."""
    nothing = np.clip(0.0, space.low, space.high)
    keys = _Keys((*DIGITS, *LETTERS))
    for column in range(min(space.shape[0], MOST_CONTROLS)):
        label = f"axis {column + 1}" if meanings is None else meanings[column]
        if meanings is not None and label in IDLE:
            continue
        ends = _ends(float(space.low[column]), float(space.high[column]))
        one_way = any(end == nothing[column] for end in ends)
        for end, value in enumerate(ends):
            if value == nothing[column]:
                continue
            action = [float(number) for number in nothing]
            action[column] = value
            in_words = meanings is not None and one_way
            code = keys.take(label) if in_words else PAIRS[column][end] if column < len(PAIRS) else NO_KEY
            yield Control(code, label if one_way else f"{label} {SIGNS[end]}", action, _axis(label, column))


def _ends(low: float, high: float) -> tuple[float, float]:
    """What the two keys of a dimension ask for; 1 either way where it has no end."""
    return (low if np.isfinite(low) else min(-1.0, high), high if np.isfinite(high) else max(1.0, low))


def _axis(label: str, column: int) -> str:
    """Group of opposite directions."""
    if label in WAYS:
        return "horizontal" if label in ("left", "right") else "vertical"
    return f"axis {column + 1}"
