"""What the learners of a replay buffer earn over several steps, kept up to date while the steps come in.

A transition that looks n steps ahead is complete n - 1 steps after it was stored. The sums of the last n steps are
therefore extended with every step, so that sampling costs the same whatever n is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harl.envs.api import BoolArray, EnvStep, Layout

REWARDS = ("shared_sum", "shared_mean", "individual")
TIME_LIMITS = ("bootstrap", "ignore")


class ReturnWindow:
    """Discounted sums of rewards that begin at each of the last n steps; row j began j steps before the newest.

    There are R learners: the team (EP), or each agent (FP). A sum grows until it covers n steps, or until the episode
    ended. A learner that terminated earns nothing more and is not bootstrapped. Where FP agents are bootstrapped after
    they were cut, the sums of their environment also stop at a cut within an episode that goes on, so that they are
    bootstrapped from where they were.

    Args:
        layout, num_envs, n_step, gamma, reward, time_limit: as of `harl.buffers.replay.ReplayBuffer`.
        slots: steps that the buffer holds; no sum is longer.
    """

    ARRAYS = ("sums", "alive", "open", "steps")

    def __init__(
        self, layout: Layout, num_envs: int, n_step: int, gamma: float, reward: str, time_limit: str, slots: int
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step is {n_step}; it must be at least 1")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}; it must be from 0 to 1")
        if reward not in REWARDS:
            raise ValueError(f"reward is {reward!r}; allowed: {', '.join(REWARDS)}")
        if reward == "individual" and layout.state_type == "EP":
            raise ValueError("reward 'individual' needs a value for each agent: state_type FP")
        if time_limit not in TIME_LIMITS:
            why = "; 'mask' zeroes advantages, which there are none of here" if time_limit == "mask" else ""
            raise ValueError(
                f"time_limit is {time_limit!r}; allowed with a replay buffer: {', '.join(TIME_LIMITS)}{why}"
            )
        self.settings = {"n_step": n_step, "gamma": gamma, "reward": reward, "time_limit": time_limit}
        self.per_agent_values = layout.state_type == "FP"
        self.reward, self.bootstrap = reward, time_limit == "bootstrap"
        self.n_step, self.num_agents = min(n_step, slots), layout.num_agents
        self.count = 0
        """Rows that are in use."""
        learners = layout.num_agents if self.per_agent_values else 1
        self.sums = np.zeros((self.n_step, num_envs, learners))
        self.alive = np.zeros((self.n_step, num_envs, learners), np.bool_)
        """Whether the learner goes on after the steps that the sum covers."""
        self.open = np.zeros((self.n_step, num_envs), np.bool_)
        """Whether the sum grows with the next step."""
        self.steps = np.zeros((self.n_step, num_envs), np.int64)
        """How many steps the sum covers."""
        self._powers = gamma ** np.arange(self.n_step + 1)

    def push(self, active: BoolArray, step: EnvStep) -> None:
        """Take in a step before which the agents `active` (N, A) were in the episode."""
        there, over, stopped = self._ends(active, step)
        for name in self.ARRAYS:
            array = getattr(self, name)
            array[1:] = array[:-1].copy()
        self.sums[0], self.alive[0], self.open[0], self.steps[0] = 0.0, there, True, 0
        self.count = min(self.count + 1, self.n_step)
        growing = self.open[..., None]
        self.sums += np.where(growing & self.alive, self._powers[:-1, None, None] * self._earned(step), 0.0)
        self.steps += self.open
        self.alive &= ~(growing & over)
        self.open &= ~stopped

    def _earned(self, step: EnvStep) -> NDArray[Any]:
        """(N, 1) for the team or for all agents alike, or (N, A)."""
        rewards: NDArray[Any] = step.rewards[..., 0]
        if self.reward != "individual":
            rewards = rewards.sum(1, keepdims=True) if self.reward == "shared_sum" else rewards.mean(1, keepdims=True)
        return rewards

    def _ends(self, active: BoolArray, step: EnvStep) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Which learners were there and which terminated, (N, R), and (N,) where sums stop."""
        cut = step.truncated & ~step.terminated & active
        if self.per_agent_values:
            if self.bootstrap:
                return active, step.terminated, step.ended | cut.any(1)
            return active, step.terminated | cut, step.ended
        over = step.ended & ~cut.any(1) if self.bootstrap else step.ended
        return np.ones((len(active), 1), np.bool_), over[:, None], step.ended

    def discounts(self) -> NDArray[np.float64]:
        """(n, N, R): the factor of the value that follows each sum; 0 for learners that are not there then."""
        return np.where(self.alive, self._powers[self.steps][..., None], 0.0)

    def shares(self, agent: int, delta: float) -> NDArray[np.float64]:
        """(R,) what each learner gets where the reward of one agent grows by `delta`."""
        if self.reward == "individual":
            shares = np.zeros(self.sums.shape[2])
            shares[agent] = delta
            return shares
        share = delta if self.reward == "shared_sum" else delta / self.num_agents
        return np.full(self.sums.shape[2], share)

    def discounted(self, gains: NDArray[np.float64], ahead: int) -> NDArray[np.float64]:
        """What gains of a step are worth in a sum that began `ahead` steps before it."""
        worth: NDArray[np.float64] = gains * self._powers[ahead]
        return worth

    def close(self, envs: NDArray[np.bool_] | None = None) -> None:
        """Let no sum, or none of these environments (N,), grow any more: the next step is none of theirs."""
        self.open[:, slice(None) if envs is None else envs] = False

    def get_state(self) -> dict[str, Any]:
        """What the next steps are added to."""
        return {"count": self.count, **{name: torch.from_numpy(getattr(self, name).copy()) for name in self.ARRAYS}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` gave."""
        self.count = state["count"]
        for name in self.ARRAYS:
            getattr(self, name)[...] = state[name].cpu().numpy()
