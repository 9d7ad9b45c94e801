"""Between one agent's own spaces and its entries in the arrays of `EnvStep`: observations, masks and actions.

Nothing here knows about environments or episodes. Messages name the agent and what was declared and received; the
caller adds where it happened.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.envs.api import EnvError, FloatArray, action_width, mask_width, obs_width

NUMBER_KINDS = "fiub"
"""Kinds of numpy dtype that can become float32: float, int, unsigned int, bool."""


class ObservationCodec:
    """Writes one agent's observations into its row of the observation array.

    A one-dimensional Box is copied, a Discrete is seen one-hot, an image (Box of rank 3 with dtype uint8) goes channels
    first with its values 0 to 255 kept, and any other Box is flattened. A Dict space must hold the key "observation"
    (and may hold "action_mask"); the space of that key is the one used.
    """

    def __init__(self, agent: Any, space: spaces.Space[Any]) -> None:
        self.agent = agent
        self.declares_mask = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
        if isinstance(space, spaces.Dict):
            if "observation" not in space.spaces:
                raise EnvError(
                    f"agent {agent!r}: its Dict observation space has the keys {list(space.spaces)}; a Dict must have "
                    "the key 'observation' (and may have 'action_mask'); flatten others with "
                    "gymnasium.spaces.flatten_space"
                )
            space = space.spaces["observation"]
        try:
            self.width = obs_width(space)
        except TypeError as error:
            raise EnvError(f"agent {agent!r}: {error}") from None
        self.space = space
        self.is_image = isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8
        self.shape: tuple[int, ...] = (self.width,)
        """Shape of this agent's observation in the array, before padding to the widest."""
        if self.is_image:
            assert space.shape is not None
            # Stacks of frames and colours are small: the smaller of the outer axes is the channels.
            self._channels_last = space.shape[-1] <= space.shape[0]
            height, width, channels = space.shape if self._channels_last else (*space.shape[1:], space.shape[0])
            self.shape = (channels, height, width)

    def write(self, value: Any, out: FloatArray) -> None:
        """Put `value`, as the environment gave it, into `out` (the agent's own entry, at least as wide as `shape`).

        Columns of `out` beyond the agent's own width are left alone.
        """
        array = value if type(value) is np.ndarray else self._as_array(value)
        if isinstance(self.space, spaces.Discrete):
            self._write_one_hot(array, out, self.space)
            return
        if array.shape != self.space.shape or array.dtype.kind not in NUMBER_KINDS:
            raise EnvError(
                f"agent {self.agent!r}: its observation space declares shape {self.space.shape} of {self.space.dtype}, "
                f"received shape {array.shape} of {array.dtype}"
            )
        if self.is_image:
            out[...] = array.transpose(2, 0, 1) if self._channels_last else array
        else:
            out[: self.width] = array.reshape(-1)

    def _write_one_hot(self, array: NDArray[Any], out: FloatArray, space: spaces.Discrete) -> None:
        index = int(array.item()) - int(space.start) if array.size == 1 and array.dtype.kind in "iub" else -1
        if not 0 <= index < self.width:
            raise EnvError(
                f"agent {self.agent!r}: its observation space declares {space}, that is one whole number from "
                f"{space.start} to {space.start + space.n - 1}, received {array!r}"
            )
        out[: self.width] = 0.0
        out[index] = 1.0

    def _as_array(self, value: Any) -> NDArray[Any]:
        try:
            return np.asarray(value)
        except (ValueError, TypeError) as error:
            raise EnvError(
                f"agent {self.agent!r}: its observation space declares {self.space}, received {type(value).__name__} "
                f"that is no array: {error}"
            ) from None


class ActionCodec:
    """Turns one agent's row of the action array into the action that its environment expects, and writes its masks."""

    def __init__(self, agent: Any, space: spaces.Space[Any]) -> None:
        self.agent = agent
        self.space = space
        if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
            raise EnvError(
                f"agent {agent!r}: its action space {space} is a Box of {space.dtype}; continuous actions would be cut "
                "to whole numbers. Declare a floating dtype, or Discrete / MultiDiscrete if whole numbers are meant"
            )
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim != 1:
            raise EnvError(
                f"agent {agent!r}: its action space {space} has {space.nvec.ndim} dimensions; use MultiDiscrete with a "
                "one-dimensional nvec"
            )
        try:
            self.width = action_width(space)
        except TypeError as error:
            raise EnvError(f"agent {agent!r}: {error}") from None
        self.mask_width = mask_width(space)
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else [self.mask_width] if self.mask_width else []
        ends = np.cumsum(sizes, dtype=np.int64).tolist()
        self.parts: list[tuple[int, int]] = list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []
        """First and last (excluded) column of the mask of each component."""
        # float32 bounds may lie outside the space's own by a rounding, so other dtypes are clipped after the cast.
        self._clip = isinstance(space, spaces.Box) and space.dtype != np.float32

    def decode(self, row: FloatArray) -> Any:
        """The action for the environment, in the dtype and shape that its space declares, from a (action_dim,) row."""
        space = self.space
        if isinstance(space, spaces.Discrete):
            index = int(row[0])
            if not 0 <= index < space.n:
                raise EnvError(f"agent {self.agent!r}: action {index} is outside of 0 to {space.n - 1}")
            return space.dtype.type(index + space.start)
        if isinstance(space, spaces.MultiDiscrete):
            indices = row[: self.width].astype(np.int64)
            if (indices < 0).any() or (indices >= space.nvec).any():
                raise EnvError(f"agent {self.agent!r}: action {indices.tolist()} is outside of {space}")
            return (indices + space.start).astype(space.dtype)
        assert isinstance(space, spaces.Box)
        action = row[: self.width].astype(space.dtype)
        return np.clip(action, space.low, space.high) if self._clip else action

    def neutral(self) -> Any:
        """The action of an agent that has left: index 0 in every component, or the point of the Box nearest to 0."""
        row = np.zeros(self.width, np.float32)
        if isinstance(self.space, spaces.Box):
            row = np.clip(row, self.space.low, self.space.high).astype(np.float32)
        return self.decode(row)

    def write_mask(self, mask: Any, out: FloatArray) -> bool:
        """Copy the environment's mask into `out`, value for value; False if it leaves some component no action."""
        try:
            array = np.asarray(mask)
        except ValueError:
            array = np.empty((0,), dtype=object)
        if array.shape != (self.mask_width,) or array.dtype.kind not in NUMBER_KINDS:
            joined = " (the masks of its components one after the other)" if len(self.parts) > 1 else ""
            raise EnvError(
                f"agent {self.agent!r}: the action mask of {self.space} must have length {self.mask_width}{joined}, "
                f"received {type(mask).__name__} of shape {array.shape}"
            )
        out[: self.mask_width] = array
        if len(self.parts) == 1:
            return bool(array.any())
        return all(array[first:last].any() for first, last in self.parts)

    def write_full_mask(self, out: FloatArray) -> None:
        """Allow every action of this agent."""
        out[: self.mask_width] = 1.0

    def write_noop_mask(self, out: FloatArray) -> None:
        """Allow only the first action of every component: what an agent that has left is shown with."""
        out[: self.mask_width] = 0.0
        for first, _ in self.parts:
            out[first] = 1.0


def common_obs_shape(codecs: list[ObservationCodec]) -> tuple[int, ...]:
    """Shape of one agent's entry in the observation array: the widest vector, or the image that all agents share."""
    if not any(codec.is_image for codec in codecs):
        return (max(codec.width for codec in codecs),)
    shapes = {codec.shape for codec in codecs}
    if len(shapes) > 1:
        listing = ", ".join(f"{codec.agent!r}: {codec.space.shape}" for codec in codecs)
        raise EnvError(
            f"images of different shapes, or images beside vectors, do not fit into one array ({listing}); give all "
            "agents one image shape, or flatten the images (a Box of rank 1, or of a dtype other than uint8)"
        )
    return shapes.pop()


def split_observation(observation: Any, info: Any) -> tuple[Any, Any]:
    """Observation proper and action mask (None where there is none); the mask in the observation goes first."""
    mask = None
    if isinstance(observation, dict):
        if "observation" not in observation:
            raise EnvError(f"an observation is a dict with the keys {list(observation)}; it must have 'observation'")
        mask = observation.get("action_mask")
        observation = observation["observation"]
    if mask is None and info:
        mask = info.get("action_mask")
    return observation, mask
