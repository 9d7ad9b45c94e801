"""Ending episodes from outside, in the form in which they end by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from harl.envs.api import EnvStep, VectorEnv


def break_off(envs: VectorEnv, outcome: EnvStep, which: Sequence[int]) -> EnvStep:
    """Restart some environments, and say so in the record of the step that was taken last.

    To whoever reads the record their episodes have ended in that step: `ended` and `broken_off`, the last thing seen in
    `final_…`, and the first of the next episode in `obs`; nobody is terminated or truncated by it.

    Args:
        envs: the environments.
        outcome: what their last step returned.
        which: indices of those to restart; an episode that has ended in this step anyway is left as it is.

    Returns:
        A record with arrays of its own; `outcome` itself where nothing was restarted, also since `envs` cannot.
    """
    running = [env for env in which if not outcome.ended[env]]
    if not running or not envs.can_restart:
        return outcome
    kept = _copied(outcome)  # restarting may overwrite the arrays of the step
    now = envs.restart(running)
    kept.ended[running] = True
    kept.broken_off = np.zeros(envs.num_envs, np.bool_)
    kept.broken_off[running] = True

    def final(seen: np.ndarray, ends: np.ndarray | None) -> np.ndarray:
        if ends is None:
            return seen
        ends[running] = seen[running]
        return ends

    masks = kept.available_actions
    return dataclasses.replace(
        kept,
        obs=now.obs,
        share_obs=now.share_obs,
        available_actions=now.available_actions,
        active=now.active,
        final_obs=final(kept.obs, kept.final_obs),
        final_share_obs=final(kept.share_obs, kept.final_share_obs),
        final_available_actions=None if masks is None else final(masks, kept.final_available_actions),
    )


def _copied(step: EnvStep) -> EnvStep:
    copied = dataclasses.replace(step)
    for field in dataclasses.fields(step):
        if isinstance(array := getattr(step, field.name), np.ndarray):
            setattr(copied, field.name, array.copy())
    return copied
