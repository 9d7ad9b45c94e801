"""From plain nested dicts (a composed or a saved configuration) to typed objects and back."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harl.config import checks
from harl.config.algo_schema import ALGO_SCHEMAS, AlgoArgs, EvalConfig
from harl.config.env_schema import ENV_SCHEMAS
from harl.config.fields import NO_LIMITS, ConfigError, RefusedError, convert, describe
from harl.config.hitl_schema import HITL_SCHEMAS, HitlConfig
from harl.config.names import did_you_mean, nearest, nearest_key
from harl.config.run_schema import RenderConfig, RunArgs
from harl.config.schema import Config, all_leaves, config_leaves, render_leaves

T = TypeVar("T")
S = TypeVar("S")

_ALGO_SECTIONS = ("train", "model", "algo", "eval")


def to_config(composed: DictConfig) -> Config:
    """The typed configuration of a composed one.

    Raises:
        ConfigError: with every unknown or missing key, every value of a wrong type or out of range, and every
            combination that makes no sense.
    """
    return from_dict(_resolved(composed))


def to_render_config(composed: DictConfig) -> RenderConfig:
    """The typed configuration of `harl.render`; raises like `to_config`."""
    data = _resolved(composed)
    hitl_name = _chosen_name(data, "hitl")
    reader = _Reader(render_leaves(hitl_name) if hitl_name in HITL_SCHEMAS else all_leaves())
    reader.refuse_unknown(data, ("run", "render", "hitl"), "")
    config = reader.section(RenderConfig, data, "")
    if config is None or reader.errors:
        raise ConfigError(reader.errors)
    return config


def from_dict(data: Mapping[str, Any]) -> Config:
    """The typed configuration of a plain dict as `to_dict` gives it; raises like `to_config`."""
    algo_name, env_name, hitl_name = (_chosen_name(data, section) for section in ("algo", "env", "hitl"))
    known = algo_name in ALGO_SCHEMAS and env_name in ENV_SCHEMAS and hitl_name in HITL_SCHEMAS
    reader = _Reader(config_leaves(algo_name, env_name, hitl_name) if known else all_leaves())
    run_keys = [field.name for field in dataclasses.fields(RunArgs)]
    reader.refuse_unknown(data, [*run_keys, *_ALGO_SECTIONS, "env"], "")
    run = reader.section(RunArgs, {key: data[key] for key in run_keys if key in data}, "")

    schema = reader.chosen("algo", algo_name, ALGO_SCHEMAS)
    train = reader.section(schema.train, data.get("train"), "train") if schema else None
    model = reader.section(schema.model, data.get("model"), "model") if schema else None
    algo = reader.section(schema.algo, data.get("algo"), "algo") if schema else None
    evaluation = reader.section(EvalConfig, data.get("eval"), "eval")

    env_schema = reader.chosen("env", env_name, ENV_SCHEMAS)
    env = reader.section(env_schema, data.get("env"), "env") if env_schema else None

    reader.errors += checks.cross_check(run, train, model, algo, evaluation, env)
    if run and train and model and algo and evaluation and env and not reader.errors:
        algo_args = AlgoArgs(train=train, model=model, algo=algo, eval=evaluation)
        return Config(run=run, algo=algo_args, env=env)
    raise ConfigError(reader.errors)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dict with the sections that users type: seed, …, device, …, train, model, algo, eval, env."""
    sections = {name: getattr(config.algo, name) for name in _ALGO_SECTIONS}
    return {**_plain(config.run), **_plain(sections), "env": _plain(config.env)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dict with dotted keys; a section without any keys stands there as an empty dict."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.") or {f"{prefix}{key}": {}}
        else:
            found[f"{prefix}{key}"] = value
    return found


def save_yaml(path: Path, config: Config) -> None:
    """Write the configuration so that plain YAML readers and Hydra's own read the same values."""
    text = yaml.dump(to_dict(config), Dumper=_PortableDumper, sort_keys=False, allow_unicode=True, width=120)
    Path(path).write_text(text, encoding="utf-8")


def load_yaml(path: Path) -> Config:
    """The configuration that `save_yaml` wrote; raises `ConfigError` where the file is none."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"{path} cannot be read as a configuration: {error}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{path} is no configuration: it has no sections"])
    try:
        return from_dict(data)
    except ConfigError as error:
        raise ConfigError([f"{path}: {message}" for message in error.errors]) from None


class _Reader:
    """Builds sections and gathers what is wrong with them."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = set(known)
        """Dotted names that an unknown key is compared with."""
        self.errors: list[str] = []

    def section(self, schema: type[T], data: Any, name: str) -> T | None:
        """An instance of the schema, or None after an error; `name` is the dotted name, empty at the top."""
        if not isinstance(data, Mapping):
            found = " is missing" if data is None else f"={show(data)}"
            self.errors.append(f"{name}{found}: must be a section of keys and values")
            return None
        before = len(self.errors)
        prefix = f"{name}." if name else ""
        hints = get_type_hints(schema)
        values: dict[str, Any] = {}
        fields = dataclasses.fields(schema)  # type: ignore[arg-type]
        for field in fields:
            key, hint, bounds = prefix + field.name, hints[field.name], field.metadata.get("limits", NO_LIMITS)
            if field.name not in data and "before" in field.metadata:
                values[field.name] = field.metadata["before"]
            elif field.name not in data:
                self.errors.append(f"{key} is missing: {describe(hint, bounds)}")
            elif hint is HitlConfig:
                chosen = self.chosen(key, _chosen_name(data, field.name), HITL_SCHEMAS)
                values[field.name] = self.section(chosen, data[field.name], key) if chosen else None
            elif dataclasses.is_dataclass(hint):
                values[field.name] = self.section(cast(type, hint), data[field.name], key)
            else:
                try:
                    values[field.name] = convert(data[field.name], hint, bounds)
                except RefusedError as refused:
                    self.errors.append(f"{key}={show(data[field.name])}: {refused}")
        if name:
            reasons = getattr(schema, "refused", {})
            self.refuse_unknown(data, [field.name for field in fields], prefix, reasons)
        return schema(**values) if len(self.errors) == before else None

    def refuse_unknown(
        self, data: Mapping[str, Any], names: Sequence[str], prefix: str, reasons: Mapping[str, str] | None = None
    ) -> None:
        """One error for each key of `data` that is not in `names`."""
        for name in data:
            key = f"{prefix}{name}"
            if name in names:
                continue
            if reasons and name in reasons:
                self.errors.append(f"{key} is not taken: {reasons[name]}")
            else:
                close = nearest_key(key, {*self.known, *(prefix + known for known in names)})
                self.errors.append(f"{key} is unknown{did_you_mean(close) or '; known: ' + ', '.join(names)}")

    def chosen(self, section: str, name: str, schemas: Mapping[str, S]) -> S | None:
        """The schema that a section's name chooses, or None after an error."""
        if name not in schemas:
            close = did_you_mean(f"{section}={match}" for match in nearest(name, schemas))
            self.errors.append(f"{section}.name={show(name)}: must be one of {', '.join(schemas)}{close}")
        return schemas.get(name)


def _chosen_name(data: Mapping[str, Any], section: str) -> str:
    """What stands in a section as its name, which chooses the schema; empty where there is none."""
    content = data.get(section)
    return str(content.get("name", "")) if isinstance(content, Mapping) else ""


def show(value: Any) -> str:
    """A value as it would be typed, cut where it is long."""
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _resolved(composed: DictConfig) -> dict[str, Any]:
    """The composed configuration as a plain dict, without Hydra's own part."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    try:
        return cast(dict[str, Any], OmegaConf.to_container(own, resolve=True))
    except OmegaConfBaseException as error:
        raise ConfigError([str(error).splitlines()[0] + f" (at {error.full_key})"]) from None


def _plain(value: Any) -> Any:
    """Dataclasses as dicts and tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return copy.deepcopy(value)


class _PortableDumper(yaml.SafeDumper):
    """Quotes every text that some YAML reader might take for a number or a boolean; lists on one line."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", text) is not None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_PortableDumper.add_representer(str, _represent_text)
_PortableDumper.add_representer(list, _represent_list)
