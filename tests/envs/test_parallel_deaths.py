"""Agents that leave, episodes that end in unusual ways, and action masks, through `ParallelVectorEnv`."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harl.envs.api import EnvError
from harl.envs.check import random_actions
from harl.envs.parallel import ParallelVectorEnv
from tests.envs.fixtures import ConstReward, Deaths, FixtureEnv, MaskOnly


def one_env(env: Any, state_type: str = "EP") -> ParallelVectorEnv:
    return ParallelVectorEnv(lambda: env, 1, state_type)


def test_ded_01_and_05_departed_agents_keep_a_slot() -> None:
    env = ParallelVectorEnv(Deaths, 2)
    view = env.reset([1, 2])
    rng = np.random.default_rng(0)
    assert env.layout.has_masks
    for _ in range(3):
        for step in range(1, 5):
            view = env.step(random_actions(env, view, rng))
            masks = view.available_actions
            assert masks is not None
            over = step == 4
            for agent in range(3):
                lives = over or step < 2 + agent  # after the end it is the first view of the next episode
                assert (view.active[:, agent] == lives).all()
                seen = [1.0, 0.0 if over else step] if lives else [0.0, 0.0]
                assert (view.obs[:, agent] == seen).all()
                assert (masks[:, agent] == ([0, 1, 1, 1] if lives else [1, 0, 0, 0])).all()
            assert view.ended.tolist() == [over] * 2
        assert view.final_obs is not None
        assert view.final_available_actions is not None
        assert view.final_obs[0].tolist() == [[0, 0], [0, 0], [1, 4]]
        assert view.final_available_actions[0].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1]]


def test_ded_04_no_action_is_sent_and_late_rewards_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    env = ParallelVectorEnv(lambda: Deaths(late_reward=5.0), 2)
    view = env.reset([1, 2])
    rng = np.random.default_rng(0)
    returns = np.zeros((2, 3, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            view = env.step(random_actions(env, view, rng))  # Deaths raises if a departed agent is sent an action
            returns += view.rewards
    assert returns[:, :, 0].tolist() == [[2, 3, 4], [2, 3, 4]]
    warnings = [record.message for record in caplog.records if "'agent_0' after it has left" in record.message]
    assert len(warnings) == 1


def test_ded_06_end_flags_are_set_in_one_step_only() -> None:
    env = one_env(Deaths())
    view = env.reset([1])
    rng = np.random.default_rng(0)
    flags = []
    for _ in range(8):
        view = env.step(random_actions(env, view, rng))
        assert not view.truncated.any()
        flags.append(view.terminated[0].astype(int).tolist())
    assert flags == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]] * 2


def test_ded_07_active_is_the_environments_own_list() -> None:
    own = Deaths(agents=5)
    env = one_env(own)
    view = env.reset([1])
    rng = np.random.default_rng(0)
    for _ in range(18):
        before = view.active[0, :, 0].copy()
        view = env.step(random_actions(env, view, rng))
        assert view.active[0, :, 0].tolist() == [float(agent in own.agents) for agent in own.possible_agents]
        assert view.rewards[0, :, 0].tolist() == before.tolist()  # the step of death is still rewarded


def test_ded_03_an_empty_agent_list_ends_the_episode() -> None:
    env = one_env(ConstReward(T=4))
    env.reset([1])
    ends = []
    for _ in range(12):
        view = env.step(np.zeros((1, 2, 1), np.float32))
        ends.append(bool(view.ended[0]))
        assert (view.truncated == view.ended[0]).all()
    assert ends == [False, False, False, True] * 3


class Mixed(FixtureEnv):
    """agent_0 terminates in step 2, agent_1 is truncated in step 4; `agents` is never changed (flags only)."""

    def __init__(self) -> None:
        super().__init__(2, 4)
        self.set_spaces(spaces.Box(0.0, 9.0, (1,), np.float32), spaces.Box(1.0, 2.0, (1,), np.float32))
        self.sent: list[dict[str, float]] = []

    def observe(self, agent: str) -> Any:
        return np.array([9.0], np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        self.sent.append({agent: float(actions[agent][0]) for agent in self.agents})
        self.t += 1
        dead = self.t >= 2
        return (
            self._observations(),
            {"agent_0": 0.0 if self.t > 2 else 1.0, "agent_1": 1.0},
            {"agent_0": dead, "agent_1": False},
            {"agent_0": False, "agent_1": self.t == 4},
            {agent: {} for agent in self.agents},
        )


def test_ded_11_an_absorbing_dead_state_is_a_departure() -> None:
    own = Mixed()
    env = one_env(own)
    env.reset([1])
    ends, obs = [], []
    for _ in range(4):
        view = env.step(np.full((1, 2, 1), 1.5, np.float32))
        ends.append((view.terminated[0].tolist(), view.truncated[0].tolist(), view.ended.tolist()))
        obs.append(view.obs[0, :, 0].tolist())
    no, first, second = [False, False], [True, False], [False, True]
    assert ends == [(no, no, [False]), (first, no, [False]), (no, no, [False]), (no, second, [True])]
    assert obs == [[9, 9], [0, 9], [0, 9], [9, 9]]
    # It is still listed by the environment, which needs an entry for it: a neutral one, never the policy's.
    assert [sent["agent_0"] for sent in own.sent] == [1.5, 1.5, 1.0, 1.0]


def test_an_agent_that_vanishes_without_a_flag_has_terminated(caplog: pytest.LogCaptureFixture) -> None:
    class Vanishing(ConstReward):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            if self.t == 2:
                self.agents = ["agent_1"]
                for part in result:
                    part.pop("agent_0")
            return result

    env = one_env(Vanishing())
    env.reset([1])
    env.step(np.zeros((1, 2, 1), np.float32))
    view = env.step(np.zeros((1, 2, 1), np.float32))
    assert view.terminated[0].tolist() == [True, False]
    assert view.active[0, :, 0].tolist() == [0, 1]
    assert "without a termination" in caplog.text


class DoneAtReset(ConstReward):
    """Is over right after reset with probability .2, or always."""

    def __init__(self, always: bool = False) -> None:
        super().__init__(T=3)
        self.always = always
        self.empty = 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        if self.always or self.rng.random() < 0.2:
            self.agents = []
            self.empty += 1
            return {}, {}
        return observations, infos


def test_env_01_an_episode_that_is_over_at_reset_is_reset_again() -> None:
    own = DoneAtReset()
    env = one_env(own)
    env.reset([3])
    ended = 0
    for _ in range(150):
        view = env.step(np.zeros((1, 2, 1), np.float32))
        assert (view.active == 1).all()
        ended += int(view.ended[0])
    assert ended == 50
    assert own.empty > 0
    with pytest.raises(EnvError, match="after each of 100 resets"):
        one_env(DoneAtReset(always=True))


@pytest.mark.parametrize("in_observation", [False, True])
def test_msk_04_and_06_masks_arrive_bit_for_bit(in_observation: bool) -> None:
    made: list[MaskOnly] = []

    def make() -> MaskOnly:
        made.append(MaskOnly(actions=7, legal=2, in_observation=in_observation))
        return made[-1]

    env = ParallelVectorEnv(make, 2)
    view = env.reset([1, 2])
    rng = np.random.default_rng(0)
    assert env.layout.obs_dims == (7, 7)
    for _ in range(50):
        view = env.step(random_actions(env, view, rng))  # MaskOnly raises on an illegal action
        assert view.available_actions is not None
        truth = [[own.masks[agent] for agent in own.possible_agents] for own in made]
        np.testing.assert_array_equal(view.available_actions, truth)


class OddMasks(FixtureEnv):
    """A MultiDiscrete([3, 2]) agent with the mask given, a Discrete(4) agent without any."""

    def __init__(self, mask: Any) -> None:
        super().__init__(2, 5)
        self.observation_spaces = {agent: spaces.Box(0.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {"agent_0": spaces.MultiDiscrete([3, 2]), "agent_1": spaces.Discrete(4)}
        self.mask = mask

    def observe(self, agent: str) -> Any:
        return np.zeros(1, np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return 0.0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed, options)[0], {"agent_0": {"action_mask": self.mask}}

    def step(self, actions: dict[str, Any]) -> Any:
        *rest, _ = super().step(actions)
        return *rest, {"agent_0": {"action_mask": self.mask}}


def test_msk_05_masks_of_components_are_joined() -> None:
    env = one_env(OddMasks(np.array([1, 0, 1, 0, 1])))
    masks = env.reset([1]).available_actions
    assert masks is not None
    assert masks[0].tolist() == [[1, 0, 1, 0, 1], [1, 1, 1, 1, 0]]
    for wrong in (np.ones((2, 3)), np.ones(4), (np.ones(3), np.ones(2))):
        with pytest.raises(EnvError, match=r"'agent_0'.*must have length 5 \(the masks of its components"):
            one_env(OddMasks(wrong))


def test_msk_08_a_living_agent_without_any_action_is_an_error() -> None:
    own = OddMasks(np.array([1, 1, 1, 1, 1]))
    env = one_env(own)
    env.reset([1])
    env.step(np.zeros((1, 2, 2), np.float32))
    own.mask = np.array([1, 1, 1, 0, 0])  # the second component has nothing left
    with pytest.raises(EnvError, match=r"step 2 of episode 1.*agent 'agent_0' takes part, but .* allows no action"):
        env.step(np.zeros((1, 2, 2), np.float32))


def test_msk_08_an_empty_mask_in_the_last_step_allows_the_first_action() -> None:
    class LastMaskEmpty(MaskOnly):
        def advance(self) -> None:
            super().advance()
            if self.t == self.max_cycles:
                self.masks["agent_0"][:] = 0

    env = one_env(LastMaskEmpty(T=2))
    view = env.reset([1])
    rng = np.random.default_rng(0)
    for _ in range(2):
        view = env.step(random_actions(env, view, rng))
    assert view.ended[0]
    assert view.final_available_actions is not None
    assert view.final_available_actions[0, 0].tolist() == [1, 0, 0, 0, 0]


def test_a_mask_that_comes_and_goes_is_an_error() -> None:
    own = OddMasks(np.ones(5))
    env = one_env(own)
    env.reset([1])
    own.mask = None
    with pytest.raises(EnvError, match="gives no action mask now"):
        env.step(np.zeros((1, 2, 2), np.float32))
    late = OddMasks(None)
    env = one_env(late)
    assert not env.layout.has_masks
    env.reset([1])
    late.mask = np.ones(5)
    with pytest.raises(EnvError, match="gave none at its first reset"):
        env.step(np.zeros((1, 2, 2), np.float32))
