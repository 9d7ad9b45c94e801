"""`python -m harl.hitl.sharpie` as it is typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harl.hitl import sharpie
from tests.hitl.sharpie_fakes import KEY, FakeSite, obliging

ROOT = Path(__file__).parents[2]
WORLDS = "tests.hitl.sharpie_worlds"


def ended(*arguments: str) -> int:
    """Exit status of the command, run here."""
    with pytest.raises(SystemExit) as raised:
        sharpie.main(arguments)
    return int(raised.value.code or 0)


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    file = tmp_path / "mapping.yaml"
    walk = {"environment": {"entry_point": f"{WORLDS}:Walk"}, "agents": {"agent_1": {"object": f"{WORLDS}:Steady"}}}
    file.write_text(yaml.safe_dump({"experiments": {"walk": walk}}))
    return file


def started(port: int, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "harl.hitl.sharpie", "--hostname", "127.0.0.1", "--port", str(port),
               "--record", str(folder / "journals"), *arguments]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str], seconds: float = 60) -> str:
    """All that the process said until it ended."""
    return process.communicate(timeout=seconds)[0]


def test_the_queue_is_served_until_the_process_is_asked_to_end(mapping: Path, tmp_path: Path) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    site.queue.put(("walk", "A1"))
    with site.running() as port:
        process = started(port, tmp_path, "--mapping", str(mapping), "runserver", SHARPIE_CONNECTION_KEY=KEY)
        try:
            site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000, 60)
        finally:
            process.send_signal(signal.SIGTERM)
            output = said(process)
    assert process.returncode == 143
    assert "walk/A1: played 3 steps" in output
    assert "Traceback" not in output
    assert KEY not in output
    assert len(list((tmp_path / "journals" / "walk").glob("A1_*.jsonl"))) == 1


def test_a_room_is_served_without_the_queue_options_in_any_order(mapping: Path, tmp_path: Path) -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    key = tmp_path / "key"
    key.write_text(KEY)
    with site.running() as port:
        process = started(
            port, tmp_path, "room", "walk", "A1", "--mapping", str(mapping), "--key-file", str(key), "--episodes", "2"
        )
        output = said(process)
    assert process.returncode == 0, output
    assert output.count("walk/A1: played 3 steps") == 2
    assert site.connections == ["/experiment/walk/run/A1"] * 2


def test_a_room_that_does_not_exist_is_said(mapping: Path, tmp_path: Path) -> None:
    site = FakeSite()
    site.refuse["/experiment"] = 500
    with site.running() as port:
        process = started(
            port, tmp_path, "room", "walk", "A1", "--mapping", str(mapping), "--wait", "0.2", "--connection-key", KEY
        )
        output = said(process)
    assert process.returncode == 1
    assert "HTTP 500: it has no open session there" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runserver", "--mapping", "no-such-file.yaml", "--connection-key", "k"], "no-such-file.yaml cannot be read"),
        (["runserver"], "no connection key"),
        (["import-gallery", "no-such-file.yaml"], "no-such-file.yaml cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARPIE_CONNECTION_KEY", raising=False)
    assert ended(*arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["room", "walk"], ["runserver", "walk"], ["serve"], [], ["runserver", "--port", "x"]]
)
def test_wrong_words_show_what_is_right(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*arguments) == 2
    assert "usage: python -m harl.hitl.sharpie" in capsys.readouterr().err


def test_a_gallery_file_is_printed_as_a_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "environment: {filepaths: {environment: environment.py}}\nagents: [{role: a, participant: true}]\n"
        "experiment: {link: x}\n"
    )
    assert ended("import-gallery", str(file)) == 0
    assert yaml.safe_load(capsys.readouterr().out)["experiments"]["x"]["agents"]["a"]["participant"] is True


def test_every_function_of_the_platforms_runner_is_there() -> None:
    names = """sanitize_data send_message receive_message get_policy_actions load_episode load_environment load_policies
        override_actions override_rewards get_agent_data update_single_agent train_policies run_episode start_experiment
        main"""
    missing: list[Any] = [name for name in names.split() if not callable(getattr(sharpie, name, None))]
    assert missing == []
