"""Learning while people of a SHARPIE site act: from their answers to the learner's buffer and its policies."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from websockets.sync.server import ServerConnection

from tests.hitl.sharpie_fakes import KEY, FakeSite, agent, batch, policy
from tests.hitl.sharpie_training import (
    COMMON,
    FAMILIES,
    FOR_ITSELF,
    LENGTH,
    PAYS,
    T,
    chances,
    remembered,
    run,
    training,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    monkeypatch.setenv("SHARPIE_CONNECTION_KEY", KEY)
    monkeypatch.setattr("harl.hitl.sharpie_site.waiting.ASK_S", 0.02)
    made = FakeSite()
    assert made.settings is not None
    made.settings[1] = {"agent_0": agent(), "agent_1": agent(participant=False)}
    made.settings[2]["target_fps"] = 100_000.0
    return made


def serve(site: FakeSite, algo: str, folder: Path, people: Callable[..., None], *more: str) -> Any:
    """What a run remembers that has served one session to its end, and how likely actions were before and after it."""
    before: list[Any] = []

    def watched(connection: ServerConnection, message: dict[str, Any]) -> None:
        if message.get("step") == 1:  # the run waits for the answer
            before.append(chances(runner))
        people(connection, message)

    site.people["walk"] = watched
    site.queue.put(("walk", "A1"))
    with site.running() as port:
        over = functools.partial(site.wait_for, lambda: ("walk", "A1") in site.closed, 200)
        runner = training(algo, port, folder, over, *more)
        if runner.family == "off_policy":  # what it would learn by itself until the person comes depends on the machine
            learn = runner.learn_for_a_while
            runner.learn_for_a_while = lambda: learn() if before else None
        memory = remembered(runner)
        run(runner)
    return memory, before[0], chances(runner)


@pytest.mark.parametrize(("algo", "mostly"), [("happo", 0), ("hasac", 2)])
def test_the_buffer_holds_what_the_script_did_and_the_policy_comes_to_do_it(
    site: FakeSite, tmp_path: Path, algo: str, mostly: int
) -> None:
    """On-policy it is imitated, off-policy it has to be good as well: rewards are places."""
    pressed: list[int] = []

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            pressed.append(mostly if message["step"] % 5 else 2 - mostly)
            connection.send(batch(agent_0=pressed[-1]))

    memory, before, after = serve(site, algo, tmp_path, people)
    steps = memory.steps()
    driven = [i for i, step in enumerate(steps) if step.human[0]]
    count = len(driven)
    assert count == LENGTH or algo == "happo"
    assert LENGTH - T <= count <= LENGTH  # the last rollout may not have been complete
    assert driven == list(range(driven[0], driven[0] + count))
    assert [steps[i].actions[0] for i in driven] == pressed[:count]
    assert not any(step.human[1] for step in steps)
    places = np.concatenate([[0], np.cumsum(np.array(pressed[:count]) - 1)])[:count]
    assert [steps[i].obs[0] for i in driven] == places.tolist()
    frames = site.frames("walk", "A1")
    assert [frame["actions"]["agent_0"] for frame in frames[1 : count + 1]] == pressed[:count]
    assert after[mostly] > before[mostly] + 0.2


@pytest.mark.parametrize("algo", ["happo", "hasac"])
def test_rewards_of_a_person_stand_in_the_buffer_and_change_the_policy(
    site: FakeSite, tmp_path: Path, algo: str
) -> None:
    given: list[int] = []
    assert site.settings is not None
    site.settings[1]["agent_0"] = agent(inputs_type="reward", policy=policy())

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            action = message["actions"].get("agent_0")
            given.append(1 if action == 0 else -1)
            connection.send(batch(agent_0=given[-1]))

    more = ["algo.entropy_coef=0", "algo.lr=0.005"] if algo == "happo" else []
    memory, before, after = serve(site, algo, tmp_path, people, *FOR_ITSELF, *more)
    steps = memory.steps()
    frames = site.frames("walk", "A1")
    actions = [frame["actions"]["agent_0"] for frame in frames[1:]]
    start = next(
        i for i in range(len(steps))
        if steps[i].obs[0] == 0 and [step.actions[0] for step in steps[i : i + T]] == actions[:T]
    )  # fmt: skip
    judged = steps[start : start + LENGTH]
    late = {i for i in range(len(judged)) if (start + i) % T == T - 1} if algo == "happo" else set()
    """Judged when the update was made already."""
    assert len(judged) == LENGTH or algo == "happo"
    assert len(judged) >= LENGTH - T
    assert not any(any(step.human) for step in judged)
    for i, step in enumerate(judged):
        if i not in late:
            assert step.rewards == pytest.approx([given[i + 1], PAYS * (step.obs[1] + step.actions[1] - 1)]), i
    assert after[0] > before[0] + 0.1


def test_off_policy_a_share_of_each_batch_is_what_people_did(site: FakeSite, tmp_path: Path) -> None:
    """One person drives agent_0 while another one rewards agent_1: each of the two does its part of a transition."""
    assert site.settings is not None
    site.settings[1]["agent_1"] = agent(inputs_type="reward", policy=policy())
    said: list[tuple[int, int]] = []

    def people(connection: ServerConnection, message: dict[str, Any]) -> None:
        if "step" in message:
            said.append((message["step"] % 3, 1 if message["actions"].get("agent_1") == 0 else -1))
            connection.send(batch(agent_0=said[-1][0], agent_1=said[-1][1]))

    memory, _, _ = serve(site, "hasac", tmp_path, people, *FOR_ITSELF)
    driven = [step for step in memory.steps() if step.human[0]]
    assert [step.actions[0] for step in driven] == [action for action, _ in said[:LENGTH]]
    assert [step.rewards[1] for step in driven] == [reward for _, reward in said[1:]]
    paid = [PAYS * (step.obs[0] + step.actions[0] - 1) for step in driven]
    assert [step.rewards[0] for step in driven] == pytest.approx(paid)
    second = memory.second
    assert len(second) == LENGTH
    drawn = second.sample(40 * LENGTH)
    columns = (drawn.obs[:, :, 0].T, drawn.actions[:, :, 0].T, drawn.rewards[..., 0].T.round(decimals=4))
    found = {tuple(map(tuple, row)) for row in zip(*(column.tolist() for column in columns), strict=True)}
    rounded = [np.float32(step.rewards).round(4).tolist() for step in driven]
    wanted = {
        (tuple(step.obs), tuple(step.actions), tuple(reward)) for step, reward in zip(driven, rounded, strict=True)
    }
    assert found == wanted


@pytest.mark.slow
def test_a_learner_of_the_command_serves_its_link_and_saves_when_it_is_stopped(site: FakeSite, tmp_path: Path) -> None:
    site.people["walk"] = lambda connection, message: connection.send(batch(agent_0=2)) if "step" in message else None
    typed = [text for text in (*FAMILIES["happo"], *COMMON) if not text.startswith(("hitl", "train.num_env_steps"))]
    learner = [*typed, f"output_dir={tmp_path}/runs", "train.num_env_steps=1e9"]
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
