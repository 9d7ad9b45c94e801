"""Numbers about people for the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harl.envs.api import BoolArray, FloatArray


class PeopleCounts:
    """What people did since the last line of the log; sums, so that nothing depends on when it is asked.

    Args:
        decisions: of agents in one step of all environments, N A.
    """

    SUMS = ("steps", "human", "takeovers", "log_prob", "log_prob_count", "agreement", "choices", "late")

    def __init__(self, decisions: int) -> None:
        self.decisions = decisions
        self.steps = 0
        """Vector steps."""
        self.human = 0
        """Decisions of people."""
        self.takeovers = 0
        """Times that somebody took an agent over from its policy."""
        self.log_prob = 0.0
        self.log_prob_count = 0
        self.agreement = 0.0
        self.choices = 0
        self.late = 0
        """Credits of steps that could not be learned from any more."""
        self._means: dict[str, list[float]] = {}

    def drove(self, human: BoolArray, takeovers: int) -> None:
        """Count whom people drive in a step (N, A), and how many of these they took over in it."""
        self.human += int(human.sum())
        self.takeovers += takeovers

    def agreed(self, log_probs: FloatArray, discrete: BoolArray) -> None:
        """Count log π(a) of human actions, (B,) each, and whether they are choices, for which it is a probability."""
        self.log_prob += float(log_probs.sum())
        self.log_prob_count += len(log_probs)
        self.agreement += float(np.exp(log_probs[discrete]).sum())
        self.choices += int(discrete.sum())

    def mean(self, values: Mapping[str, float]) -> None:
        """Take one number of each name into the means of the next line."""
        for name, value in values.items():
            entry = self._means.setdefault(name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1.0

    def drain(self) -> dict[str, float]:
        """What the log says of people, then start anew; nothing where no step was taken with them.

        - `people/intervention_rate`: share of all decisions of agents that people made;
        - `people/human_steps`, `people/interventions`: how many, and how often somebody took over;
        - `people/agreement`: mean π(a | o) of people's choices under the policy of then; `people/log_prob`: mean log π;
        - `people/late_credits`: feedback that came when its step could not be learned from any more.
        """
        result = {name: total / count for name, (total, count) in self._means.items()}
        if self.steps:
            result["people/intervention_rate"] = self.human / (self.steps * self.decisions)
            result["people/human_steps"] = float(self.human)
            result["people/interventions"] = float(self.takeovers)
        if self.log_prob_count:
            result["people/log_prob"] = self.log_prob / self.log_prob_count
        if self.choices:
            result["people/agreement"] = self.agreement / self.choices
        if self.late:
            result["people/late_credits"] = float(self.late)
        for name in self.SUMS:
            setattr(self, name, type(getattr(self, name))(0))
        self._means.clear()
        return result

    def get_state(self) -> dict[str, Any]:
        """The sums, for a checkpoint."""
        means = {name: list(pair) for name, pair in self._means.items()}
        return {"means": means, **{name: getattr(self, name) for name in self.SUMS}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the sums of a checkpoint."""
        for name in self.SUMS:
            setattr(self, name, state[name])
        self._means = {name: list(pair) for name, pair in state["means"].items()}
