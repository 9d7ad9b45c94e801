"""The queue of a site: ask for sessions once a second, and serve each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from harl.hitl.sharpie_site.messages import ProtocolError, dumps, loads, log
from harl.hitl.sharpie_site.site import RefusedBySite, Site, pauses, receive

ASK_S = 1.0
"""Between two questions for a session."""
ANSWER_S = 60.0
"""Longest wait for the answer; a site that says nothing for longer is taken for dead."""


class Rooms:
    """Sessions that are being served.

    Args:
        serve: (link, room) → serves one session to its end; may raise.
        most: how many at a time.
    """

    def __init__(self, serve: Callable[[str, str], Any], most: int) -> None:
        self._serve, self._most = serve, most
        self._threads: list[threading.Thread] = []

    @property
    def free(self) -> bool:
        """Whether another session can be taken."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(self._threads) < self._most

    def open(self, link: str, room: str) -> None:
        """Serve a session in a thread of its own; its faults are logged and end nothing else."""
        thread = threading.Thread(target=self._run, args=(link, room), name=f"sharpie {link}/{room}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, timeout: float) -> None:
        """Wait for the sessions that are being served, `timeout` seconds for each at most."""
        for thread in self._threads:
            thread.join(timeout)

    def _run(self, link: str, room: str) -> None:
        log.info("%s/%s: taken from the queue", link, room)
        try:
            self._serve(link, room)
        except (RefusedBySite, OSError) as error:
            log.error("%s/%s: %s", link, room, error)
        except Exception:
            log.exception("%s/%s: a fault of the runner", link, room)


def serve_queue(site: Site, rooms: Rooms, stop: threading.Event) -> None:
    """Take sessions from the queue until `stop` is set; whatever the site does, it is asked again."""
    from websockets.exceptions import ConnectionClosed

    attempts = pauses()
    while not stop.is_set():
        try:
            with site.queue() as websocket:
                log.info("connected to the queue of %s", site.url)
                attempts = pauses()
                _ask(websocket, rooms, stop)
        except RefusedBySite as error:
            log.error("%s", error)
        except (ConnectionClosed, TimeoutError) as error:
            log.warning("the connection to the queue ended: %s", error)
        except OSError as error:
            log.warning("no connection to %s: %s", site.url, error)
        if not stop.is_set():
            pause = next(attempts)
            log.info("next attempt in %.1f s", pause)
            stop.wait(pause)


def _ask(websocket: Any, rooms: Rooms, stop: threading.Event) -> None:
    while not stop.is_set():
        if rooms.free:
            websocket.send(dumps({"status": "idle"}))
            text = receive(websocket, ANSWER_S)
            if text is None:
                raise TimeoutError(f"no answer for {ANSWER_S:.0f} s")
            session = _session(text)
            if session is not None:
                rooms.open(*session)
                continue
        stop.wait(ASK_S)


def _session(text: str | bytes) -> tuple[str, str] | None:
    """Link and room of the session that the site gives, None where it gives none."""
    try:
        message = loads(text)
    except ProtocolError as error:
        log.warning("ignored: %s", error)
        return None
    if "experiment" not in message:
        return None
    link, room = message["experiment"], message.get("room")
    if not isinstance(link, str) or not isinstance(room, str) or not link or not room:
        log.warning("ignored: a session without link or room: %.200r", message)
        return None
    return link, room


def serve_room(
    serve: Callable[[], bool], stop: threading.Event, episodes: int | None, wait_s: float, clock: Callable[[], float]
) -> int:
    """Serve one room without the queue, episode after episode, until its session is over.

    Args:
        serve: plays one episode; False where it was not played to its end; raises where there is no such session.
        stop: ends it.
        episodes: how many at most; None for as many as the session has.
        wait_s: seconds for which a session that does not exist (yet, or any more) is asked for.
        clock: seconds.

    Returns:
        Episodes that were played to their end.

    Raises:
        RefusedBySite, OSError: the session was never there.
    """
    played, tried, last_seen = 0, 0, clock()
    while not stop.is_set() and (episodes is None or tried < episodes):
        try:
            played += serve()
            tried += 1
            last_seen = clock()
        except (RefusedBySite, OSError) as error:
            if clock() - last_seen > wait_s:
                if tried:
                    log.info("the session is over: %s", error)
                    return played
                raise
            log.debug("%s", error)
        stop.wait(0.3)
    return played
