"""Code that a site sends, for those who trust it: written to a folder of its own, and run."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harl.hitl.sharpie_site.messages import ProtocolError, log
from harl.hitl.sharpie_site.settings import files_of

TRUST_WARNING = (
    "code that the site sends will be written and run: whoever controls the site, or the way to it, controls this "
    "account on this machine"
)


def environment_of(environment_settings: Mapping[str, Any]) -> Any:
    """The environment of the site's own files, built with the site's arguments; raises `ProtocolError`."""
    files = files_of(environment_settings, "the environment")
    module = _module("environment", files)
    if not hasattr(module, "environment"):
        raise ProtocolError("the site's file of the environment defines no `environment`")
    target = module.environment
    return target(**(environment_settings.get("metadata") or {})) if callable(target) else target


def policies_of(agents_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Role → policy of the site's own files; raises `ProtocolError`."""
    found = {}
    for role, settings in agents_settings.items():
        if settings.get("policy") is None:
            continue
        module = _module("policy", files_of(settings["policy"], f"the policy of {role!r}"))
        if not hasattr(module, "policy"):
            raise ProtocolError(f"the site's policy of {role!r} defines no `policy`")
        found[role] = module.policy
    return found


def _module(main: str, files: Mapping[str, tuple[str, str | None]]) -> ModuleType:
    """Run the file `main`; what was sent with it can be imported from it by name."""
    if main not in files:
        raise ProtocolError(f"the site names no file {main!r}; it has {', '.join(files) or 'none'}")
    folder: Path | None = None
    places: dict[str, Path] = {}
    for name, (path, content) in files.items():
        if content is None:
            places[name] = Path(path)
            continue
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="harl-sharpie-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        places[name] = folder / (Path(path.replace("\\", "/")).name or f"{name}.py")  # never where the site says
        places[name].write_text(content, encoding="utf-8")
    where = places[main]
    log.warning("running %s, which the site chose", where)
    if str(where.resolve().parent) not in sys.path:
        sys.path.insert(0, str(where.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"sharpie_{main}_{abs(hash(where))}", where)
    if spec is None or spec.loader is None or not where.is_file():
        raise ProtocolError(f"the site's file {where} is no Python file here")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
