"""The floors of the house: a module imports only from floors below it, and on its own floor only from its own room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "harl"

# The longest prefix counts. The name of a room is what stands here; `harl` is the package's own `__init__`.
FLOORS = {
    "harl.train": 6,
    "harl.render": 6,
    "harl.plot": 6,
    "harl.bench": 6,
    "harl.hitl.robot": 6,
    "harl.hitl.sharpie": 6,
    "harl.hitl.replay": 6,
    "harl.hitl.export": 6,
    "harl.hitl.forget": 6,
    "harl.envs.check": 6,
    "harl": 5,
    "harl.runners": 4,
    "harl.registry": 3,
    "harl.hitl": 3,
    "harl.algorithms": 2,
    "harl.models": 1,
    "harl.buffers": 1,
    "harl.envs": 1,
    "harl.experiment": 1,
    "harl.config": 0,
    "harl.experiment.seeding": 0,
    "harl.envs.api": 0,  # shapes and spaces, the words in which all rooms speak
}


@dataclass(frozen=True)
class Edge:
    """One import."""

    source: str
    target: str
    line: int
    for_types: bool
    """Under `if TYPE_CHECKING`: nothing is imported when the program runs."""

    def __str__(self) -> str:
        return f"{self.source}:{self.line} (floor {floor(self.source)}) → {self.target} (floor {floor(self.target)})"


def room(module: str) -> str:
    """The entry of `FLOORS` that a module belongs to; the bare `harl` is a room of one module."""
    prefixes = [name for name in FLOORS if module == name or (name != "harl" and module.startswith(f"{name}."))]
    assert prefixes, f"{module} is on no floor: say in this file where it belongs"
    return max(prefixes, key=len)


def floor(module: str) -> int:
    return FLOORS[room(module)]


def modules() -> dict[str, Path]:
    """Every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("harl", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def type_checking_lines(tree: ast.Module) -> set[int]:
    """Lines within `if TYPE_CHECKING:`."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                lines.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return lines


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """Modules that a statement imports, as precisely as can be known: `from package import module` is the module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}:{node.lineno}: relative import; write the whole name"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in MODULES else node.module


def edges(module: str) -> Iterator[Edge]:
    """All imports of a module, also those within functions."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for_types = type_checking_lines(tree)
    for node in ast.walk(tree):
        for target in imported(node, module):
            assert isinstance(node, ast.Import | ast.ImportFrom)
            yield Edge(module, target, node.lineno, node.lineno in for_types)


def own_edges() -> list[Edge]:
    return [edge for module in MODULES for edge in edges(module) if edge.target.split(".")[0] == "harl"]


def allowed(edge: Edge) -> bool:
    """Down, or within the room; a name that is only a type may also come from a room on the same floor."""
    if room(edge.source) == room(edge.target):
        return True
    if edge.for_types:
        return floor(edge.target) <= floor(edge.source)
    return floor(edge.target) < floor(edge.source)


def test_modules_import_only_from_floors_below() -> None:
    wrong = [str(edge) for edge in own_edges() if not allowed(edge)]
    assert not wrong, "imports that go up or across:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "target", "for_types", "right"),
    [
        ("harl.models.flat", "harl.models.init", False, True),
        ("harl.models.flat", "harl.envs.parallel", False, False),
        ("harl.models.flat", "harl.envs.parallel", True, True),
        ("harl.models.flat", "harl.algorithms.base", True, False),
        ("harl.algorithms.team", "harl.models.flat", False, True),
        ("harl.experiment.seeding", "harl.experiment.files", False, False),
        ("harl.experiment.files", "harl.experiment.seeding", False, True),
        ("harl.registry", "harl.hitl.bridge", False, False),
        ("harl.bench", "harl", False, True),
        ("harl.runners.job", "harl", False, False),
        ("harl.envs.parallel", "harl.envs.check", False, False),
    ],
)
def test_rule_tells_right_from_wrong(source: str, target: str, for_types: bool, right: bool) -> None:
    assert allowed(Edge(source, target, 1, for_types)) is right


def test_environments_and_networks_know_neither_hydra_nor_people() -> None:
    wrong = [
        str(edge.source) + f":{edge.line} → {edge.target}"
        for module in MODULES
        if module.startswith(("harl.envs", "harl.models"))
        for edge in edges(module)
        if edge.target.split(".")[0] in ("hydra", "omegaconf") or edge.target.startswith("harl.hitl")
    ]
    assert not wrong, "\n".join(wrong)


def test_runners_know_two_modules_of_people_alone() -> None:
    wrong = [
        str(edge)
        for edge in own_edges()
        if edge.source.startswith("harl.runners")
        and edge.target.startswith("harl.hitl")
        and edge.target not in ("harl.hitl.bridge", "harl.hitl.learning")
    ]
    assert not wrong, "\n".join(wrong)


def loaded_after(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after running the code."""
    report = "\nimport sys\nprint('\\nLOADED ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("LOADED ").split())


def test_importing_harl_loads_neither_torch_nor_hydra() -> None:
    loaded = loaded_after("import harl\nassert callable(harl.make_runner)")
    assert "harl" in loaded
    assert not loaded & {"torch", "hydra", "omegaconf", "numpy"}


def test_run_without_people_loads_no_code_for_them(tmp_path: Path) -> None:
    overrides = ["algo=happo", "env=mpe", "hitl=off", f"output_dir={tmp_path}", "train.n_rollout_threads=1"]
    quiet = ["train.episode_length=2", "train.num_env_steps=4", "eval.use_eval=false"]
    quiet += ["logger.tensorboard=false", "logger.progress=off"]
    command = ["harl.train", *overrides, *quiet]
    loaded = loaded_after(
        "import contextlib, sys, harl.train\n"
        f"sys.argv = {command!r}\n"
        "with contextlib.suppress(SystemExit):\n    harl.train.main()"
    )
    assert "harl.runners.on_policy_ha_runner" in loaded
    people = {
        name for name in loaded if name.split(".")[0] in ("websockets", "aiohttp") or name.startswith("harl.hitl")
    }
    assert people <= {"harl.hitl", "harl.hitl.bridge", "harl.hitl.learning"}
