"""Random numbers that are a pure function of (seed, episode, position in the sequence).

A counter-based generator: there is nothing to advance and nothing to carry along but the seed and the episode
number, environments do not influence each other, and any set of environments is drawn in one array operation.
The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, odd: multiples of it visit all 64-bit numbers, evenly spread."""

_UNIT = 2.0**-53
"""Spacing of the uniform numbers: a float64 holds 53 bits."""


def mix64(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit numbers, one to one, so that each input bit changes each output bit half of the time."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(seeds: NDArray[np.int64], episodes: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """The first `count` numbers of each (seed, episode) pair, uniform in [0, 1): (count, len(seeds)) float64.

    `seeds` and `episodes` are one-dimensional, of equal length and not negative.
    """
    one = np.uint64(1)
    streams = mix64(seeds.astype(np.uint64) + GOLDEN_GAMMA)
    streams = mix64(streams + (episodes.astype(np.uint64) + one) * GOLDEN_GAMMA)
    positions = np.arange(1, count + 1, dtype=np.uint64)[:, None]
    bits = mix64(streams + positions * GOLDEN_GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * _UNIT
