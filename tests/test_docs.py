"""What the documents show is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harl.config import ALGO_SCHEMAS
from harl.registry import ALGORITHMS
from tests.algorithms.learners import kind_for, learners, random_batch
from tests.algorithms.learners import team_layout as off_policy_layout
from tests.algorithms.rollouts import fill, learn, small_runner, team_layout

ROOT = Path(__file__).parents[1]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of ours as a user types it, with this checkout importable."""
    import os

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A folder with the environment that docs/environments.md shows."""
    text = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n# my_package/tag.py\n(.*?)```", text, re.DOTALL)
    assert code is not None
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "tag.py").write_text(code[1], encoding="utf-8")
    return tmp_path


def test_ENV_13_example_environment_passes_the_check(example: Path) -> None:
    done = run("-m", "harl.envs.check", "my_package.tag:Meet", "size=7", cwd=example)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_ENV_13_example_environment_is_learned(example: Path) -> None:
    command = ["env=pettingzoo", "env.entry_point=my_package.tag:Meet", "env.reward=shared_mean", "env.kwargs.size=7"]
    fast = ["train.num_env_steps=40000", "algo.lr=2e-3", "algo.critic_lr=2e-3", "model.hidden_sizes=[32]"]
    done = run("-m", "harl.train", *command, *fast, cwd=example)
    assert done.returncode == 0, done.stdout + done.stderr
    returns = [float(value) for value in re.findall(r"evaluation at [\d,]+ steps: return (-?[\d.]+)", done.stdout)]
    assert returns[-1] > 1.8, returns  # both meet, 1 each


def test_every_command_of_the_documents_names_keys_that_exist() -> None:
    """`python -m harl.train …` lines in the documents compose, as far as they need no folder or package of a user."""
    from harl.config import check_overrides, normalise_overrides

    checked = 0
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = document.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"python -m harl\.train ([^\n`#]*)", text):
            words = [word for word in line.split() if "=" in word]
            if any(word.startswith(("resume=", "init_from=")) for word in words):
                continue
            errors = check_overrides(normalise_overrides(words), multirun="-m " in line)
            assert errors == [], (document.name, line)
            checked += 1
    assert checked > 3


def numbers_of_an_update(algo: str) -> tuple[set[str], set[str]]:
    """Names that an actor and the critic report."""
    if not ALGORITHMS[algo].runner.startswith("off_policy"):
        runner = small_runner(team_layout(), algo)
        fill(runner)
        infos, critic = learn(runner)
        return set(infos["agent_0"]), set(critic)
    layout = off_policy_layout(kind_for(algo))
    runner = learners(algo, layout)
    runner.buffer.sample = lambda size: random_batch(layout)
    reported: dict[Any, set[str]] = {0: set(), "critic": set()}
    runner.report = lambda learner, values: reported.setdefault(learner, set()).update(values)
    for _ in range(runner.algo.policy_freq):
        runner.train()
    return reported[0], reported["critic"]


@pytest.mark.parametrize("algo", ALGO_SCHEMAS)
def test_page_of_each_algorithm_explains_every_number_that_it_reports(algo: str) -> None:
    actor, critic = numbers_of_an_update(algo)
    page = (ROOT / "docs" / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert explained == actor
    family = "off_policy.md" if ALGORITHMS[algo].runner.startswith("off_policy") else "on_policy.md"
    shared = (ROOT / "docs" / "algorithms" / family).read_text(encoding="utf-8")
    assert all(f"`critic/{name}`" in shared for name in critic)


@pytest.mark.parametrize("algo", ALGO_SCHEMAS)
def test_page_of_each_algorithm_ends_with_the_commands_of_its_figure(algo: str) -> None:
    page = (ROOT / "docs" / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    train, plot = commands.splitlines()
    assert re.search(rf"^python -m harl\.train -m (algo=|\+experiment=\w+_){algo} seed=1,2,3", train)
    assert re.search(r" train\.num_env_steps=\de5$", train), "at a budget that two cores can pay"
    assert re.search(r"^python -m harl\.plot outputs/mpe column=(train|eval)/return_sum$", plot)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=lambda page: page.stem)
def test_no_cell_of_a_table_is_left_empty(page: Path) -> None:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    empty = [row for row in rows[1:] if any(not cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:-1])]
    assert empty == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=lambda page: page.stem)
def test_pages_of_algorithms_name_files_and_methods_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", text)
    assert len(named) >= 3
    for name, file in named:
        source = (ROOT / "harl" / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^ *(def|class) {part}\b", source, re.MULTILINE), f"{name} in {file}"
