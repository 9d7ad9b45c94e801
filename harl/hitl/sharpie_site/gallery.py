"""The configuration of an experiment of the SHARPIE Gallery as a mapping for this runner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harl.config.fields import ConfigError


def import_gallery(path: str | Path) -> str:
    """The text of a mapping file that serves what a Gallery `config.yaml` describes, with the files beside it.

    Put it where the `config.yaml` lies: modules are imported from that folder.

    Raises:
        ConfigError: the file is no such configuration; all that is missing.
    """
    file = Path(path).expanduser()
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"{file} cannot be read: {error}"]) from None
    problems: list[str] = []
    environment = _get(data, "environment", Mapping, problems, "")
    experiment = _get(data, "experiment", Mapping, problems, "")
    agents = _get(data, "agents", list, problems, "")
    link = _get(experiment, "link", str, problems, "experiment.") if experiment is not None else None
    source = _module(environment, "environment", problems)
    policies = {}
    for section in _policies(data):
        policies[section.get("name")] = _module(section, "policy", problems)
    entries = _agents(agents or [], policies, problems)
    if problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    entry: dict[str, Any] = {"environment": {"entry_point": f"{source}:environment"}}
    if environment.get("metadata"):
        entry["environment"]["kwargs"] = environment["metadata"]
    entry["agents"] = entries
    entry |= {key: experiment[key] for key in ("target_fps", "wait_for_inputs") if key in experiment}
    text = yaml.safe_dump({"import_from": ["."], "experiments": {link: entry}}, sort_keys=False, allow_unicode=True)
    return f"# Made from {file.name} of the SHARPIE Gallery. Keep it in that folder: its modules are imported.\n{text}"


def _policies(data: Any) -> list[Mapping[str, Any]]:
    found = [data.get("policy"), *(data.get("policies") or [])] if isinstance(data, Mapping) else []
    return [section for section in found if isinstance(section, Mapping)]


def _agents(agents: list[Any], policies: Mapping[Any, str | None], problems: list[str]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for i, agent in enumerate(agents):
        role = _get(agent, "role", str, problems, f"agents[{i}].")
        if role is None:
            continue
        entry: dict[str, Any] = {}
        name = agent.get("policy")
        if name is not None and name not in policies:
            known = ", ".join(str(known) for known in policies) or "none"
            problems.append(f"agents[{i}].policy={name!r} is none of the policies: {known}")
        elif name is not None:
            entry["object"] = f"{policies[name]}:policy"
        entry["participant"] = bool(agent.get("participant", False))
        entry["inputs_type"] = agent.get("inputs_type", "actions")
        entry["default"] = (agent.get("keyboard_inputs") or {}).get("default", 0)
        if agent.get("multiple_keyboard_inputs"):
            entry["several_keys"] = True
        entries[role] = entry
    return entries


def _module(section: Any, name: str, problems: list[str]) -> str | None:
    """Name of the module that the file `filepaths.<name>` of a section is."""
    if section is None:
        return None
    paths = _get(section, "filepaths", Mapping, problems, f"{name}.")
    path = None if paths is None else _get(paths, name, str, problems, f"{name}.filepaths.")
    if path is None:
        return None
    stem = Path(path.replace("\\", "/")).name.removesuffix(".py")
    if not stem.isidentifier():
        problems.append(f"{name}.filepaths.{name}={path!r} is no Python file that can be imported")
    return stem


def _get(section: Any, key: str, kind: Any, problems: list[str], where: str) -> Any:
    value = section.get(key) if isinstance(section, Mapping) else None
    if isinstance(value, kind):
        return value
    problems.append(f"{where}{key} is missing or of another kind")
    return None
