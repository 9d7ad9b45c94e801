"""`python -m harl.bench.benefit algo=happo env.scenario=simple_spread --modes none,mask_bc ...`.

What a person's help is worth: trainings with a scripted person over the real socket, and without one, seed by seed.
Everything that is not an option is an override of the trainings. Writes a row for each evaluation to a CSV file, and
prints for each mode after how many environment steps the policy alone has come a share of the way from a random policy
to the heuristic that the person follows.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

WINDOW = 3
"""Evaluations in a row whose mean counts."""
PEOPLE = (
    "hitl=web", "hitl.port=0", "hitl.pace=lockstep", "hitl.timeout_s=1", "hitl.envs=all", "hitl.fps=10000",
    "hitl.inputs_per_s=100000", "hitl.wait_for_people=true", "hitl.record=off",
)  # fmt: skip


class Row(NamedTuple):
    """An evaluation."""

    mode: str
    seed: int
    env_steps: int
    return_sum: float
    human_share: float
    """Of the steps of all agents so far."""


def train(overrides: Sequence[str], mode: str, seed: int, robot: Sequence[str], folder: Path) -> list[Row]:
    """One training, with a person unless the mode is `none`."""
    quiet = ["logger.progress=off", "logger.tensorboard=false", f"output_dir={folder}", f"exp_name={mode}"]
    if mode == "none":
        overrides = [override for override in overrides if not override.startswith("hitl.")]
    people = [] if mode == "none" else [*PEOPLE, f"hitl.takeover.learn={mode}"]
    command = [sys.executable, "-m", "harl.train", *people, *overrides, f"seed={seed}", *quiet]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert run.stdout is not None
    person = None
    where = Path()
    for line in run.stdout:
        if line.startswith("run folder: "):
            where = Path(line.removeprefix("run folder: ").strip())
        if line.startswith("people (controller): "):
            link = line.removeprefix("people (controller): ").strip()
            person = subprocess.Popen(
                [sys.executable, "-m", "harl.hitl.robot", "--url", link, "--seed", str(seed), *robot],
                stdout=subprocess.DEVNULL,
            )
    if run.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {run.returncode}")
    if person is not None:
        person.wait(60)
    return evaluations(where, mode, seed)


def evaluations(run: Path, mode: str, seed: int) -> list[Row]:
    """Every evaluation of a run."""
    returns: dict[int, list[float]] = {}
    for line in (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        returns.setdefault(int(record["env_steps"]), []).append(float(record["return_sum"]))
    shares = human_shares(run)
    return [
        Row(mode, seed, steps, statistics.mean(of_step), shares_until(shares, steps))
        for steps, of_step in sorted(returns.items())
    ]


def human_shares(run: Path) -> list[tuple[int, float]]:
    """Environment steps of each line of the log, and the share of human steps since the line before."""
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        (int(row["env_steps"]), float(row["people/intervention_rate"]))
        for row in rows
        if row.get("people/intervention_rate")
    ]


def shares_until(shares: Sequence[tuple[int, float]], steps: int) -> float:
    """The share of human steps until then."""
    total, last = 0.0, 0
    for at, share in shares:
        if at > steps:
            break
        total, last = total + share * (at - last), at
    return total / last if last else 0.0


def reached(rows: Sequence[Row], threshold: float) -> int | None:
    """Environment steps at which the mean of `WINDOW` evaluations in a row first reaches the threshold."""
    for k in range(WINDOW - 1, len(rows)):
        if statistics.mean(row.return_sum for row in rows[k - WINDOW + 1 : k + 1]) >= threshold:
            return rows[k].env_steps
    return None


def report(rows: Sequence[Row], threshold: float) -> None:
    """Print, for each mode, the steps that each seed needed, and the shares of human steps."""
    for mode in dict.fromkeys(row.mode for row in rows):
        seeds = sorted({row.seed for row in rows if row.mode == mode})
        runs = [[row for row in rows if row.mode == mode and row.seed == seed] for seed in seeds]
        steps = [reached(run, threshold) for run in runs]
        shares = [run[-1].human_share for run in runs]
        last = statistics.mean(run[-1].return_sum for run in runs)
        told = ", ".join("never" if at is None else f"{at:,}" for at in steps)
        print(
            f"{mode:10s} reaches {threshold:.1f} at {told}; last return {last:.1f}; "
            f"human steps {statistics.mean(shares):.1%}"
        )


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Mean over seeds of each mode, and the band of one standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for mode in dict.fromkeys(row.mode for row in rows):
        by_steps: dict[int, list[float]] = {}
        for row in rows:
            if row.mode == mode:
                by_steps.setdefault(row.env_steps, []).append(row.return_sum)
        steps = sorted(by_steps)
        means = [statistics.mean(by_steps[at]) for at in steps]
        spread = [statistics.pstdev(by_steps[at]) for at in steps]
        (line,) = axes.plot(steps, means, label=mode)
        low, high = zip(*((m - d, m + d) for m, d in zip(means, spread, strict=True)), strict=True)
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel="environment steps", ylabel="return of the policy alone")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def read(path: Path) -> list[Row]:
    """The evaluations in a CSV file that `main` wrote."""
    with path.open(encoding="utf-8") as file:
        return [
            Row(
                line["mode"],
                int(line["seed"]),
                int(line["env_steps"]),
                float(line["return_sum"]),
                float(line["human_share"]),
            )
            for line in csv.DictReader(file)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write and report."""
    parser = argparse.ArgumentParser(prog="python -m harl.bench.benefit", description=__doc__)
    parser.add_argument("--modes", default="none,mask_bc,silent")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--random", type=float, required=True, help="return of a random policy")
    parser.add_argument("--heuristic", type=float, required=True, help="return of the heuristic")
    parser.add_argument("--share", type=float, default=0.8, help="of the way between them")
    parser.add_argument("--robot", default="", help="options of harl.hitl.robot, in one text")
    parser.add_argument("--csv", type=Path, required=True, help="file that gets the evaluations")
    parser.add_argument("--picture", type=Path, help="file that gets the curves, as PNG")
    options, overrides = parser.parse_known_args(arguments)
    threshold = options.random + options.share * (options.heuristic - options.random)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, options.csv.open("w", newline="", encoding="utf-8") as file:
        writer: Any = csv.writer(file)
        writer.writerow(Row._fields)
        for seed in options.seeds.split(","):
            for mode in options.modes.split(","):
                found = train(overrides, mode, int(seed), options.robot.split(), Path(folder))
                rows += found
                writer.writerows(found)
                file.flush()
                print(f"seed {seed} {mode}: {found[-1].return_sum:.1f} at {found[-1].env_steps:,}", flush=True)
    report(rows, threshold)
    if options.picture is not None:
        draw(rows, " ".join(overrides[:1]), options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
