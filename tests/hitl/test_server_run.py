"""A whole training with people, from the command line: what the run says, is told, and leaves behind."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hitl.talking import ENVIRON, META, PATIENCE, TOKENS, Client, validator
from tests.runners.runs import ROOT

pytestmark = pytest.mark.slow

SCENE = validator("scene")
LINK = re.compile(r"https?://127\.0\.0\.1:(\d+)/#token=\S+")


class Training:
    """A run that goes on until it is told to stop."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        command = [
            sys.executable, "-m", "harl.train", "algo=happo", "env=mpe", "hitl=web", "hitl.port=0", "device.name=cpu",
            "train.num_env_steps=1e8", "train.n_rollout_threads=2", "train.episode_length=20", "model.hidden_sizes=[8]",
            "logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}", *overrides,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **ENVIRON},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._coming: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._coming.put(line)

    def port(self) -> int:
        """Where it listens, from the first link that it prints."""
        while True:
            found = LINK.search(self._coming.get(timeout=60))
            if found is not None:
                return int(found[1])

    def stop(self) -> int:
        """The exit status after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self._reader.join(PATIENCE)
        return status


class Place:
    """What a client needs of a server in another process."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.settings: Any = type("Settings", (), {"tls": None})


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    running = Training(tmp_path)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()


def test_people_take_part_in_a_run_that_keeps_their_secrets_SEC05(training: Training, tmp_path: Path) -> None:
    place = Place(training.port())
    with Client(place).hello("admin", name="ada") as client:  # type: ignore[arg-type]
        told = client.welcome
        assert (told["env_id"], told["num_envs"], told["purpose"]) == ("mpe", 2, "train")
        agents = list(told["agents"])
        assert [told["agents"][name]["index"] for name in agents] == list(range(len(agents)))
        client.say("subscribe", env=0, mode="jpeg", fps=15, max_px=256)
        picture = client.frame()
        META.validate(picture.meta)
        assert picture.payload
        client.say("subscribe", env=0, mode="state", fps=15)
        while (drawing := client.frame()).codec != 4:
            pass
        SCENE.validate(json.loads(drawing.payload))
        META.validate(drawing.meta)
        client.say("control", op="request", agent=agents[0])
        assert client.hear("control")["holder"] == "ada"
        statuses = []
        for seq in range(20):
            seen = client.frame()
            place_seen = {"ep": seen.episode, "step": seen.step}
            client.say("input", agent=agents[0], seq=seq, seen=place_seen, action=1, held=True, ttl_ms=500)
            statuses.append(client.hear("ack", "control").get("status"))
        assert "applied" in statuses
        seen = client.frame()
        client.say(
            "feedback", agent=agents[0], seq=99, value=1, seen={"ep": seen.episode, "step": seen.step}, shown_ms=900
        )
        assert client.hear("credit")["seq"] == 99
        resume = told["resume"]
        assert training.stop() == 143
        assert client.hear("bye")["reason"]
        assert client.closed_with() == 4003
    secrets = [*TOKENS.values(), resume]
    unmasked = [line for line in training.lines if any(secret in LINK.sub("", line) for secret in secrets)]
    assert not unmasked
    assert not [line for line in training.lines if "Traceback" in line]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]
    with pytest.raises(OSError, match="refused"):
        Client(place)  # type: ignore[arg-type]


def test_what_cannot_listen_ends_before_the_training(tmp_path: Path) -> None:
    refused = Training(tmp_path, "hitl.host=192.0.2.1")
    assert refused.process.wait(60) != 0
    refused.stop()
    assert "hitl.host=192.0.2.1: is no address of this machine" in "".join(refused.lines)
    assert not [line for line in refused.lines if "Traceback" in line]
    assert not list(tmp_path.rglob("checkpoints"))
