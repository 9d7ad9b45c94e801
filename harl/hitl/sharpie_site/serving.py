"""Makes what a mapping names: environments, policies, and objects of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harl.config.fields import ConfigError
from harl.envs.api import EnvError, VectorEnv
from harl.envs.entry_point import EnvFactory, check_kwargs, load_attribute
from harl.envs.parallel_convert import to_parallel
from harl.hitl.sharpie_site.environments import Renamed, SingleEnv
from harl.hitl.sharpie_site.mapping import AgentEntry, EnvironmentEntry, ExperimentEntry, SiteMapping
from harl.hitl.sharpie_site.people import Waits


class NotServed(Exception):  # noqa: N818 - the answer to a request that is in order
    """This runner cannot serve an experiment; the text is for the people who wait for it."""


@dataclass(frozen=True)
class Makers:
    """What comes from the rooms of harl above this one."""

    load: Callable[[str, str], Any]
    """(run, checkpoint) → policy of the whole team with a memory of its own, see `harl.load`."""
    environment: Callable[[EnvironmentEntry], VectorEnv]
    """The one environment that `name` or `run` describe; raises ConfigError and the like."""


class TeamAgent:
    """One agent of a trained team, as a policy of the site's kind."""

    def __init__(self, policy: Any, agent: str, deterministic: bool) -> None:
        self.policy, self.agent, self.deterministic = policy, agent, deterministic

    def reset(self) -> None:
        """Start an episode."""
        self.policy.reset()

    def predict(self, observation: Any, participant_input: Any = None) -> Any:
        """The agent's action; what people say is passed on as the hint."""
        acted = self.policy.act({self.agent: observation}, deterministic=self.deterministic, hint=participant_input)
        return acted[self.agent]


class SharedPolicy:
    """A user's object that several rooms use: one call at a time."""

    def __init__(self, target: Any) -> None:
        self.target, self._lock = target, threading.Lock()
        if hasattr(target, "update"):
            self.update = self._update

    def predict(self, observation: Any, **hints: Any) -> Any:
        """The object's own `predict`."""
        with self._lock:
            return self.target.predict(observation, **hints)

    def _update(self, *transition: Any) -> None:
        with self._lock:
            self.target.update(*transition)


@dataclass
class Serving:
    """All that a runner serves, and how.

    Thread-safe: rooms are served by threads of their own.
    """

    mapping: SiteMapping = field(default_factory=SiteMapping)
    makers: Makers | None = None
    waits: Waits = field(default_factory=Waits)
    trust_server_code: bool = False
    """Whether files that the site sends are written to a folder of their own and run."""
    record: Path | None = None
    """Folder of journals."""
    stopping: Callable[[], bool] = lambda: False
    _objects: dict[tuple[str, str], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for folder in self.mapping.import_from or ():
            if folder not in sys.path:
                sys.path.insert(0, folder)  # before a module of the same name from elsewhere

    def check(self) -> None:
        """Make one of everything, so that what is wrong is known before people wait for it.

        Raises:
            ConfigError: all that cannot be made.
        """
        problems = []
        for link, entry in self.mapping.experiments.items():
            try:
                self.policies(link, entry)
                env = self._trial(entry)
            except (NotServed, ConfigError, RuntimeError, ValueError, OSError) as error:
                problems.append(f"experiments.{link}: {error}")
            else:
                if hasattr(env, "close"):
                    env.close()
        if problems:
            raise ConfigError(problems)

    def _trial(self, entry: ExperimentEntry) -> Any:
        """An environment made for the check; None where it is the learner's or waits for arguments of the site."""
        source = entry.environment
        if entry.learner is not None:
            return None
        if source is not None and source.entry_point is not None and source.from_site:
            load_attribute(source.entry_point)
            return None
        return self.environment(entry, {})

    def environment(self, entry: ExperimentEntry, metadata: Mapping[str, Any]) -> Any:
        """A fresh environment of an experiment.

        Raises:
            NotServed, EnvError, ConfigError: it cannot be made.
        """
        names = {role: agent.plays for role, agent in entry.agents.items() if agent.plays is not None}
        env = self._environment(entry, metadata)
        return Renamed(env, names) if names else env

    def _environment(self, entry: ExperimentEntry, metadata: Mapping[str, Any]) -> Any:
        source = entry.environment
        if source is None:
            runs = [agent.checkpoint for agent in entry.agents.values() if agent.checkpoint]
            if not runs:
                raise NotServed("there is neither an environment, nor a learner, nor an agent with a checkpoint")
            source = EnvironmentEntry(run=runs[0])
        if source.entry_point is not None:
            allowed = {name: metadata[name] for name in source.from_site or () if name in metadata}
            env = made(source.entry_point, {**source.kwargs, **allowed}, render=True)
            return to_parallel(env) if source.adapt else env
        if self.makers is None:
            raise NotServed("environments of harl are served by `python -m harl.hitl.sharpie` alone")
        return SingleEnv(self.makers.environment(source))

    def policies(self, link: str, entry: ExperimentEntry) -> dict[str, Any]:
        """Role → policy of an experiment, for the roles that have one; raises like `environment`."""
        found = {}
        for role, agent in entry.agents.items():
            if agent.checkpoint is not None:
                found[role] = self._team_agent(role, agent, agent.checkpoint)
            elif agent.object is not None:
                found[role] = self._object(link, role, agent, agent.object)
        return found

    def _team_agent(self, role: str, entry: AgentEntry, run: str) -> TeamAgent:
        if self.makers is None:
            raise NotServed("checkpoints are served by `python -m harl.hitl.sharpie` alone")
        policy, name = self.makers.load(run, entry.which), entry.plays or role
        if name not in policy.layout.agents:
            raise NotServed(
                f"{run} has no agent {name!r} for the role {role!r}; it has {', '.join(policy.layout.agents)}"
            )
        return TeamAgent(policy, name, entry.deterministic)

    def _object(self, link: str, role: str, entry: AgentEntry, path: str) -> Any:
        if entry.per_room:
            return checked_policy(made(path, entry.kwargs), path)
        with self._lock:
            if (link, role) not in self._objects:
                self._objects[link, role] = SharedPolicy(checked_policy(made(path, entry.kwargs), path))
            return self._objects[link, role]


def made(path: str, kwargs: Mapping[str, Any], render: bool = False) -> Any:
    """A new object from an import path: what a class or function makes, or, where the path names an object that is made
    already, that of a fresh copy of its module.

    Raises:
        EnvError: it cannot be imported or made.
    """
    target = load_attribute(path)
    if callable(target):
        check_kwargs(target, dict(kwargs), path)
        return EnvFactory(path, dict(kwargs), render)()
    if kwargs:
        raise EnvError(f"{path} is made already and takes no arguments: {', '.join(kwargs)}")
    name, _, attribute = path.partition(":")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return target
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for part in attribute.split("."):
        module = getattr(module, part)
    return module


def checked_policy(target: Any, path: str) -> Any:
    """The object, where it can be asked for actions; raises `EnvError`."""
    if not callable(getattr(target, "predict", None)):
        raise EnvError(f"{path} is a {type(target).__name__} without predict(observation)")
    return target
