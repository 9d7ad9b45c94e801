"""Checks of everything that was typed, all at once, before Hydra composes anything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from hydra.core.override_parser.types import Override, OverrideType, ValueType

from harl.config.algo_schema import ALGO_SCHEMAS
from harl.config.env_schema import ENV_SCHEMAS
from harl.config.fields import ConfigError
from harl.config.hitl_schema import HITL_SCHEMAS, LEARNING_KEYS
from harl.config.names import did_you_mean, nearest_key
from harl.config.overrides import is_group, open_tree, parse, typed_value, unknown_choice
from harl.config.schema import Leaf, all_leaves, config_leaves, leaves, refusals, render_leaves
from harl.config.tree import ConfigTree

_OF_THE_ORIGINAL = {
    "seed.seed": "seed",
    "device.cuda": "device.name (auto, cpu, cuda, cuda:<index>)",
    "device.cuda_deterministic": "device.deterministic",
    "train.eval_interval": "eval.interval (environment steps)",
    "train.use_proper_time_limits": "algo.time_limit (bootstrap, mask, ignore)",
    "train.model_dir": "init_from",
    "logger.log_dir": "output_dir",
    "render.use_render": "python -m harl.render run=<run folder>",
    "render.render_episodes": "python -m harl.render run=<run folder> render.episodes=<number>",
}
"""Keys of the original implementation that have another name here and are too far from it to be found as a typo."""

_HYDRA_FREE = ("hydra.job.env_set", "hydra.job_logging", "hydra.hydra_logging", "hydra.sweeper.params")
"""Sections of Hydra's own configuration that take any key."""


@dataclass(frozen=True)
class Findings:
    """What is wrong with the typed overrides, and those that are sound."""

    errors: list[str]
    sound: list[str]


def check_overrides(
    overrides: Sequence[str],
    *,
    multirun: bool = False,
    config_name: str = "config",
    extra_config_dirs: Sequence[str | Path] = (),
) -> list[str]:
    """One message for everything that is wrong with typed overrides: unreadable, unknown key, unknown choice.

    Values are not looked at (see `to_config`). With `multirun` lists of values are allowed.
    """
    return inspect(overrides, multirun, config_name, extra_config_dirs).errors


def inspect(
    overrides: Sequence[str], multirun: bool, config_name: str, extra_config_dirs: Sequence[str | Path]
) -> Findings:
    """Check the overrides and tell the sound ones from the others."""
    try:
        tree = open_tree(overrides, config_name, extra_config_dirs)
    except ConfigError as error:
        return Findings(error.errors, [])
    errors: dict[str, list[str]] = {}
    parsed: dict[str, Override] = {}
    for text in overrides:
        try:
            parsed[text] = parse(text)
        except ConfigError as error:
            errors[text] = [message + _choice_hint(text, tree) for message in error.errors]
    groups = tree.groups()
    for text, override in parsed.items():
        errors[text] = list(_check_form(text, override, multirun, tree))
    well_formed = {text: override for text, override in parsed.items() if not errors[text]}
    choices = [text for text, override in well_formed.items() if is_group(override.key_or_group, groups)]
    general: list[str] = []
    for combination in itertools.product(*(_options(well_formed[text]) for text in choices)):
        try:
            keys = _Keys(tree, combination)
        except ConfigError as error:
            general += error.errors
            continue
        for text, override in well_formed.items():
            if text not in choices and "/" not in override.key_or_group:
                errors[text] += keys.check(override.key_or_group, override)
    found = [message for text in overrides for message in errors[text]] + general
    return Findings(list(dict.fromkeys(found)), [text for text in overrides if not errors[text]])


class _Keys:
    """The keys that exist for one combination of choices."""

    def __init__(self, tree: ConfigTree, choices: Sequence[str]) -> None:
        composed = tree.chosen(choices)
        self.groups = tree.groups()
        self.known, self.refused = _schema_keys(tree.config_name, composed)
        self.sections = {".".join(parts[:i]) for parts in map(_parts, self.known) for i in range(1, len(parts))}
        self.idle = {f"hitl.{name}" for name in LEARNING_KEYS} if tree.config_name == "render" else set()
        """Keys that exist and can mean nothing; those that come with a choice are passed over, a typed one is not."""
        self.hydra = composed["hydra"]

    def check(self, key: str, override: Override) -> Iterator[str]:
        """What is wrong with setting this key."""
        if key == "hydra" or key.startswith("hydra."):
            yield from self._check_hydra(key)
        elif key.endswith(".name") and key.split(".")[0] in self.groups:
            group = key.split(".")[0]
            yield f"{override.input_line}: choose it by {group}=<name>, so that its settings come with it"
        elif key in self.sections:
            yield from self._check_section(key, override)
        elif key in self.idle:
            yield self._idle(key, override)
        elif key in self.known:
            if override.type is OverrideType.ADD:
                yield f"{override.input_line}: {key} is there already; leave out the +"
            elif override.type is OverrideType.DEL:
                yield f"{override.input_line}: {key} cannot be taken away, every key needs a value"
        elif not self._within_value(key):
            yield self._unknown(key)

    def _check_section(self, key: str, override: Override) -> Iterator[str]:
        value = override.value() if override.value_type is ValueType.ELEMENT else None
        if override.type is OverrideType.DEL or not isinstance(value, dict):
            inside = [name for name in self.known if name.startswith(f"{key}.")]
            yield f"{override.input_line}: {key} is a section; set its keys: {', '.join(inside)}"
            return
        yield from (self._idle(name, override) for name in _dotted(value, f"{key}.") if name in self.idle)
        for name, item in value.items():
            if f"{key}.{name}" not in self.known and not isinstance(item, dict):
                yield self._unknown(f"{key}.{name}")

    def _within_value(self, key: str) -> bool:
        """Whether the key reaches into a list (`model.hidden_sizes.0`) or a free-form section."""
        parent, _, last = key.rpartition(".")
        if parent in self.known and get_origin(self.known[parent].hint) is tuple:
            return last.isdigit()
        return any(get_origin(leaf.hint) is dict and key.startswith(f"{name}.") for name, leaf in self.known.items())

    def _idle(self, key: str, override: Override) -> str:
        return (
            f"{override.input_line}: harl.render records what people do and never learns from it, so {key} means "
            "nothing here; leave it out"
        )

    def _unknown(self, key: str) -> str:
        if key in self.refused:
            return f"{key} is not taken: {self.refused[key]}"
        if key in _OF_THE_ORIGINAL:
            return f"{key} is unknown; here it is {_OF_THE_ORIGINAL[key]}"
        if modes := _modes_with(key):
            return f"{key} needs {' or '.join(f'hitl={mode}' for mode in modes)}"
        suggestion = did_you_mean(nearest_key(key, self.known))
        return f"{key} is unknown{suggestion or '; python -m harl.train --cfg job lists all keys'}"

    def _check_hydra(self, key: str) -> Iterator[str]:
        known = set(_dotted(self.hydra, "hydra."))
        if key not in known and not key.startswith(tuple(f"{name}." for name in _HYDRA_FREE)):
            yield f"{key} is unknown{did_you_mean(nearest_key(key, known))}"


def _check_form(text: str, override: Override, multirun: bool, tree: ConfigTree) -> Iterator[str]:
    """What is wrong with an override by itself: no key, a list without a sweep, a choice that does not exist."""
    key = override.key_or_group
    groups = tree.groups()
    if not key:
        yield f"{text} has no key in front of the ="
    elif override.is_sweep_override() and not multirun:
        yield (
            f"{text} is a list of values for a sweep: add -m to try each of them, or write a list as "
            f"{key}=[{typed_value(text)}] and a text with a comma as '{key}=\"{typed_value(text)}\"'"
        )
    elif is_group(key, groups):
        if not key.startswith("hydra/"):
            yield from _check_choice(override, tree)
    elif "/" in key and not _is_nested_group(key, tree):
        group, _, rest = key.partition("/")
        named = group in groups and rest in tree.choices(group)
        suggestion = [f"{group}={rest}"] if named else nearest_key(key.replace("/", "."), all_leaves())
        yield f"{text}: {key} is no group{did_you_mean(suggestion)}"


def _check_choice(override: Override, tree: ConfigTree) -> Iterator[str]:
    group, choices = override.key_or_group, tree.choices(override.key_or_group)
    optional = tree.default_choices().get(group) is None
    if override.is_delete():
        if not optional:
            yield f"{override.input_line}: {group} cannot be left out; choose one of {', '.join(choices)}"
        return
    for name in _choice_names(override):
        if name is None:
            if not optional:
                yield f"{group}=null: {group} cannot be left out; choose one of {', '.join(choices)}"
        elif name not in choices:
            yield unknown_choice(group, str(name), choices)


def _choice_names(override: Override) -> list[Any]:
    """Every name that a choice, a list of choices or a sweep over choices mentions."""
    if override.is_sweep_override() and override.is_discrete_sweep():
        return [text.strip("'\"") for text in override.sweep_string_iterator()]
    value = override.value()
    return list(value) if isinstance(value, list) else [value]


def _options(override: Override) -> list[str]:
    """The override once for each of its values."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _choice_hint(text: str, tree: ConfigTree) -> str:
    """For something without `=`: the choice that it probably names, as `algo=happo`."""
    if "=" in text:
        return ""
    word = text.strip("-/").replace(" ", "/").rpartition("/")[2]
    return did_you_mean(f"{group}={word}" for group in tree.groups() if word in tree.choices(group))


def _is_nested_group(key: str, tree: ConfigTree) -> bool:
    return any((root / key).is_dir() for root in tree.roots)


def _schema_keys(config_name: str, composed: Mapping[str, Any]) -> tuple[dict[str, Leaf], dict[str, str]]:
    """Keys of the schemas that the composed configuration chooses, and the refused ones with their reasons."""
    hitl = composed["hitl"]["name"]
    if hitl not in HITL_SCHEMAS:
        return all_leaves(), {}
    refused = refusals(HITL_SCHEMAS[hitl], "hitl.")
    if config_name == "render":
        return render_leaves(hitl), refused
    algo, env = composed["algo"]["name"], composed["env"]["name"]
    if algo not in ALGO_SCHEMAS or env not in ENV_SCHEMAS:
        return all_leaves(), {}
    sections = {"model": ALGO_SCHEMAS[algo].model, "algo": ALGO_SCHEMAS[algo].algo, "env": ENV_SCHEMAS[env]}
    for name, section in sections.items():
        refused |= refusals(section, f"{name}.")
    return config_leaves(algo, env, hitl), refused


def _modes_with(key: str) -> list[str]:
    """Modes of people that have a key, or a section of this name, below `hitl`."""
    return [
        mode
        for mode, schema in HITL_SCHEMAS.items()
        if any(name == key or name.startswith(f"{key}.") for name in leaves(schema, "hitl."))
    ]


def _parts(key: str) -> list[str]:
    return key.split(".")


def _dotted(data: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Dotted names of all keys, sections included."""
    for name, value in data.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
