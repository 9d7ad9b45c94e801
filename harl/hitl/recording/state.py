"""The state of one environment, as the start of a recorded episode: JSON beside arrays, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ARRAY = "__array__"
_PREFIX = "state."


def state_of(state: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any] | None:
    """One environment's part of what `VectorEnv.get_state` gives: the state of a `VectorEnv` of that one alone.

    None where the state is not made of parts: neither a list `environments`, nor arrays with the environments first.
    """
    if set(state) == {"environments"} and len(state["environments"]) == num_envs:
        return {"environments": [state["environments"][index]]}
    if state and all(isinstance(value, np.ndarray) and value.shape[:1] == (num_envs,) for value in state.values()):
        return {name: value[index : index + 1].copy() for name, value in state.items()}
    return None


def state_to_arrays(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays for an npz file; raises `TypeError` for what neither JSON nor plain arrays can hold."""
    arrays: list[NDArray[Any]] = []
    tree = json.dumps(_put(dict(state), arrays), allow_nan=True)
    named = {f"{_PREFIX}{number}": array for number, array in enumerate(arrays)}
    return {f"{_PREFIX}tree": np.frombuffer(tree.encode(), np.uint8), **named}


def state_from_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any] | None:
    """What `state_to_arrays` was given (tuples as lists); None where the file holds no state."""
    if f"{_PREFIX}tree" not in arrays:
        return None
    tree = json.loads(arrays[f"{_PREFIX}tree"].tobytes())
    state: dict[str, Any] = _get(tree, arrays)
    return state


def is_state(name: str) -> bool:
    """Whether an array of a file belongs to the state."""
    return name.startswith(_PREFIX)


def _put(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"an array of {value.dtype} cannot be recorded")
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a dict with keys that are no text cannot be recorded")
        return {key: _put(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_put(item, arrays) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be recorded")


def _get(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[f"{_PREFIX}{value[_ARRAY]}"].copy()
        return {key: _get(item, arrays) for key, item in value.items()}
    return [_get(item, arrays) for item in value] if isinstance(value, list) else value
