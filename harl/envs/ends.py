"""Pictures of how episodes ended, which are drawn before the next ones begin within the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray


class EndPictures:
    """Draws the last state of episodes, for environments that somebody watches.

    Args:
        draw: index of an environment → picture of it as it is now.
    """

    def __init__(self, draw: Callable[[int], NDArray[np.uint8]]) -> None:
        self._draw = draw
        self.watched: frozenset[int] = frozenset()
        """Environments whose ends are drawn."""
        self._drawn: dict[int, NDArray[np.uint8] | Exception] = {}

    def watch(self, envs: Iterable[int]) -> None:
        """Draw the ends of these environments, and of no others."""
        self.watched = frozenset(envs)
        self._drawn.clear()

    def forget(self) -> None:
        """A step begins: what ended before it is over."""
        self._drawn.clear()

    def draw(self, ended: Iterable[int]) -> None:
        """Episodes of these environments are over, and the next ones have not begun. What fails is raised by `get`."""
        for env in self.watched.intersection(ended):
            try:
                self._drawn[env] = np.array(self._draw(env))
            except Exception as error:  # the environment's own code: nobody's step may end because somebody watches
                self._drawn[env] = error

    def get(self, env: int) -> NDArray[np.uint8] | None:
        """The picture, if an episode ended in the last step and the environment is watched; raises what drawing did."""
        found = self._drawn.get(env)
        if isinstance(found, Exception):
            raise found
        return found
