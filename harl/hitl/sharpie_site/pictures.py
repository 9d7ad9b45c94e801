"""Pictures as the pages of a SHARPIE site show them: JPEG in base64, with the colours that were drawn."""

from __future__ import annotations

import base64
import io
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUALITY = 85
"""Of the JPEG, 1 to 95."""
BLANK = (240, 320)
"""Height and width of the grey picture that stands for none."""

_canvas = threading.local()
"""Pictures of one room have one size: drawn over the one before, they cost no new memory, which took longer to get than
the JPEG takes to make."""


def as_rgb(frame: Any) -> NDArray[np.uint8]:
    """What `render` returned as a picture (H, W, 3), red first.

    Takes (H, W), (H, W, 1), (H, W, 3) and (H, W, 4), of any numbers (cut to 0..255) or booleans (black and white), and
    a list of pictures, of which the last counts. None gives a grey picture.

    Raises:
        ValueError: it is no picture.
    """
    if frame is None:
        return np.full((*BLANK, 3), 128, np.uint8)
    if isinstance(frame, list | tuple) and frame and np.ndim(frame[-1]) >= 2:
        frame = frame[-1]
    picture = np.asarray(frame)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.shape[2] not in (1, 3, 4) or 0 in picture.shape or picture.dtype.kind not in "biuf":
        raise ValueError(
            f"render() returned {picture.dtype} of the shape {picture.shape}; a picture is (height, width, 3)"
        )
    if picture.dtype == np.bool_:
        picture = picture * np.uint8(255)
    elif picture.dtype != np.uint8:
        picture = np.clip(np.nan_to_num(picture), 0, 255).astype(np.uint8)
    if picture.shape[2] == 1:
        picture = np.repeat(picture, 3, axis=2)
    return np.ascontiguousarray(picture[:, :, :3])


def encode(frame: Any) -> str:
    """A picture as the base64 text of a JPEG; see `as_rgb` for what is taken."""
    from PIL import Image

    picture = as_rgb(frame)
    size = (picture.shape[1], picture.shape[0])
    image = getattr(_canvas, "image", None)
    if image is None or image.size != size:
        _canvas.image = image = Image.new("RGB", size)
    image.frombytes(picture)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return base64.b64encode(buffer.getbuffer()).decode("ascii")
