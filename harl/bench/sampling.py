"""`python -m harl.bench.sampling algo=haddpg [overrides]`: does a batch take longer from a large replay buffer?

Ten thousand transitions against a million, in one process and in turns: draws one after the other, and draws with an
update between, as in training.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from harl import make_runner
from harl.bench.__main__ import refuse_people
from harl.buffers.replay import ReplayBuffer
from harl.config import ConfigError
from harl.registry import ALGORITHMS
from harl.runners import OffPolicyBaseRunner

SIZES = (10_000, 1_000_000)
ROUNDS = 45
"""Turns that each buffer has; the median counts."""
DRAWS = 20
"""Batches in a turn."""


def filled(runner: OffPolicyBaseRunner, size: int) -> ReplayBuffer:
    """A buffer of a started run's settings, full of one transition again and again: what counts is where it lies."""
    buffer = runner.new_buffer(size, runner.train_config.n_rollout_threads)
    before = runner.seen
    actions = runner.sample_actions(before.available_actions)
    step = runner.envs.step(actions)
    for _ in range(buffer.slots):
        buffer.insert(before, actions, step)
    return buffer


def draw(runner: OffPolicyBaseRunner, buffer: ReplayBuffer, between: Callable[[], None]) -> float:
    """Microseconds of drawing a batch, mean of a turn."""
    taken = 0.0
    for _ in range(DRAWS):
        between()
        started = time.perf_counter()
        buffer.sample(runner.algo.batch_size)
        taken += time.perf_counter() - started
    return taken / DRAWS * 1e6


def measure(runner: OffPolicyBaseRunner) -> dict[str, list[float]]:
    """Microseconds for the smaller and the larger buffer, and their ratio (median of turns), alone and in training."""
    runner.start()
    while len(runner.buffer) < runner.algo.batch_size:
        runner.step(runner.sample_actions(runner.seen.available_actions))
    buffers = [filled(runner, size) for size in SIZES]

    def update() -> None:
        runner.train()
        runner.reports.drain()

    runner.prep_training()
    result = {}
    for name, between in (("alone", lambda: None), ("in training", update)):
        turns = [[draw(runner, buffer, between) for buffer in buffers] for _ in range(ROUNDS + 1)][1:]
        ratio = statistics.median(large / small for small, large in turns)
        result[name] = [*(statistics.median(column) for column in zip(*turns, strict=True)), ratio]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a line for each condition, then the same as one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["eval.use_eval=false", "logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}"]
        try:
            runner = make_runner([*(sys.argv[1:] if arguments is None else arguments), *quiet])
            refuse_people(runner)
            if not isinstance(runner, OffPolicyBaseRunner):
                runner.close()
                able = ", ".join(name for name, entry in ALGORITHMS.items() if entry.runner.startswith("off_policy"))
                raise ConfigError(
                    [f"algo={runner.algo_args.algo.name}: it has no replay buffer; those that have: {able}"]
                )
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        try:
            result = measure(runner)
        finally:
            runner.close()
    for name, (small, large, ratio) in result.items():
        print(f"{name:12s} {SIZES[0]:,}: {small:.0f} us   {SIZES[1]:,}: {large:.0f} us   {ratio:.2f} times")
    print(json.dumps({name: [round(value, 3) for value in values] for name, values in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
