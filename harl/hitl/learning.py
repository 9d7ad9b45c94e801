"""What learners make of people: a table of modes, and which of them the section `hitl` chooses.

I is 1 where a person drove. On-policy algorithms leave a step out of the policy loss by its policy mask, off-policy
ones by not drawing it; nothing else in an algorithm knows of people. docs/people.md has the formulas and their sources.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from harl.config import HitlConfig, PeopleConfig
from harl.config.hitl_schema import TakeoverConfig

Family = Literal["on_policy", "off_policy"]


class PeopleWarning(UserWarning):
    """People are going to be learned from in a way that does harm."""


@dataclass(frozen=True, slots=True)
class TakeoverMode:
    """One line of the table: what a step that a person drove becomes."""

    name: str
    families: tuple[Family, ...]
    """Algorithms that can learn so."""
    stores: Literal["executed", "proposed"]
    """Which action is stored, with its own log-probability under the policy that acted."""
    masked: bool
    """Whether the step is left out of the policy loss, the entropy, the advantage statistics and the factor M."""
    imitated: bool
    """Whether the policy loss has an imitation term: what people did is made more likely."""
    sampled: bool
    """Whether a share of each batch is drawn from human steps alone."""
    earns: Literal["reward", "takeovers"]
    """Whether the rewards are learned from, or -1 for the step before each takeover and nothing else."""
    summary: str

    @property
    def remembers(self) -> bool:
        """Whether there is a second buffer, of human steps alone; recordings go there."""
        return self.imitated or self.sampled


MODES = {
    mode.name: mode
    for mode in (
        TakeoverMode(
            "mask_bc",
            ("on_policy",),
            stores="executed",
            masked=True,
            imitated=True,
            sampled=False,
            earns="reward",
            summary="no policy gradient from human steps; they are imitated",
        ),
        TakeoverMode(
            "mask",
            ("on_policy",),
            stores="executed",
            masked=True,
            imitated=False,
            sampled=False,
            earns="reward",
            summary="no policy gradient from human steps",
        ),
        TakeoverMode(
            "executed",
            ("on_policy",),
            stores="executed",
            masked=False,
            imitated=False,
            sampled=False,
            earns="reward",
            summary="human actions are learned from as if the policy had drawn them",
        ),
        TakeoverMode(
            "rlpd",
            ("off_policy",),
            stores="executed",
            masked=False,
            imitated=False,
            sampled=True,
            earns="reward",
            summary="human transitions are replayed, and a share of each batch is drawn from them alone",
        ),
        TakeoverMode(
            "rlpd_bc",
            ("off_policy",),
            stores="executed",
            masked=False,
            imitated=True,
            sampled=True,
            earns="reward",
            summary="as rlpd, and what people did is imitated",
        ),
        TakeoverMode(
            "replay",
            ("off_policy",),
            stores="executed",
            masked=False,
            imitated=False,
            sampled=False,
            earns="reward",
            summary="human transitions are replayed like all others",
        ),
        TakeoverMode(
            "rlif",
            ("off_policy",),
            stores="executed",
            masked=False,
            imitated=False,
            sampled=False,
            earns="takeovers",
            summary="the reward is -1 for the step before each takeover and 0 elsewhere",
        ),
        TakeoverMode(
            "silent",
            ("on_policy", "off_policy"),
            stores="proposed",
            masked=False,
            imitated=False,
            sampled=False,
            earns="reward",
            summary="the policy's own proposals are credited with what people achieved",
        ),
    )
}
DEFAULTS: dict[Family, str] = {"on_policy": "mask_bc", "off_policy": "rlpd"}
"""What `auto` means."""
PLAIN: dict[Family, str] = {"on_policy": "mask", "off_policy": "replay"}
"""What a bridge without a section `hitl` of its own means: the data are right, and nothing is learned beyond that."""

SILENT = (
    "WARNING: hitl.takeover.learn=silent stores the policy's own proposal where a person acted, so that bad proposals "
    "are credited with what people achieved: the policy gets worse while people help. It is meant as an ablation; "
    "learn=auto is right"
)
RLIF = (
    "hitl.takeover.learn=rlif learns from takeovers alone: the environment's rewards and people's feedback are "
    "recorded but not learned from"
)


@dataclass(frozen=True, slots=True)
class Learning:
    """How one run learns from people."""

    mode: TakeoverMode
    options: TakeoverConfig
    demonstrations: str | None = None
    """Folder of recorded sessions to learn from."""
    able: tuple[TakeoverMode, ...] = ()
    """Modes that the algorithm can learn by."""

    def weight(self, progress: float) -> float:
        """Weight of the imitation loss when this fraction of the run is over."""
        left = max(0.0, 1.0 - progress) if self.options.bc_anneal else 1.0
        return self.options.bc_coef * left

    @property
    def useless_demonstrations(self) -> str:
        """What to say where demonstrations are given to a mode that learns nothing from them."""
        users = ", ".join(mode.name for mode in self.able if mode.remembers)
        return (
            f"hitl.demonstrations={self.demonstrations}: hitl.takeover.learn={self.mode.name} learns nothing from "
            f"them; allowed: hitl.takeover.learn={users}"
        )

    @property
    def warning(self) -> str | None:
        """What a user must know of this choice."""
        return SILENT if self.mode.name == "silent" else None

    @property
    def notices(self) -> list[str]:
        """What a user should know of this choice."""
        said = {"silent": SILENT, "rlif": RLIF}.get(self.mode.name)
        if self.mode.imitated and not self.options.bc_coef:
            said = "hitl.takeover.bc_coef=0: nothing is imitated"
        return [f"people in the loop: {self.mode.name} ({self.mode.summary})", *([said] if said else [])]


def able_modes(family: Family, has_policy: bool = True) -> tuple[TakeoverMode, ...]:
    """Modes of a family, without those that imitate where the algorithm has no policy that could."""
    return tuple(mode for mode in MODES.values() if family in mode.families and (has_policy or not mode.imitated))


def resolve(config: HitlConfig, family: Family, has_policy: bool = True) -> Learning:
    """How to learn from people; for a configuration without them (a bridge given by hand) the plain modes.

    The mode has to be one that the algorithm is able to learn by, see `unsupported`.
    """
    able = able_modes(family, has_policy)
    if not isinstance(config, PeopleConfig):
        return Learning(MODES[PLAIN[family]], _PLAIN_OPTIONS, able=able)
    name = config.takeover.learn
    mode = MODES[DEFAULTS[family] if name == "auto" else name]
    return Learning(mode, dataclasses.replace(config.takeover, learn=mode.name), config.demonstrations, able)


def unsupported(
    config: HitlConfig, family: Family, algorithm: str, num_envs: int, has_policy: bool = True
) -> list[str]:
    """Why people cannot take part in this training as configured; empty if they can. Each reason names what would do.

    Args:
        config: the section `hitl`.
        family: of the algorithm.
        algorithm: its name.
        num_envs: parallel training environments.
        has_policy: whether it has a policy that could imitate, and not only values that it acts by.
    """
    if not isinstance(config, PeopleConfig):
        return []
    problems = []
    name = config.takeover.learn
    able = ", ".join(["auto", *(mode.name for mode in able_modes(family, has_policy))])
    if name != "auto" and family not in MODES[name].families:
        kind = family.replace("_", "-")
        problems.append(
            f"hitl.takeover.learn={name}: algo.name={algorithm} is {kind}, and {name} is no way to learn {kind}; "
            f"allowed: {able}"
        )
    elif name != "auto" and MODES[name].imitated and not has_policy:
        problems.append(
            f"hitl.takeover.learn={name}: algo.name={algorithm} has values and no policy, so that there is nothing to "
            f"imitate with; allowed: {able}"
        )
    else:
        learning = resolve(config, family, has_policy)
        if config.takeover.bc_filter != "none" and learning.mode.imitated and family == "off_policy":
            problems.append(
                f"hitl.takeover.bc_filter={config.takeover.bc_filter}: hitl.takeover.learn={name} imitates off-policy, "
                "where there are no advantages; allowed: none"
            )
        if config.demonstrations is not None and not learning.mode.remembers:
            problems.append(learning.useless_demonstrations)
        if learning.mode.imitated and learning.mode.sampled and not config.takeover.demo_fraction:
            problems.append(
                f"hitl.takeover.demo_fraction={config.takeover.demo_fraction:g}: hitl.takeover.learn={name} imitates "
                "the human transitions of each batch, and there would be none; allowed: above 0, at most 1"
            )
    if config.reward.feedback_grace_s and family == "off_policy":
        problems.append(
            f"hitl.reward.feedback_grace_s={config.reward.feedback_grace_s:g}: algo.name={algorithm} is off-policy; "
            "feedback that comes late changes the rewards in its replay, so there is nothing to wait for; allowed: 0"
        )
    if config.env_index >= num_envs:
        problems.append(
            f"hitl.env_index={config.env_index}: there are train.n_rollout_threads={num_envs} environments; allowed: 0 "
            f"to {num_envs - 1}"
        )
    return problems


_PLAIN_OPTIONS = TakeoverConfig(
    learn="auto",
    bc_coef=0.0,
    bc_anneal=False,
    bc_filter="none",
    bc_agents="same",
    bc_max_age=None,
    cut_trace=True,
    value_mask=False,
    takeover_penalty=0.0,
    demo_fraction=0.0,
    buffer_size=1,
    lease_ttl_ms=500,
    idle_s=20.0,
)
