"""What `harl.bench` measures of on-policy algorithms: each half of the loop beside its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harl.bench.floor import again, products_of, seconds
from harl.runners import OnPolicyBaseRunner

ORIGINAL = {
    "happo": {"as shipped": 1010.0, "one process, mpe2": 1417.0},
    "mappo": {"as shipped": 1060.0, "one process, mpe2": 1355.0},
    "haa2c": {"as shipped": 869.0},
    "hatrpo": {"as shipped": 552.0},
}
"""Environment steps per second of the original, simple_spread discrete, 20 environments x 200 steps, 128x128; of HAA2C
and HATRPO per second of CPU time, since their clock time was taken on a loaded machine."""
HALVES = ("collect", "update")


def measure(runner: OnPolicyBaseRunner, iterations: int) -> dict[str, float]:
    """Microseconds per environment step of each half of the loop and of its matrix products alone (`floor of …`).

    Means over `iterations` iterations, after two of warm-up. The products are those of the second one, made again after
    each that counts, so that what else the machine does meanwhile slows both.
    """

    def collect() -> None:
        runner.prep_rollout()
        runner.rollout()

    def update() -> None:
        runner.prep_training()
        runner.update()
        runner.after_update()

    work: dict[str, Callable[[], Any]] = {"collect": collect, "update": update}
    runner.warmup()
    for half in HALVES:
        work[half]()
    floors = {half: again(products_of(work[half])) for half in HALVES}
    taken = dict.fromkeys([*HALVES, *(f"floor of {half}" for half in HALVES)], 0.0)
    for _ in range(iterations):
        for half in HALVES:
            taken[half] += seconds(work[half])
        torch.set_num_threads(1)
        for half in HALVES:
            taken[f"floor of {half}"] += seconds(floors[half])
    steps = iterations * runner.iteration_steps
    result = {name: total / steps * 1e6 for name, total in taken.items()}
    result["environment"] = environment_time(runner)
    result["loop"] = sum(result[half] for half in HALVES)
    result["floor of loop"] = sum(result[f"floor of {half}"] for half in HALVES)
    return result


def environment_time(runner: OnPolicyBaseRunner, vector_steps: int = 500) -> float:
    """Microseconds per environment step of stepping with the last rollout's actions."""
    actions = [runner.clip(step).copy() for step in runner.buffer.actions]

    def steps() -> None:
        for i in range(vector_steps):
            runner.envs.step(actions[i % len(actions)])

    return seconds(steps) / (vector_steps * runner.buffer.num_envs) * 1e6


def report(runner: OnPolicyBaseRunner, result: dict[str, float]) -> None:
    """Print what was measured."""
    loop = result["loop"]
    print(
        f"{runner.algo.name}, {runner.envs.name}/{runner.envs.scenario}, {runner.buffer.num_envs} environments x "
        f"{runner.buffer.episode_length} steps, {list(runner.model_config.hidden_sizes)}, "
        f"threads {runner.threads.acting} acting, {runner.threads.updating} updating"
    )
    print("  microseconds per environment step; beside it its matrix products alone, one thread, and the ratio")
    print(f"  {'environment (within collect)':32s} {result['environment']:8.1f} {result['environment'] / loop:5.0%}")
    for name in (*HALVES, "loop"):
        floor = result[f"floor of {name}"]
        ratio = result[name] / floor
        print(f"  {name:32s} {result[name]:8.1f} {result[name] / loop:5.0%} {floor:8.1f} {ratio:6.2f} x")
    print(f"  {1e6 / loop:,.0f} environment steps per second")
    measured = ORIGINAL.get(runner.algo.name, {}) if runner.envs.scenario == "simple_spread" else {}
    for name, there in measured.items():
        speed = there * result["machine"]
        print(f"  original {name}: {speed:,.0f} scaled to this machine; this is {1e6 / loop / speed:.1f} times that")
