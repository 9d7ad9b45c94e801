"""What goes over the sockets of a SHARPIE site: plain JSON, written so that the site can store it, read with care."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

log = logging.getLogger("harl.sharpie")

PICKLE_MARK = "__lzma__"
"""A dict with this key is unpickled by the site. Whatever people or environments put under it is renamed: nothing that
passes through here may run code there."""

_strange: set[type] = set()
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class ProtocolError(Exception):
    """The site sent what the protocol does not have; the text says what."""


def sanitize_data(data: Any) -> Any:
    """The data as plain JSON that the site stores whole.

    Arrays of any size become lists, numbers of numpy become Python's, tuples and sets lists, bytes base64 text, numbers
    that are not finite None, keys of dicts texts. One NaN or one pickled array would cost all records of an episode.
    """
    if data is None or type(data) in (bool, int):
        return data
    if isinstance(data, str):
        return _text(data)
    if isinstance(data, int):
        return int(data)
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, np.ndarray):
        return _array(data)
    if isinstance(data, np.generic):
        return sanitize_data(data.item()) if not isinstance(data.item(), np.generic) else sanitize_data(float(data))
    if isinstance(data, Mapping):
        return {_key(key): sanitize_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [sanitize_data(value) for value in data]
    return _other(data)


def _array(data: np.ndarray[Any, Any]) -> Any:
    plain = data.dtype.kind in "biu" or (data.dtype.kind == "f" and bool(np.isfinite(data).all()))
    return data.tolist() if plain else sanitize_data(data.tolist())


def _text(data: str) -> str:
    """Without what some databases refuse in a text: NUL and halves of surrogate pairs."""
    if data.isascii() and "\0" not in data:
        return str(data)
    return data.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def _key(key: Any) -> str:
    text = _text(key) if isinstance(key, str) else json.dumps(sanitize_data(key))
    return f"escaped{PICKLE_MARK}" if text == PICKLE_MARK else text


def _other(data: Any) -> Any:
    if isinstance(data, set | frozenset):
        return [sanitize_data(value) for value in sorted(data, key=repr)]
    if isinstance(data, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(data)).decode("ascii")
    if hasattr(data, "detach"):  # a tensor, on whichever device
        return sanitize_data(data.detach().cpu().numpy())
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return sanitize_data({field.name: getattr(data, field.name) for field in dataclasses.fields(data)})
    if hasattr(data, "tolist"):
        return sanitize_data(data.tolist())
    if type(data) not in _strange:
        _strange.add(type(data))
        log.warning("%s has no form in JSON; its text is sent", type(data).__name__)
    return _text(str(data))


def dumps(message: Mapping[str, Any]) -> str:
    """One message as text; raises ValueError for numbers that JSON does not have."""
    return _ENCODER.encode(message)


def members(**values: Any) -> str:
    """Members of a JSON object, to be put between its braces; values of any kind, see `sanitize_data`."""
    return _ENCODER.encode({name: sanitize_data(value) for name, value in values.items()})[1:-1]


def loads(text: str | bytes) -> dict[str, Any]:
    """One message of the site.

    Raises:
        ProtocolError: it is no JSON object.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolError(f"a message is a {type(message).__name__}, not an object")
    return message


def end_flags(terminated: Any, truncated: Any) -> tuple[bool, bool]:
    """Whether the whole episode was terminated or truncated, as Python's own booleans.

    Flags may be numbers or booleans of any kind, or by agent: then the episode is over when it is over for every agent,
    and truncated if it is so for any of them.
    """
    if not isinstance(terminated, Mapping) and not isinstance(truncated, Mapping):
        return _flag(terminated), _flag(truncated)
    agents = [key for flags in (terminated, truncated) if isinstance(flags, Mapping) for key in flags]
    agents = [agent for agent in dict.fromkeys(agents) if agent != "__all__"]

    def of(flags: Any, agent: Any) -> bool:
        return _flag(flags.get(agent, False) if isinstance(flags, Mapping) else flags)

    if not agents or not all(of(terminated, agent) or of(truncated, agent) for agent in agents):
        return False, False
    cut = any(of(truncated, agent) for agent in agents)
    return not cut or all(of(terminated, agent) for agent in agents), cut


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return bool(np.all(value)) and np.size(value) > 0
