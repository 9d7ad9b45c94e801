"""Signals: the first asks, the second Ctrl-C insists, and the exit code says which it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from harl.experiment.interrupts import GracefulStop

RUN = """
import sys, time
from harl.experiment.interrupts import GracefulStop
with GracefulStop() as stop:
    print("ready", flush=True)
    while not stop.requested or "stubborn" in sys.argv:
        time.sleep(0.01)
    print("saved", flush=True)
sys.exit(stop.exit_code)
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_prc_04_the_first_signal_finishes_the_step(number: signal.Signals, code: int) -> None:
    process = start()
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert (output, process.returncode) == ("saved\n", code)
    assert errors == "finishing the step, saving; press Ctrl-C again to stop at once\n"


def test_prc_04_the_second_ctrl_c_stops_at_once() -> None:
    process = start("stubborn")
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("finishing the step")
    process.send_signal(signal.SIGTERM)  # a scheduler that asks again is not in a hurry
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert "saved" not in output
    assert "KeyboardInterrupt" in errors
    assert process.returncode in (130, -signal.SIGINT)


def test_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with GracefulStop() as stop:
        assert signal.getsignal(signal.SIGTERM) not in before
        assert (stop.requested, stop.exit_code) == (False, 0)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        assert (stop.signal, stop.exit_code) == (signal.SIGTERM, 143)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert stop.exit_code == 143
    with stop:
        assert not stop.requested


def test_outside_the_main_thread_nothing_changes() -> None:
    seen: list[object] = []

    def run() -> None:
        with GracefulStop() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.requested, stop.exit_code))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(signal.getsignal(signal.SIGTERM), False, 0)]
