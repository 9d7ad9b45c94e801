"""One episode of a recording, read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harl.hitl.recording.fields import HUMAN, step_fields, takeover_ends, takeover_starts, view_fields
from harl.hitl.recording.state import state_from_arrays

if TYPE_CHECKING:
    from harl.hitl.recording.recordings import Session


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One episode; its arrays are read when they are asked for."""

    session: Session
    facts: dict[str, Any]
    """The line of `episodes.jsonl`, with what people said of the episode later."""
    amendments: tuple[dict[str, Any], ...] = ()
    """Feedback that came when the steps that it is about were on the disk."""

    @property
    def env(self) -> int:
        """Index of the environment."""
        return int(self.facts["env"])

    @property
    def episode(self) -> int:
        """Index of the episode in its environment."""
        return int(self.facts["episode"])

    @property
    def steps(self) -> int:
        return int(self.facts["steps"])

    @property
    def is_partial(self) -> bool:
        """Whether the recording has not all of the episode."""
        return bool(self.facts["is_partial"])

    @property
    def discarded(self) -> bool:
        """Whether a person said that it is not to count."""
        return bool(self.facts["discarded"])

    @property
    def redacted(self) -> bool:
        """Whether a person's part was taken out of it (`harl.hitl.forget`): it cannot be played again."""
        return bool(self.facts.get("redacted", False))

    @property
    def learned_from(self) -> bool:
        """Whether it was played in training, not in an evaluation."""
        return str(self.facts["purpose"]) != "evaluate"

    @property
    def people(self) -> list[str]:
        """Pseudonyms of all who took part."""
        return list(self.facts["people"])

    @property
    def human_steps(self) -> int:
        """Steps that people drove, summed over agents."""
        return sum(self.facts["human_steps"].values())

    def label(self) -> str:
        """For messages."""
        return f"episode {self.episode} of environment {self.env} in {self.session.folder.name}"

    def load(self) -> dict[str, NDArray[Any]]:
        """All arrays, see docs/people_data.md; amendments are applied, and what follows from the steps is added:

        `takeover_start` (T, A): a person drives, and the policy drove the step before;
        `takeover_end` (T, A): a person drives, and nobody drives the next step;
        `pre_intervention` (T, A): the steps before a takeover, as many as the session's `pre_intervention_steps`.
        `share_obs` is (T + 1, A, …) whatever the kind of state.
        """
        layout = self.session.layout
        parts = [self.session.read(name) for name in self.facts["files"]]
        arrays = {field.name: np.concatenate([part[field.name] for part in parts]) for field in step_fields(layout)}
        for field in view_fields(layout):
            rows = [part[field.name][:-1] for part in parts[:-1]]
            arrays[field.name] = np.concatenate([*rows, parts[-1][field.name]])
        if layout.state_type == "EP":
            state = arrays["share_obs"]
            shape = (len(state), layout.num_agents, *layout.share_obs_shape)
            arrays["share_obs"] = np.broadcast_to(state[:, None], shape)
        # Recordings of before agents that leave were noted have all of them take part to the end.
        arrays["active"][1:] &= ~np.logical_or.accumulate(arrays["terminated"] | arrays["truncated"])[:-1]
        self._amend(arrays)
        return arrays | self._derived(arrays)

    def state(self) -> dict[str, Any] | None:
        """State of the environment before the first step, for a `VectorEnv` of one; None where it was not recorded."""
        return state_from_arrays(self.session.read(self.facts["files"][0]))

    def _amend(self, arrays: dict[str, NDArray[Any]]) -> None:
        for change in self.amendments:
            row, agent = change["step"] - self.facts["first_step"], change["agent"]
            if not 0 <= row < self.steps:
                continue
            arrays["reward_learned"][row, agent] += change["delta"]
            arrays["human_credited"][row, agent] += change["credited"]
            if change["raw"] is not None:
                before = arrays["human_raw"][row, agent]
                arrays["human_raw"][row, agent] = change["raw"] + (0.0 if np.isnan(before) else before)

    def _derived(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
        source, window = arrays["source"], self.session.facts["pre_intervention_steps"]
        starts, before = takeover_starts(source), np.zeros(source.shape, np.bool_)
        for first, agent in np.argwhere(starts):
            before[max(0, first - window) : first, agent] = True
        before &= source != HUMAN
        return {"takeover_start": starts, "takeover_end": takeover_ends(source), "pre_intervention": before}
