"""Returns and lengths of training episodes, and means of what environments report, from vector steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class EpisodeTracker:
    """Adds up the raw rewards of N environments and A agents, and gives the means of the episodes that ended.

    What it keeps does not grow with the number of episodes. Sums are float64. Episodes in which people acted are
    counted apart from those of the policies alone.
    """

    def __init__(self, num_envs: int, agents: Sequence[str]) -> None:
        self.agents = tuple(agents)
        self._returns = np.zeros((num_envs, len(self.agents), 1))
        self._steps = 0
        self._started = np.zeros(num_envs, np.int64)
        self._numbers = np.zeros(num_envs, np.int64)
        self._finished_returns = np.zeros(len(self.agents))
        self._finished_lengths = 0
        self._finished = 0
        self._gone: NDArray[np.bool_] | None = None
        """(N, A) who does not take part in the next step; None where everybody does."""
        self._absent = np.zeros((num_envs, len(self.agents)), np.int64)
        """Steps of the running episodes in which an agent was not there."""
        self._finished_absent = 0
        self._touched = np.zeros(num_envs, np.bool_)
        self._discarded = np.zeros(num_envs, np.bool_)
        self._special = False
        """Whether any running episode is touched or discarded."""
        self._people_return = 0.0
        self._people_episodes = 0

    def add(
        self,
        rewards: NDArray[np.floating[Any]],
        ended: NDArray[np.bool_],
        active: NDArray[np.floating[Any]] | None = None,
    ) -> None:
        """Count one vector step.

        Args:
            rewards: (N, A, 1) of that step.
            ended: (N,) where an episode is over with it.
            active: (N, A, 1) who takes part in the next step; None: everybody.
        """
        self._returns += rewards
        self._steps += 1
        if self._gone is not None:
            self._absent += self._gone
        self._gone = None if active is None or np.count_nonzero(active) == active.size else active[..., 0] == 0
        if np.count_nonzero(ended):
            counted = ended
            if self._special:
                counted = self._settle(ended)
            self._finished_returns += self._returns[counted].sum(axis=(0, 2))
            self._finished_absent += int(self._absent[counted].sum())
            self._absent[ended] = 0
            lengths = self._steps - self._started[counted]
            self._finished_lengths += int(lengths.sum())
            self._finished += len(lengths)
            self._returns[ended] = 0.0
            self._started[ended] = self._steps
            self._numbers[ended] += 1

    def _settle(self, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count the ended episodes that people acted in; returns where one ended that the policies had alone."""
        people = ended & self._touched & ~self._discarded
        self._people_return += float(self._returns[people].sum())
        self._people_episodes += int(people.sum())
        alone = ended & ~self._touched & ~self._discarded
        self._touched &= ~ended
        self._discarded &= ~ended
        self._special = bool(self._touched.any() or self._discarded.any())
        return alone

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) steps that the running episodes have."""
        lengths: NDArray[np.int64] = self._steps - self._started
        return lengths

    @property
    def numbers(self) -> NDArray[np.int64]:
        """(N,) how many episodes of each environment are over, whether they count or not."""
        return self._numbers.copy()

    @property
    def returns(self) -> NDArray[np.float64]:
        """(N, A) sums of rewards of the running episodes."""
        return self._returns[..., 0].copy()

    def touch(self, envs: NDArray[np.bool_]) -> None:
        """Say in which environments (N,) somebody else than the policies acts in this step."""
        self._touched |= envs
        self._special = True

    def discard(self, env: int) -> None:
        """Say that the running episode of an environment does not count."""
        self._discarded[env] = self._special = True

    def reset(self) -> None:
        """Forget the episodes under way, as when all environments are reset; finished ones stay."""
        self._touched[:] = self._discarded[:] = self._special = False
        self._returns[:] = 0.0
        self._numbers[self._started < self._steps] += 1
        self._started[:] = self._steps

    def drain(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call, and how many; nothing of kinds of which none did.

        - `train/return_sum`: return summed over the agents; `train/return_mean`: its mean over the agents;
        - `train/return/<agent>`: that agent's own; `train/episode_length`: in environment steps;
        - `train/episodes`: how many episodes these are means of;
        - `train/dead_share`: share of the agents' steps in which they were not there any more, where there are such;
        - `people/return_sum`, `people/episodes`: the same of episodes in which people acted, which are none of those.
        """
        people: dict[str, float] = {}
        if self._people_episodes:
            people["people/return_sum"] = self._people_return / self._people_episodes
            people["people/episodes"] = float(self._people_episodes)
            self._people_return, self._people_episodes = 0.0, 0
        if not self._finished:
            return people
        per_agent = self._finished_returns / self._finished
        means = {
            "train/return_sum": float(per_agent.sum()),
            "train/return_mean": float(per_agent.mean()),
            "train/episode_length": self._finished_lengths / self._finished,
            "train/episodes": float(self._finished),
        }
        means.update((f"train/return/{agent}", float(mean)) for agent, mean in zip(self.agents, per_agent, strict=True))
        if self._finished_absent:
            means["train/dead_share"] = self._finished_absent / (self._finished_lengths * len(self.agents))
        self._finished_returns[:] = 0.0
        self._finished_lengths = self._finished = self._finished_absent = 0
        return means | people

    def get_state(self) -> dict[str, Any]:
        """Everything that later results depend on: numbers and numpy arrays, copied."""
        return {
            "returns": self._returns.copy(),
            "running_lengths": self._steps - self._started,
            "numbers": self._numbers.copy(),
            "finished_returns": self._finished_returns.copy(),
            "finished_lengths": self._finished_lengths,
            "finished": self._finished,
            "absent": self._absent.copy(),
            "gone": None if self._gone is None else self._gone.copy(),
            "finished_absent": self._finished_absent,
            "people": [self._people_return, self._people_episodes],
            "touched": self._touched.copy(),
            "discarded": self._discarded.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from `get_state`; raises `ValueError` where environments or agents are not as many as there."""
        if state["returns"].shape != self._returns.shape:
            raise ValueError(
                f"the saved episodes are of (environments, agents) {state['returns'].shape[:2]}, "
                f"this run has {self._returns.shape[:2]}"
            )
        self._returns[:] = state["returns"]
        self._steps = 0
        self._started[:] = -state["running_lengths"]
        self._numbers[:] = state.get("numbers", 0)  # older checkpoints have none
        self._finished_returns[:] = state["finished_returns"]
        self._finished_lengths = state["finished_lengths"]
        self._finished = state["finished"]
        if "absent" in state:
            self._absent[:], self._gone, self._finished_absent = (
                state["absent"], state["gone"], state["finished_absent"],
            )  # fmt: skip
        if "people" in state:
            self._people_return, self._people_episodes = state["people"]
            self._touched[:], self._discarded[:] = state["touched"], state["discarded"]
            self._special = bool(self._touched.any() or self._discarded.any())


class EnvMetrics:
    """Means of the numbers that environments report in their steps (`EnvStep.metrics`), for the logs.

    `wanted` limits them to those names; what it names and no step has brought yet is told by `unseen`.
    """

    def __init__(self, wanted: Iterable[str] | None = None) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._seen: set[str] = set()
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, metrics: dict[str, NDArray[np.float64]]) -> None:
        """Count one vector step: name to (N,) numbers, NaN where an environment reports nothing."""
        for name, values in metrics.items():
            if self._wanted is not None and name not in self._wanted:
                continue
            reported = values[~np.isnan(values)]
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(reported.sum()), count + len(reported)
            self._seen.add(name)

    @property
    def unseen(self) -> list[str]:
        """Names that were asked for and that no environment has reported so far."""
        return sorted((self._wanted or frozenset()) - self._seen)

    def drain(self) -> dict[str, float]:
        """`env/<name>`: mean over the reports since the last call; names without a report are left out."""
        means = {f"env/{name}": total / count for name, (total, count) in self._sums.items() if count}
        self._sums.clear()
        return means

    def get_state(self) -> dict[str, Any]:
        """The sums, for a checkpoint."""
        return {"sums": {name: list(pair) for name, pair in self._sums.items()}, "seen": sorted(self._seen)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the sums of a checkpoint."""
        self._sums = {name: (pair[0], pair[1]) for name, pair in state["sums"].items()}
        self._seen = set(state["seen"])
