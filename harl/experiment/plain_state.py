"""State as data that `torch.load(weights_only=True)` reads: tensors, containers, numbers and text, no other class."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch

NUMPY_MARK = "__numpy__"
"""Key of the plain form of a numpy array: `{NUMPY_MARK: bytes as a uint8 tensor, "dtype": ..., "shape": ...}`."""


def to_plain(value: Any, where: str = "state") -> Any:
    """The plain form of `value`, without copying large contiguous arrays.

    Kept: None, booleans, whole numbers of any size, floats, text, lists, tuples, dicts (keys: text or whole numbers),
    dense tensors. Converted: numpy arrays (a marked dict), numpy numbers (Python's), `OrderedDict` (a dict),
    parameters and tensors that require gradients (detached). Raises `TypeError` that names the place for all else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value, where)
    if isinstance(value, np.ndarray):
        return _plain_array(value, where)
    if isinstance(value, np.bool_ | np.integer | np.floating | np.str_):
        return to_plain(value.item(), where)
    if type(value) in (list, tuple):
        return type(value)(to_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    if type(value) in (dict, OrderedDict):
        return {_plain_key(key, where): to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold; "
        "allowed: None, bool, int, float, str, list, tuple, dict, torch.Tensor, numpy arrays and numbers"
    )


def from_plain(value: Any) -> Any:
    """What `to_plain` was given; raises `ValueError` where a marked array does not hold together."""
    if type(value) in (list, tuple):
        return type(value)(from_plain(item) for item in value)
    if isinstance(value, dict):
        if NUMPY_MARK in value:
            return _array(value)
        return {key: from_plain(item) for key, item in value.items()}
    return value


def _plain_key(key: Any, where: str) -> str | int:
    if isinstance(key, np.integer):
        return int(key)
    if type(key) not in (str, int):
        raise TypeError(f"{where} has the key {key!r}, a {type(key).__qualname__}; allowed as keys: str and int")
    if key == NUMPY_MARK:
        raise TypeError(f"{where} has the key {key!r}, which is reserved for numpy arrays")
    return key  # type: ignore[no-any-return]


def _plain_tensor(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{where} is a {type(tensor).__qualname__} of layout {tensor.layout}; allowed: dense tensors")
    plain = tensor.detach()
    # A view would be saved with the whole storage behind it.
    if plain.untyped_storage().nbytes() > plain.numel() * plain.element_size():
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain


def _plain_array(array: np.ndarray[Any, Any], where: str) -> dict[str, Any]:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"{where} is a numpy array of {array.dtype}; allowed: arrays of numbers, booleans or text")
    data = np.require(array.reshape(-1), requirements=["C", "W"])  # torch warns of arrays that it could not write to
    as_bytes = torch.from_numpy(data.view(np.uint8)) if data.nbytes else torch.empty(0, dtype=torch.uint8)
    return {NUMPY_MARK: as_bytes, "dtype": array.dtype.str, "shape": array.shape}


def _array(plain: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(plain["dtype"])
    if dtype.hasobject:  # its bytes would be taken for addresses
        raise ValueError(f"an array of dtype {dtype} in a checkpoint; allowed: numbers, booleans or text")
    data = plain[NUMPY_MARK].cpu().numpy()
    return data.view(dtype).reshape(plain["shape"]) if data.nbytes else np.zeros(plain["shape"], dtype)
