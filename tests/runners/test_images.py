"""Networks that see images in whole runs, with memory and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import harl
from harl.config import ConfigError
from tests.algorithms.rollouts import all_finite
from tests.runners.runs import QUICK, assert_same_run, make, resume, run, stop_at, world
from tests.runners.test_recurrent import ALGOS, MEMORY, mean_return


@pytest.mark.parametrize("algo", ["happo", "mappo-shared"])
def test_image_identity(tmp_path: Path, algo: str) -> None:
    """Best 10; a uniform policy has 2.5."""
    assert mean_return(tmp_path, *ALGOS[algo], *world("Quadrants"), "train.num_env_steps=6000") > 9.5


@pytest.mark.parametrize("memory", [[], MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_takes_images(tmp_path: Path, algo: str, state_type: str, memory: list[str]) -> None:
    settings = ["train.num_env_steps=40", f"env.state_type={state_type}", "model.cnn_stride=2", *memory, *QUICK]
    runner = run(tmp_path, *ALGOS[algo], *world("Quadrants"), *settings)
    assert runner.buffer.obs.dtype == torch.uint8
    assert all_finite(runner)
    policy = harl.load(runner.folder.path)
    image = np.full((8, 8, 1), 255, np.uint8)
    by_name = policy.act({"agent_0": image, "agent_1": image})
    policy.reset()
    by_array = policy.act(np.full((2, 1, 8, 8), 255.0, np.float32))
    assert list(by_name.values()) == by_array[:, 0].tolist()  # type: ignore[union-attr,call-overload]
    with pytest.raises(ValueError, match="declares shape"):
        policy.act({"agent_0": image[:7]})


def test_stopped_and_resumed_with_images(tmp_path: Path) -> None:
    overrides = [*world("Quadrants"), *MEMORY]
    straight, stopped = run(tmp_path, *overrides), make(tmp_path, *overrides)
    stop_at(stopped, 46)
    assert_same_run(straight.folder, resume(stopped.folder).folder)


def test_kernel_that_does_not_fit_is_refused_with_the_sizes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.cnn_kernel_size=9: the images \(observations\) have 8 x 8 pixels"):
        make(tmp_path, *world("Quadrants"), "model.cnn_kernel_size=9")


@pytest.mark.parametrize("algo", ["hasac", "had3qn"])
def test_algorithms_without_a_base_for_images_refuse_them(tmp_path: Path, algo: str) -> None:
    with pytest.raises(ConfigError, match=rf"\(1, 8, 8\) are images; .* algo.name={algo} take vectors") as caught:
        harl.make_runner([f"algo={algo}", f"output_dir={tmp_path}", *world("Quadrants")])
    assert "algorithms that take images: happo, mappo, haa2c, hatrpo" in str(caught.value)
