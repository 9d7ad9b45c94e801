"""`python -m harl.hitl.forget <run or people folder> --person NAME`: delete one person's data from recordings.

Episodes in which nobody else took part are removed. Of episodes that others share, the person's actions and their
timing, all feedback and the pseudonym are taken out; such an episode is marked `redacted` and is neither replayed nor
learned from any more. Their events and answers to questionnaires are removed. What was learned from them stays in the
weights and replay buffers of checkpoints, and exported copies are not known here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harl.config.names import did_you_mean, nearest
from harl.experiment.files import StorageError
from harl.hitl.recording.forgetting import Forgetting, Report, mentions, names_in
from harl.hitl.recording.recordings import Session, find_sessions


def main(arguments: Sequence[str] | None = None) -> int:
    """Forget a person, or say what would be forgotten; exit code 1 where that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m harl.hitl.forget", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run, its people/, one session, or a folder with several runs")
    parser.add_argument("--person", required=True, help="pseudonym")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only say what would be")
    options = parser.parse_args(arguments)
    try:
        sessions = find_sessions(options.folder)
        reports = [Forgetting(session, options.person).run(options.dry_run) for session in sessions]
        _print(reports, options.person, options.dry_run)
        if all(report.empty for report in reports):
            _say_who_is_there(sessions, options.person)
            return 1
        if not options.dry_run:
            _say_where_else(options.folder, sessions, options.person)
    except StorageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _print(reports: Sequence[Report], person: str, dry: bool) -> None:
    verb = "would be" if dry else "were"
    for report in reports:
        if report.empty:
            continue
        print(f"session {report.session}:")
        for what, episodes in (("", report.removed), (" shared with others", report.redacted)):
            did = "redacted" if what else "removed"
            print(f"  {len(episodes)} episodes{what} {verb} {did}: {', '.join(episodes) or 'none'}")
        print(f"  {report.events} events, answers and feedback amendments {verb} removed; {report.videos} videos too")
    if not dry and not all(report.empty for report in reports):
        print(
            f"checkpoints keep what was learned from {person} before, and exports (CSV, Minari) made earlier are not "
            "known here: delete them by hand"
        )


def _say_who_is_there(sessions: Sequence[Session], person: str) -> None:
    names = sorted(set().union(*(names_in(session) for session in sessions)))
    there = f"people there: {', '.join(names)}" if names else "nobody did anything there"
    print(f"error: nobody is called {person!r}{did_you_mean(nearest(person, names))}; {there}", file=sys.stderr)


def _say_where_else(folder: Path, sessions: Sequence[Session], person: str) -> None:
    """Files beside the recording in which the pseudonym stands: logs, tables."""
    roots = {folder, *(session.folder.parent.parent for session in sessions if session.folder.parent.name == "people")}
    for path in sorted({path for root in roots for path in mentions(root, person)}):
        print(f"still named in {path}, which is no recording: look at it yourself")


if __name__ == "__main__":
    sys.exit(main())
