"""Words under pictures: who drives, and what people said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

BACKGROUND = (24, 26, 32)
PLAIN = (200, 204, 212)
HUMAN = (240, 200, 66)
"""Bright in black and white too."""


def captioned(frame: NDArray[np.uint8], lines: Sequence[tuple[str, bool]]) -> NDArray[np.uint8]:
    """The picture (H, W, 3) with lines of text beneath it; those of people are marked by a bar and a colour."""
    height, width = frame.shape[:2]
    size = max(11, width // 40)
    row = size + size // 2
    canvas = Image.new("RGB", (width, height + row * len(lines) + size // 2), BACKGROUND)
    canvas.paste(Image.fromarray(frame), (0, 0))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size)
    for number, (text, human) in enumerate(lines):
        top = height + size // 4 + number * row
        if human:
            draw.rectangle((0, top, size // 3, top + row - 2), fill=HUMAN)
        draw.text((size, top), text, fill=HUMAN if human else PLAIN, font=font)
    return np.asarray(canvas)
