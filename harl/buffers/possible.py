"""Whether an action that a person is said to have done is one that an agent could do."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor


def possible(space: spaces.Space[Any], actions: Tensor, available_actions: Tensor | None) -> Tensor:
    """(B,) whether actions are finite, choices of the space, and were available.

    Args:
        space: the agent's action space.
        actions: (B, ≥ its columns).
        available_actions: (B, ≥ its choices) or None.
    """
    result, start = torch.isfinite(actions).all(1), 0
    for column, size in enumerate(_sizes(space)):
        choice = actions[:, column].long().clamp(0, size - 1)
        result &= choice == actions[:, column]
        if available_actions is not None:
            result &= available_actions.gather(1, (start + choice).unsqueeze(1)).squeeze(1) > 0
        start += size
    return result


def _sizes(space: spaces.Space[Any]) -> list[int]:
    """Numbers of choices of each component; none for a Box."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec] if isinstance(space, spaces.MultiDiscrete) else []
