"""A GIF that is written frame by frame; Pillow's own writer for animations holds all of them in memory."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_LOOP_FOREVER = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
_TRAILER = b"\x3b"


class GifStream:
    """Appends pictures to a GIF, each with the 256 colours that suit it best.

    Pillow compresses each picture as a GIF of its own, of which this keeps the colours and the compressed data.
    """

    def __init__(self, file: BinaryIO, width: int, height: int, fps: Fraction) -> None:
        self._file = file
        self._fps = fps
        self._frames = 0
        file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0) + _LOOP_FOREVER)

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Append a picture (H, W, 3)."""
        colours, depth, image = _compressed(frame)
        delay = self._hundredths(self._frames + 1) - self._hundredths(self._frames)
        height, width = frame.shape[:2]
        self._file.write(b"\x21\xf9\x04" + struct.pack("<BHBB", 0x04, delay, 0, 0))  # stays until the next one
        self._file.write(b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0x80 | depth) + colours + image)
        self._frames += 1

    def close(self) -> None:
        """Finish the file, without closing it."""
        self._file.write(_TRAILER)

    def _hundredths(self, frames: int) -> int:
        """Time at which a frame ends; differences of these do not add up rounding errors."""
        return round(frames * 100 / self._fps)


def _compressed(frame: NDArray[np.uint8]) -> tuple[bytes, int, bytes]:
    """Colour table, its size field and the image data (with code size and end) of a picture compressed by Pillow."""
    single = io.BytesIO()
    picture = Image.fromarray(frame).quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(single, format="GIF", optimize=False, interlace=0)
    data = single.getvalue()
    depth = data[10] & 0x07
    position = 13 + 3 * 2 ** (depth + 1)
    colours = data[13:position]
    while data[position] == 0x21:  # extensions: a chain of blocks, each led by its length, up to an empty one
        position += 2
        while data[position]:
            position += 1 + data[position]
        position += 1
    if data[position] != 0x2C or data[position + 9] & 0x80:
        raise ValueError("Pillow wrote a GIF without an image, or with colours of its own")
    return colours, depth, data[position + 10 : -1]
