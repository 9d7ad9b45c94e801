"""What is typed on the command line: reading, rewriting and checking it before anything is composed.

Values pass through two layers of quotes, the shell's and Hydra's. Most need none: `exp_name=a|b` only needs the
shell's (`'exp_name=a|b'`). Hydra's are needed for a text with `= , # ; ! & < > ( ) ' "`, a letter outside ASCII, or
spaces at an end; the shell's then go around the whole argument:

    'exp_name="a=b"'      'exp_name="a,b"'      'exp_name="a#b"'      'exp_name="it'"'"'s"'

Lists have no quotes of Hydra's: `'model.hidden_sizes=[64, 64]'`. Keys whose values are texts take what was typed
even where Hydra would read a number: `exp_name=1e5` is the text 1e5.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType, Quote, QuotedString, ValueType
from hydra.errors import HydraException

from harl.config.fields import ConfigError, split_optional
from harl.config.names import did_you_mean, nearest
from harl.config.schema import all_leaves
from harl.config.tree import ConfigTree

_SEARCH_PATH = re.compile(r"\+*hydra\.searchpath=")


def open_tree(overrides: Sequence[str], config_name: str, extra_config_dirs: Sequence[str | Path]) -> ConfigTree:
    """The tree of the given folders and of those that a typed `hydra.searchpath=[…]` adds."""
    typed = [parse(text).value() for text in overrides if _SEARCH_PATH.match(text)]
    added = [str(entry) for value in typed if isinstance(value, list) for entry in value]
    return ConfigTree.open(config_name, [*extra_config_dirs, *added])


def parse(text: str) -> Override:
    """One override as Hydra reads it.

    Raises:
        ConfigError: with the place that cannot be read and what to write instead.
    """
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError([_explain(text, error)]) from None


def typed_value(text: str) -> str:
    """The part after the first `=`, as typed."""
    return text.partition("=")[2]


def normalise_overrides(
    overrides: Sequence[str], config_name: str = "config", extra_config_dirs: Sequence[str | Path] = ()
) -> list[str]:
    """Rewrite what means the same to a person but not to Hydra; what cannot be read stays as it is.

    - A text that looks like a number, a boolean or null is put in quotes where the key holds a text.
    - Keyword arguments of an environment may be new: `env.kwargs.size=5` becomes `++env.kwargs.size=5`.
    - `+experiment=x` becomes `experiment=x`, since the group is always there.
    - `algo=glob(*)` becomes the list of choices.
    """
    tree = open_tree(overrides, config_name, extra_config_dirs)
    return [_normalise(text, tree) for text in overrides]


def expand_sweep(
    overrides: Sequence[str], config_name: str = "config", extra_config_dirs: Sequence[str | Path] = ()
) -> list[list[str]]:
    """The overrides of each job of a sweep (`-m`), in the order in which Hydra's own sweeper runs them.

    Raises:
        ConfigError: where an override cannot be read, or is no list of values (as `interval(0,1)`).
    """
    errors: list[str] = []
    parsed: list[Override] = []
    for text in normalise_overrides(overrides, config_name, extra_config_dirs):
        try:
            parsed.append(parse(text))
        except ConfigError as error:
            errors += error.errors
    ours = [override for override in parsed if not override.is_hydra_override()]
    errors += [
        f"{override.input_line}: an interval has no list of values; write them out, or use range(start,stop,step)"
        for override in ours
        if override.is_sweep_override() and not override.is_discrete_sweep()
    ]
    if errors:
        raise ConfigError(errors)
    jobs: list[list[str]] = BasicSweeper.split_arguments(ours, None)[0]
    return jobs


def is_group(key: str, groups: Iterable[str]) -> bool:
    """Whether an override of this key makes a choice (`algo=…`, `hydra/launcher=…`) rather than set a value."""
    return key in groups or key.startswith("hydra/")


def _normalise(text: str, tree: ConfigTree) -> str:
    try:
        override = parse(text)
    except ConfigError:
        return text
    key, value = override.key_or_group, typed_value(text)
    if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
        matching = cast(Glob, override._value).filter(tree.choices(key)) if key in tree.groups() else []
        return f"{override.get_key_element()}=choice({','.join(matching)})" if matching else text
    if override.type is OverrideType.ADD and key in tree.default_choices():
        return text[1:]
    leaves = all_leaves()
    if key in leaves and split_optional(leaves[key].hint)[0] is str:
        nullable = split_optional(leaves[key].hint)[1]
        return f"{override.get_key_element()}={_as_text(value, override, nullable)}"
    free = [name for name, leaf in leaves.items() if getattr(leaf.hint, "__origin__", None) is dict]
    if override.type is OverrideType.CHANGE and any(key.startswith(f"{name}.") for name in free):
        return f"++{text}"
    return text


def _as_text(value: str, override: Override, nullable: bool) -> str:
    """The typed value with quotes around every part that Hydra would not read as a text."""
    if override.value_type is ValueType.ELEMENT or override.value_type is None:
        return _quoted(value, override.value(), nullable)
    sweep = override._value
    if not (isinstance(sweep, ChoiceSweep) and sweep.simple_form):
        return value
    parts = _split_list(value)
    if len(parts) != len(sweep.list):
        return value
    return ",".join(
        _quoted(part, read.text if isinstance(read, QuotedString) else read, nullable)
        for part, read in zip(parts, sweep.list, strict=True)
    )


def _quoted(typed: str, read: object, nullable: bool) -> str:
    if isinstance(read, bool | int | float) or (read is None and not nullable and typed):
        return QuotedString(typed.strip(), Quote.single).with_quotes()
    return typed


def _split_list(text: str) -> list[str]:
    """Parts of `a,"b,c",d` between the commas outside of quotes."""
    return [part for part in re.findall(r"""((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,])+)""", text) if part]


def _explain(text: str, error: HydraException) -> str:
    """Where an override cannot be read, and what to write instead."""
    key, equals, value = text.partition("=")
    if text.startswith("-"):
        return f"{text}: keys have no dashes in front: write {text.lstrip('-') if equals else 'key=value'}"
    if not equals:
        return f"{text} is not of the form key=value"
    if key != key.strip() or not re.fullmatch(r"(\+\+?|~)?[\w.@:/$-]+", key):
        return f"{text}: {key!r} is no key; write key=value without spaces around ="
    position = _position(text, error)
    marked = f"{text} cannot be read from here on:\n  {text}\n  {' ' * position}^\n"
    if value[:1] in ("'", '"'):
        return f"{marked}the quote is not closed, or something follows it"
    if value[:1] in ("[", "{"):
        return f"{marked}a bracket is not closed, or an element of the list needs quotes"
    if value.startswith("="):
        return f"{marked}one = is enough: {key}={value.lstrip('=')}"
    in_quotes = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
    return f"{marked}for a text with such characters, type it in two layers of quotes: {shlex.quote(in_quotes)}"


def _position(text: str, error: HydraException) -> int:
    """Column of the first character that Hydra did not understand."""
    cause = error.__cause__
    start = getattr(cause, "startIndex", None)
    if start is None:
        start = getattr(getattr(cause, "offendingToken", None), "column", None)
    if start is None:
        token = re.search(r"'([^']+)'", str(error))
        start = text.find(token.group(1), text.index("=") + 1) if token else -1
    return int(start) if start >= 0 else len(text)


def unknown_choice(group: str, name: str, choices: Sequence[str]) -> str:
    """The error for a choice that a group does not have."""
    close = did_you_mean(f"{group}={match}" for match in nearest(name, choices))
    return f"{group}={name}: there is no such choice{close}\navailable: {', '.join(choices)}"
