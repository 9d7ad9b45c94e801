"""`python -m harl.bench.people [overrides]`: what people in the loop cost, and how soon a key press is seen.

Speed: two runs in one process, one with a bridge and one without, take turns (A B B A); what the bridge costs is the
ratio of each pair. Latency: a client in a process of its own presses keys; its one clock times press → applied → shown.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from harl import make_runner
from harl.config import ConfigError
from harl.hitl.web import WebBridge
from harl.runners import OnPolicyBaseRunner

PAIRS = 40
BEYOND_95 = 14
"""Which of the sorted ratios, from either end, bound the median at 95%: 13 or fewer of 40 fair coins show heads once
in 52 times."""
WATCHERS = (0, 1, 8, 64)
PRESSES = 500


def _runner(overrides: list[str], folder: str, people: bool) -> OnPolicyBaseRunner:
    quiet = ["eval.use_eval=false", "logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}"]
    web = ["hitl=web", "hitl.port=0", "hitl.pace=free", "hitl.record=off"] if people else []
    runner = make_runner([*web, *overrides, *quiet])
    if not isinstance(runner, OnPolicyBaseRunner):
        raise ConfigError(["algo: what people cost is measured with an on-policy algorithm"])
    return runner


def _link(runner: OnPolicyBaseRunner, role: str) -> str:
    assert isinstance(runner.bridge, WebBridge)
    return runner.bridge.links[role]


def iteration(runner: OnPolicyBaseRunner, learn: bool = True) -> float:
    """Seconds of one iteration, with or without its update."""
    started = time.perf_counter()
    runner.prep_rollout()
    runner.rollout()
    if learn:
        runner.prep_training()
        runner.update()
    runner.after_update()
    return time.perf_counter() - started


@contextlib.contextmanager
def clients(link: str, count: int, show: str, fps: float, presses: int = 0) -> Iterator[subprocess.Popen[str]]:
    """So many clients in one process, ready when the block begins."""
    parts = urlsplit(link)
    url = f"ws://{parts.netloc}/"
    token = unquote(parts.fragment.removeprefix("token="))
    command = [sys.executable, "-m", "harl.bench.watchers", url, token, str(count), show, str(fps), str(presses)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the clients did not start")
        yield process
    finally:
        process.stdin.close() if process.stdin else None
        process.wait(10)


def cost(plain: OnPolicyBaseRunner, people: OnPolicyBaseRunner) -> tuple[float, float, float]:
    """Time with the bridge over time without: the median of `PAIRS` pairs, and its 95% interval.

    On a machine that others use too, single iterations take up to a third longer for reasons of their own: a mean
    would be about these. The interval is between two of the sorted ratios (of the sign test), whatever they look like.
    """
    ratios = []
    for pair in range(PAIRS):
        order = (plain, people) if pair % 2 == 0 else (people, plain)
        taken = {runner: iteration(runner) for runner in order}
        ratios.append(taken[people] / taken[plain])
    ratios.sort()
    return statistics.median(ratios), ratios[BEYOND_95 - 1], ratios[PAIRS - BEYOND_95]


def latency(people: OnPolicyBaseRunner, count: int, show: str, learn: bool) -> dict[str, Any]:
    """Milliseconds from key press to effect and to picture, with so many others who watch.

    With `learn` the updates are in it, during which nothing moves; a free run can do no better than their length.
    """
    link = _link(people, "admin")
    with clients(link, count, show, 15.0, PRESSES) as process:
        while process.poll() is None:
            iteration(people, learn)
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    overrides = list(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        try:
            plain, people = (_runner(overrides, folder, with_people) for with_people in (False, True))
            # Episodes of 25 steps are over before anybody has seen them, in a free run: keys would always be too late.
            long = _runner([*overrides, "env.kwargs.max_cycles=20000"], folder, True)
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        stack.callback(plain.close)
        stack.callback(people.close)
        stack.callback(long.close)
        for runner in (plain, people, long):
            runner.warmup()
            runner.join_people()
            iteration(runner)
        found = [f"{plain.algo.name}, {plain.buffer.num_envs} environments x {plain.buffer.episode_length} steps"]
        link = _link(people, "observer")
        for show in ("state", "jpeg"):
            for count in WATCHERS if show == "state" else WATCHERS[1:]:
                with clients(link, count, show, 15.0):
                    middle, low, high = (ratio - 1 for ratio in cost(plain, people))
                told = f"{middle:+.1%} ({low:+.1%} to {high:+.1%}) time"
                found.append(f"{count:3d} watching {show:5s} at 15 frames/s: {told}")
                print(found[-1], flush=True)
        for count, learn in ((0, False), (8, False), (64, False), (0, True)):
            result = latency(long, count, "state", learn)
            shown, applied = result["shown"], result["applied"]
            what = "collecting and learning" if learn else "collecting"
            found.append(
                f"key to frame while {what}, {count:2d} others: p50 {shown['p50']:.1f}, p95 {shown['p95']:.1f}, "
                f"p99 {shown['p99']:.1f} ms (applied: p50 {applied['p50']:.1f}, p95 {applied['p95']:.1f} ms), "
                f"{result['presses']} presses"
            )
            print(found[-1], flush=True)
    # Once more, without the comings and goings between.
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
