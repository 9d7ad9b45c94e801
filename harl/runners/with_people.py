"""What a runner does about people besides its steps: what is allowed, recordings, and letting them in."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from harl.buffers.demonstrations import Demonstration
from harl.config import AlgoArgs, ConfigError, PeopleConfig, RunArgs
from harl.envs.api import EnvStep
from harl.hitl.bridge import Bridge
from harl.hitl.learning import Family, Learning, PeopleWarning, resolve, unsupported
from harl.registry import ALGORITHMS
from harl.runners.people import People


class WithPeople:
    """The part of a runner that knows how people take part; without any it does nothing."""

    args: RunArgs
    algo_args: AlgoArgs
    bridge: Bridge | None
    notices: list[str]
    family: ClassVar[Family]
    learning: Learning | None = None
    """How is learned from people; None without any."""
    reset_seeds: Sequence[int] | None = None
    """Of the environments; None where they were brought back from a checkpoint."""
    people: People | None = None
    """The people whom the learners learn from, now or from recordings; None without any."""

    def people_problems(self) -> list[str]:
        """Why people cannot take part in this training as configured; empty if they can."""
        train, algo = self.algo_args.train, self.algo_args.algo.name
        return unsupported(self.args.hitl, self.family, algo, train.n_rollout_threads, ALGORITHMS[algo].has_policy)

    def resolve_learning(self) -> list[str]:
        """Find out how is learned from people; returns what is to be said of it in the log."""
        if self.bridge is None and not isinstance(self.args.hitl, PeopleConfig):
            return []
        self.learning = resolve(self.args.hitl, self.family, ALGORITHMS[self.algo_args.algo.name].has_policy)
        if self.learning.warning:
            warnings.warn(self.learning.warning, PeopleWarning, stacklevel=2)
        told = self.learning.notices
        if self.learning.mode.imitated and self.algo_args.algo.share_param:
            told.append("all agents share one policy: what one of them is shown, all imitate")
        return told

    def teach(self, demonstrations: Iterable[Demonstration]) -> int:
        """Let the learners learn from recorded sessions, beside what people do in the run; once, before `run`.

        A run that is continued has them in its checkpoint.

        Returns:
            How many steps that people drove were found.

        Raises:
            ConfigError: no people are configured, one does not fit these agents, or the mode learns nothing of them.
        """
        if self.people is None:
            raise ConfigError(["hitl=off: nothing is learned from recordings then; allowed: hitl=web"])
        found = self.people.teach(demonstrations)
        self.notices.append(f"demonstrations: {found:,} steps that people drove")
        return found

    def join_people(self) -> None:
        """Let people see the environments, as they are now."""
        if self.people is not None and self.bridge is not None:
            self.people.join(self.shown())

    @abstractmethod
    def shown(self) -> EnvStep:
        """What the training environments show now."""
