"""`python -m harl.bench algo=happo env=mpe [bench.iterations=10]`: where the time of training goes, in one run.

Prints microseconds per environment step of the environments alone, of collecting, of the update and of the whole loop,
beside the floor: the matrix products of the same update and nothing else. The floor of the machine on which the
original implementation was measured is known, so that its speed can be scaled to this one.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harl import make_runner
from harl.algorithms.actors.on_policy import MinibatchActor, OnPolicyActor
from harl.algorithms.actors.trpo import ITERATIONS
from harl.config import ConfigError
from harl.runners import OffPolicyBaseRunner, OnPolicyBaseRunner

ORIGINAL = {
    "happo": {"as shipped": 1010.0, "one process, mpe2": 1417.0},
    "mappo": {"as shipped": 1060.0, "one process, mpe2": 1355.0},
    "haa2c": {"as shipped": 869.0},
    "hatrpo": {"as shipped": 552.0},
}
"""Environment steps per second of the original, simple_spread discrete, 20 environments x 200 steps, 128x128; of HAA2C
and HATRPO per second of CPU time, since their clock time was taken on a loaded machine."""
ORIGINAL_UPDATE_MS = {
    "hasac": 115.0, "haddpg": 32.4, "hatd3": 26.3, "maddpg": 31.1, "matd3": 25.4, "had3qn": 65.7,
}  # fmt: skip
"""Milliseconds of CPU time an update of the original, simple_spread continuous (HAD3QN: discrete), default networks and
batches, with 22 thousand transitions in its buffer."""
ORIGINAL_FLOOR_US = 26.0
"""Matrix products of HAPPO's update there, microseconds per environment step, one thread; see `machine_speed`."""


def matrix_floor(widths: list[list[int]], rows: int, passes: list[tuple[int, int]]) -> float:
    """Seconds of the matrix products of one update.

    Args:
        widths: layer widths of each network, input first.
        rows: rows of the rollout.
        passes: how often each network is gone through with gradient, forward and backward, and how often without.
    """
    seconds = 0.0
    for sizes, (epochs, forward_only) in zip(widths, passes, strict=True):
        weights = [torch.randn(after, before) for before, after in itertools.pairwise(sizes)]
        inputs = torch.randn(rows, sizes[0])
        started = time.perf_counter()
        for i in range(epochs + forward_only):
            layers = [inputs]
            for weight in weights:
                layers.append(layers[-1] @ weight.t())
            gradient = layers[-1]
            for k in reversed(range(len(weights))) if i < epochs else ():
                gradient.t() @ layers[k]
                gradient = gradient @ weights[k] if k else gradient
        seconds += time.perf_counter() - started
    return seconds


def passes_of(actor: OnPolicyActor) -> tuple[int, int]:
    """Passes of an actor's update with gradient and without, the ratio for the factor M among them.

    A Fisher product has four matrix products a layer, as one pass of each kind together.
    """
    if isinstance(actor, MinibatchActor):
        return actor.epochs, 2
    return 1 + ITERATIONS, 4 + ITERATIONS


def machine_speed() -> float:
    """How fast this machine multiplies matrices, as a multiple of the one on which the original was measured."""
    widths = [[18, 128, 128, 5]] * 3 + [[54, 128, 128, 1]]
    passes = [(5, 2)] * 3 + [(5, 0)]
    rows = 4000
    return ORIGINAL_FLOOR_US / 1e6 * rows / min(matrix_floor(widths, rows, passes) for _ in range(5))


def floor_of(runner: OnPolicyBaseRunner) -> float:
    """Microseconds per environment step of the matrix products of this runner's update; the best of five."""
    hidden = list(runner.model_config.hidden_sizes)
    networks = [[p.shape[1] for p in actor.policy.parameters() if p.dim() == 2][:1] for actor in runner.actors]
    outputs = [[p.shape[0] for p in actor.policy.parameters() if p.dim() == 2][-1:] for actor in runner.actors]
    widths = [first + hidden + last for first, last in zip(networks, outputs, strict=True)]
    widths.append([runner.layout.share_obs_shape[0], *hidden, 1])
    rows = runner.iteration_steps * (runner.layout.num_agents if runner.team.shared else 1)
    passes = [*map(passes_of, runner.actors), (runner.algo.critic_epoch, 0)]
    best = min(matrix_floor(widths, rows, passes) for _ in range(5))
    return best / runner.iteration_steps * 1e6


def measure(runner: OnPolicyBaseRunner, iterations: int) -> dict[str, float]:
    """Microseconds per environment step of each part of the loop, over `iterations` iterations after two of warm-up."""
    parts = {"collect": 0.0, "update": 0.0}
    runner.warmup()

    def timed(part: str, work: Callable[[], Any]) -> None:
        started = time.perf_counter()
        work()
        parts[part] += time.perf_counter() - started

    def update() -> None:
        runner.prep_training()
        runner.compute()
        runner.train()
        runner.after_update()

    def collect() -> None:
        runner.prep_rollout()
        runner.rollout()

    for i in range(iterations + 2):
        if i == 2:
            parts.update(collect=0.0, update=0.0)
        timed("collect", collect)
        timed("update", update)
    steps = iterations * runner.iteration_steps
    result = {name: seconds / steps * 1e6 for name, seconds in parts.items()}
    result["environment"] = environment_time(runner)
    result["loop"] = result["collect"] + result["update"]
    return result


def environment_time(runner: OnPolicyBaseRunner, vector_steps: int = 500) -> float:
    """Microseconds per environment step of stepping with the last rollout's actions."""
    actions = [runner.clip(step).copy() for step in runner.buffer.actions]
    started = time.perf_counter()
    for i in range(vector_steps):
        runner.envs.step(actions[i % len(actions)])
    return (time.perf_counter() - started) / (vector_steps * runner.buffer.num_envs) * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table, then the same as one line of JSON."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    iterations = [int(a.split("=")[1]) for a in arguments if a.startswith("bench.iterations=")]
    overrides = [argument for argument in arguments if not argument.startswith("bench.")]
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["eval.use_eval=false", "logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}"]
        try:
            runner = make_runner([*overrides, *quiet])
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        count = iterations[-1] if iterations else 10
        try:
            torch.set_num_threads(1)
            machine = machine_speed()
            if isinstance(runner, OffPolicyBaseRunner):
                report_off_policy(runner, measure_off_policy(runner, count), machine)
                return 0
            assert isinstance(runner, OnPolicyBaseRunner)
            floor, result = floor_of(runner), measure(runner, count)
        finally:
            runner.close()
    result["floor (one thread)"], result["machine"] = floor, machine
    report(runner, result)
    return 0


def measure_off_policy(runner: OffPolicyBaseRunner, bouts: int) -> dict[str, float]:
    """Milliseconds of a vector step and of an update, the best of `bouts` bouts of ten after one of warm-up."""
    runner.start()
    while len(runner.buffer) < runner.algo.batch_size:
        runner.step(runner.sample_actions(runner.seen.available_actions))
    work: dict[str, Callable[[], Any]] = {
        "vector step": lambda: runner.step(runner.get_actions(runner.seen.obs, runner.seen.available_actions)),
        "sampling (within update)": lambda: runner.buffer.sample(runner.algo.batch_size),
        "update": runner.train,
    }
    best = dict.fromkeys(work, float("inf"))
    for bout in range(bouts + 1):
        for name, function in work.items():
            started = time.perf_counter()
            for _ in range(10):
                function()
            if bout:
                best[name] = min(best[name], (time.perf_counter() - started) * 100)
    return best


def report_off_policy(runner: OffPolicyBaseRunner, result: dict[str, float], machine: float) -> None:
    """Print what was measured, for the ratio of updates to steps that is configured."""
    envs, ratio = runner.train_config.n_rollout_threads, runner.train_config.update_per_train
    print(
        f"{runner.algo.name}, {runner.envs.name}/{runner.envs.scenario}, {envs} environments, batches of "
        f"{runner.algo.batch_size}, {ratio:g} updates a vector step, threads {runner.threads.acting}"
    )
    for name, milliseconds in result.items():
        print(f"  {name:32s} {milliseconds:8.2f} ms")
    loop = result["vector step"] + ratio * result["update"]
    print(f"  {1e3 * envs / loop:,.0f} environment steps per second")
    there = ORIGINAL_UPDATE_MS.get(runner.algo.name)
    if there is not None and runner.envs.scenario == "simple_spread":
        scaled = there / machine
        print(
            f"  original: {scaled:.1f} ms an update scaled to this machine; this is {scaled / result['update']:.1f} "
            "times as fast"
        )
    print(json.dumps({**{name: round(value, 3) for name, value in result.items()}, "machine": round(machine, 2)}))


def report(runner: OnPolicyBaseRunner, result: dict[str, float]) -> None:
    """Print what was measured."""
    loop, floor = result["loop"], result["floor (one thread)"]
    print(
        f"{runner.algo.name}, {runner.envs.name}/{runner.envs.scenario}, {runner.buffer.num_envs} environments x "
        f"{runner.buffer.episode_length} steps, {list(runner.model_config.hidden_sizes)}, "
        f"threads {runner.threads.acting} acting, {runner.threads.updating} updating"
    )
    for name in ("environment", "collect", "update", "loop", "floor (one thread)"):
        within = " (within collect)" if name == "environment" else ""
        print(f"  {name + within:32s} {result[name]:8.1f} us per environment step  {result[name] / loop:5.0%}")
    print(f"  {1e6 / loop:,.0f} environment steps per second; loop over floor {loop / floor:.2f}")
    measured = ORIGINAL.get(runner.algo.name, {}) if runner.envs.scenario == "simple_spread" else {}
    for name, there in measured.items():
        speed = there * result["machine"]
        print(f"  original {name}: {speed:,.0f} scaled to this machine; this is {1e6 / loop / speed:.1f} times that")
    numbers = {name: round(float(value), 2) for name, value in result.items()}
    print(json.dumps({**numbers, "steps_per_second": round(1e6 / loop), "numpy": np.__version__}))


if __name__ == "__main__":
    sys.exit(main())
