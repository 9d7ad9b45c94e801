"""Who may come in, and as what: a token for each role, given or drawn."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harl.config.names import did_you_mean, nearest
from harl.hitl.network.wire import MAX_TEXT
from harl.hitl.people import ROLES, Role

VARIABLE = "HARL_TOKEN_"
"""Environment variables that hold tokens begin so."""
SHORTEST = 16
_RANDOM_BYTES = 32


@dataclass(frozen=True)
class Grant:
    """What a token allows."""

    role: Role
    """The highest role of whoever has it."""
    token: str = field(repr=False)
    agents: tuple[str, ...] | None = None
    """Agents that may be driven; None for all."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a run."""

    grants: tuple[Grant, ...]

    def grant(self, token: str) -> Grant | None:
        """What a token allows, None for a wrong one; takes equally long whichever it is."""
        sent, found = token.encode("utf-8", "surrogatepass"), None
        for grant in self.grants:
            if secrets.compare_digest(sent, grant.token.encode()):
                found = grant
        return found


def gather(
    file: str | None, environ: Mapping[str, str], draw: bool, agents: Sequence[str] | None
) -> tuple[Tokens, list[str]]:
    """The tokens of a run, and what is wrong with them.

    Args:
        file: YAML file, role → token, or role → {token, agents}.
        environ: environment variables; HARL_TOKEN_<ROLE> goes before the file.
        draw: whether roles for which none is given get a random one; otherwise nobody can have them.
        agents: names that a file may use; None where they are not known.
    """
    errors: list[str] = []
    given = _from_file(file, agents, errors) if file is not None else {}
    for name in sorted(environ):
        if not name.startswith(VARIABLE):
            continue
        by_variable = {f"{VARIABLE}{role.upper()}": role for role in ROLES}
        if name not in by_variable:
            allowed = ", ".join(by_variable)
            errors.append(f"{name}: names no role; allowed: {allowed}{did_you_mean(nearest(name, by_variable))}")
        else:
            role = by_variable[name]
            earlier = given.get(role)
            given[role] = Grant(role, environ[name], None if earlier is None else earlier.agents)
            errors += _faults(name, environ[name])
    if draw:
        for role in ROLES:
            given.setdefault(role, Grant(role, secrets.token_urlsafe(_RANDOM_BYTES)))
    seen: dict[str, Role] = {}
    for role, grant in given.items():
        if grant.token in seen:
            errors.append(f"{role} and {seen[grant.token]} have the same token; each role needs its own")
        seen[grant.token] = role
    return Tokens(tuple(given[role] for role in ROLES if role in given)), errors


def _from_file(file: str, agents: Sequence[str] | None, errors: list[str]) -> dict[Role, Grant]:
    where = f"hitl.token_file={file}"
    try:
        data = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        errors.append(f"{where}: cannot be read: {error.strerror}")
        return {}
    except (UnicodeDecodeError, yaml.YAMLError):
        # What the reader says would quote the file, which holds secrets.
        errors.append(f"{where}: is not a YAML file")
        return {}
    if not isinstance(data, dict) or not data:
        errors.append(f"{where}: has to map roles ({', '.join(ROLES)}) to tokens")
        return {}
    given: dict[Role, Grant] = {}
    for key, value in data.items():
        role = next((role for role in ROLES if role == key), None)
        if role is None:
            meant = did_you_mean(nearest(str(key), ROLES))
            errors.append(f"{where}: {str(key)[:40]!r} is no role; allowed: {', '.join(ROLES)}{meant}")
            continue
        token, only = (value.get("token"), value.get("agents")) if isinstance(value, dict) else (value, None)
        errors += [*_faults(f"{where}: {role}", token), *_agent_faults(f"{where}: {role}", only, agents)]
        if isinstance(token, str) and (only is None or isinstance(only, list)):
            given[role] = Grant(role, token, None if only is None else tuple(map(str, only)))
    return given


def _faults(where: str, token: Any) -> list[str]:
    """What is wrong with a token, which is never shown."""
    if not isinstance(token, str):
        return [f"{where}: a token is text of at least {SHORTEST} characters; put quotes around digits"]
    if not SHORTEST <= len(token) <= MAX_TEXT:
        return [f"{where}: the token has {len(token)} characters; allowed are {SHORTEST} to {MAX_TEXT}"]
    if not token.isascii() or not token.isprintable() or " " in token:
        return [f"{where}: a token is made of ASCII characters without spaces, since it is part of a link"]
    return []


def _agent_faults(where: str, only: Any, agents: Sequence[str] | None) -> list[str]:
    if only is None:
        return []
    if not isinstance(only, list) or not only:
        return [f"{where}: agents has to be a list of names of agents"]
    if agents is None:
        return []
    return [
        f"{where}: there is no agent {str(name)[:40]!r}; allowed: {', '.join(agents)}"
        f"{did_you_mean(nearest(str(name), agents))}"
        for name in only
        if name not in agents
    ]
