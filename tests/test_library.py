"""`harl.make_runner` and `harl.load` in a user's own script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpe2 import simple_speaker_listener_v4

import harl
from harl.config import ConfigError
from harl.experiment.checkpoint import CheckpointError
from harl.runners import OnPolicyBaseRunner, Policy
from tests.envs.fixtures import Deaths, Hetero
from tests.runners.runs import QUICK, TINY, make, run, world
from tests.runners.worlds import TwoLegal

LOCAL = "algo.share_param=false"


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> OnPolicyBaseRunner:
    return run(tmp_path_factory.mktemp("spread"), "env=mpe", "checkpoint.interval=20", "checkpoint.keep_last=9")


@pytest.fixture(scope="module")
def hetero(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return harl.load(run(tmp_path_factory.mktemp("hetero"), LOCAL, *world("Hetero"), *QUICK).folder.path)


def test_make_runner_is_a_run_without_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = harl.make_runner([*TINY, "algo=happo", "env=mpe", "seed=3"])
    result = runner.run()
    assert isinstance(result, float)
    assert runner.folder.completed
    assert runner.folder.path.is_relative_to(tmp_path / "outputs" / "mpe" / "simple_spread" / "happo")
    with pytest.raises(ConfigError, match=r"algo\.lrr is unknown; did you mean algo\.lr"):
        harl.make_runner(["algo.lrr=1"])
    assert runner.eval is not None


def test_a_run_without_evaluation_returns_nothing(tmp_path: Path) -> None:
    assert make(tmp_path, *QUICK).run() is None


def test_arrays_and_dicts_give_the_same_actions(spread: OnPolicyBaseRunner) -> None:
    policy = harl.load(spread.folder.path, checkpoint="latest")
    obs = np.random.default_rng(0).normal(size=(4, 3, 18)).astype(np.float32)
    many = policy.act(obs)
    assert isinstance(many, np.ndarray)
    assert many.shape == (4, 3, 1)
    expected = spread.team.act(torch.from_numpy(obs), deterministic=True)[0].numpy()
    assert np.array_equal(many, expected), "what was trained is what acts"
    for n in range(4):
        one = policy.act(obs[n])
        assert isinstance(one, np.ndarray)
        assert one.shape == (3, 1)
        assert np.array_equal(one, many[n])
        by_agent = policy.act({agent: obs[n, i] for i, agent in enumerate(policy.layout.agents)})
        assert isinstance(by_agent, dict)
        assert [by_agent[agent] for agent in policy.layout.agents] == many[n, :, 0].astype(int).tolist()
        assert all(isinstance(action, int) for action in by_agent.values())


def test_samples_can_be_repeated(spread: OnPolicyBaseRunner) -> None:
    policy = harl.load(spread.folder.path)
    obs = np.zeros((200, 3, 18), np.float32)
    policy.seed(5)
    first = policy.act(obs, deterministic=False)
    second = policy.act(obs, deterministic=False)
    policy.seed(5)
    assert np.array_equal(policy.act(obs, deterministic=False), first)
    assert not np.array_equal(first, second)
    assert len(np.unique(first)) == 5, "a hardly trained policy tries everything"
    assert len(np.unique(policy.act(obs), axis=0)) == 1, "the mode is one and the same"
    policy.reset()


def test_checkpoints_are_chosen_by_name_steps_or_path(spread: OnPolicyBaseRunner) -> None:
    folder = spread.folder
    best = int((folder.checkpoints / "best").read_text(encoding="utf-8"))
    assert harl.load(folder.path).env_steps == best
    assert harl.load(str(folder.path), checkpoint="latest").env_steps == 80
    assert harl.load(folder.path, checkpoint=40).env_steps == 40
    assert harl.load(folder.path, checkpoint="40").env_steps == 40
    assert harl.load(folder.checkpoints / "20").env_steps == 20
    with pytest.raises(CheckpointError, match="there is no checkpoint 41"):
        harl.load(folder.path, checkpoint=41)
    with pytest.raises(ConfigError, match="allowed: best, latest, or a number of steps"):
        harl.load(folder.path, checkpoint="newest")


def test_a_path_with_dots_or_a_link_will_do(
    spread: OnPolicyBaseRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(spread.folder.path)
    assert harl.load(tmp_path / "link").env_steps == harl.load(spread.folder.path).env_steps
    monkeypatch.chdir(spread.folder.checkpoints)
    assert harl.load("..").env_steps == harl.load(spread.folder.path).env_steps
    assert harl.load(Path("..") / "checkpoints" / "20").env_steps == 20


@pytest.mark.parametrize(
    ("obs", "text"),
    [
        (np.zeros((3, 17), np.float32), r"\(3, 17\)"),
        (np.zeros((2, 4, 3, 18), np.float32), r"\(2, 4, 3, 18\)"),
        (np.zeros(18, np.float32), r"\(18,\)"),
        ({"agent_0": np.zeros(17)}, "agent_0 has 17 numbers; expected 18"),
        ({"agent_9": np.zeros(18)}, "agent_9"),
    ],
)
def test_wrong_shapes_and_strangers_are_refused(spread: OnPolicyBaseRunner, obs: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        harl.load(spread.folder.path).act(obs)


@pytest.mark.parametrize("deterministic", [True, False])
def test_continuous_actions_are_in_the_spaces_of_the_mpe2_package(tmp_path: Path, deterministic: bool) -> None:
    """A policy trained on the batched environment plays the package's own."""
    overrides = ["env=mpe", "env.scenario=simple_speaker_listener", "env.continuous_actions=true", LOCAL]
    runner = run(tmp_path, *overrides, "model.std_y_coef=5", "model.gain=10", *QUICK)
    policy = harl.load(runner.folder.path)
    env = simple_speaker_listener_v4.parallel_env(continuous_actions=True, max_cycles=25)
    observations, _ = env.reset(seed=1)
    steps, at_bound = 0, 0
    while env.agents:
        actions = policy.act(observations, deterministic=deterministic)
        assert isinstance(actions, dict)
        for agent, action in actions.items():
            assert env.action_space(agent).contains(action), (agent, action)
            at_bound += int(((action == 0) | (action == 1)).sum())
        observations = env.step(actions)[0]
        steps += 1
    assert steps == 25
    assert at_bound > 0, "clipping was needed"


def test_actions_have_the_form_of_each_agents_space(hetero: Policy) -> None:
    env = Hetero()
    observations, _ = env.reset(seed=3)
    for _ in range(20):
        actions = hetero.act(observations, deterministic=False)
        assert isinstance(actions, dict)
        assert {agent for agent, action in actions.items() if env.action_space(agent).contains(action)} == set(
            env.agents
        )
        assert isinstance(actions["agent_0"], int)
        assert actions["agent_2"].dtype == np.int64
        assert actions["agent_3"].dtype == np.float32
    padded = np.zeros((4, 11), np.float32)
    for i, agent in enumerate(env.possible_agents):
        padded[i, : Hetero.WIDTHS[i]] = observations[agent]
    array, by_agent = hetero.act(padded), hetero.act(observations)
    assert isinstance(array, np.ndarray)
    assert isinstance(by_agent, dict)
    assert array.shape == (4, 2)
    assert array[1, 0] == by_agent["agent_1"]
    assert np.array_equal(array[3], by_agent["agent_3"])


def test_what_is_padded_reaches_no_network(hetero: Policy) -> None:
    obs = np.ones((4, 11), np.float32)
    changed = obs.copy()
    for i, width in enumerate(Hetero.WIDTHS):
        changed[i, width:] = 1e6
    assert np.array_equal(hetero.act(obs), hetero.act(changed))


@pytest.mark.parametrize("deterministic", [True, False])
def test_msk_04_masks_count_when_a_loaded_policy_acts(tmp_path: Path, deterministic: bool) -> None:
    """The environment raises on an illegal action; the mask comes as the environment gives it."""
    policy = harl.load(run(tmp_path, *world("TwoLegal"), *QUICK).folder.path)
    env = TwoLegal()
    for episode in range(20):
        observations, _ = env.reset(seed=episode)
        while env.agents:
            observations = env.step(policy.act(observations, deterministic=deterministic))[0]  # type: ignore[arg-type]
    seen = {agent: observations[agent]["observation"] for agent in observations}
    masks = {agent: observations[agent]["action_mask"] for agent in observations}
    for _ in range(50):
        given = policy.act(seen, masks, deterministic=deterministic)
        assert isinstance(given, dict)
        assert set(given.values()) <= {2, 3}
        array = policy.act(np.ones((7, 2, 2)), np.tile(masks["agent_0"], (7, 2, 1)), deterministic=deterministic)
        assert set(np.unique(array)) <= {2.0, 3.0}


def test_msk_04_and_msk_05_masks_that_are_missing_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    policy = harl.load(run(tmp_path, *world("TwoLegal"), *QUICK).folder.path)
    seen = {agent: np.ones(2) for agent in policy.layout.agents}
    with pytest.raises(ValueError, match="available_actions"):
        policy.act(seen)
    with pytest.raises(ValueError, match="available_actions"):
        policy.act(np.ones((2, 2)))
    with pytest.raises(ValueError, match="agent_1 has 4 numbers; expected 5"):
        policy.act(seen, {"agent_0": np.ones(5), "agent_1": np.ones(4)})
    with pytest.raises(ValueError, match="agent_0 has 1 numbers"):
        policy.act(seen, {"agent_0": np.ones(1), "agent_1": np.ones(5)})
    with pytest.raises(ValueError, match=r"\(2, 4\)"):
        policy.act(np.ones((2, 2)), np.ones((2, 4)))


def test_ded_01_agents_that_have_left_are_left_out(tmp_path: Path) -> None:
    policy = harl.load(run(tmp_path, *world("Deaths"), *QUICK).folder.path)
    env = Deaths()
    observations, _ = env.reset(seed=0)
    lengths = []
    while env.agents:
        actions = policy.act({agent: observations[agent] for agent in env.agents}, deterministic=False)
        assert set(actions) == set(env.agents)  # type: ignore[arg-type]
        lengths.append(len(actions))
        observations = env.step(actions)[0]  # type: ignore[arg-type]
    assert lengths == [3, 3, 2, 1]
