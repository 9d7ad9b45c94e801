"""Returns and advantages, on arrays whose leading axis is time; the other axes are free."""

from __future__ import annotations

import torch
from torch import Tensor


def generalised_advantages(
    rewards: Tensor,
    values: Tensor,
    continues: Tensor,
    end_values: Tensor,
    gamma: float,
    gae_lambda: float,
    cut: Tensor | None = None,
    trace: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) with honest ends.

    δ_t = r_t + γ (c_t V_{t+1} + e_t) − V_t and A_t = δ_t + γ λ c_t h_t A_{t+1}, where c_t is 1 while the episode goes
    on after step t, e_t is the value of the final state where the episode was cut rather than over, and h_t is 0 where
    somebody else acts from step t + 1 on.

    Args:
        rewards: (T, …) reward of each step.
        values: (T + 1, …) state values on the scale of rewards; the last one bootstraps the rollout.
        continues: (T, …) 1 where step t + 1 belongs to the same episode, else 0.
        end_values: (T, …) value to bootstrap from at an end; 0 where the episode terminated or goes on.
        gamma, gae_lambda: discount and trace parameter.
        cut: (T, …) bool; where given and true the advantage is zeroed, as the original implementation treats time
            limits (`algo.time_limit=mask`).
        trace: h, (T, …), or None for 1 everywhere.

    Returns:
        (T, …) advantages; the value targets are these plus values[:-1].
    """
    deltas = rewards + gamma * (values[1:] * continues + end_values) - values[:-1]
    decay = gamma * gae_lambda * continues
    if trace is not None:
        decay = decay * trace
    keep = None if cut is None else (~cut).to(rewards.dtype)
    advantages = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in range(rewards.shape[0] - 1, -1, -1):
        following = torch.addcmul(deltas[t], decay[t], following, out=advantages[t])
        if keep is not None:
            following.mul_(keep[t])
    return advantages


def discounted_returns(
    rewards: Tensor,
    values: Tensor,
    continues: Tensor,
    end_values: Tensor,
    gamma: float,
    cut: Tensor | None = None,
    trace: Tensor | None = None,
) -> Tensor:
    """Discounted sums of rewards to the end of the episode or of the rollout, bootstrapped there.

    R_t = r_t + γ (c_t R_{t+1} + e_t) with R_T = values[T]; arguments as in `generalised_advantages`. Where `cut` is
    true the return is the state's own value, so that its advantage is 0. Where `trace` is 0 the sum ends with the value
    of the next state.
    """
    returns = torch.empty_like(rewards)
    following = values[-1]
    for t in range(rewards.shape[0] - 1, -1, -1):
        if trace is not None:
            following = torch.where(trace[t] > 0, following, values[t + 1])
        following = rewards[t] + gamma * (continues[t] * following + end_values[t])
        if cut is not None:
            following = torch.where(cut[t], values[t], following)
        returns[t] = following
    return returns
