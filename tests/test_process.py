"""What a process leaves behind: no other process, and nothing in the folders of the program."""

from __future__ import annotations

import uuid
from pathlib import Path

import psutil
import pytest

from tests.runners.runs import ROOT, cli, cli_tiny, python, world

MARK = "HARL_TEST_PROCESS"


def running(mark: str) -> list[psutil.Process]:
    """Processes that were started with this mark, or by those that were."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["error", "well"])
def test_D_41_no_process_is_left_whatever_the_environment_does(tmp_path: Path, ends: str) -> None:
    """The original hangs after an exception, with worker processes that outlive it."""
    mark = uuid.uuid4().hex
    wrong = world("Raises") if ends == "error" else world("ConstReward")
    done = cli(tmp_path, *cli_tiny(*wrong), env={MARK: mark})
    assert running(mark) == []
    assert done.returncode == (1 if ends == "error" else 0)
    if ends == "error":
        assert "boom-7" in done.stderr, "the environment's own words are what is seen"


@pytest.mark.slow
@pytest.mark.parametrize("env", ["mpe", "pettingzoo"])
def test_D_51_a_run_writes_nothing_into_the_package(tmp_path: Path, env: str) -> None:
    """The original's swimmer writes one XML file into the package from every worker."""

    def files() -> dict[Path, tuple[int, int]]:
        found = [path for path in (ROOT / "harl").rglob("*") if path.is_file() and path.suffix != ".pyc"]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}

    before = files()
    assert len(before) > 100
    done = cli(tmp_path, *cli_tiny(*(["env=mpe"] if env == "mpe" else world("ConstReward"))))
    assert done.returncode == 0, done.stderr
    assert files() == before


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, "8"])
@pytest.mark.parametrize("algo", ["happo", "haddpg"])
def test_PRF_01_sixteen_environments_take_the_threads_that_were_asked_for(
    tmp_path: Path, algo: str, asked: str | None
) -> None:
    """One thread for acting and stepping and two for updates here, on whatever machine, whatever the shell says."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, harl\n"
        f"runner = harl.make_runner(['algo={algo}', 'env=mpe', 'env.continuous_actions=true', 'output_dir=runs',\n"
        "    'train.n_rollout_threads=16', 'train.num_env_steps=2400', 'device.update_threads=2', 'device.name=cpu',\n"
        "    'eval.use_eval=false', 'logger.progress=off', 'model.hidden_sizes=[8]',\n"
        + ("    'train.episode_length=25'])\n" if algo == "happo" else "    'train.warmup_steps=1100'])\n")
        + "seen = {'step': set(), 'train': set()}\n"
        "def watched(owner, name):\n"
        "    method = getattr(owner, name)\n"
        "    def call(*args, **kwargs):\n"
        "        seen[name].add(torch.get_num_threads())\n"
        "        return method(*args, **kwargs)\n"
        "    setattr(owner, name, call)\n"
        "watched(runner.envs, 'step')\n"
        "watched(runner, 'train')\n"
        "runner.run()\n"
        "print(seen)\n"
    )
    done = python(tmp_path, str(script), env={"OMP_NUM_THREADS": asked})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "{'step': {1}, 'train': {2}}"
