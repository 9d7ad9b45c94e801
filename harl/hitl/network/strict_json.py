"""JSON as a browser takes it, both ways: nothing but finite numbers goes out, nothing deep or huge comes in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

MAX_MESSAGE = 16 * 1024
"""Bytes of the longest message that a client may send."""
MAX_DEPTH = 8
"""Levels of objects and arrays within each other."""
MAX_BRACKETS = 256
"""Objects and arrays in one message, counted before anything is read: keeps the reader from running out of stack."""
_MAX_DIGITS = 20
_DEEPEST_SENT = 32
_LONGEST_REPR = 100


class ProtocolError(Exception):
    """A message that is not what the protocol allows; the connection stays open, and nothing has changed."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        """For programs, as `unknown_type`."""
        self.text = text
        """For people: what, where, and what is allowed."""


def decode(text: str) -> Any:
    """What a message says.

    Raises:
        ProtocolError: `too_large`, `too_deep`, `not_finite` (NaN, Infinity, or a number beyond all use) or `not_json`.
    """
    if len(text) > MAX_MESSAGE:
        raise ProtocolError("too_large", f"the message has {len(text)} characters; allowed are {MAX_MESSAGE}")
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise ProtocolError("too_deep", f"the message has more than {MAX_BRACKETS} brackets")
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ProtocolError("not_json", f"the message is not JSON{where}") from None
    if _deeper_than(value, MAX_DEPTH):
        raise ProtocolError("too_deep", f"the message has more than {MAX_DEPTH} levels of objects and arrays")
    return value


def encode(message: Mapping[str, Any]) -> str:
    """JSON text of a message, whatever is in it.

    numpy scalars and arrays become plain numbers and lists; NaN and infinities, which a browser refuses, become null;
    bytes and objects that JSON has no form for become short descriptions. Only ASCII characters.
    """
    try:
        return json.dumps(message, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return json.dumps(plain(message), allow_nan=False, separators=(",", ":"))


def plain(value: Any, depth: int = 0) -> Any:
    """`value` in terms of dict, list, str, bool, int, finite float and None."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic):
        return plain(value.item(), depth) if not isinstance(value.item(), np.generic) else _described(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= _DEEPEST_SENT:
        return _described(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), depth)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    return _described(value)


def _described(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    return f"{type(value).__name__}"[:_LONGEST_REPR]


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else _refuse_number(digits)


def _number(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse_number(digits)


def _refuse_number(digits: str) -> NoReturn:
    raise ProtocolError("not_finite", f"the message holds the number {digits[:_MAX_DIGITS]}; numbers must be finite")


def _deeper_than(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    return any(_deeper_than(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value))
