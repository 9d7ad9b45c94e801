"""A body whose joints belong to different agents: what an agent decides is what its own joints do, unscaled.

The faults D-24, D-25 and D-26 of the original are those of its robots; the way of actions and observations is the same
for every environment here, so a small body shows whether ours has them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harl.algorithms.base import NonFiniteError
from tests.algorithms.learners import DETERMINISTIC
from tests.envs.fixtures import Dicts, FixtureEnv
from tests.runners.off_policy_runs import fixture, make

JOINTS = {"agent_0": [0, 3], "agent_1": [2], "agent_2": [4, 1, 5]}
"""Which of the six actuators each agent has, as many partitions do: neither in order nor equally many."""
LIMITS = np.array([0.4, 1.0, 0.4, 0.1, 2.0, 0.4], np.float32)
SCALES = np.array([1.0, 250.0], np.float32)
BOUNDED = (*DETERMINISTIC, "hasac")


class Body(FixtureEnv):
    """Six joints; `torques` are those of each step, by actuator, `sent` the actions of each agent in this process."""

    torques: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__(len(JOINTS), T=10)
        self.action_spaces = {agent: spaces.Box(-LIMITS[joints], LIMITS[joints]) for agent, joints in JOINTS.items()}
        seen = spaces.Box(-1e4, 1e4, (2,), np.float32)
        self.observation_spaces = dict.fromkeys(JOINTS, seen)

    def begin(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.seen = self.rng.normal(size=2).astype(np.float32) * SCALES

    def observe(self, agent: str) -> Any:
        return self.seen

    def reward(self, agent: str, action: Any) -> float:
        return -float(np.abs(action).sum())

    def step(self, actions: dict[str, Any]) -> Dicts:
        torques = np.full(len(LIMITS), np.nan, np.float32)
        for agent, joints in JOINTS.items():
            assert actions[agent].shape == (len(joints),)
            torques[joints] = actions[agent]
        Body.torques.append(torques)
        return super().step(actions)


def body_run(tmp_path: Any, algo: str, **settings: Any) -> Any:
    """A tiny run on two bodies with nothing else in it."""
    Body.torques.clear()
    quick = {"logger__tensorboard": False, "eval__use_eval": False, "algo__buffer_size": 400}
    if algo == "hasac":  # with them, values of observations this large run away, which has a test below
        quick["algo__use_valuenorm"] = False
    return make(tmp_path, algo, fixture("Body", "tests.runners.test_joints"), **{**quick, **settings})


@pytest.mark.parametrize("algo", BOUNDED)
def test_D_24_what_is_stored_is_what_every_actuator_did(tmp_path: Any, algo: str) -> None:
    """The original gave all agents the slice of the first one, and joined their parts in the order of the agents."""
    runner = body_run(tmp_path, algo)
    assert [space.shape for space in runner.layout.action_spaces] == [(2,), (1,), (3,)]
    runner.run()
    stored = runner.buffer.gather(torch.arange(runner.env_steps)).actions.numpy()
    done = np.array(Body.torques[: runner.env_steps])
    for i, joints in enumerate(JOINTS.values()):
        np.testing.assert_array_equal(stored[i, :, : len(joints)], done[:, joints])
        assert (stored[i, :, len(joints) :] == 0).all()


@pytest.mark.parametrize("algo", BOUNDED)
def test_D_25_random_actions_and_policies_use_all_of_each_joints_range(tmp_path: Any, algo: str) -> None:
    """The original scaled twice, so that limits of 0.4 let learners move by 0.16."""
    runner = body_run(tmp_path, algo, train__warmup_steps=400, train__num_env_steps=400)
    runner.run()
    reached = np.abs(np.array(Body.torques)).max(0)
    assert (reached > 0.97 * LIMITS).all()
    assert (reached <= LIMITS).all()
    for network in runner.team.networks:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(100.0)  # so sure of itself that it wants the utmost
    obs = np.random.default_rng(0).normal(size=(200, 3, 2)).astype(np.float32) * SCALES
    wanted = runner.get_actions(obs, add_random=False)
    for i, joints in enumerate(JOINTS.values()):
        assert np.abs(wanted[:, i, : len(joints)]).max(0) == pytest.approx(LIMITS[joints], rel=1e-3)


@pytest.mark.parametrize("algo", BOUNDED)
def test_D_26_observations_keep_their_scale(tmp_path: Any, algo: str) -> None:
    """The original standardised each vector over its own entries at every step."""
    runner = body_run(tmp_path, algo, train__num_env_steps=400)
    runner.run()
    seen = runner.buffer.gather(torch.arange(400)).obs.numpy()
    assert seen.std(axis=(0, 1)) == pytest.approx(SCALES, rel=0.15)


def test_numbers_that_explode_are_laid_at_the_door_of_large_observations(tmp_path: Any) -> None:
    runner = body_run(tmp_path, "hasac", algo__use_valuenorm=True, train__num_env_steps=2000)
    with pytest.raises(NonFiniteError, match=r"observations reach \d{2,3}, which off-policy critics take as they are"):
        runner.run()
