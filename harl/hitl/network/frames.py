"""Frames: what is shown of an environment at a step, and its form on the wire.

A frame is one binary message, big-endian: version (u8), codec (u8), environment (u16), episode (u32), step (u32), time
of the server (f64, seconds since 1970), length of the meta data (u16), the meta data as JSON, then the picture.
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from harl.hitl.network.strict_json import ProtocolError, encode

FRAME_VERSION = 1
HEADER = struct.Struct(">BBHIIdH")
SMALL_PX = 128
"""Pictures up to this size are worlds of few pixels, whose edges JPEG would blur: they are sent as PNG."""
QUALITY = 80
"""Of JPEG, from 1 to 95."""
MAX_FRAME = 900_000
"""Bytes of a picture: below the 1 MiB that clients of the `websockets` library take by default."""
_MAX_META = 2**16 - 1


class Codec(IntEnum):
    """What the last part of a frame is."""

    JPEG = 1
    PNG = 2
    WEBP = 3
    STATE = 4
    """A drawing as JSON."""


class Received(NamedTuple):
    """A frame as a client gets it."""

    codec: Codec
    env: int
    episode: int
    step: int
    t_server: float
    meta: dict[str, Any]
    payload: bytes


Payload = tuple[Codec, bytes] | NDArray[np.uint8]
"""Encoded, or a picture (H, W, 3) that nobody writes to any more."""


@dataclass
class Frame:
    """A step of an environment, encoded once for all who look at it; not to be changed afterwards.

    A picture that is not encoded yet is so by the thread that sends it: the run does not wait for that.
    """

    env: int
    episode: int
    step: int
    meta: Mapping[str, Any]
    """What is shown beside the picture, as the message `tick` has it."""
    payloads: Mapping[str | int, Payload]
    """`state` for the drawing, the longest side in pixels for pictures."""
    at_once: bool = False
    """Whether it goes out before the next one is due: it shows what a person's action did."""
    t_server: float = field(default_factory=time.time)
    _wires: dict[str | int, bytes] = field(default_factory=dict, init=False, repr=False)
    _tick: str | None = field(default=None, init=False, repr=False)

    def wire(self, show: Literal["jpeg", "state", "none"], max_px: int) -> bytes | str:
        """The message for somebody who looks at it in that way: a `tick` where there is no such picture."""
        key = "state" if show == "state" else self._size(max_px) if show == "jpeg" else None
        if key is None or key not in self.payloads:
            return self.tick()
        if key not in self._wires:
            self._wires[key] = pack(self, *_encoded(self.payloads[key], key))
        return self._wires[key]

    def tick(self) -> str:
        """The numbers alone."""
        if self._tick is None:
            place = {"v": 1, "type": "tick", "env": self.env, "ep": self.episode, "step": self.step}
            self._tick = encode({**place, **self.meta})
        return self._tick

    def _size(self, max_px: int) -> int | None:
        """The smallest picture that is as large as what was asked for, else the largest."""
        sizes = sorted(key for key in self.payloads if isinstance(key, int))
        return next((size for size in sizes if size >= max_px), sizes[-1] if sizes else None)


def pack(frame: Frame, codec: Codec, payload: bytes) -> bytes:
    """The binary message of a frame; counts beyond four bytes wrap round.

    Raises:
        struct.error: an environment beyond 65535, which nobody can subscribe to.
    """
    meta = encode(frame.meta).encode()
    if len(meta) > _MAX_META:  # hundreds of agents: what is said of each goes first
        meta = encode({key: value for key, value in frame.meta.items() if not isinstance(value, Mapping)}).encode()
    episode, step = frame.episode % 2**32, frame.step % 2**32
    header = HEADER.pack(FRAME_VERSION, codec, frame.env, episode, step, frame.t_server, len(meta))
    return b"".join((header, meta, payload))


def unpack(data: bytes) -> Received:
    """A frame from its binary message.

    Raises:
        ProtocolError: `bad_frame`.
    """
    try:
        version, codec, env, episode, step, t_server, length = HEADER.unpack_from(data)
        if version != FRAME_VERSION:
            raise ProtocolError("bad_frame", f"a frame of version {version}; this client reads {FRAME_VERSION}")
        end = HEADER.size + length
        if len(data) < end:
            raise ProtocolError("bad_frame", f"a frame of {len(data)} bytes that should have at least {end}")
        meta = json.loads(data[HEADER.size : end])
        return Received(Codec(codec), env, episode, step, t_server, meta, data[end:])
    except (struct.error, ValueError) as error:
        raise ProtocolError("bad_frame", f"no frame: {error}") from None


def _encoded(payload: Payload, key: str | int) -> tuple[Codec, bytes]:
    return encode_picture(payload, int(key)) if isinstance(payload, np.ndarray) else payload


def own_picture(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture, copied where somebody could still write to it.

    Raises:
        ValueError: it is not (H, W, 3) of uint8.
    """
    _check_picture(picture)
    return picture.copy() if picture.flags.writeable else picture


def _check_picture(picture: NDArray[np.uint8]) -> None:
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"a picture is (H, W, 3) of uint8, not {picture.shape} of {picture.dtype}")


def encode_picture(picture: NDArray[np.uint8], max_px: int) -> tuple[Codec, bytes]:
    """A picture (H, W, 3) of values from 0 to 255, no side longer than `max_px`.

    Raises:
        ValueError: another shape or type.
    """
    _check_picture(picture)
    longest = max(picture.shape[:2])
    if longest <= min(SMALL_PX, max_px):
        return Codec.PNG, png(picture)
    data = jpeg(picture, max_px)
    while len(data) > MAX_FRAME:
        max_px = min(max_px, longest) // 2
        data = jpeg(picture, max_px)
    return Codec.JPEG, data


def jpeg(picture: NDArray[np.uint8], max_px: int, quality: int = QUALITY) -> bytes:
    """A picture (H, W, 3), shrunk so that no side is longer than `max_px`."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    scale = max_px / max(image.size)
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    return _saved(image, "JPEG", quality=quality)


def png(picture: NDArray[np.uint8]) -> bytes:
    """A picture (H, W, 3) as it is."""
    return _saved(Image.fromarray(np.ascontiguousarray(picture)), "PNG", compress_level=1)


def encode_scene(scene: Mapping[str, Any]) -> bytes:
    """A drawing, as `VectorEnv.scene` describes it."""
    return encode(scene).encode()


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()
