"""The mapping file: which environment and agents serve which experiment of a site.

experiments:
  my-link:                                # the link of the experiment on the site
    environment:                          # one of: name, run, entry_point
      entry_point: my_pkg.my_module:make_env
      kwargs: {size: 5}
    agents:
      agent_0: {}                         # a person alone
      agent_1: {checkpoint: outputs/…}    # one of: checkpoint, object; see `AgentEntry`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from harl.config.fields import NO_LIMITS, TEXT, ConfigError, RefusedError, convert, limits
from harl.config.names import did_you_mean, nearest
from harl.hitl.sharpie_site.people import ABSENT, Waits
from harl.hitl.sharpie_site.settings import INPUT_KINDS

T = TypeVar("T")
_IMPORT_PATH = limits(pattern=r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", allowed="an import path, package.module:attribute")
_SECONDS = limits(above=0, at_most=86_400)


@dataclass(frozen=True, kw_only=True)
class EnvironmentEntry:
    """Where an environment comes from; exactly one of the first three."""

    name: str | None = field(default=None, metadata=TEXT)
    """An environment of harl, as `mpe`; `settings` are keys of the section `env`."""
    run: str | None = field(default=None, metadata=TEXT)
    """That of a run folder."""
    entry_point: str | None = field(default=None, metadata=_IMPORT_PATH)
    """A class or function that builds one, or one that is built; `kwargs` are its arguments."""
    settings: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)
    from_site: tuple[str, ...] | None = None
    """Arguments that the site's metadata may set."""
    adapt: bool = False
    """Make a PettingZoo `ParallelEnv` of it first: for gymnasium's and for turn-based environments."""


@dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """Who acts for a role beside people; nobody where neither `checkpoint` nor `object` is given."""

    checkpoint: str | None = field(default=None, metadata=TEXT)
    """A run folder, or a checkpoint in it."""
    which: str = field(default="best", metadata=TEXT)
    """best, latest, or environment steps."""
    plays: str | None = field(default=None, metadata=TEXT)
    """Name of the agent in the environment and in the run, where it is not that of the role."""
    deterministic: bool = True
    """The most likely action rather than a sample."""
    object: str | None = field(default=None, metadata=_IMPORT_PATH)
    """A Python object with `predict(observation)` and maybe `update`, or a class or function that makes one."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class or function."""
    per_room: bool = False
    """One object for each room, rather than one for all."""
    interval: int | None = field(default=None, metadata=limits(at_least=-2, at_most=10**9))
    """Update every n-th step, -2 at the end, 0 never; null = what the site says."""
    shared: bool | None = None
    """Whether no key leaves a person's agent to its policy; null = where the site names one."""
    participant: bool | None = None
    """Whether a person sits there, where the site cannot tell its settings; null = where there is no agent."""
    inputs_type: str = field(default="actions", metadata=limits(choices=INPUT_KINDS))
    """Kind of the person's inputs, likewise."""
    default: Any = 0
    """The value for no key, likewise."""
    several_keys: bool = False
    """Whether inputs are lists, likewise."""


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    """What serves one experiment."""

    environment: EnvironmentEntry | None = None
    """null = that of the first checkpoint among the agents."""
    learner: tuple[str, ...] | None = None
    """A training run that serves this experiment with its own environment: what would be typed after
    `python -m harl.train`."""
    agents: dict[str, AgentEntry] = field(default_factory=dict)
    target_fps: float = field(default=24.0, metadata=limits(above=0, at_most=1000))
    """Frames a second, where the site cannot tell its settings."""
    wait_for_inputs: bool = False
    """Likewise: whether every frame waits for a key."""
    timeout_s: float | None = field(default=None, metadata=_SECONDS)
    """See `harl.hitl.sharpie_site.people.Waits`; null = as for all experiments."""
    thinking_s: float | None = field(default=None, metadata=_SECONDS)
    join_s: float | None = field(default=None, metadata=_SECONDS)
    gone_s: float | None = field(default=None, metadata=_SECONDS)
    absent: str | None = field(default=None, metadata=limits(choices=ABSENT))

    def waits(self, common: Waits) -> Waits:
        """How long people of this experiment are waited for."""
        own = {name: getattr(self, name) for name in ("timeout_s", "thinking_s", "join_s", "gone_s", "absent")}
        return dataclasses.replace(common, **{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class SiteMapping:
    """A whole mapping file."""

    experiments: dict[str, ExperimentEntry] = field(default_factory=dict)
    import_from: tuple[str, ...] | None = None
    """Folders, seen from the file's own, from which modules may be imported beside the installed ones."""


_TABLES: dict[Any, type] = {dict[str, ExperimentEntry]: ExperimentEntry, dict[str, AgentEntry]: AgentEntry}


def read_mapping(path: str | Path) -> SiteMapping:
    """The mapping of a file, its folders made absolute.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    file = Path(path).expanduser()
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"the mapping {file} cannot be read: {error}"]) from None
    return parse_mapping(data, str(file), file.resolve().parent)


def parse_mapping(data: Any, name: str, folder: Path) -> SiteMapping:
    """A mapping from plain data; `name` is for messages, folders are seen from `folder`; raises like `read_mapping`."""
    reader = _Reader()
    mapping = reader.section(SiteMapping, data, "")
    if mapping is not None:
        for link, entry in mapping.experiments.items():
            reader.errors += _contradictions(f"experiments.{link}", entry)
    if mapping is None or reader.errors:
        raise ConfigError([f"{name}: {error}" for error in reader.errors])
    folders = tuple(str((folder / Path(item).expanduser()).resolve()) for item in mapping.import_from or ())
    return dataclasses.replace(mapping, import_from=folders)


def _contradictions(where: str, entry: ExperimentEntry) -> list[str]:
    problems = []
    sources = ("name", "run", "entry_point")
    if entry.environment is not None:
        given = [source for source in sources if getattr(entry.environment, source) is not None]
        if len(given) != 1:
            problems.append(f"{where}.environment must have one of {', '.join(sources)}; it has {given or 'none'}")
    if entry.learner is not None and entry.environment is not None:
        problems.append(f"{where} has a learner and an environment; a learner brings its own")
    for role, agent in entry.agents.items():
        if agent.checkpoint is not None and agent.object is not None:
            problems.append(f"{where}.agents.{role} has a checkpoint and an object; it can be one of them")
        if agent.interval == -1:
            problems.append(f"{where}.agents.{role}.interval=-1: allowed are n, -2 (at the end), 0 (never)")
    return problems


class _Reader:
    """Builds the dataclasses of this module and gathers what is wrong."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def section(self, schema: type[T], data: Any, where: str) -> T | None:
        """An instance of the schema, or None after an error; keys that are left out keep their defaults."""
        data = {} if data is None else data
        if not isinstance(data, Mapping):
            self.errors.append(f"{where or 'the file'} must hold keys and values; it is {data!r}")
            return None
        before, prefix = len(self.errors), f"{where}." if where else ""
        hints = get_type_hints(schema)
        fields = {item.name: item for item in dataclasses.fields(schema)}  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key not in fields:
                known = did_you_mean(nearest(str(key), fields)) or f"; known: {', '.join(fields)}"
                self.errors.append(f"{prefix}{key} is unknown{known}")
                continue
            values[key] = self._value(hints[key], value, fields[key].metadata.get("limits", NO_LIMITS), prefix + key)
        return schema(**values) if len(self.errors) == before else None

    def _value(self, hint: Any, value: Any, bounds: Any, where: str) -> Any:
        if hint is Any:
            return value
        if hint in _TABLES:
            return self._table(_TABLES[hint], value, where)
        if hint == EnvironmentEntry | None:
            return None if value is None else self.section(EnvironmentEntry, value, where)
        try:
            return convert(value, hint, bounds)
        except RefusedError as refused:
            self.errors.append(f"{where}={value!r}: {refused}")
            return None

    def _table(self, schema: type[T], value: Any, where: str) -> dict[str, T | None]:
        if not isinstance(value, Mapping):
            self.errors.append(f"{where} must hold names and their entries; it is {value!r}")
            return {}
        return {str(name): self.section(schema, entry, f"{where}.{name}") for name, entry in value.items()}
