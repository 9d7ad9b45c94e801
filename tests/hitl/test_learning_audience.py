"""People at evaluations and playbacks: they may drive, and nothing is learned from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.config import RenderOptions
from harl.experiment.seeding import Purpose
from harl.hitl.bridge import Stage
from harl.runners.audience import Audience
from harl.runners.evaluation import Episode, play
from harl.runners.playback import Playback
from tests.hitl.scripted import PEOPLE, Scripted, any_family, between, on_policy, parameters
from tests.runners.runs import column, world


def stage_of(runner: Any, purpose: str = "evaluate") -> Stage:
    """What people are told of a playback in the runner's own environments."""
    training = Scripted()
    runner.people.runner.bridge, kept = training, runner.bridge
    runner.people.join(runner.shown())
    runner.bridge = kept
    return dataclasses.replace(training.stages[0], purpose=purpose)


def played(folder: Path, bridge: Scripted, episodes: int = 4, kind: str = "OwnRewards", **sizes: Any) -> list[Episode]:
    runner = on_policy(folder, Scripted(), "algo=happo", *world(kind, **sizes), PEOPLE)
    runner.warmup()
    runner.prep_rollout()
    before = parameters(runner)
    found = play(runner.team, runner.envs, [1, 2], episodes, audience=Audience(bridge, stage_of(runner)))
    assert torch.equal(before, parameters(runner))
    assert runner.people is not None
    assert runner.people.counts.human == 0
    assert (runner.buffer.policy_mask == 1).all()
    runner.close()
    assert found is not None
    return found


def test_episodes_with_people_are_known_and_their_returns_are_the_environments_own(tmp_path: Path) -> None:
    bridge = Scripted(between(6, 8, {(1, 0): 1}), rewards=lambda step, rewards: rewards + 100.0)
    episodes = played(tmp_path, bridge, T=5)
    assert [episode.human_steps for episode in episodes] == [0, 0, 0, 2]
    assert [episode.return_sum for episode in episodes] == [555.0] * 4
    assert "human_steps" not in episodes[0].record()
    assert episodes[3].record()["human_steps"] == 2
    assert bridge.asked == list(range(0, 20, 2))
    assert bridge.stages[0].purpose == "evaluate"


def test_environment_is_given_what_people_do(tmp_path: Path) -> None:
    """Identity pays for the right action alone: whoever sees the target and acts by it gets everything."""

    def right(step: int, obs: Any, proposed: Any) -> dict[tuple[int, int], Any]:
        return {(env, agent): obs[env, agent].argmax() for env in range(2) for agent in range(2)}

    episodes = played(tmp_path, Scripted(right), kind="Identity", T=5)
    assert [episode.return_sum for episode in episodes] == [10.0] * 4


@pytest.mark.usefixtures("no_restart")
def test_discarded_episode_is_played_again(tmp_path: Path) -> None:
    bridge = Scripted(discards={2: [0]})
    episodes = played(tmp_path, bridge, T=5)
    assert [(episode.env, episode.index) for episode in episodes] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert bridge.step == 15


def test_training_stage_is_refused(tmp_path: Path) -> None:
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *world("OwnRewards"), PEOPLE)
    runner.warmup()
    with pytest.raises(ValueError, match="'train'"):
        Audience(Scripted(), stage_of(runner, "train"))


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_evaluations_during_training_are_the_policies_own(tmp_path: Path, algo: str) -> None:
    """The same episodes as without people; people are asked in training alone."""
    bridge = Scripted()
    given = [*world("Identity", T=5), "eval.use_eval=true"]
    any_family(tmp_path / "a", bridge, algo, *given, PEOPLE).run()
    alone = any_family(tmp_path / "b", None, algo, *given)
    alone.run()
    assert bridge.asked == list(range(0, 80, 2))
    watched = next((tmp_path / "a").rglob("metrics.csv")).parent
    assert (watched / "evaluations.jsonl").read_text() == alone.folder.evaluations.read_text()
    assert column(alone.folder, "people/intervention_rate") == []


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_recordings_are_told_the_seeds_with_which_the_environments_were_reset(tmp_path: Path, algo: str) -> None:
    bridge = Scripted()
    runner = any_family(tmp_path, bridge, algo, *world("Identity", T=5), PEOPLE)
    runner.run()
    seeds = [bridge.stages[0].seed_of(env) for env in range(2)]
    assert seeds == runner.seeds.env_seeds(Purpose.TRAIN_ENVS, 2)
    watched = Scripted()
    options = RenderOptions(checkpoint="latest", episodes=1, video=False, deterministic=True, fps=10, seed=None)
    playback = Playback(runner.folder.path, options, watched)
    playback.play()
    assert [watched.stages[0].seed_of(0)] == playback.streams.env_seeds(Purpose.RENDER_ENVS, 1)


def test_summary_of_a_playback_keeps_episodes_with_people_apart(tmp_path: Path) -> None:
    runner = on_policy(tmp_path, None, "algo=happo", *world("OwnRewards", T=5), "train.num_env_steps=20")
    runner.run()
    options = RenderOptions(checkpoint="latest", episodes=2, video=False, deterministic=True, fps=10, seed=None)
    playback = Playback(runner.folder.path, options)
    episodes = playback.play()
    assert "with people" not in playback.summary(episodes)
    episodes[1].human_steps = 3
    text = playback.summary(episodes)
    alone, people = text.split("with people, in 1 of 2 episodes:\n")
    assert "555.00" in alone
    assert "555.00" in people
    assert "1 episodes" in alone
    rows = playback.write_table(episodes).read_text().splitlines()
    place = rows[0].split(",").index("human_steps")
    assert [row.split(",")[place] for row in rows[1:]] == ["0", "3"]
    assert np.isfinite(float(rows[1].split(",")[3]))
