"""`python -m harl.bench algo=happo env=mpe [bench.iterations=10]`: where the time of training goes, in one run.

Prints the time of the environments alone, of collecting, of the update and of the whole loop, beside the floor: the
matrix products of the same work and nothing else. The floor of the machine on which the original implementation was
measured is known, so that its speed can be scaled to this one.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile

import numpy as np
import torch

from harl import make_runner
from harl.bench import off_policy, on_policy
from harl.bench.floor import machine_speed
from harl.config import ConfigError
from harl.runners import OffPolicyBaseRunner, OnPolicyBaseRunner, Runner


def parse(arguments: list[str]) -> tuple[list[str], int]:
    """Overrides of a run, and how often to measure.

    Raises:
        ConfigError: a key of `bench` is unknown, or its value no whole number from 1 on.
    """
    overrides = [argument for argument in arguments if not argument.startswith("bench.")]
    iterations = 10
    for argument in arguments:
        if argument in overrides:
            continue
        found = re.fullmatch(r"bench\.iterations=([1-9]\d*)", argument)
        if found is None:
            raise ConfigError([f"{argument}: the one key of bench is bench.iterations, a whole number from 1 on"])
        iterations = int(found[1])
    return overrides, iterations


def refuse_people(runner: Runner) -> None:
    """Raise `ConfigError` for a run with people in it."""
    if runner.bridge is not None:
        runner.close()
        raise ConfigError(["hitl: this is timed without people; what they cost is told by python -m harl.bench.people"])


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table, then the same as one line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["eval.use_eval=false", "logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}"]
        try:
            overrides, iterations = parse(list(sys.argv[1:] if arguments is None else arguments))
            runner = make_runner([*overrides, *quiet])
            refuse_people(runner)
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        try:
            torch.set_num_threads(1)
            machine = {"machine": machine_speed()}
            if isinstance(runner, OffPolicyBaseRunner):
                result = off_policy.measure(runner, iterations) | machine
                off_policy.report(runner, result)
            else:
                assert isinstance(runner, OnPolicyBaseRunner)
                result = on_policy.measure(runner, iterations) | machine
                on_policy.report(runner, result)
        finally:
            runner.close()
    print(json.dumps({**{name: round(value, 3) for name, value in result.items()}, "numpy": np.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
