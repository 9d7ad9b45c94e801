"""What a configuration value may be, and the conversion of what was written into it."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from harl.config.names import did_you_mean, nearest

MISSING_VALUE = "???"
"""How a YAML file says that a value has to be given by the user."""

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class ConfigError(ValueError):
    """What is wrong with a configuration: `errors` holds one message each, `str()` is the text for the user."""

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = list(dict.fromkeys(errors))
        super().__init__(self.errors)

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return f"configuration error: {self.errors[0]}"
        numbered = (f"{i:3}. {error}".replace("\n", "\n     ") for i, error in enumerate(self.errors, 1))
        return "\n".join([f"{len(self.errors)} configuration errors:", *numbered])


class RefusedError(ValueError):
    """A value that a field does not take; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a field allows beyond its type; for a list, what each element may be."""

    at_least: float | None
    above: float | None
    at_most: float | None
    choices: tuple[str, ...]
    pattern: str | None
    """Regular expression that a text has to match as a whole."""
    allowed: str | None
    """Words for the pattern."""

    def admits(self, value: Any) -> bool:
        if isinstance(value, str):
            if self.choices:
                return value in self.choices
            return self.pattern is None or re.fullmatch(self.pattern, value) is not None
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def range_text(self) -> str:
        """As `" from 0 to 1"`; empty where there are no bounds."""
        if self.at_least is not None and self.at_most is not None:
            return f" from {_plain(self.at_least)} to {_plain(self.at_most)}"
        lower = [f"above {_plain(self.above)}"] if self.above is not None else []
        lower += [f"at least {_plain(self.at_least)}"] if self.at_least is not None else []
        upper = [f"at most {_plain(self.at_most)}"] if self.at_most is not None else []
        text = ", ".join(lower + upper)
        return f" {text}" if text else ""


def limits(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: Sequence[str] = (),
    pattern: str | None = None,
    allowed: str | None = None,
) -> Mapping[str, Limits]:
    """Metadata of a schema field."""
    return {
        "limits": Limits(
            at_least=at_least, above=above, at_most=at_most, choices=tuple(choices), pattern=pattern, allowed=allowed
        )
    }


def younger(metadata: Mapping[str, Any], before: Any) -> Mapping[str, Any]:
    """Metadata of a key that runs stored before it was there have not; `before` is what they did without it."""
    return {**metadata, "before": before}


NO_LIMITS = limits()["limits"]
COUNT = limits(at_least=1, at_most=1_000_000)
"""Things that are counted: threads, episodes, passes."""
STEPS = limits(at_least=1, at_most=10**15)
"""Environment steps."""
FRACTION = limits(at_least=0, at_most=1)
"""Rates, discounts, shares."""
POSITIVE = limits(above=0)
"""Factors and sizes."""
TEXT = limits(pattern=r"[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*", allowed="a text, not empty, on one line")
"""Names and paths."""


Converter = Callable[[Any, Any, Limits], Any]
"""Takes what was written, the type and the limits; raises `RefusedError`."""


def split_optional(hint: Any) -> tuple[Any, bool]:
    """The type without `None`, and whether `None` was allowed."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        if len(inner) == 1:
            return inner[0], True
    return hint, False


def describe(hint: Any, bounds: Limits) -> str:
    """What a field allows, as `a whole number from 0 to 9, or null`."""
    kind, optional = split_optional(hint)
    if kind is bool:
        text = "true or false"
    elif kind is int:
        text = f"a whole number{bounds.range_text()}"
    elif kind is float:
        text = f"a number{bounds.range_text()}"
    elif kind is str:
        text = f"one of {', '.join(bounds.choices)}" if bounds.choices else bounds.allowed or "a text"
    elif get_origin(kind) is tuple:
        text = f"a list, not empty, each element {describe(get_args(kind)[0], bounds)}"
    else:
        text = "a section of keys and values"
    return f"{text}, or null" if optional else text


def convert(value: Any, hint: Any, bounds: Limits) -> Any:
    """`value` as the field's type.

    Raises:
        RefusedError: with what is allowed, and a way out where the mistake is a known one.
    """
    kind, optional = split_optional(hint)
    if value is None and optional:
        return None
    if value == MISSING_VALUE:
        raise RefusedError(f"must be given: {describe(hint, bounds)}")
    try:
        return _converter(kind)(value, kind, bounds)
    except RefusedError as refused:
        raise RefusedError(f"must be {describe(hint, bounds)}{refused}") from None


def _to_bool(value: Any, _kind: Any, _bounds: Limits) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    raise RefusedError


def _to_int(value: Any, _kind: Any, bounds: Limits) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value) if _INTEGER.fullmatch(value) else float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not bounds.admits(value):
        raise RefusedError
    return value


def _to_float(value: Any, _kind: Any, bounds: Limits) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError
    try:
        number = float(value)
    except OverflowError:
        raise RefusedError from None
    if not math.isfinite(number) or not bounds.admits(number):
        raise RefusedError
    return number


def _to_text(value: Any, _kind: Any, bounds: Limits) -> str:
    if isinstance(value, bool) and any(_WORDS.get(choice) is value for choice in bounds.choices):
        raise RefusedError(': a bare on or off is a boolean in YAML, write it in quotes ("off")')
    if isinstance(value, bool | int | float):
        raise RefusedError(f": {value} was read as {_KIND_NAMES[type(value)]}, put the text in quotes")
    if not isinstance(value, str):
        raise RefusedError
    if not bounds.admits(value):
        raise RefusedError(did_you_mean(nearest(value, bounds.choices)))
    return value


def _to_tuple(value: Any, kind: Any, bounds: Limits) -> tuple[Any, ...]:
    if isinstance(value, str) and value.strip().startswith("["):
        raise RefusedError(f": this is one text in quotes, a list has none: {value.strip()}")
    if not isinstance(value, list | tuple) or not value:
        raise RefusedError
    element = get_args(kind)[0]
    try:
        return tuple(_CONVERTERS[element](item, element, bounds) for item in value)
    except RefusedError:
        raise RefusedError from None


def _to_plain_dict(value: Any, _kind: Any, _bounds: Limits) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise RefusedError
    return value


def _converter(kind: Any) -> Converter:
    if get_origin(kind) is tuple:
        return _to_tuple
    return _CONVERTERS.get(kind, _to_plain_dict)


_KIND_NAMES = {bool: "a boolean", int: "a number", float: "a number"}
_CONVERTERS: dict[Any, Converter] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_text,
}


def _plain(number: float | None) -> str:
    """A bound without exponent or needless decimals, where it is whole."""
    return str(int(number)) if number is not None and float(number).is_integer() else str(number)
