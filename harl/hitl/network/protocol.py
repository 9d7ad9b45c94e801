"""The words of the sub-protocol `marl-hitl.v1` that clients say; `schema.json` beside it has those of both ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from harl.config.names import did_you_mean, nearest
from harl.hitl.network.strict_json import ProtocolError, decode, encode
from harl.hitl.network.wire import (
    LARGEST_COUNT,
    LARGEST_INTEGER,
    Action,
    Answers,
    Choice,
    Flag,
    Integer,
    Number,
    Record,
    Text,
    kind,
    read_fields,
    shown,
)
from harl.hitl.people import ROLES

__all__ = ["MESSAGES", "ROLES", "SUBPROTOCOL", "VERSION", "ClientMessage", "Close", "ProtocolError", "encode", "parse"]

VERSION = 1
SUBPROTOCOL = "marl-hitl.v1"
MAX_NAME = 32
"""Characters of the longest pseudonym."""
_LARGEST_ENV = 2**16 - 1
_DAY_MS = 86_400_000


class Close(IntEnum):
    """Why a connection is closed."""

    POLICY = 1008
    """No or a wrong token, no hello, too many messages, or a client that does not read."""
    TOO_LARGE = 1009
    FAULT = 1011
    """An error of the server."""
    REPLACED = 4001
    """The same session was opened elsewhere."""
    IDLE = 4002
    """Nothing was heard for long from somebody who may act."""
    FINISHED = 4003
    """The run is over."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The step that was on the screen."""

    ep: int = field(metadata=kind(Integer(0, LARGEST_COUNT)))
    step: int = field(metadata=kind(Integer(0, LARGEST_COUNT)))


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message of every connection."""

    v: int = field(metadata=kind(Integer(VERSION, VERSION)))
    token: str = field(repr=False, metadata=kind(Text(secret=True)))
    client: str = field(default="", metadata=kind(Text(64, shortest=0)))
    """Program and version, as `page/1.0`."""
    want_role: str | None = field(default=None, metadata=kind(Choice(ROLES)))
    """Less than what the token allows, or None."""
    resume: str | None = field(default=None, repr=False, metadata=kind(Text(secret=True)))
    """What an earlier `welcome` gave, to continue that session."""
    name: str | None = field(default=None, metadata=kind(Text(MAX_NAME)))
    """Pseudonym."""
    consent: str | None = field(default=None, metadata=kind(Text()))
    """Version of the text that was agreed to."""
    device: str | None = field(default=None, metadata=kind(Choice(("desktop", "touch", "script"))))


@dataclass(frozen=True, kw_only=True)
class Consent:
    """Agreement after the hello."""

    version: str = field(metadata=kind(Text()))


@dataclass(frozen=True, kw_only=True)
class Subscribe:
    """What to show."""

    env: int = field(metadata=kind(Integer(0, _LARGEST_ENV)))
    mode: Literal["jpeg", "state", "none"] = field(metadata=kind(Choice(("jpeg", "state", "none"))))
    fps: float = field(default=15.0, metadata=kind(Number(0.1, 10_000)))
    """Most frames a second."""
    max_px: int = field(default=512, metadata=kind(Integer(16, 8192)))
    """Longest side of pictures."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """Ask for an agent, or give it back."""

    op: Literal["request", "release", "revoke"] = field(metadata=kind(Choice(("request", "release", "revoke"))))
    agent: str = field(metadata=kind(Text()))
    mode: Literal["hold", "toggle"] = field(default="hold", metadata=kind(Choice(("hold", "toggle"))))


@dataclass(frozen=True, kw_only=True)
class Input:
    """State of the device of somebody who drives an agent."""

    agent: str = field(metadata=kind(Text()))
    seq: int = field(metadata=kind(Integer(0, LARGEST_INTEGER)))
    seen: Seen = field(metadata=kind(Record(Seen)))
    action: int | tuple[float, ...] | None = field(metadata=kind(Action()))
    """None: do nothing."""
    held: bool = field(metadata=kind(Flag()))
    """False: the policy drives."""
    ttl_ms: int | None = field(default=None, metadata=kind(Integer(1, 60_000)))
    """How long this holds when nothing more is heard."""


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """Praise or blame."""

    agent: str = field(metadata=kind(Text()))
    """Or `team`."""
    seq: int = field(metadata=kind(Integer(0, LARGEST_INTEGER)))
    value: float = field(metadata=kind(Number(-1, 1)))
    seen: Seen = field(metadata=kind(Record(Seen)))
    t_client_ms: float | None = field(default=None, metadata=kind(Number()))
    """Client's clock at the press."""
    shown_ms: float | None = field(default=None, metadata=kind(Number(0, _DAY_MS)))
    """For how long the step had been on the screen."""
    confidence: float = field(default=1.0, metadata=kind(Number(0, 1)))


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Take the feedback with this number back."""

    seq: int = field(metadata=kind(Integer(0, LARGEST_INTEGER)))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the environment goes."""

    op: Literal["pause", "resume", "step", "speed"] = field(metadata=kind(Choice(("pause", "resume", "step", "speed"))))
    value: float | None = field(default=None, metadata=kind(Number(0, 1000)))
    """Of `speed`: how many times as fast."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What became of an episode."""

    label: Literal["success", "fail", "discard"] = field(metadata=kind(Choice(("success", "fail", "discard"))))
    ep: int = field(metadata=kind(Integer(0, LARGEST_COUNT)))


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Answered by `pong`; tells the round-trip time of earlier ones."""

    t: float = field(metadata=kind(Number()))
    rtt: float | None = field(default=None, metadata=kind(Number(0, _DAY_MS)))
    """Milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Answers to a questionnaire."""

    answers: dict[str, str | float] = field(metadata=kind(Answers()))


ClientMessage = Hello | Consent | Subscribe | Control | Input | Feedback | Undo | Pace | Mark | Ping | Survey

MESSAGES: dict[str, type[ClientMessage]] = {
    "hello": Hello,
    "consent": Consent,
    "subscribe": Subscribe,
    "control": Control,
    "input": Input,
    "feedback": Feedback,
    "undo": Undo,
    "pace": Pace,
    "mark": Mark,
    "ping": Ping,
    "survey": Survey,
}
"""Type of a message → what it holds."""


def parse(text: str | bytes) -> ClientMessage:
    """A client's message.

    Raises:
        ProtocolError: with `code` `binary`, `too_large`, `too_deep`, `not_finite`, `not_json`, `not_object`,
            `unknown_type`, `version` or `bad_field`.
    """
    if isinstance(text, bytes):
        raise ProtocolError("binary", "clients send text messages, not binary ones")
    data = decode(text)
    if not isinstance(data, dict):
        raise ProtocolError("not_object", f"a message is a JSON object with a type, not {_name_of(data)}")
    name = data.get("type")
    message = MESSAGES.get(name) if isinstance(name, str) else None
    if message is None:
        meant = did_you_mean(nearest(name[:40], MESSAGES)) if isinstance(name, str) else ""
        raise ProtocolError("unknown_type", f"type: must be one of {', '.join(MESSAGES)}, not {shown(name)}{meant}")
    version = data.get("v", VERSION if message is not Hello else None)
    if isinstance(version, bool) or version != VERSION:
        raise ProtocolError("version", f"{name}.v: this server speaks version {VERSION}, not {shown(version)}")
    read: ClientMessage = read_fields(message, data, str(name))
    if isinstance(read, Pace) and read.op == "speed" and not read.value:
        raise ProtocolError("bad_field", "pace.value: speed takes a number above 0, how many times as fast")
    return read


def _name_of(value: Any) -> str:
    return {list: "an array", str: "a text", type(None): "null", bool: "a truth value"}.get(type(value), "a number")
