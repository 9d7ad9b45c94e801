"""`python -m harl.plot outputs/mpe column=train/return_sum`: learning curves, mean and spread over seeds.

Runs that differ in nothing but their seed are one curve. Writes a PNG and a CSV, and prints a table.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from harl.experiment.curves import Curve, Summary, experiments, read_curve, summarise
from harl.experiment.files import StorageError
from harl.experiment.run_folder import RunFolder, find_runs

DEFAULTS = {"column": "train/return_sum", "out": "curves.png", "at": ""}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the folders, write the picture and the table, print the table."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = DEFAULTS | dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    folders = [argument for argument in arguments if "=" not in argument]
    unknown = sorted(options.keys() - DEFAULTS.keys()) + [folder for folder in folders if folder.startswith("-")]
    if importlib.util.find_spec("matplotlib") is None:
        print("error: pictures are drawn by matplotlib: pip install 'harl[plot]'", file=sys.stderr)
        return 1
    if unknown or not folders:
        print(__doc__, f"unknown: {unknown}; options: {DEFAULTS}" if unknown else "name a folder", file=sys.stderr)
        return 2
    try:
        runs = [run for folder in folders for run in find_runs(folder) if run.metrics_csv.is_file()]
        if not runs:
            print(f"error: no runs at or below {', '.join(folders)}", file=sys.stderr)
            return 1
        column = options["column"]
        curves = {run.path: curve for run in runs if (curve := _curve(run, column)) is not None}
        if not curves:
            print(
                f"error: none of these runs has logged {column!r} yet; look at the columns of a metrics.csv",
                file=sys.stderr,
            )
            return 1
        groups = experiments([run for run in runs if run.path in curves])
        summaries = [summarise(label, [curves[run.path] for run in group]) for label, group in groups.items()]
    except StorageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    steps = [int(float(text)) for text in options["at"].split(",") if text]
    print_table(summaries, steps)
    out = Path(options["out"])
    write_csv(summaries, out.with_suffix(".csv"))
    draw(summaries, column, out)
    print(f"{out} and {out.with_suffix('.csv')}")
    return 0


def _curve(run: RunFolder, column: str) -> Curve | None:
    """The run's curve; None, and a line that says so, where it has not logged the column."""
    try:
        return read_curve(run, column)
    except KeyError:
        print(f"left out, nothing logged under {column!r} yet: {run.path}", file=sys.stderr)
        return None


def print_table(summaries: Sequence[Summary], at: Sequence[int]) -> None:
    """Mean ± spread at some steps (by default the last one) of each curve, as Markdown."""
    steps = list(at) or sorted({int(summary.env_steps[-1]) for summary in summaries if len(summary.env_steps)})
    print("| runs | n | " + " | ".join(f"{step:,}" for step in steps) + " |")
    print("|---|---|" + "---|" * len(steps))
    for summary in summaries:
        cells = []
        for step in steps:
            found = (summary.env_steps == step).nonzero()[0]
            spread = f" ± {summary.std[found[0]]:.1f}" if len(found) and summary.runs > 1 else ""
            cells.append(f"{summary.mean[found[0]]:.1f}{spread}" if len(found) else "")
        print(f"| {summary.label} | {summary.runs} | " + " | ".join(cells) + " |")


def write_csv(summaries: Sequence[Summary], path: Path) -> None:
    """One row for each curve and step."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["runs", "n", "env_steps", "mean", "std"])
        for summary in summaries:
            for step, mean, std in zip(summary.env_steps, summary.mean, summary.std, strict=True):
                writer.writerow([summary.label, summary.runs, step, mean, std])


def draw(summaries: Sequence[Summary], column: str, path: Path) -> None:
    """Curves with a band of one standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4 + 0.2 * len(summaries)), layout="constrained")
    for summary in summaries:
        axes.plot(summary.env_steps, summary.mean, label=f"{summary.label} (n={summary.runs})", linewidth=1.8)
        axes.fill_between(summary.env_steps, summary.mean - summary.std, summary.mean + summary.std, alpha=0.2)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(column)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=7, loc="outside lower left")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
