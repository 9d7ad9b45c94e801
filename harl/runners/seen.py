"""What agents act on, kept until the step that they take is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harl.envs.api import EnvStep, FloatArray


@dataclass(slots=True)
class Seen:
    """The part of an `EnvStep` that the next action is chosen from, in arrays of its own."""

    obs: FloatArray
    """(N, A, *obs_shape)"""
    share_obs: FloatArray
    """(N, A, *share_obs_shape)"""
    available_actions: FloatArray | None
    """(N, A, action_number) or None."""
    active: FloatArray
    """(N, A, 1)"""

    @classmethod
    def of(cls, step: EnvStep) -> Seen:
        """Copy it out of the environment's arrays, which its next step overwrites."""
        masks = step.available_actions
        return cls(step.obs.copy(), step.share_obs.copy(), None if masks is None else masks.copy(), step.active.copy())

    def get_state(self) -> dict[str, Any]:
        """The arrays by name, for a checkpoint."""
        return {
            "obs": self.obs,
            "share_obs": self.share_obs,
            "available_actions": self.available_actions,
            "active": self.active,
        }
