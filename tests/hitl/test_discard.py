"""WS-14, discard and redo this episode: it is over at once, is neither learned nor counted, and the next one begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.envs.api import FloatArray
from harl.experiment.seeding import Purpose
from harl.hitl.bridge import Override
from harl.hitl.people_bridge import PeopleBridge
from harl.hitl.recording.recordings import find_sessions
from harl.runners import OffPolicyBaseRunner
from harl.runners.audience import Audience
from harl.runners.evaluation import play
from harl.runners.film import Film
from tests.envs.fixtures import Identity
from tests.hitl.rooms import Clock, web_config
from tests.hitl.scripted import PEOPLE, Scripted, any_family, between, on_policy
from tests.hitl.test_learning_audience import played, stage_of
from tests.hitl.test_learning_imitation import people_of
from tests.hitl.test_learning_replay import LONG, by_step, stored
from tests.hitl.test_learning_rollout import IDENTITY, collect
from tests.runners.runs import column, world


class SometimesOver(Identity):
    """Reports in every step that it is late."""

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        return observations, rewards, terminated, truncated, {agent: {"late": float(self.t)} for agent in infos}


def next_episode(runner: Any, steps: int) -> FloatArray:
    """What would have been seen had all environments been reset after so many steps of the run."""
    runner.envs.reset(runner.seeds.env_seeds(Purpose.TRAIN_ENVS, 2))
    for given in runner.given[:steps]:
        runner.envs.step(given)
    found: FloatArray = runner.envs.reset().obs.copy()
    return found


def test_rollout_goes_on_with_the_next_episode_of_that_environment_alone(tmp_path: Path) -> None:
    bridge = Scripted(between(1, 3, {(1, 0): 2}), discards={2: [1]})
    runner = collect(tmp_path / "a", bridge)
    plain_bridge = Scripted()
    collect(tmp_path / "b", plain_bridge)
    ends = np.stack([outcome.ended for outcome in bridge.outcomes])
    assert np.argwhere(ends).tolist() == [[2, 1], [6, 0], [9, 1]]  # the new one has its seven steps
    assert bridge.outcomes[2].broken_off is not None
    assert bridge.outcomes[2].broken_off.tolist() == [False, True]
    for before, after in zip(bridge.outcomes, bridge.obs[1:], strict=False):
        np.testing.assert_array_equal(before.obs, after)  # policies act on the new episode
    np.testing.assert_array_equal(np.stack(bridge.obs)[:7, 0], np.stack(plain_bridge.obs)[:7, 0])
    assert not np.array_equal(np.stack(bridge.obs)[3:7, 1], np.stack(plain_bridge.obs)[3:7, 1])
    weights = runner.buffer.weights()[..., 0]
    assert (weights[:3, 1] == 0).all()
    assert (weights[3:] == 1).all()
    assert (weights[:, 0] == 1).all()
    assert not runner.continues()[2, 1]
    assert runner.continues()[2, 0]
    runner.update()
    assert len(people_of(runner).human_steps) == 0
    critic_weights = runner.buffer.critic_data().weights
    assert critic_weights is not None
    np.testing.assert_array_equal(critic_weights.view(10, 2), weights.amin(-1))
    assert runner.tracker.drain()["train/episodes"] == 2
    assert runner.tracker.lengths.tolist() == [3, 0]
    assert not people_of(runner).discarding.any()


def test_next_episode_comes_out_of_the_environments_own_stream(tmp_path: Path) -> None:
    bridge = Scripted(discards={2: [1]})
    runner = collect(tmp_path, bridge)
    np.testing.assert_array_equal(bridge.obs[3][1], next_episode(runner, 3)[1])


def test_advantages_do_not_cross_a_discard(tmp_path: Path) -> None:
    """What is earned after it changes nothing before it, and what was earned before it nothing after."""
    runner = collect(tmp_path, Scripted(discards={4: [0]}))
    runner.compute()
    first = runner.advantages.clone()
    runner.buffer.rewards[5:, 0] += 100.0
    runner.compute()
    torch.testing.assert_close(runner.advantages[:5, 0], first[:5, 0])
    assert (runner.advantages[5:, 0] - first[5:, 0]).abs().min() > 1.0
    torch.testing.assert_close(runner.advantages[:, 1], first[:, 1])


def test_recurrent_policies_forget_the_discarded_episode(tmp_path: Path) -> None:
    runner = collect(
        tmp_path, Scripted(discards={4: [0]}), "model.use_recurrent_policy=true", "model.data_chunk_length=5"
    )
    masks = runner.buffer.masks
    assert masks is not None
    assert masks[:, 0, 0].tolist() == [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1]
    assert masks[:, 1, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize("n_step", [1, 3])
def test_replay_has_the_next_episode_and_nothing_of_the_discarded_one(tmp_path: Path, n_step: int) -> None:
    """Environment 0's second episode (from step 7 on) is discarded at step 10: the third one begins with step 11."""
    bridge = Scripted(between(8, 13, {(0, 1): 2}), discards={10: [0]})
    runner = any_family(tmp_path, bridge, "hasac", *IDENTITY, PEOPLE, *LONG, f"algo.n_step={n_step}")
    runner.run()
    assert isinstance(runner, OffPolicyBaseRunner)
    gone = {2 * t for t in range(7, 11)}
    assert set(runner.buffer.sample(4000).index.tolist()) == set(range(40)) - gone
    rows, lengths = stored(runner), runner.buffer.lengths(torch.arange(40)).view(20, 2)
    obs, next_obs = by_step(rows.obs), by_step(rows.next_obs)
    np.testing.assert_array_equal(obs[11, 0], bridge.outcomes[10].obs[0])
    final = bridge.outcomes[10].final_obs
    assert final is not None
    np.testing.assert_array_equal(next_obs[10, 0], final[0])
    if n_step == 3:
        assert lengths[:, 0].tolist()[8:14] == [3, 2, 1, 2, 1, 3]  # 11, 12: the person hands back before 13
    # Steps 11 and 12 were driven in the episode that counts.
    second = people_of(runner).second
    assert len(second) == 2
    drawn = second.sample(100).obs.transpose(0, 1)
    kept = torch.from_numpy(np.stack([bridge.obs[11][0], bridge.obs[12][0]]))
    assert all(any(torch.equal(row, one) for one in kept) for row in drawn)
    ends = np.stack([outcome.ended for outcome in bridge.outcomes])
    assert np.flatnonzero(ends[:, 0]).tolist() == [6, 10, 17]
    assert np.flatnonzero(ends[:, 1]).tolist() == [6, 13]
    assert column(runner.folder, "people/episodes") == [1.0]
    assert sum(column(runner.folder, "train/episodes")) == 3.0


@pytest.mark.parametrize("algo", ["happo", "hasac"])
@pytest.mark.parametrize("restarts", [True, False])
def test_reports_of_a_discarded_episode_are_not_counted(
    tmp_path: Path, algo: str, restarts: bool, request: pytest.FixtureRequest
) -> None:
    if not restarts:
        request.getfixturevalue("no_restart")
    bridge = Scripted(discards={2: [0], 3: [1]})
    given = ["env=pettingzoo", "env.entry_point=tests.hitl.test_discard:SometimesOver", "env.kwargs.T=5"]
    runner = any_family(tmp_path, bridge, algo, *given, "env.reward=shared_mean", PEOPLE, "train.num_env_steps=20")
    reported: list[Any] = []
    add = runner.env_metrics.add
    runner.env_metrics.add = lambda metrics: reported.append(metrics["late"].copy()) or add(metrics)
    runner.run()
    told = np.stack(reported)
    out = [[2, 0], [3, 1]] if restarts else [[2, 0], [3, 0], [3, 1], [4, 0], [4, 1]]
    assert np.argwhere(np.isnan(told)).tolist() == out


def test_discard_in_the_step_that_ends_the_episode_breaks_nothing_off(tmp_path: Path) -> None:
    bridge = Scripted(discards={6: [0]})
    runner = collect(tmp_path, bridge)
    assert bridge.outcomes[6].broken_off is None
    assert bridge.outcomes[6].ended.all()
    assert (runner.buffer.weights()[:7, 0] == 0).all()
    assert (runner.buffer.weights()[7:, 0] == 1).all()
    assert runner.tracker.drain()["train/episodes"] == 1


# Episodes that are not learned from.


def test_evaluation_plays_another_episode_at_once(tmp_path: Path) -> None:
    bridge = Scripted(discards={2: [0]})
    episodes = played(tmp_path, bridge, T=5)
    assert [(episode.env, episode.index) for episode in episodes] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [episode.length for episode in episodes] == [5] * 4
    assert [episode.return_sum for episode in episodes] == [555.0] * 4
    assert bridge.step == 13


def test_film_has_the_episode_that_counts_alone(tmp_path: Path) -> None:
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *world("Filmed"), PEOPLE)
    runner.warmup()
    runner.prep_rollout()
    frames: list[tuple[int, int]] = []
    film = Film(runner.envs, tmp_path / "videos", "x", 10)

    def picture(episode: int, attempt: int) -> None:
        frames.append((episode, attempt))
        film.picture(episode, attempt)

    audience = Audience(Scripted(discards={3: [0]}), stage_of(runner))
    with film:
        episodes = play(runner.team, runner.envs, [1, 2], 4, picture=picture, audience=audience)
    runner.close()
    assert episodes is not None
    lengths = [episode.length for episode in episodes if episode.env == 0]
    assert frames == [(0, 0)] * 4 + [(0, 1)] * lengths[0] + [(1, 0)] * lengths[1]
    assert [path.stem for path in film.paths] == ["x_episode-0", "x_episode-1"]
    assert len(frames_of(film.paths[0])) == lengths[0]


def frames_of(path: Path) -> list[Any]:
    import av

    with av.open(str(path)) as video:
        return list(video.decode(video=0))


def test_recurrent_policies_forget_in_an_evaluation_too(tmp_path: Path) -> None:
    extra = ["model.use_recurrent_policy=true", "model.data_chunk_length=5"]
    runner = on_policy(tmp_path, Scripted(), "algo=happo", *IDENTITY, PEOPLE, *extra)
    runner.warmup()
    runner.prep_rollout()
    memories: list[Any] = []
    act = runner.team.act

    def acting(*given: Any, memory: Any = None, **more: Any) -> Any:
        memories.append(memory.masks[:, 0].tolist())
        return act(*given, memory=memory, **more)

    runner.team.act = acting  # type: ignore[method-assign]
    audience = Audience(Scripted(discards={2: [1]}), stage_of(runner))
    assert play(runner.team, runner.envs, [1, 2], 2, audience=audience) is not None
    runner.close()
    assert memories[1:5] == [[1, 1], [1, 1], [1, 0], [1, 1]]


# A whole run with a real room.


class Bridge(PeopleBridge):
    """Shows every step to whoever is there; a script says what they do before a step."""

    def __init__(self, script: dict[int, Any], **changes: Any) -> None:
        super().__init__(web_config(**{"pace": "free", "takeover__lease_ttl_ms": 60_000, **changes}), Clock())
        self.script, self.steps = script, 0
        self.places: list[tuple[int, int]] = []

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        self.script.get(self.steps, lambda room: None)(self.room)
        self.steps += 1
        override = super().override_actions(env_steps, obs, available_actions, proposed)
        self.places.append(self.room.position[0])
        return override

    def show(self, env: int, done: bool, at_once: bool) -> bool:
        return True


def enter(room: Any) -> None:
    room.enter("t", "tess", "trainer", "desktop")


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_discarded_episode_is_closed_in_the_recording_and_the_next_one_has_a_number_of_its_own(
    tmp_path: Path, algo: str
) -> None:
    """Particle worlds with episodes of 8 steps; the person marks episode 1 after its third step."""
    script = {0: enter, 11: lambda room: room.mark("t", "discard", 1), 15: lambda room: room.mark("t", "success", 2)}
    bridge = Bridge(script)
    env = ["env=mpe", "env.kwargs.max_cycles=8"]
    runner = any_family(tmp_path, bridge, algo, *env, PEOPLE, "train.num_env_steps=60")
    runner.run()
    assert bridge.places[7:13] == [(0, 7), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert bridge.places[19:21] == [(2, 7), (3, 0)]
    (session,) = find_sessions(runner.folder.path)
    episodes = {found.episode: found for found in session.episodes() if found.env == 0}
    assert (episodes[1].discarded, episodes[1].is_partial, episodes[1].facts["reason"]) == (True, True, "discarded")
    assert (episodes[2].discarded, episodes[2].is_partial, episodes[2].facts["reason"]) == (False, False, "truncated")
    assert episodes[2].facts["success"] is True
    assert len(episodes[1].load()["reward"]) == 4
    assert len(episodes[2].load()["reward"]) == 8
    # Of 30 steps: environment 0 has episodes of 8, 4 (discarded), 8 and 8 of them, the other one three of 8.
    assert sum(column(runner.folder, "train/episodes")) == 3 + 3
    assert set(column(runner.folder, "train/episode_length")) == {8.0}


def test_word_on_an_episode_that_has_just_ended_does_not_touch_the_next_one(tmp_path: Path) -> None:
    """It comes after the step that ended the episode has been counted, before it was shown."""
    bridge = Bridge({0: enter}, record="touched")
    runner = on_policy(tmp_path, bridge, "algo=happo", "env=mpe", "env.kwargs.max_cycles=8", PEOPLE)
    taken = bridge.override_rewards

    def late(env_steps: int, rewards: FloatArray) -> Any:
        if bridge.steps == 16:
            bridge.room.mark("t", "discard", 1)
        return taken(env_steps, rewards)

    bridge.override_rewards = late  # type: ignore[method-assign]
    runner.run()
    assert bridge.places[15:25] == [(1, 7), *[(2, step) for step in range(8)], (3, 0)]
    (session,) = find_sessions(runner.folder.path)
    assert {found.episode for found in session.episodes() if found.discarded} == {1}


def test_last_word_before_the_end_is_recorded(tmp_path: Path) -> None:
    bridge = Bridge({0: enter})
    runner = on_policy(tmp_path, bridge, "algo=happo", "env=mpe", "env.kwargs.max_cycles=9", PEOPLE)
    close = bridge.close

    def closing(reason: str) -> None:
        if not bridge._closed:
            bridge.room.mark("t", "fail", bridge.room.position[0][0])
        close(reason)

    bridge.close = closing  # type: ignore[method-assign]
    runner.run()
    (session,) = find_sessions(runner.folder.path)
    (marked,) = [found for found in session.episodes() if found.facts["success"] is False]
    assert marked.is_partial
