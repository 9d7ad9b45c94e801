"""`python -m harl.envs.check`: what is right passes, every fault is found, all faults at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from harl.envs.check import check_environment, main, parse_arguments
from tests.envs.fixtures import ConstReward, SeedLog

HERE = "tests.envs.test_check"


class DivergesAt50(ConstReward):
    """Looks deterministic for 49 steps and is not from step 50 on."""

    def __init__(self) -> None:
        super().__init__(T=100)

    def observe(self, agent: str) -> Any:
        shift = np.random.default_rng().random() if self.t >= 50 else 0.0
        return np.full(2, shift, np.float32)


class SameEpisodeAgain(SeedLog):
    """Seeds itself again with the first seed at every reset."""

    first = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.first = self.first if seed is None else seed
        return super().reset(self.first, options)


class ForgetsTheSeed(SeedLog):
    """Takes fresh entropy at every reset without a seed."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed)
        return super().reset(seed, options)


class SeedsOnce(SeedLog):
    """Only the first seed counts."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed if not any(given for given, _ in self.resets) else None, options)


class ManyFaults(ConstReward):
    """A reward that is text, a NaN, an observation outside its bounds, and uneven rewards."""

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, *rest = super().step(actions)
        if self.t == 2:
            rewards["agent_0"] = "one"
        if self.t == 3:
            observations["agent_1"] = np.array([np.nan, 0.0], np.float32)
        if self.t == 4:
            observations["agent_0"] = np.array([3.0, 0.0], np.float32)
        if self.t == 5:
            rewards["agent_1"] = np.inf
        return observations, rewards, *rest


class OldApi(ConstReward):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0]


class Endless(ConstReward):
    """A ParallelEnv that is never over."""

    def __init__(self) -> None:
        super().__init__(T=10**9)


@pytest.mark.parametrize(
    "entry_point",
    [
        "mpe2.simple_speaker_listener_v4:parallel_env",
        *(
            f"tests.envs.fixtures:{name}"
            for name in ("Deaths", "Hetero", "MaskOnly", "SeedLog", "SumOne", "IdentityBox")
        ),
    ],
)
def test_right_environments_pass(entry_point: str) -> None:
    findings = check_environment(entry_point, {})
    assert findings.problems == []
    assert any("deterministic" in message for message in findings.lines)


def test_sed_06_a_divergence_at_step_50_is_found() -> None:
    (problem,) = check_environment(f"{HERE}:DivergesAt50", {}).problems
    assert "two copies with the same seed and actions differ in obs" in problem
    findings = check_environment(f"{HERE}:DivergesAt50", {})
    assert findings.lines[problem][1] == "step 50 of 200"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SameEpisodeAgain", "all episodes begin alike although the seed changes the start"),
        ("ForgetsTheSeed", "two copies with the same seed and actions differ in obs"),
        ("SeedsOnce", "a second reset with the same seed begins differently"),
        ("OldApi", "must return (observations, infos)"),
    ],
)
def test_faults_are_found(name: str, message: str) -> None:
    problems = check_environment(f"{HERE}:{name}", {}).problems
    assert len(problems) == 1
    assert message in problems[0]


def test_all_faults_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{HERE}:ManyFaults"]) == 1
    output = capsys.readouterr().out
    for expected in (
        "WRONG   agent 'agent_0': its reward must be one number, received str (step 2 of episode 1)",
        "WRONG   agent 'agent_1': its observation holds NaN or infinity (step 3 of episode 1)",
        "WRONG   agent 'agent_1': its reward is inf (step 5 of episode 1)",
        "note    agent 'agent_0': an observation is outside of the bounds of its space (step 4 of episode 1)",
        "3 problems found",
    ):
        assert expected in output


def test_an_endless_episode_is_noted() -> None:
    findings = check_environment(f"{HERE}:Endless", {}, episodes=1)
    assert findings.problems == []
    assert any("was not over after 2000 steps" in message for message in findings.lines)


def test_the_report_says_what_the_environment_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests.envs.fixtures:SeedLog", "T=7", "agents=3"]) == 0
    output = capsys.readouterr().out
    assert "agent_2: observes Box(0.0, 1.0, (3,), float32), acts in Discrete(4)" in output
    assert "episodes: 3, steps 7 to 7, limit 7" in output
    assert "rewards differ between agents: env.reward=individual" in output
    assert "no problem found" in output
    assert main(["tests.envs.fixtures:ConstReward"]) == 0
    assert "rewards are the same for all agents" in capsys.readouterr().out


def test_a_wrong_entry_point_or_argument_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests.envs.fixtures:ConstRewards"]) == 1
    assert "did you mean 'ConstReward'?" in capsys.readouterr().out
    assert main(["tests.envs.fixtures:ConstReward", "agent=3"]) == 1
    assert "has no argument 'agent', did you mean 'agents'?" in capsys.readouterr().out


def test_arguments_are_read_as_values() -> None:
    pairs = ["size=5", "rate=1e-3", "flag=true", "none=null", "name=a=b", "sizes=[1, 2]", "quoted='7'"]
    assert parse_arguments(pairs) == {
        "size": 5,
        "rate": 1e-3,
        "flag": True,
        "none": None,
        "name": "a=b",
        "sizes": [1, 2],
        "quoted": "7",
    }
    with pytest.raises(ValueError, match="'size' must have the form key=value"):
        parse_arguments(["size"])


def test_the_command_runs_by_itself() -> None:
    command = [sys.executable, "-m", "harl.envs.check", "tests.envs.fixtures:NaNAt", "k=2", "--episodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "its observation holds NaN or infinity (step 2 of episode 1)" in done.stdout
    assert "Traceback" not in done.stderr
