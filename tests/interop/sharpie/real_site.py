"""A real SHARPIE site for tests: the released package in an environment of its own, with a throw-away database."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KEY = "interop-runner-key"
VERSION = "1.0.0rc1"


def find_python() -> Path | None:
    """Python of the environment with SHARPIE: of `SHARPIE_VENV`, or .venv-sharpie; None without one."""
    folder = Path(os.environ.get("SHARPIE_VENV") or ROOT / ".venv-sharpie")
    python = folder / "bin" / "python"
    return python if python.exists() else None


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealSite:
    """A running site.

    Args:
        folder: for its database and logs.
        python: of the environment that SHARPIE is installed in.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python, self.port = folder, python, free_port()
        self.fixture_log = folder / "fixture.jsonl"
        own = {"DJANGO_SETTINGS_MODULE": "interop_settings", "PYTHONPATH": str(HERE), "SHARPIE_KEY": KEY}
        self.environment = {**os.environ, **own, "FIXTURE_LOG": str(self.fixture_log), "PYTHONUNBUFFERED": "1"}
        self._server: subprocess.Popen[bytes] | None = None
        self._script("seed.py")

    def _script(self, name: str, *arguments: str) -> str:
        command = [str(self.python), str(HERE / name), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Start the server, at the same port each time, and wait until it answers."""
        command = [str(self.python.parent / "sharpie-web"), "runserver", "--noreload", f"127.0.0.1:{self.port}"]
        self._server = self._start(command, "web")
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/accounts/login/", timeout=5).read()
                return
            except (urllib.error.URLError, OSError):
                assert self._server.poll() is None, self.log("web")
                time.sleep(0.1)
        raise AssertionError(f"the site does not answer: {self.log('web')}")

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End the server as a power cut would."""
        if self._server is not None and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait(20)

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def person(self, user: str, link: str, room: str, role: str, actions: list[Any], *more: str) -> Participant:
        """Send a scripted participant."""
        command = [str(self.python), str(HERE / "participant.py"), str(self.port), user, link, room, role,
                   json.dumps(actions), *more]  # fmt: skip
        return Participant(
            subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )
        )  # fmt: skip

    def stored(self, link: str, room: str, status: str = "completed") -> Any:
        """Sessions of a room with their records, which are written when a runner goes; waits for this status."""
        sessions: Any = []
        for _ in range(100):
            sessions = json.loads(self._script("dump.py", link, room))
            if sessions and sessions[-1]["status"] == status:
                break
            time.sleep(0.2)
        return sessions

    def runner(self, command: list[str], name: str, **environment: str) -> Runner:
        """Start a runner, to be used in a `with` block."""
        path = os.pathsep.join([str(ROOT), str(HERE)])
        mine = {**self.environment, "PYTHONPATH": path, "SHARPIE_CONNECTION_KEY": KEY, **environment}
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=mine, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return Runner(process, self, name)


class Participant:
    """A scripted person at work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def episodes(self, seconds: float = 180) -> Any:
        """What they saw, once they are done."""
        output, errors = self.process.communicate(timeout=seconds)
        assert output.strip(), errors
        return json.loads(output)


class Runner:
    """A runner at work; ended with the `with` block."""

    def __init__(self, process: subprocess.Popen[bytes], site: RealSite, name: str) -> None:
        self.process, self.site, self.name = process, site, name

    @property
    def said(self) -> str:
        return self.site.log(self.name)

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until it has said something."""
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} was not said:\n{self.said}"
            time.sleep(0.1)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(20)
