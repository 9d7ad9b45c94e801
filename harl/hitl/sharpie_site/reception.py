"""Sessions of a site on their way to a run: let in one after the other, or refused so that people know why."""

from __future__ import annotations

import threading
import time
from typing import Any

from harl.config import SharpieConfig
from harl.envs.api import Layout
from harl.hitl.people import RoomError
from harl.hitl.room import Room
from harl.hitl.sharpie_site.admission import seats_for
from harl.hitl.sharpie_site.entrance import entered
from harl.hitl.sharpie_site.mapping import ExperimentEntry, SiteMapping
from harl.hitl.sharpie_site.messages import ProtocolError, log
from harl.hitl.sharpie_site.people import NobodyThere, PersonLeft, Stopped, Waits
from harl.hitl.sharpie_site.room import FAULTY, UNKNOWN, refuse
from harl.hitl.sharpie_site.serving import NotServed
from harl.hitl.sharpie_site.session import Session
from harl.hitl.sharpie_site.settings import Tempo
from harl.hitl.sharpie_site.site import RefusedBySite, Site
from harl.hitl.sharpie_site.waiting import Rooms, serve_queue, serve_room

FOR_EVER = float("inf")
OPEN_S = 60.0
"""Longest wait for a run that is starting, and for the session before."""


class Reception:
    """Lets sessions into a run. Its methods, but for `open`, are called by threads of the network.

    Args:
        room: what the run and its people share.
        config: the `hitl` section.
        mapping: links that are served, and roles with other names than agents; None serves every link, role by role.
        ending: set when the run is over.
    """

    def __init__(self, room: Room, config: SharpieConfig, mapping: SiteMapping | None, ending: threading.Event) -> None:
        self.room, self.config, self.mapping, self.ending = room, config, mapping, ending
        self.session: Session | None = None
        """The one that is served."""
        self.waits = Waits(timeout_s=config.timeout_s, thinking_s=config.timeout_s, absent=config.absent)
        self._layout: Layout | None = None
        self._open = threading.Event()
        self._busy = threading.Lock()

    def open(self, layout: Layout) -> None:
        """The run has begun."""
        self._layout = layout
        self._open.set()

    def listen(self, site: Site) -> None:
        """Ask the site for sessions until the run is over."""
        link, room = self.config.link, self.config.room
        if link is not None and room is not None:
            while not self.ending.is_set():
                try:
                    serve_room(lambda: self.serve(site, link, room), self.ending, None, FOR_EVER, time.monotonic)
                except (RefusedBySite, OSError) as error:
                    log.error("%s", error)
            return
        rooms = Rooms(lambda link, room: self.serve(site, link, room), 1)
        serve_queue(site, rooms, self.ending)
        rooms.join(OPEN_S)

    def serve(self, site: Site, link: str, room: str) -> bool:
        """Serve one session to its end; returns whether it was played to the end.

        Raises:
            RefusedBySite, OSError: there is no such session, or no site.
        """
        entry = None if self.mapping is None else self.mapping.experiments.get(link)
        if (self.mapping is not None and entry is None) or self.config.link not in (None, link):
            with site.room(link, room) as websocket:
                refuse(websocket, f"{link}/{room}", UNKNOWN)
            return False
        with entered(site, link, room, entry) as (websocket, settings):
            if settings is None:
                refuse(websocket, f"{link}/{room}", FAULTY)
                return False
            if not self._open.wait(OPEN_S) or not self._busy.acquire(timeout=OPEN_S):
                refuse(websocket, f"{link}/{room}", "The runner is busy. Please try again later.")
                return False
            try:
                return self._admitted(websocket, link, room, settings, entry)
            finally:
                self._busy.release()

    def _admitted(self, websocket: Any, link: str, room: str, settings: Any, entry: ExperimentEntry | None) -> bool:
        from websockets.exceptions import ConnectionClosed

        where, session = f"{link}/{room}", None
        assert self._layout is not None
        waits = self.waits if entry is None else entry.waits(self.waits)
        lockstep = self.config.pace in ("auto", "lockstep")
        cause = "the episode is over"
        try:
            tempo = Tempo.read(settings[2])
            seats = seats_for(where, settings[1], self._layout, entry)
            session = Session(websocket, self.room, seats, tempo, waits, lockstep, self.ending.is_set)
            session.enter()
            self.room.pace.speed = tempo.target_fps / self.config.fps
            self.session = session
            session.run()
            log.info("%s: played %d frames", where, session.frames)
        except (PersonLeft, ConnectionClosed) as error:
            log.warning("%s: the episode broke off: %s", where, error)
            cause = "left" if isinstance(error, PersonLeft) else "the connection was lost"
        except (NobodyThere, Stopped, NotServed, RoomError) as error:
            cause = str(error)
            refuse(websocket, where, cause)
        except ProtocolError as error:
            log.error("%s: %s", where, error)
            refuse(websocket, where, FAULTY)
        except Exception:
            log.exception("%s: a fault of the runner", where)
            refuse(websocket, where, FAULTY)
        else:
            return True
        finally:
            self.session, self.room.pace.speed = None, 1.0
            if session is not None:
                session.leave(cause)
        return False
