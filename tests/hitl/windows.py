"""Waiting for what a browser and a run come to, without saying how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PATIENCE_MS = 30_000
"""For everything that is waited for: a hang is a failure, slowness is not."""
LOOK_MS = 20


def until(page: Any, true: Callable[[], Any]) -> Any:
    """Let a page work until something is true, of it or of the run; returns what was true."""
    for _ in range(PATIENCE_MS // LOOK_MS):
        found = true()
        if found:
            return found
        page.wait_for_timeout(LOOK_MS)
    raise AssertionError("it did not come true in time")


def sees(page: Any, expression: str, argument: Any = None) -> Any:
    """Let a page work until a JavaScript expression, or function of the argument, is true in it.

    Playwright's own way evaluates text within the page, which the page's security policy forbids.
    """
    return until(page, lambda: page.evaluate(expression, argument))


def banner(page: Any, text: str) -> None:
    """Let a page work until its banner says this."""
    sees(page, "text => document.getElementById('banner-text').textContent.includes(text)", text)


def drive(page: Any, agent: str = "agent_0") -> None:
    """Hold the key for taking over until the agent is driven."""
    page.keyboard.down("Space")
    banner(page, f"You drive {agent}")
