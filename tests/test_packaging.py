"""What is installed is whole: a wheel that is built from the checkout trains in another directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.runners.runs import ROOT, cli_tiny, only_run, python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    pytest.importorskip("build", reason="the package `build`, of the extra `dev`, makes the wheel")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("harl", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.mark.slow
def test_D_47_a_wheel_holds_all_modules_and_configs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "harl").rglob("*.py")}
    configs = {f"harl/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert len(modules) > 50
    assert len(configs) > 10
    people = [
        path for path in (ROOT / "harl" / "hitl").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {".json", ".html", ".js", ".css"} <= {path.suffix for path in people}
    assert modules | configs | {str(path.relative_to(ROOT)) for path in people} <= names
    assert not [name for name in names if name.startswith(("tests/", "configs/", "outputs/"))]


@pytest.mark.slow
def test_a_wheel_trains_and_renders_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    there = {"PYTHONPATH": str(installed)}
    where = python(
        elsewhere, "-c", "import harl, harl.config; print(harl.__file__, harl.config.config_dir())", env=there
    )
    assert where.stdout.split() == [str(installed / "harl" / "__init__.py"), str(installed / "harl" / "configs")]
    done = python(elsewhere, "-m", "harl.train", *cli_tiny("algo=happo", "env=mpe"), env=there)
    assert (done.returncode, done.stderr) == (0, "")
    folder = only_run(elsewhere / "runs")
    assert folder.completed
    shown = python(elsewhere, "-m", "harl.render", f"run={folder.path}", "render.episodes=1", env=there)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]
