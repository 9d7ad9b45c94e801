"""What a field of a message may hold, and how it is read from what JSON gave."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from harl.config.names import did_you_mean, nearest
from harl.hitl.network.strict_json import ProtocolError

MAX_TEXT = 256
"""Characters of the longest text in a message."""
LARGEST_INTEGER = 2**53 - 1
"""Up to here a browser tells integers apart."""
LARGEST_COUNT = 2**32 - 1
"""Up to here episodes and steps are counted: four bytes in the header of a frame."""
LARGEST_NUMBER = 1e15
_SHOWN = 40


class RefusedError(Exception):
    """A value that a field does not take; the message says what it does take."""


class Kind(Protocol):
    """One kind of value."""

    def read(self, value: Any) -> Any:
        """The value, checked; raises `RefusedError`."""


@dataclass(frozen=True)
class Integer:
    low: int
    high: int

    def read(self, value: Any) -> int:
        if is_number(value) and value == int(value) and self.low <= value <= self.high:
            return int(value)
        raise RefusedError(f"must be an integer from {self.low} to {self.high}, not {shown(value)}")


@dataclass(frozen=True)
class Number:
    low: float = -LARGEST_NUMBER
    high: float = LARGEST_NUMBER

    def read(self, value: Any) -> float:
        if is_number(value) and self.low <= value <= self.high:
            return float(value)
        raise RefusedError(f"must be a number from {self.low:g} to {self.high:g}, not {shown(value)}")


@dataclass(frozen=True)
class Text:
    longest: int = MAX_TEXT
    shortest: int = 1
    secret: bool = False
    """Whether what was sent may not be repeated."""
    one_line: bool = True
    """Whether control characters are refused."""

    def read(self, value: Any) -> str:
        if isinstance(value, str) and self.shortest <= len(value) <= self.longest and self._clean(value):
            return value
        what = type(value).__name__ if self.secret else shown(value)
        line = "on one line, " if self.one_line else ""
        raise RefusedError(f"must be text of {self.shortest} to {self.longest} characters, {line}not {what}")

    def _clean(self, value: str) -> bool:
        if any("\ud800" <= character <= "\udfff" for character in value):
            return False  # half of a pair: cannot be written into a file
        return not self.one_line or not any(character < " " or character == "\x7f" for character in value)


@dataclass(frozen=True)
class Choice:
    options: tuple[str, ...]

    def read(self, value: Any) -> str:
        if isinstance(value, str) and value in self.options:
            return value
        meant = did_you_mean(nearest(value[:_SHOWN], self.options)) if isinstance(value, str) else ""
        raise RefusedError(f"must be one of {', '.join(self.options)}, not {shown(value)}{meant}")


@dataclass(frozen=True)
class Flag:
    def read(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        raise RefusedError(f"must be true or false, not {shown(value)}")


@dataclass(frozen=True)
class Action:
    """An integer, a list of numbers, or null, which stands for doing nothing."""

    longest: int = 256

    def read(self, value: Any) -> int | tuple[float, ...] | None:
        if value is None:
            return None
        if is_number(value) and value == int(value) and abs(value) <= LARGEST_COUNT:
            return int(value)
        if isinstance(value, list) and 1 <= len(value) <= self.longest and all(map(_plain_number, value)):
            return tuple(float(item) for item in value)
        raise RefusedError(f"must be an integer, a list of 1 to {self.longest} numbers, or null, not {shown(value)}")


@dataclass(frozen=True)
class Answers:
    """Name of a question → text or number."""

    most: int = 64

    def read(self, value: Any) -> dict[str, str | float]:
        if not isinstance(value, dict) or not 1 <= len(value) <= self.most:
            raise RefusedError(f"must be an object with 1 to {self.most} answers, not {shown(value)}")
        name, text = Text(), Text(shortest=0, one_line=False)
        return {name.read(key): item if _plain_number(item) else text.read(item) for key, item in value.items()}


@dataclass(frozen=True)
class Record:
    """An object with fields of its own."""

    type: type[Any]

    def read(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise RefusedError(f"must be an object, not {shown(value)}")
        return read_fields(self.type, value, "")


def kind(of: Kind) -> dict[str, Kind]:
    """Metadata of a dataclass field that is read from a message."""
    return {"kind": of}


def read_fields(message: type[Any], data: dict[str, Any], where: str) -> Any:
    """An instance of the dataclass `message`; unknown fields are ignored, null stands for an absent optional one.

    Raises:
        ProtocolError: `bad_field`, naming the field and what it takes.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        optional = field.default is not dataclasses.MISSING
        value = data.get(field.name)
        if optional and value is None:
            continue
        name = f"{where}.{field.name}" if where else field.name
        if field.name not in data:
            raise ProtocolError("bad_field", f"{name}: is missing")
        try:
            values[field.name] = field.metadata["kind"].read(value)
        except RefusedError as error:
            raise ProtocolError("bad_field", f"{name}: {error}") from None
        except ProtocolError as error:
            raise ProtocolError(error.code, f"{name}.{error.text}") from None
    return message(**values)


def is_number(value: Any) -> bool:
    """JSON's numbers; true and false, which are integers to Python, are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_number(value: Any) -> bool:
    return is_number(value) and abs(value) <= LARGEST_NUMBER


def shown(value: Any) -> str:
    """What was sent, short enough to be sent back."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
