"""When something is due, counted in environment steps."""

from __future__ import annotations

from typing import Any


class Due:
    """Something that is due every so many environment steps.

    It never skips because an interval is no multiple of what one iteration takes: it is due at the first chance at or
    after each mark, and once where several marks have passed.

    Args:
        interval: environment steps from one mark to the next.
        first: the first mark.
    """

    def __init__(self, interval: int, first: int) -> None:
        self.interval, self.next, self.last = interval, first, -1

    def reached(self, env_steps: int) -> bool:
        """Whether it is due."""
        return env_steps >= self.next

    def advance(self, env_steps: int) -> None:
        """It has been done: set the next mark, the first one beyond `env_steps`."""
        self.last = env_steps
        if env_steps >= self.next:
            self.next += self.interval * ((env_steps - self.next) // self.interval + 1)

    def get_state(self) -> dict[str, Any]:
        """Marks, for a checkpoint."""
        return {"next": self.next, "last": self.last}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the marks of a checkpoint."""
        self.next, self.last = state["next"], state["last"]
