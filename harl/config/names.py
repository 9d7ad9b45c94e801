"""Names: the nearest right one for a mistyped one, and text made fit for a folder's name."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable

_LONGEST = 80
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def nearest(word: str, options: Iterable[str], count: int = 1) -> list[str]:
    """Up to `count` of the options that look like `word`, best first; case is ignored."""
    by_lower = {option.lower(): option for option in options}
    return [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, n=count, cutoff=0.6)]


def nearest_key(key: str, known: Iterable[str]) -> list[str]:
    """Dotted keys that a mistyped dotted key may mean: same last part elsewhere, else those that look like it."""
    known = list(known)
    leaf = key.rpartition(".")[2]
    same_leaf = [other for other in known if other.rpartition(".")[2] == leaf]
    if same_leaf:
        return nearest(key, same_leaf, 3) or same_leaf[:3]
    whole = nearest(key, known, 1)
    if whole:
        return whole
    leaves: dict[str, list[str]] = {}
    for other in known:
        leaves.setdefault(other.rpartition(".")[2], []).append(other)
    return [other for match in nearest(leaf, leaves, 1) for other in leaves[match]][:3]


def did_you_mean(suggestions: Iterable[str]) -> str:
    """`"; did you mean a or b?"`, or nothing where there is nothing to suggest."""
    listed = " or ".join(suggestions)
    return f"; did you mean {listed}?" if listed else ""


def portable_name(text: str) -> str:
    """`text` as a folder name that every file system takes.

    Only letters of the English alphabet, digits, `.`, `_` and `-`; at most 80 characters, of which the last eight
    tell apart long texts that begin alike; no dots or dashes at the ends, and no name that Windows keeps for devices.
    Different texts may give equal names: the text itself stands in the run's configuration.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip(".-")
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 9]}-{_digest(text)}"
    if not name:
        name = f"name-{_digest(text)}"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
