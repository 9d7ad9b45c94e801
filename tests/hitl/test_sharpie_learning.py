"""Learning while people of a SHARPIE site act: from their answers to the learner's buffer and its policies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from websockets.sync.server import ServerConnection

import harl
from harl.hitl.bridge import Source
from tests.hitl.sharpie_fakes import KEY, FakeSite, agent, batch, policy

ROOT = Path(__file__).parents[2]
T = 50
LENGTH = 300
"""Steps of a rollout and of an episode."""
OVERRIDES = (
    "algo=happo", "env=pettingzoo", "env.entry_point=tests.hitl.sharpie_worlds:Walk", f"env.kwargs.length={LENGTH}",
    "env.state_type=EP", "env.reward=shared_sum", "hitl=sharpie", "hitl.hostname=127.0.0.1",
    "train.n_rollout_threads=1", f"train.episode_length={T}", "eval.use_eval=false", "logger.progress=off",
    "logger.tensorboard=false", "algo.lr=0.002", "seed=3",
)  # fmt: skip


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    monkeypatch.setenv("SHARPIE_CONNECTION_KEY", KEY)
    monkeypatch.setattr("harl.hitl.sharpie_site.waiting.ASK_S", 0.02)
    made = FakeSite()
    assert made.settings is not None
    made.settings[1] = {"agent_0": agent(), "agent_1": agent(participant=False)}
    made.settings[2]["target_fps"] = 100_000.0
    return made


class Rollouts:
    """What the learner had in its buffer at each update."""

    def __init__(self, runner: Any) -> None:
        self.actions: list[int] = []
        self.obs: list[float] = []
        self.rewards: list[float] = []
        self.mask: list[float] = []
        self.source: list[int] = []
        train = runner.train

        def watched() -> Any:
            buffer = runner.buffer
            self.actions += buffer.actions[:, 0, 0, 0].int().tolist()
            self.obs += buffer.obs[:-1, 0, 0, 0].tolist()
            self.rewards += buffer.rewards[:, 0, 0, 0].tolist()
            self.mask += buffer.policy_mask[:, 0, 0, 0].tolist()
            self.source += runner.people.overrides.source[:, 0, 0].tolist()
            return train()

        runner.train = watched


@contextlib.contextmanager
def training(site: FakeSite, folder: Path, people: Callable[..., None], *more: str) -> Iterator[Any]:
    """A run that has served one session to its end."""
    site.people["walk"] = people
    site.queue.put(("walk", "A1"))
    with site.running() as port:
        runner = harl.make_runner([*OVERRIDES, f"hitl.port={port}", f"output_dir={folder}", *more])
        threading.Thread(
            target=lambda: (site.wait_for(lambda: ("walk", "A1") in site.closed, 200),
                            setattr(runner.stopping, "requested", True)), daemon=True
        ).start()  # fmt: skip
        yield runner


def run(runner: Any) -> None:
    with contextlib.suppress(harl.runners.runner.RunInterrupted):
        runner.run()


def chances(runner: Any) -> np.ndarray[Any, Any]:
    """Probability of each action of agent_0, mean over places."""
    obs = torch.zeros(21, 2, 1)
    obs[:, :, 0] = torch.linspace(-20, 20, 21)[:, None]
    found = [
        runner.team.log_probs(obs, None, torch.full((21, 2, 1), float(action)))[:, 0].exp().mean().item()
        for action in range(3)
    ]
    return np.array(found)


def test_the_buffer_holds_what_the_script_did_and_the_policy_comes_to_do_it(site: FakeSite, tmp_path: Path) -> None:
    pressed: list[int] = []

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            pressed.append(0 if message["step"] % 5 else 2)  # mostly to the left
            connection.send(batch(agent_0=pressed[-1]))

    with training(site, tmp_path, people, "train.num_env_steps=1e6") as runner:
        rollouts, before = Rollouts(runner), chances(runner)
        run(runner)
        after = chances(runner)
    driven = [i for i, source in enumerate(rollouts.source) if source == Source.HUMAN]
    count = len(driven)
    assert LENGTH - T <= count <= LENGTH  # the last rollout may not have been complete
    assert driven == list(range(driven[0], driven[0] + count))
    assert [rollouts.actions[i] for i in driven] == pressed[:count]
    assert all(rollouts.mask[i] == 0 for i in driven)
    places = np.concatenate([[0], np.cumsum(np.array(pressed[:count]) - 1)])[:count]
    assert [rollouts.obs[i] for i in driven] == places.tolist()
    frames = site.frames("walk", "A1")
    assert [frame["actions"]["agent_0"] for frame in frames[1 : count + 1]] == pressed[:count]
    assert after[0] > before[0] + 0.2


def test_rewards_of_a_person_stand_in_the_buffer_and_change_the_policy(site: FakeSite, tmp_path: Path) -> None:
    given: list[int] = []
    assert site.settings is not None
    site.settings[1]["agent_0"] = agent(inputs_type="reward", policy=policy())

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            action = message["actions"].get("agent_0")
            given.append(1 if action == 2 else -1)
            connection.send(batch(agent_0=given[-1]))

    changes = ("train.num_env_steps=1e6", "hitl.reward.learn=replace", "env.reward=individual", "env.state_type=FP",
               "algo.gamma=0.1", "algo.entropy_coef=0")  # fmt: skip
    with training(site, tmp_path, people, *changes) as runner:
        rollouts, before = Rollouts(runner), chances(runner)
        run(runner)
        after = chances(runner)
    frames = site.frames("walk", "A1")
    actions = [frame["actions"]["agent_0"] for frame in frames[1:]]
    start = next(
        i for i in range(len(rollouts.actions)) if rollouts.actions[i : i + T] == actions[:T] and rollouts.obs[i] == 0
    )
    judged = rollouts.rewards[start : start + LENGTH]
    ends = {i for i in range(len(judged)) if (start + i) % T == T - 1}  # judged when the update was made already
    assert len(judged) >= LENGTH - T
    for i, reward in enumerate(judged):
        if i not in ends:
            assert reward == given[i + 1], i
    assert after[2] > before[2] + 0.2


@pytest.mark.slow
def test_a_learner_of_the_command_serves_its_link_and_saves_when_it_is_stopped(site: FakeSite, tmp_path: Path) -> None:
    site.people["walk"] = lambda connection, message: connection.send(batch(agent_0=2)) if "step" in message else None
    learner = [text for text in OVERRIDES if not text.startswith("hitl")] + [f"output_dir={tmp_path}/runs",
               "train.num_env_steps=1e9"]  # fmt: skip
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(yaml.safe_dump({"experiments": {"walk": {"learner": learner}}}))
    site.queue.put(("walk", "A1"))
    site.queue.put(("unknown", "A2"))
    site.queue.put(("walk", "A3"))
    with site.running() as port:
        command = [sys.executable, "-m", "harl.hitl.sharpie", "--hostname", "127.0.0.1", "--port", str(port),
                   "--mapping", str(mapping), "--record", str(tmp_path), "runserver"]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)  # fmt: skip
        try:
            site.wait_for(lambda: len(site.closed) == 3, 200)
        finally:
            process.terminate()
            output = process.communicate(timeout=120)[0]
    assert process.returncode == 143, output
    assert "Traceback" not in output
    assert [len(site.frames("walk", room)) for room in ("A1", "A3")] == [LENGTH + 1] * 2
    assert len(site.errors("unknown", "A2")) == 1
    (folder,) = (tmp_path / "runs").glob("**/checkpoints")
    assert any(folder.glob("[0-9]*"))
    assert any((folder.parent / "people").iterdir())
