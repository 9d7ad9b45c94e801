"""G.8 of the specification: what was saved on one device is loaded on another.

A GPU need not be there: a file says of each tensor where it lay, and these say that it was a GPU.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harl
from harl.runners.runner import Runner
from tests.runners import off_policy_runs, runs
from tests.runners.runs import assert_same_run

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MAKERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], tuple[str, ...]]] = {
    "happo": (runs.make, runs.stop_at, runs.resume, ("algo=happo", "env=mpe")),
    "hatrpo_rnn": (
        runs.make,
        runs.stop_at,
        runs.resume,
        ("algo=hatrpo", "model.use_naive_recurrent_policy=true", "env=mpe"),
    ),
    "hasac": (off_policy_runs.make, off_policy_runs.stop_at, off_policy_runs.resume, ("hasac",)),
    "had3qn": (off_policy_runs.make, off_policy_runs.stop_at, off_policy_runs.resume, ("had3qn",)),
}
"""How a run is made, stopped and carried on, and with which arguments."""


def says_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:7")


def needs_a_gpu(file: Path) -> bool:
    """Whether torch by itself would want a GPU for it."""
    try:
        torch.load(io.BytesIO(file.read_bytes()), weights_only=True)
    except RuntimeError as error:
        return "CUDA device" in str(error)
    return False


@pytest.mark.parametrize("kind", MAKERS)
def test_G_8_and_D_44_a_run_that_was_stopped_on_a_gpu_goes_on_without_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, stop_at, resume, arguments = MAKERS[kind]
    straight = make(tmp_path / "straight", *arguments)
    straight.run()
    stopped = make(tmp_path / "stopped", *arguments)
    with monkeypatch.context() as patched:
        says_cuda(patched)
        stop_at(stopped, 46)
    assert needs_a_gpu(stopped.folder.checkpoints / "46" / "learners.pt")
    resumed = resume(stopped.folder)
    assert_same_run(straight.folder, resumed.folder)


@pytest.mark.parametrize("kind", MAKERS)
def test_G_8_a_team_that_was_trained_on_a_gpu_is_loaded_without_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _, _, arguments = MAKERS[kind]
    runner = make(tmp_path, *arguments)
    with monkeypatch.context() as patched:
        says_cuda(patched)
        runner.run()
    assert needs_a_gpu(runner.folder.checkpoints / "80" / "learners.pt")
    policy = harl.load(runner.folder.path, "latest")
    obs = np.zeros((2, 3, *runner.layout.obs_shape), np.float32)
    assert isinstance(policy.act(obs), np.ndarray)


@GPU
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("here", ["cuda", "cpu"])
def test_G_8_from_gpu_to_cpu_and_back(tmp_path: Path, kind: str, here: str) -> None:
    make, stop_at, _, arguments = MAKERS[kind]
    there = {"cuda": "cpu", "cpu": "cuda"}[here]
    overrides: dict[str, Any] = {}
    if len(arguments) == 1:
        overrides["device__name"] = here
    else:
        arguments = (*arguments, f"device.name={here}")
    stopped: Runner = make(tmp_path, *arguments, **overrides)
    stop_at(stopped, 46)
    resumed = harl.make_runner([f"resume={stopped.folder.path}", f"device.name={there}"])
    resumed.run()
    assert resumed.env_steps == 80
    assert {p.device.type for network in resumed.team.networks for p in network.parameters()} == {there}
