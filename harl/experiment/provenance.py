"""What a result came from: versions, code, machine, command line. None of it is needed to read the result."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "gymnasium", "pettingzoo", "mpe2", "hydra-core")
"""Packages whose versions a result may depend on."""

_SECRET = re.compile(
    r"(?P<key>[\w.+~-]*(?:token|secret|password|passwd|api_key|apikey)[\w.]*)=(?P<value>.*)", re.I | re.S
)
_PACKAGE = Path(__file__).resolve().parents[1]


def describe_start(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Facts about this process as plain JSON data; `command` is what started this process unless given."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command_line(sys.orig_argv if command is None else command),
        "working_folder": os.getcwd(),
        "pid": os.getpid(),
        "versions": versions(),
        "git": git_commit(_PACKAGE),
        "machine": machine(),
    }


def command_line(arguments: Sequence[str]) -> str:
    """One line to paste into a shell; values of keys such as `hitl.token` are masked, references to variables stay."""
    return shlex.join(_masked(argument) for argument in arguments)


def _masked(argument: str) -> str:
    match = _SECRET.fullmatch(argument)
    if match is None or not match["value"] or match["value"].startswith("${"):
        return argument
    return f"{match['key']}=***"


def versions() -> dict[str, str]:
    """Versions of Python, of `harl` and of the packages that results may depend on, where installed."""
    found = {"python": platform.python_version(), "harl": _own_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _own_version() -> str:
    project_file = _PACKAGE.parent / "pyproject.toml"
    if project_file.is_file():
        project = tomllib.loads(project_file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "harl":
            return str(project["version"])
    try:
        return importlib.metadata.version("harl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def git_commit(package: Path) -> dict[str, Any] | None:
    """Commit of the checkout that the package at this path is the top folder of, and whether files were changed.

    None for an installed package, for one that merely lies somewhere in another repository, and without git.
    """
    top = _output_of("git", "-C", str(package), "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != package.parent:
        return None
    commit = _output_of("git", "-C", str(package), "rev-parse", "HEAD")
    changes = _output_of("git", "-C", str(package), "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changes is None else {"commit": commit, "dirty": bool(changes)}


def machine() -> dict[str, Any]:
    """Platform, processor, cores that this process may use, memory in bytes, and names of the GPUs."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "gpus": _gpu_names(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpu_names() -> list[str]:
    # Asked of the driver's tool: asking torch would set up a CUDA context, with its memory, for a run on the CPU.
    if shutil.which("nvidia-smi") is None:
        return []
    names = _output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return [] if names is None else [name.strip() for name in names.splitlines() if name.strip()]


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
