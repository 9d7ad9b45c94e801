"""What every test runs under: one torch thread, so that numbers do not depend on the machine, and no denormals."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Undo what an earlier test may have set."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
