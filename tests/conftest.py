"""What every test runs under: one torch thread, so that numbers do not depend on the machine, and no denormals."""

from __future__ import annotations

import signal

import pytest
import torch


def pytest_configure() -> None:
    """Shells start what they put into the background deaf to Ctrl-C, and processes started from there inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Undo what an earlier test may have set."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
