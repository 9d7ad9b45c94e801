"""The command line of the runner."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from harl.config.fields import ConfigError
from harl.hitl.sharpie_site.gallery import import_gallery
from harl.hitl.sharpie_site.learners import Learners, MakeLearner
from harl.hitl.sharpie_site.mapping import SiteMapping, read_mapping
from harl.hitl.sharpie_site.messages import log
from harl.hitl.sharpie_site.people import ABSENT, Waits
from harl.hitl.sharpie_site.room import start_experiment
from harl.hitl.sharpie_site.serving import Makers, Serving
from harl.hitl.sharpie_site.site import RefusedBySite, Site, read_key
from harl.hitl.sharpie_site.trusted import TRUST_WARNING
from harl.hitl.sharpie_site.waiting import Rooms, serve_queue, serve_room

COMMANDS = {
    "runserver": "take sessions from the queue of the site, one after the other and several at a time",
    "room": "LINK ROOM: serve one room without the queue",
    "import-gallery": "FILE: print the mapping for a config.yaml of the SHARPIE Gallery",
}
_WORDS = {"runserver": 0, "room": 2, "import-gallery": 1}
_STOP_S = 5.0
"""Longest wait for rooms to say goodbye."""
_SAVE_S = 60.0
"""Longest wait for a learner to save."""


def parser() -> argparse.ArgumentParser:
    """What can be typed."""
    made = argparse.ArgumentParser(
        prog="python -m harl.hitl.sharpie",
        description="Be a runner for a SHARPIE site.",
        epilog="commands:\n" + "\n".join(f"  {name:15} {text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    waits = Waits()
    made.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help=", ".join(COMMANDS))
    made.add_argument("words", nargs="*", metavar="…", help="what the command needs, see below")
    made.add_argument("--hostname", default="localhost", help="host of the site (localhost)")
    made.add_argument("--port", type=int, default=8000, help="its port (8000)")
    made.add_argument("--connection-key", metavar="KEY", help="others can see it in the list of processes; rather use")
    made.add_argument("--key-file", metavar="FILE", help="a file with the key, or SHARPIE_CONNECTION_KEY")
    made.add_argument("--tls", action="store_true", help="connect by wss://")
    made.add_argument("--ca-file", metavar="FILE", help="certificate of the site, where the system does not know it")
    made.add_argument("--mapping", metavar="FILE", help="YAML file: link → environment, role → agent")
    made.add_argument("--rooms", type=int, default=4, help="sessions at a time (4)")
    made.add_argument("--episodes", type=int, help="room: how many at most (all of the session)")
    made.add_argument("--wait", type=float, default=30, help="room: seconds to wait for the session (30)")
    made.add_argument("--timeout", type=float, default=waits.timeout_s, help="seconds to wait for people (10)")
    made.add_argument("--absent", choices=ABSENT, default=waits.absent, help="who acts for them then (policy)")
    made.add_argument("--record", default="outputs/sharpie", metavar="FOLDER", help="journals; off for none")
    made.add_argument("--trust-server-code", action="store_true", help="write and run the code that the site sends")
    return made


def run(arguments: Sequence[str], makers: Makers, make_learner: MakeLearner) -> int:
    """Do what was typed; returns the exit status."""
    options = parser().parse_intermixed_args(arguments)
    if len(options.words) != _WORDS[options.command]:
        parser().error(f"{options.command} takes {_WORDS[options.command]} words; {COMMANDS[options.command]}")
    try:
        if options.command == "import-gallery":
            sys.stdout.write(import_gallery(options.words[0]))
            return 0
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("websockets").setLevel(logging.WARNING)
        return _serve(options, makers, make_learner)
    except (ConfigError, ValueError, RefusedBySite, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(options: argparse.Namespace, makers: Makers, make_learner: MakeLearner) -> int:
    stop, caught = threading.Event(), []

    def end(number: int, _frame: object) -> None:
        caught.append(number)
        stop.set()

    key = read_key(options.connection_key, options.key_file, os.environ.get("SHARPIE_CONNECTION_KEY"))
    site = Site(options.hostname, options.port, key, options.tls, options.ca_file)
    serving = Serving(
        mapping=SiteMapping() if options.mapping is None else read_mapping(options.mapping),
        makers=makers,
        waits=dataclasses.replace(Waits(), timeout_s=options.timeout, absent=options.absent),
        trust_server_code=options.trust_server_code,
        record=None if options.record == "off" else Path(options.record),
        stopping=stop.is_set,
    )
    if serving.trust_server_code:
        log.warning(TRUST_WARNING)
    elif not serving.mapping.experiments:
        log.warning("without --mapping, every experiment is refused")
    serving.check()
    learners = Learners(serving.mapping, make_learner)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def play(link: str, room: str) -> bool:
        if link in learners.runs:
            return learners.serve(site, link, room)
        return start_experiment(site.hostname, site.port, key, link, room, serving=serving, site=site)

    learners.start()
    if options.command == "room":
        link, room = options.words
        serve_room(lambda: play(link, room), stop, options.episodes, options.wait, time.monotonic)
    else:
        rooms = Rooms(play, options.rooms)
        serve_queue(site, rooms, stop)
        rooms.join(_STOP_S)
    learners.stop(_SAVE_S)
    return 128 + caught[0] if caught else 0
