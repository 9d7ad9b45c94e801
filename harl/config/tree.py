"""The folders of YAML files that a configuration is composed from, and the composition by Hydra."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harl.config.fields import ConfigError
from harl.config.installed import register

_SEARCH_PATH_KEY = "hydra.searchpath"


def config_dir() -> Path:
    """The folder with the default values: beside the code where it is installed, else at the repository's root."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError([f"the default configuration is missing: neither {package} nor {package.parent} has configs/"])


@dataclass(frozen=True)
class ConfigTree:
    """The primary file and the folders it is searched in: the package's own first, then the user's."""

    config_name: str
    extra_dirs: tuple[Path, ...]

    @classmethod
    def open(cls, config_name: str, extra_dirs: Sequence[str | Path]) -> ConfigTree:
        """The tree with a user's folders: paths, or `file://<path>` or `pkg://<module>` as Hydra writes them."""
        folders = tuple(_folder(str(entry)) for entry in extra_dirs)
        missing = [f"config folder {folder} does not exist" for folder in folders if not folder.is_dir()]
        if missing:
            raise ConfigError(missing)
        return cls(config_name, folders)

    @property
    def roots(self) -> tuple[Path, ...]:
        return (config_dir(), *self.extra_dirs)

    def groups(self) -> list[str]:
        """Names of the groups, as algo; Hydra's own are left out."""
        folders = {path.name for root in self.roots for path in root.iterdir() if path.is_dir()}
        return sorted(folders - {"hydra", "__pycache__"})

    def default_choices(self) -> dict[str, str | None]:
        """Groups that the primary file lists, each with its choice; None = none unless one is typed."""
        primary = yaml.safe_load((config_dir() / f"{self.config_name}.yaml").read_text(encoding="utf-8"))
        entries = [entry for entry in primary["defaults"] if isinstance(entry, dict)]
        return {name: choice for entry in entries for name, choice in entry.items() if " " not in name}

    def choices(self, group: str) -> list[str]:
        """What may stand behind `group=`; files that only others inherit from (`…_base`) are left out."""
        found = set()
        for root in self.roots:
            folder = root / group
            found |= {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
        if group == "env":
            found.update(register(sorted(found)))
        return sorted(name for name in found if not name.endswith("_base"))

    def compose(self, overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
        """The composed configuration; every failure of Hydra's is a `ConfigError`."""
        self.choices("env")  # environments of installed packages become known by asking
        overrides = [text for text in overrides if not text.lstrip("+").startswith(f"{_SEARCH_PATH_KEY}=")]
        if self.extra_dirs:
            quoted = ",".join(QuotedString(f"file://{path}", Quote.single).with_quotes() for path in self.extra_dirs)
            overrides.append(f"{_SEARCH_PATH_KEY}=[{quoted}]")
        try:
            with _hydra_session():
                return hydra.compose(self.config_name, overrides, return_hydra_config=with_hydra)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise ConfigError([_in_few_words(error)]) from None

    def chosen(self, group_overrides: Sequence[str]) -> dict[str, Any]:
        """The plain composed configuration, Hydra's part included, of these choices and nothing else typed."""
        stamps = tuple((path, path.stat().st_mtime_ns) for root in self.roots for path in sorted(root.rglob("*.yaml")))
        return _chosen(self, tuple(group_overrides), stamps)


@functools.lru_cache(maxsize=64)
def _chosen(tree: ConfigTree, group_overrides: tuple[str, ...], _stamps: tuple[Any, ...]) -> dict[str, Any]:
    """Remembered as long as no file changes: a sweep asks for the same few choices again and again."""
    composed = tree.compose(group_overrides, with_hydra=True)
    return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False, throw_on_missing=False))


@contextmanager
def _hydra_session() -> Iterator[None]:
    """Hydra set up on our folder; a Hydra that is active around the call is put back afterwards."""
    active = GlobalHydra.instance()
    outer, active.hydra = active.hydra, None
    try:
        with hydra.initialize_config_dir(str(config_dir()), job_name="harl", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _folder(entry: str) -> Path:
    if entry.startswith("pkg://"):
        module = entry.removeprefix("pkg://").replace("/", ".")
        try:
            return Path(next(iter(importlib.import_module(module).__path__))).resolve()
        except (ImportError, AttributeError) as error:
            raise ConfigError([f"config folder {entry} cannot be found: {error}"]) from None
    return Path(entry.removeprefix("file://")).expanduser().resolve()


def _in_few_words(error: BaseException) -> str:
    """What Hydra, OmegaConf or the YAML reader said, with the cause; no web pages, no list of searched folders."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        message = re.split(r"^(?:See http|Config search path|\s*full_key)", str(current), flags=re.MULTILINE)[0]
        lines += [line.strip() for line in message.splitlines()]
        current = current.__cause__
    return "; ".join(dict.fromkeys(line for line in lines if line)).replace(":;", ":")
