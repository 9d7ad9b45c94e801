"""SHARPIE's own runner in one room, for comparisons: python reference_runner.py PORT KEY LINK ROOM.

Run by the site's Python.
"""

import sys
import time

from sharpie.runner.manage import start_experiment
from websockets.exceptions import InvalidStatus

port, key, link, room = sys.argv[1:]
for _ in range(100):
    try:
        start_experiment("127.0.0.1", int(port), key, link, room)
        break
    except InvalidStatus:  # the room is not open yet
        time.sleep(0.2)
