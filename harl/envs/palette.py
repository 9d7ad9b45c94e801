"""Colours that people tell apart whatever their sight: the palette of Okabe and Ito (2008)."""

from __future__ import annotations

BLUE = "#0072b2"
ORANGE = "#e69f00"
GREEN = "#009e73"
PURPLE = "#cc79a7"
SKY = "#56b4e9"
VERMILLION = "#d55e00"
YELLOW = "#f0e442"
INK = "#3c3f45"
"""For what has no colour of its own."""

AGENT_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, YELLOW)


def agent_colour(index: int) -> str:
    """Colour of the agent at this place in the layout, `#rrggbb`; the eighth agent has that of the first again."""
    return AGENT_COLOURS[index % len(AGENT_COLOURS)]


def lighter(colour: str, share: float) -> str:
    """The colour mixed with a share of white, 0 (unchanged) to 1 (white)."""
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * share):02x}" for channel in channels)
