"""`ParallelVectorEnv`: layout, autoreset with final observations, seeds, metrics, saving, rendering; and mpe2."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from mpe2 import simple_spread_v3
from pettingzoo.utils import BaseParallelWrapper

from harl.envs.api import EnvError
from harl.envs.check import random_actions
from harl.envs.parallel import ParallelVectorEnv, make_parallel_vector_env
from harl.envs.parallel_adapter import fold_seed
from tests.envs.fixtures import ConstReward, Identity, SeedLog, SumOne

SPREAD = "mpe2.simple_spread_v3:parallel_env"


class Spy(BaseParallelWrapper):
    """Writes down the true last observations of every episode."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.last: list[dict[str, np.ndarray]] = []

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if not self.env.agents:
            self.last.append({agent: value.copy() for agent, value in result[0].items()})
        return result


@pytest.mark.parametrize(
    ("entry_point", "widths", "numbers"),
    [(SPREAD, (18, 18, 18), (5, 5, 5)), ("mpe2.simple_speaker_listener_v4:parallel_env", (3, 11), (3, 5))],
)
@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_D_36_mpe2_is_truncated_at_25_and_keeps_its_final_observation(
    entry_point: str, widths: tuple[int, ...], numbers: tuple[int, ...], state_type: str
) -> None:
    env = make_parallel_vector_env(entry_point, {}, 2, state_type)
    layout = env.layout
    agents, state_width = len(widths), sum(widths) + (len(widths) if state_type == "FP" else 0)
    assert layout.obs_dims == widths
    assert layout.action_numbers == numbers
    assert layout.share_obs_shape == (state_width,)
    assert (env.name, env.scenario, env.episode_limit) == ("pettingzoo", entry_point.split(".")[1].split(":")[0], 25)
    view = env.reset([3, 4])
    rng = np.random.default_rng(0)
    for step in range(1, 51):
        view = env.step(random_actions(env, view, rng))
        assert view.obs.shape == (2, agents, max(widths))
        assert view.obs.dtype == np.float32
        assert view.share_obs.shape == (2, agents, state_width)
        assert view.available_actions is None
        assert (view.active == 1).all()
        over = step % 25 == 0
        assert view.ended.tolist() == [over] * 2
        assert (view.truncated == over).all()
        assert not view.terminated.any()
        assert (view.final_obs is not None) == over
        joined = np.concatenate([view.obs[:, i, :width] for i, width in enumerate(widths)], axis=1)
        np.testing.assert_array_equal(view.share_obs[:, 0, : sum(widths)], joined)
        if state_type == "FP":
            np.testing.assert_array_equal(view.share_obs[0, :, sum(widths) :], np.eye(agents))
        if over:
            assert view.final_obs is not None
            assert not np.array_equal(view.final_obs, view.obs)
    env.close()
    env.close()


def test_tlb_05_final_observations_are_the_true_last_ones() -> None:
    spies: list[Spy] = []

    def make() -> Spy:
        spies.append(Spy(simple_spread_v3.parallel_env(max_cycles=5)))
        return spies[-1]

    env = ParallelVectorEnv(make, 2)
    view = env.reset([1, 2])
    rng = np.random.default_rng(0)
    cuts = 0
    for _ in range(20):
        view = env.step(random_actions(env, view, rng))
        for n in np.flatnonzero(view.ended):
            assert view.final_obs is not None
            assert view.final_share_obs is not None
            truth = np.stack(list(spies[n].last[-1].values()))
            np.testing.assert_array_equal(view.final_obs[n], truth)
            np.testing.assert_array_equal(view.final_share_obs[n, 0], truth.reshape(-1))
            assert not np.array_equal(view.obs[n], truth)
            cuts += 1
    assert cuts == 8


def test_rewards_and_ends_belong_to_the_step_that_caused_them() -> None:
    env = ParallelVectorEnv(SumOne, 2)
    view = env.reset([1, 2])
    for _ in range(3):
        total = np.zeros((2, 2, 1))
        for step in range(1, 11):
            view = env.step(np.zeros((2, 2, 1), np.float32))
            total += view.rewards
            assert (view.terminated == (step == 10)).all()
            assert not view.truncated.any()
        np.testing.assert_allclose(total, 1.0, rtol=1e-6)


def seed_logs(num_envs: int, seeds: list[int] | None, steps: int = 25) -> tuple[list[SeedLog], np.ndarray]:
    """Environments after `steps` steps, and the first observations (episode, N) that they showed."""
    made: list[SeedLog] = []

    def make() -> SeedLog:
        made.append(SeedLog())
        return made[-1]

    env = ParallelVectorEnv(make, num_envs)
    starts = [env.reset(seeds).obs[:, 0, 0].copy()]
    for _ in range(steps):
        view = env.step(np.zeros((num_envs, 2, 1), np.float32))
        if view.ended.all():
            starts.append(view.obs[:, 0, 0].copy())
    return made, np.stack(starts)


def test_sed_03_each_copy_gets_its_own_seed_once() -> None:
    made, _ = seed_logs(4, [11, 12, 13, 14])
    given = [[seed for seed, _ in env.resets if seed is not None] for env in made]
    assert given == [[11], [12], [13], [14]]
    assert made[0].action_space("agent_0").sample() == seed_logs(1, [11])[0][0].action_space("agent_0").sample()


def test_sed_04_first_observations_follow_the_seeds() -> None:
    _, starts = seed_logs(4, [7, 8, 9, 10], steps=0)
    assert len(set(starts[0])) == 4
    np.testing.assert_array_equal(starts, seed_logs(4, [7, 8, 9, 10], steps=0)[1])
    assert set(starts[0]).isdisjoint(seed_logs(4, [17, 18, 19, 20], steps=0)[1][0])


def test_sed_07_later_episodes_differ_and_repeat_in_another_run() -> None:
    _, starts = seed_logs(1, [5])
    assert len(starts) == 6
    assert len(set(starts[:, 0])) == 6
    np.testing.assert_array_equal(starts, seed_logs(1, [5])[1])


def test_seeds_are_folded_to_32_bits() -> None:
    assert [fold_seed(seed) for seed in (0, 7, 2**32 - 1)] == [0, 7, 2**32 - 1]
    folded = [fold_seed(seed) for seed in (2**32, 2**40 + 3, 2**63 - 1)]
    assert all(0 <= seed < 2**32 for seed in folded)
    with pytest.raises(EnvError, match="1 seeds for 2 environments"):
        ParallelVectorEnv(SeedLog, 2).reset([1])


class Reporting(ConstReward):
    """Numbers of the team and of agents in infos, beside things that are no numbers."""

    def step(self, actions: dict[str, Any]) -> Any:
        *rest, _ = super().step(actions)
        per_agent = {"distance": np.float32(self.t), "picture": np.zeros(3), "word": "x", "hit": True}
        infos: dict[Any, Any] = {agent: dict(per_agent) for agent in self.possible_agents}
        infos["agent_1"]["distance"] = 3 * self.t
        infos["common_log"] = 0.5
        infos["names"] = ["not a number"]
        return *rest, infos


def test_log_09_numbers_of_the_team_and_of_agents_arrive() -> None:
    env = ParallelVectorEnv(Reporting, 2)
    assert env.reset([1, 2]).metrics == {}
    metrics = env.step(np.zeros((2, 2, 1), np.float32)).metrics
    assert {name: values.tolist() for name, values in metrics.items()} == {
        "distance": [2.0, 2.0],
        "hit": [1.0, 1.0],
        "common_log": [0.5, 0.5],
    }


def test_log_09_copies_that_report_nothing_are_nan_and_names_are_limited() -> None:
    class Sometimes(ConstReward):
        count = 0

        def __init__(self) -> None:
            super().__init__()
            self.number = Sometimes.count
            Sometimes.count += 1

        def step(self, actions: dict[str, Any]) -> Any:
            *rest, infos = super().step(actions)
            names = [f"m{self.t}_{i}" for i in range(20)] if self.number else []
            return *rest, infos | dict.fromkeys(names, 1)

    env = ParallelVectorEnv(Sometimes, 2)
    env.reset([1, 2])
    actions = np.zeros((2, 2, 1), np.float32)
    first, second, third = (dict(env.step(actions).metrics) for _ in range(3))
    np.testing.assert_array_equal(first["m1_0"], [np.nan, 1.0])
    assert (len(first), len(second), len(third)) == (20, 12, 0)


def test_mem_05_nothing_of_infos_is_kept() -> None:
    class Ballast:
        """Something big in an info that refers to the info itself."""

    alive: list[weakref.ref[Ballast]] = []

    class Heavy(ConstReward):
        def step(self, actions: dict[str, Any]) -> Any:
            *rest, infos = super().step(actions)
            ballast = Ballast()
            alive.append(weakref.ref(ballast))
            for info in infos.values():
                info.update(ballast=ballast, itself=info, final_info=infos, score=1.0)
            return *rest, infos

    env = ParallelVectorEnv(lambda: Heavy(T=3), 1)
    env.reset([1])
    for _ in range(20):
        view = env.step(np.zeros((1, 2, 1), np.float32))
    gc.collect()
    assert view.metrics["score"].tolist() == [1.0]
    assert [ref() for ref in alive] == [None] * 20


def test_state_is_saved_and_loaded_only_where_the_environment_can() -> None:
    env = ParallelVectorEnv(lambda: ConstReward(T=5), 2)
    assert env.can_save_state
    env.reset([1, 2])
    actions = np.zeros((2, 2, 1), np.float32)
    for _ in range(3):
        env.step(actions)
    saved = pickle.loads(pickle.dumps(env.get_state()))
    fresh = ParallelVectorEnv(lambda: ConstReward(T=5), 2)
    fresh.set_state(saved)
    for _ in range(7):
        one, two = env.step(actions), fresh.step(actions)
        np.testing.assert_array_equal(one.ended, two.ended)
        np.testing.assert_array_equal(one.truncated, two.truncated)
        np.testing.assert_array_equal(one.active, two.active)
    with pytest.raises(EnvError, match="of 2 environments, not 1"):
        ParallelVectorEnv(ConstReward, 1).set_state(saved)

    class Forgetful(ConstReward):
        def set_state(self, state: dict[str, Any]) -> None:
            self.t = state["t"]

    forgetful = ParallelVectorEnv(lambda: Forgetful(T=5), 1)
    forgetful.reset([1])
    state = forgetful.get_state()
    state["environments"][0]["listed"] = [0]
    with pytest.raises(EnvError, match=r"set_state brought back env\.agents as .* it was"):
        forgetful.set_state(state)
    other = ParallelVectorEnv(Identity, 1)
    assert not other.can_save_state
    with pytest.raises(EnvError, match="cannot save its state"):
        other.get_state()


def test_render_gives_pictures_or_says_what_to_set() -> None:
    env = make_parallel_vector_env("tests.envs.fixtures:ConstReward", {}, 1, "EP", render=True)
    env.reset([1])
    env.step(np.zeros((1, 2, 1), np.float32))
    picture = env.render(0)
    assert picture.shape == (16, 24, 3)
    assert picture.dtype == np.uint8
    assert (picture == 1).all()
    with pytest.raises(EnvError, match="render=True"):
        ParallelVectorEnv(ConstReward, 1).render()
    blind = ParallelVectorEnv(ConstReward, 1, render=True)  # built without a render_mode: render() is None
    with pytest.raises(EnvError, match=r'received NoneType.*render_mode="rgb_array"'):
        blind.render()


def test_rnd_02_mpe2_renders_without_a_display() -> None:
    env = make_parallel_vector_env(SPREAD, {}, 1, "EP", render=True)
    env.reset([1])
    picture = env.render()
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert len(np.unique(picture)) > 1
    env.close()


class Countdown(gymnasium.Env):
    """A single-agent environment: the observation counts the steps; it ends at 3."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), float(action), self.t == 3, False, {}


def test_tlb_07_a_single_agent_environment_is_a_team_of_one() -> None:
    env = ParallelVectorEnv(Countdown, 2)
    view = env.reset([1, 2])
    assert env.layout.agents == ("agent_0",)
    seen = []
    for _ in range(6):
        view = env.step(np.ones((2, 1, 1), np.float32))
        assert (view.rewards == 1).all()
        seen.append(float(view.obs[0, 0, 0]))
        if view.ended[0]:
            assert view.final_obs is not None
            assert view.final_obs[0, 0, 0] == 3
            assert view.terminated.all()
    assert seen == [1, 2, 0, 1, 2, 0]


def test_an_aec_environment_is_adapted_or_refused() -> None:
    env = ParallelVectorEnv(simple_spread_v3.env, 1)
    env.reset([1])
    for _ in range(25):
        view = env.step(np.zeros((1, 3, 1), np.float32))
    assert view.truncated.all()

    def turn_based() -> Any:
        game = simple_spread_v3.raw_env()
        game.metadata = {**game.metadata, "is_parallelizable": False}
        return game

    with pytest.raises(EnvError, match="is_parallelizable"):
        ParallelVectorEnv(turn_based, 1)
    with pytest.raises(EnvError, match=r"returned int, which lacks reset.*ParallelEnv"):
        ParallelVectorEnv(lambda: 3, 1)


def test_copies_must_agree_and_failed_builds_are_closed() -> None:
    closed: list[int] = []
    made: list[Any] = []

    class Differing(ConstReward):
        def close(self) -> None:
            closed.append(1)

    def make() -> Any:
        made.append(Differing(agents=2 + len(made)))
        return made[-1]

    with pytest.raises(EnvError, match="environment 1: its agents are"):
        ParallelVectorEnv(make, 2)
    assert len(closed) == 2


def test_wrong_shape_of_actions_is_named() -> None:
    env = ParallelVectorEnv(ConstReward, 2)
    env.reset([1, 2])
    with pytest.raises(EnvError, match=r"shape \(2, 2\), expected \(2, 2, 1\)"):
        env.step(np.zeros((2, 2), np.float32))
