"""Environments by name: "package.module:attribute" to the function or class that builds one, and its arguments."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harl.envs.api import EnvError

INSTALL_HINTS = {
    "mpe2": "pip install mpe2",
    "pettingzoo": "pip install pettingzoo",
    "gymnasium": "pip install gymnasium",
    "gymnasium_robotics": "pip install gymnasium-robotics",
    "mujoco": "pip install mujoco",
    "smacv2": "pip install git+https://github.com/oxwhirl/smacv2.git",
    "lbforaging": "pip install lbforaging",
    "rware": "pip install rware",
    "magent2": "pip install magent2",
    "vmas": "pip install vmas",
    "supersuit": "pip install supersuit",
    "multi_agent_ale_py": "pip install 'pettingzoo[atari]'",
    "pygame": "pip install pygame",
    "Box2D": "pip install 'pettingzoo[sisl]'",
    "pymunk": "pip install 'pettingzoo[butterfly]'",
    "rlcard": "pip install 'pettingzoo[classic]'",
    "chess": "pip install 'pettingzoo[classic]'",
}
"""What to do where a module is missing, by the name of the module."""

PLAIN_NAMES = {"parallel_env", "env", "raw_env", "make_env", "make", "make_parallel_env", "create_env"}
"""Attributes that do not say which environment it is; the module does."""


def load_attribute(spec: str) -> Any:
    """What "package.module:attribute" names; the current directory is importable.

    Raises:
        EnvError: the text has another form, or the module or attribute does not exist; with what is near.
    """
    module_path, colon, attribute_path = spec.partition(":")
    if not colon or not module_path or not attribute_path:
        raise EnvError(
            f"entry point {spec!r} must have the form package.module:attribute, as "
            "mpe2.simple_spread_v3:parallel_env or my_pkg.my_module:make_env"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    target = _import(module_path, spec)
    for name in attribute_path.split("."):
        if not hasattr(target, name):
            public = [known for known in dir(target) if not known.startswith("_")]
            raise EnvError(f"entry point {spec!r}: {_called(target)} has no {name!r}{_nearest(name, public)}")
        target = getattr(target, name)
    return target


def load_factory(spec: str) -> Callable[..., Any]:
    """The function or class that "package.module:attribute" names; raises like `load_attribute`."""
    target = load_attribute(spec)
    if not callable(target):
        raise EnvError(f"entry point {spec!r} is a {type(target).__name__}; it must be a function or class that builds")
    return target  # type: ignore[no-any-return]


def check_kwargs(factory: Callable[..., Any], kwargs: dict[str, Any], spec: str = "the environment") -> None:
    """Compare keyword arguments with what the factory takes, before anything is built.

    Where a factory only passes **kwargs on and what receives them cannot be found, the environment has the last word.

    Raises:
        EnvError: an argument is unknown (with the nearest and all allowed ones), or a required one is missing.
    """
    parameters, open_ended = factory_parameters(factory)
    problems = []
    if not open_ended:
        allowed = ", ".join(parameters) or "none"
        problems = [
            f"has no argument {name!r}{_nearest(name, parameters)}; allowed: {allowed}"
            for name in kwargs
            if name not in parameters
        ]
    required = [name for name, default in parameters.items() if default is inspect.Parameter.empty]
    problems += [f"needs the argument {name!r}" for name in required if name not in kwargs]
    if problems:
        raise EnvError("; ".join(f"{spec} {problem}" for problem in problems))


def factory_parameters(factory: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Names and defaults of the keyword arguments that a factory takes, and whether others may be allowed.

    PettingZoo's factories take **kwargs and hand them to a function or class that they close over (or to the module's
    `raw_env`), so it is that one's arguments which count.
    """
    return _parameters(factory, depth=0)


def scenario_name(spec: str) -> str:
    """A short name for folders: "mpe2.simple_spread_v3:parallel_env" is "simple_spread_v3"."""
    module_path, _, attribute = spec.partition(":")
    last = attribute.rpartition(".")[2]
    name = module_path.rpartition(".")[2] if last in PLAIN_NAMES or not last else last
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "custom"


@dataclass(frozen=True)
class EnvFactory:
    """Builds one environment when called; only text and plain values inside, so that it can be sent to a process."""

    entry_point: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    render: bool = False
    """Whether to ask for render_mode="rgb_array"."""

    def check(self) -> None:
        """Raise `EnvError` for a wrong entry point or wrong arguments, without building anything."""
        check_kwargs(load_factory(self.entry_point), self.kwargs, self.entry_point)

    def __call__(self) -> Any:
        factory = load_factory(self.entry_point)
        kwargs = dict(self.kwargs)
        parameters, open_ended = factory_parameters(factory)
        if self.render and ("render_mode" in parameters or open_ended):
            kwargs.setdefault("render_mode", "rgb_array")
        try:
            return factory(**kwargs)
        except Exception as error:
            raise EnvError(
                f"{self.entry_point} could not be built with {kwargs}: {type(error).__name__}: {error}"
                f"{_missing_package_hint(error)}"
            ) from error


def _import(module_path: str, spec: str) -> Any:
    """The module, or the attribute of a package that the dotted path leads to."""
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        missing = error.name or module_path
        if missing != module_path and not module_path.startswith(f"{missing}."):
            hint = _missing_package_hint(error) or "; install it"
            raise EnvError(
                f"entry point {spec!r}: module {module_path} needs {missing}, which is missing{hint}"
            ) from error
        parent_path, _, child = module_path.rpartition(".")
        if not parent_path:
            near = "" if missing in INSTALL_HINTS else _nearest(missing, _modules_beside())
            raise EnvError(
                f"entry point {spec!r}: there is no module {missing}{_missing_package_hint(error)}{near}; looked "
                "in the installed packages and in the current directory"
            ) from error
        parent = _import(parent_path, spec)
        if hasattr(parent, child):
            return getattr(parent, child)
        siblings = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))]
        known = f"; it has: {', '.join(sorted(name for name in siblings if not name.startswith('_')))}"
        hint = _missing_package_hint(error)
        raise EnvError(
            f"entry point {spec!r}: {parent_path} has no module {child!r}{hint or _nearest(child, siblings)}"
            f"{known if siblings else ''}"
        ) from error
    except ImportError as error:
        raise EnvError(f"entry point {spec!r}: module {module_path} cannot be imported: {error}") from error


def _parameters(factory: Callable[..., Any], depth: int) -> tuple[dict[str, Any], bool]:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return {}, True
    kinds = inspect.Parameter
    named = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    if not any(parameter.kind is kinds.VAR_KEYWORD for parameter in signature.parameters.values()):
        return named, False
    inner = _receiver(factory)
    if inner is None or depth > 5:
        return named, True
    received, open_ended = _parameters(inner, depth + 1)
    return {**received, **named}, open_ended


def _receiver(factory: Callable[..., Any]) -> Callable[..., Any] | None:
    """The one callable that a function closes over, or the `raw_env` of its module that it calls."""
    if not inspect.isfunction(factory):
        return None
    found = inspect.getclosurevars(factory)
    enclosed = [value for value in found.nonlocals.values() if callable(value)]
    if len(enclosed) == 1:
        return enclosed[0]  # type: ignore[no-any-return]
    raw = found.globals.get("raw_env")
    return raw if callable(raw) and not enclosed else None


def _missing_package_hint(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    hint = INSTALL_HINTS.get(error.name)
    return f" ({hint})" if hint else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def _modules_beside() -> list[str]:
    return [module.name for module in pkgutil.iter_modules()]


def _called(target: Any) -> str:
    return getattr(target, "__name__", None) or type(target).__name__
