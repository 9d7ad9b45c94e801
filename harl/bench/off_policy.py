"""What `harl.bench` measures of off-policy algorithms: a vector step, and an update beside its matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harl.bench.floor import again, operations, products_of, seconds
from harl.runners import OffPolicyBaseRunner

ORIGINAL_UPDATE_MS = {
    "hasac": 115.0, "haddpg": 32.4, "hatd3": 26.3, "maddpg": 31.1, "matd3": 25.4, "had3qn": 65.7,
}  # fmt: skip
"""Milliseconds of CPU time an update of the original, simple_spread continuous (HAD3QN: discrete), default networks and
batches, with 22 thousand transitions in its buffer."""
UPDATES = 10
"""Updates in a bout; the actors of every algorithm with its default `policy_freq` have their turn evenly in them."""


def measure(runner: OffPolicyBaseRunner, bouts: int) -> dict[str, float]:
    """Milliseconds of a vector step, of an update and of its matrix products, the best of `bouts` after one of warm-up.

    `operations` are the billions of multiplications and additions of an update.
    """
    runner.start()
    while len(runner.buffer) < runner.algo.batch_size:
        runner.step(runner.sample_actions(runner.seen.available_actions))

    def updates() -> None:
        for _ in range(UPDATES):
            runner.train()

    runner.total_it = 0
    products = products_of(updates)
    multiply = again(products)

    def multiply_alone() -> None:
        torch.set_num_threads(1)
        multiply()

    def update() -> None:
        runner.prep_training()
        updates()
        runner.reports.drain()

    def steps() -> None:
        runner.threads.for_acting()
        for _ in range(UPDATES):
            runner.step(runner.get_actions(runner.seen.obs, runner.seen.available_actions))

    def samples() -> None:
        for _ in range(UPDATES):
            runner.buffer.sample(runner.algo.batch_size)

    work: dict[str, Callable[[], Any]] = {
        "vector step": steps, "sampling": samples, "update": update, "floor": multiply_alone,
    }  # fmt: skip
    best = dict.fromkeys(work, float("inf"))
    for bout in range(bouts + 1):
        for name, function in work.items():
            taken = seconds(function)
            if bout:
                best[name] = min(best[name], taken / UPDATES * 1e3)
    return {**best, "operations": operations(products) / UPDATES / 1e9}


def report(runner: OffPolicyBaseRunner, result: dict[str, float]) -> None:
    """Print what was measured, for the ratio of updates to steps that is configured."""
    envs, ratio = runner.train_config.n_rollout_threads, runner.train_config.update_per_train
    print(
        f"{runner.algo.name}, {runner.envs.name}/{runner.envs.scenario}, {envs} environments, batches of "
        f"{runner.algo.batch_size}, {ratio:g} updates a vector step, threads {runner.threads.acting} acting, "
        f"{runner.threads.updating} updating"
    )
    for name, label in (
        ("vector step", "vector step"),
        ("update", "update"),
        ("sampling", "sampling (within update)"),
        ("floor", "matrix products of an update, alone, one thread"),
    ):
        print(f"  {label:48s} {result[name]:8.2f} ms")
    print(f"  update over its matrix products {result['update'] / result['floor']:.2f}")
    loop = result["vector step"] + ratio * result["update"]
    print(f"  {1e3 * envs / loop:,.0f} environment steps per second")
    there = ORIGINAL_UPDATE_MS.get(runner.algo.name)
    if there is not None and runner.envs.scenario == "simple_spread":
        scaled = there / result["machine"]
        times = scaled / result["update"]
        print(f"  original: {scaled:.1f} ms an update scaled to this machine; this is {times:.1f} times as fast")
