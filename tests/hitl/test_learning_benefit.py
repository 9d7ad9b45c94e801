"""Whether people's help helps: a grid with pits, through the real runner, actor and buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hitl.grid import Grid, Guide, worth
from tests.hitl.scripted import PEOPLE, Scripted, on_policy
from tests.runners.runs import world

ITERATIONS, HELPED = 40, 25
SEEDS = (1, 2, 3)


def curve(folder: Path, mode: str | None, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], int]:
    """What the policy is worth when it is alone, after each iteration; and how many steps the person took."""
    monkeypatch.setattr("harl.runners.runner.make_envs", lambda args, count, render=False: Grid(count))
    guide = Guide(8, HELPED * 64, seed)
    learn = [] if mode is None else [f"hitl.takeover.learn={mode}"]
    runner = on_policy(
        folder, Scripted(None if mode is None else guide), "algo=happo", *world("ConstReward"), PEOPLE, *learn,
        f"seed={seed}", "train.n_rollout_threads=8", "train.episode_length=64",
        f"train.num_env_steps={ITERATIONS * 512}", "model.hidden_sizes=[32]", "model.use_feature_normalization=false",
        "algo.gamma=0.97", "algo.gae_lambda=0.95", "algo.lr=0.003", "algo.critic_lr=0.003", "algo.ppo_epoch=5",
        "algo.critic_epoch=5", "algo.entropy_coef=0.0",
    )  # fmt: skip
    values: list[float] = []
    after_update = runner.after_update

    def judged() -> None:
        values.append(worth(runner.actors[0].policy))
        after_update()

    runner.after_update = judged  # type: ignore[method-assign]
    runner.run()
    return values, guide.used


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::harl.hitl.learning.PeopleWarning")
def test_imitated_help_beats_none_and_silent_help_does_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Areas under the curves of the policy alone; the person leaves after 25 of 40 iterations."""
    areas: dict[str | None, float] = {}
    used: dict[str | None, int] = {}
    for mode in (None, "mask_bc", "mask", "executed", "silent"):
        runs: list[Any] = [curve(tmp_path / str(mode), mode, seed, monkeypatch) for seed in SEEDS]
        areas[mode] = sum(sum(values) / ITERATIONS for values, _ in runs) / len(SEEDS)
        used[mode] = sum(steps for _, steps in runs)
    assert areas["mask_bc"] > areas[None] + 0.2
    assert areas["mask_bc"] > areas["executed"] > areas["silent"]
    assert used["mask_bc"] < used["executed"] < used["silent"]
