"""NaN: stopping before one of an environment reaches a network, and what to say of one that came out of it."""

from __future__ import annotations

import math

import numpy as np

from harl.envs.api import EnvError, EnvStep, FloatArray, Layout

LEARNING = "environment steps; nothing has been learned from it"


def check_finite(step: EnvStep, layout: Layout, steps: int, of: str = LEARNING) -> None:
    """Raise where an environment returned NaN or infinity, `steps` being how many of what `of` says were taken before.

    The sums are a quick test: they are finite if everything is. Only where they are not, the place is looked for.

    Raises:
        EnvError: names the array, the environment, the agent and the step.
    """
    state = step.share_obs if layout.state_type == "FP" else step.share_obs[:, :1]
    arrays = {"observation": step.obs, "reward": step.rewards, "state": state}
    if step.final_obs is not None and step.final_share_obs is not None:
        rows = step.ended
        arrays["final observation"], arrays["final state"] = step.final_obs[rows], step.final_share_obs[rows]
    for name, array in arrays.items():
        if not math.isfinite(np.add.reduce(array, axis=None)):
            bad = ~np.isfinite(array)
            if bad.any():
                index = np.argwhere(bad)[0]
                env = int(np.flatnonzero(step.ended)[index[0]]) if name.startswith("final") else int(index[0])
                raise EnvError(
                    f"environment {env} returned {array[tuple(index)]} in the {name} of {layout.agents[index[1]]} "
                    f"after {steps} {of}"
                )


LARGE = 20.0
"""Observations beyond this are worth a word when numbers explode."""


def large_observations(obs: FloatArray) -> str:
    """What to say of observations that may have made numbers explode; nothing where they are of a usual size."""
    reach = float(np.abs(obs).max())
    if obs.ndim > 3 or reach <= LARGE:  # images are scaled by the networks
        return ""
    return f"; observations reach {reach:,.0f}, which off-policy critics take as they are: bring them near 1"
