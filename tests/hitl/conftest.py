"""A browser without a window, and rooms for it to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harl.envs.parallel import ParallelVectorEnv
from tests.hitl.page_server import Peer
from tests.hitl.windows import PATIENCE_MS, sees

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
"""The system's own browser; none is downloaded."""
HEIGHTS = {360: 740, 768: 1024, 1440: 900}


@pytest.fixture
def no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment can be restarted alone."""
    monkeypatch.setattr(ParallelVectorEnv, "can_restart", False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium through Playwright; skips where either is not installed, unless `HARL_TEST_BROWSER` asks for it.

    One for each module: as long as it is open, Playwright's event loop runs in this thread, and tests that come after
    could not run one of their own.
    """
    if os.environ.get("HARL_TEST_BROWSER"):  # nothing that CI is to see may be passed over there
        import playwright.sync_api as playwright

        assert CHROMIUM is not None, "HARL_TEST_BROWSER is set, but there is no browser"
    else:
        playwright = pytest.importorskip("playwright.sync_api", reason="the package `playwright` is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium or google-chrome on the path, and CHROMIUM does not name one")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """Begins a run that people can join: `peer("simple_spread", fps=15)`; ended after the test."""
    begun: list[Peer] = []

    def begin(*args: Any, **changes: Any) -> Peer:
        begun.append(Peer(tmp_path, *args, **changes))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a link in a window of its own: `visit(link, width=1440)`.

    After the test no window may have met an error, in its console, in a script, or of its security policy.
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"{message.type}: {message.text}")

    def open_window(
        link: str,
        width: int = 1440,
        height: int | None = None,
        prepare: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> Any:
        viewport = {"width": width, "height": HEIGHTS[width] if height is None else height}
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("requestfailed", lambda request: faults.append(f"{request.url}: {request.failure}"))
        if prepare is not None:
            prepare(page)
        page.goto(link)
        return page

    yield open_window
    for context in contexts:
        context.close()
    assert not faults, "\n".join(faults)


@pytest.fixture
def join(visit: Callable[..., Any]) -> Callable[..., Any]:
    """As `visit`, for a role in a run, once the picture is there: `join(run, "trainer", name="ada")`."""

    def enter(run: Peer, role: str = "trainer", name: str = "ada", **options: Any) -> Any:
        page = visit(f"{run.link(role)}&name={name}", **options)
        sees(page, "document.getElementById('veil').hidden")
        return page

    return enter
