"""`python -m harl.hitl.export <folder> --to DIR`: what people did, as tables (CSV) and as a Minari dataset."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harl.config import ConfigError
from harl.experiment.files import StorageError
from harl.hitl.recording.csv_export import check_free, to_csv
from harl.hitl.recording.minari_export import check_installed, check_sessions, to_minari
from harl.hitl.recording.recordings import find_sessions


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what was asked for; exit code 1 where something cannot be read or written, 2 for a wrong command."""
    parser = argparse.ArgumentParser(prog="python -m harl.hitl.export", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run, its people/, one session, or a folder with several runs")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument("--format", choices=("csv", "minari", "both"), default="both")
    parser.add_argument("--name", help="of the dataset (default: <env>/<scenario>/people-v0)")
    parser.add_argument("--discarded", action="store_true", help="episodes too that people discarded")
    options = parser.parse_args(arguments)
    try:
        if options.format != "csv":
            check_installed()
        sessions = find_sessions(options.folder)
        # Before anything is written: nothing that is there is mixed with what comes, or replaced.
        if options.format != "minari":
            check_free(options.to)
        if options.format != "csv":
            check_sessions(sessions, options.to, options.name, options.discarded)
        if options.format != "minari":
            for path in to_csv(sessions, options.to, options.discarded):
                print(path)
        if options.format != "csv":
            print(to_minari(sessions, options.to, options.name, options.discarded))
        for session in sessions:
            for problem in session.problems:
                print(f"{session.folder.name}: {problem}", file=sys.stderr)
    except (ConfigError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
