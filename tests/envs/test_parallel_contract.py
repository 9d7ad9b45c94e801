"""Environments that break a promise of `ParallelEnv` are told so in plain words, naming the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from harl.envs.api import EnvError
from harl.envs.parallel import ParallelVectorEnv
from tests.envs.fixtures import ConstReward

Change = Callable[[Any], Any]


class Broken(ConstReward):
    """ConstReward whose results are changed: `at_reset` gets the pair of reset, `at_step` the list of five of step."""

    def __init__(self, at_reset: Change | None = None, at_step: Change | None = None) -> None:
        super().__init__(T=5)
        self.at_reset, self.at_step = at_reset, at_step

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed, options)
        return self.at_reset(result) if self.at_reset else result

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        return self.at_step(result) if self.at_step else result


def put(index: int, key: Any, value: Any) -> Change:
    """Set one entry of one of the dicts of a result."""

    def change(result: Any) -> Any:
        result[index][key] = value
        return result

    return change


def replace(index: int, value: Any) -> Change:
    """Put `value` in the place of one of the dicts of a result."""
    return lambda result: (*result[:index], value, *result[index + 1 :])


def drop(index: int, key: Any) -> Change:
    """Take one entry out of one of the dicts of a result."""

    def change(result: Any) -> Any:
        del result[index][key]
        return result

    return change


AT_START = [
    ("ENV-04", lambda result: result[0], r"reset\(seed=.*must return \(observations, infos\).*received one dict"),
    ("ENV-03", replace(1, [{}, {}]), "infos must be a dict with one dict for each agent.*list of length 2"),
    ("ENV-03", replace(1, None), "infos must be a dict.*received NoneType"),
    ("ENV-03", replace(1, {"score": 1.0}), "without any agent, with the keys 'score'"),
    ("ENV-03", put(1, "agent_1", [1]), "for agent 'agent_1' received list"),
    ("DED-09", put(0, "__all__", np.zeros(2)), "observations of reset holds '__all__', which is no agent"),
    ("shape", put(0, "agent_1", np.zeros(4)), r"agent 'agent_1'.*declares shape \(2,\).*received shape \(4,\)"),
    ("dtype", put(0, "agent_0", np.array(["a", "b"])), "agent 'agent_0'.*float32, received shape.*<U1"),
    ("dict", put(0, "agent_0", {"image": 1}), r"a dict with the keys \['image'\]; it must have 'observation'"),
]

AT_STEP = [
    ("ENV-04", lambda result: result[:4], r"step\(actions\) must return.*a tuple of 4 \(the old form"),
    ("ENV-03", replace(4, ({}, {})), "infos must be a dict.*tuple of length 2"),
    ("DED-09", put(2, "__all__", False), "terminations holds '__all__'"),
    ("DED-09", put(3, "__all__", False), "truncations holds '__all__'"),
    ("DED-09", put(1, "team", 1.0), "rewards holds 'team'"),
    ("keys", replace(1, [1.0, 1.0]), "rewards must be a dict keyed by agent, received list"),
    ("reward", put(1, "agent_0", "1"), "agent 'agent_0': its reward must be one number, received str"),
    ("reward", put(1, "agent_0", np.zeros(2)), r"one number, received ndarray of shape \(2,\)"),
    ("reward", put(1, "agent_0", None), "one number, received NoneType"),
    ("reward", drop(1, "agent_1"), "'agent_1' is in env.agents, but step returned no reward"),
    ("flag", drop(3, "agent_1"), "'agent_1' is in env.agents, but step returned no truncation"),
    ("flag", put(2, "agent_1", "yes"), "its termination must be True or False, received 'yes'"),
    ("obs", drop(0, "agent_1"), "'agent_1' is in env.agents, but has no observation"),
    ("shape", put(0, "agent_1", np.zeros((2, 1))), r"environment 1, step 1 of episode 1.*received shape \(2, 1\)"),
]


@pytest.mark.parametrize(
    ("case", "change", "message"), AT_START, ids=[f"{c}-{i}" for i, (c, _, _) in enumerate(AT_START)]
)
def test_breaches_of_reset_are_found_at_the_start(case: str, change: Change, message: str) -> None:
    with pytest.raises(EnvError, match="pettingzoo broken, environment 0: ") as caught:
        ParallelVectorEnv(lambda: Broken(at_reset=change), 2, scenario="broken")
    assert caught.match(message)


@pytest.mark.parametrize(
    ("case", "change", "message"), AT_STEP, ids=[f"{c}-{i}" for i, (c, _, _) in enumerate(AT_STEP)]
)
def test_breaches_of_step_are_found_in_the_first_step(case: str, change: Change, message: str) -> None:
    made: list[Broken] = []

    def make() -> Broken:
        made.append(Broken(at_step=change if made else None))
        return made[-1]

    env = ParallelVectorEnv(make, 2, scenario="broken")
    env.reset([5, 6])
    with pytest.raises(
        EnvError, match="pettingzoo broken, environment 1, step 1 of episode 1, last seeded with 6"
    ) as caught:
        env.step(np.zeros((2, 2, 1), np.float32))
    assert caught.match(message)


def test_numbers_that_are_no_floats_are_taken() -> None:
    changes = iter([1, np.float64(2.0), np.array([3.0]), np.int32(4)])

    def change(result: Any) -> Any:
        result[1]["agent_0"] = next(changes)
        result[2]["agent_0"] = np.bool_(False)
        result[3]["agent_0"] = 0
        result[0]["agent_0"] = [0.5, 1]
        return result

    env = ParallelVectorEnv(lambda: Broken(at_step=change), 1)
    env.reset([1])
    views = [env.step(np.zeros((1, 2, 1), np.float32)).rewards[0, 0, 0].item() for _ in range(4)]
    assert views == [1.0, 2.0, 3.0, 4.0]


def test_empty_infos_are_allowed() -> None:
    env = ParallelVectorEnv(lambda: Broken(at_reset=replace(1, {}), at_step=replace(4, {})), 1)
    env.reset([1])
    assert env.step(np.zeros((1, 2, 1), np.float32)).metrics == {}


@pytest.mark.parametrize(
    ("agents", "message"),
    [(None, "has no possible_agents"), ([], "has no possible_agents"), (["a", "a"], "holds an agent twice")],
)
def test_possible_agents_must_be_there(agents: Any, message: str) -> None:
    def make() -> Broken:
        env = Broken()
        env.possible_agents = agents
        return env

    with pytest.raises(EnvError, match=message):
        ParallelVectorEnv(make, 1)


def test_unknown_agents_in_the_list_are_named() -> None:
    def rename(result: Any) -> Any:
        own.agents = ["agent_0", "stranger"]
        return result

    own = Broken(at_step=rename)
    env = ParallelVectorEnv(lambda: own, 1)
    env.reset([1])
    with pytest.raises(EnvError, match=r"env\.agents holds 'stranger'"):
        env.step(np.zeros((1, 2, 1), np.float32))


def test_an_error_of_the_environment_itself_keeps_its_type_and_says_where() -> None:
    def fail(result: Any) -> Any:
        raise KeyError("boom")

    env = ParallelVectorEnv(lambda: Broken(at_step=fail), 1, scenario="broken")
    env.reset([8])
    with pytest.raises(KeyError, match="boom") as caught:
        env.step(np.zeros((1, 2, 1), np.float32))
    assert caught.value.__notes__ == ["in pettingzoo broken, environment 0, step 1 of episode 1, last seeded with 8"]


class Stateful(ConstReward):
    """Gives `give` as its state and declares `declared`."""

    def __init__(self, give: Any, declared: tuple[int, ...] | None = None) -> None:
        super().__init__(T=5)
        self.give = give
        if declared is not None:
            self.state_space = spaces.Box(-1.0, 1.0, declared, np.float32)

    def state(self) -> Any:
        return self.give() if callable(self.give) else self.give


def test_het_06_declared_and_received_state_must_agree() -> None:
    with pytest.raises(EnvError, match=r"env.state\(\) returned shape \(4,\), but state_space declares \(12,\)"):
        ParallelVectorEnv(lambda: Stateful(np.zeros(4), (12,)), 1)
    each = {"agent_0": np.zeros(12), "agent_1": np.zeros(4)}
    with pytest.raises(EnvError, match=r"agent 'agent_1': env.state\(\) returned shape \(4,\), but .* \(12,\)"):
        ParallelVectorEnv(lambda: Stateful(each, (12,)), 1, "FP")
    own = Stateful(np.zeros(4), (4,))
    env = ParallelVectorEnv(lambda: own, 1)
    env.reset([1])
    own.give = np.zeros(3)
    with pytest.raises(EnvError, match=r"step 1 .* returned shape \(3,\), declared \(4,\)"):
        env.step(np.zeros((1, 2, 1), np.float32))


def test_a_state_of_the_environments_own_is_used() -> None:
    grid = np.arange(6).reshape(3, 2)
    view = ParallelVectorEnv(lambda: Stateful(grid), 2).reset([1, 2])
    assert view.share_obs.shape == (2, 2, 6)
    assert view.share_obs[1].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    view = ParallelVectorEnv(lambda: Stateful(grid), 2, "FP").reset([1, 2])
    assert view.share_obs[0].tolist() == [[0, 1, 2, 3, 4, 5, 1, 0], [0, 1, 2, 3, 4, 5, 0, 1]]


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"agent_0": np.array([1, 2, 3]), "agent_1": np.array([4])}, [[1, 2, 3], [4, 0, 0]]),
    ],
)
def test_a_state_for_each_agent_is_used_as_fp(give: Any, expected: Any) -> None:
    view = ParallelVectorEnv(lambda: Stateful(give), 1, "FP").reset([1])
    assert view.share_obs[0].tolist() == expected


def test_wrong_states_are_refused() -> None:
    with pytest.raises(EnvError, match=r"one state for each agent; set env.state_type=FP"):
        ParallelVectorEnv(lambda: Stateful({"agent_0": np.zeros(1), "agent_1": np.zeros(1)}), 1)
    with pytest.raises(EnvError, match=r"keyed by \['x'\]"):
        ParallelVectorEnv(lambda: Stateful({"x": np.zeros(1)}), 1, "FP")
    with pytest.raises(EnvError, match="must be an array of numbers, received NoneType"):
        ParallelVectorEnv(lambda: Stateful(None), 1)
    with pytest.raises(EnvError, match="'XP' is unknown; allowed: EP, FP"):
        ParallelVectorEnv(ConstReward, 1, "XP")
    with pytest.raises(AttributeError, match="missing"):  # a fault in the user's own state() is not taken for "none"
        ParallelVectorEnv(lambda: Stateful(lambda: np.missing), 1)
