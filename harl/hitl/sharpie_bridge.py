"""`hitl=sharpie`: the bridge to the people of a SHARPIE site, whose runner the run is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from harl.config import ConfigError, SharpieConfig
from harl.envs.api import EnvStep, FloatArray
from harl.hitl.bridge import Stage
from harl.hitl.pace import Pace
from harl.hitl.people_bridge import PeopleBridge
from harl.hitl.sharpie_site.mapping import ExperimentEntry, read_mapping
from harl.hitl.sharpie_site.messages import log
from harl.hitl.sharpie_site.serving_run import RunServer
from harl.hitl.sharpie_site.session import Session, Shot
from harl.hitl.sharpie_site.site import Site, read_key
from harl.hitl.sharpie_site.waiting import Rooms, serve_queue, serve_room

LAST_WAIT_S = 5.0
"""Longest wait for what people say to the last frame, and for the thread of the network to end."""
WAIT_FOR_ROOM_S = float("inf")


class SitePace(Pace):
    """The pace of a run that serves a site: while a session goes on, as its people answer."""

    bridge: SharpieBridge

    def hold(self, stopping: Callable[[], bool], show: Callable[[], None]) -> bool:
        """See `Pace`."""
        missed = self.bridge.wait_for_answers(stopping)
        return super().hold(stopping, show) if missed is None else missed


class SharpieBridge(PeopleBridge):
    """People at a SHARPIE site, in environment `hitl.env_index` of the run, one session at a time.

    An episode of a session is one of the environment: it begins with the next one that the environment begins. Between
    sessions the run goes on without people.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.
        listen: whether to ask the site for sessions; else `serve` is called by whoever does.

    Raises:
        ConfigError: there is no key, or the mapping is wrong.
    """

    config: SharpieConfig

    def __init__(
        self, config: SharpieConfig, clock: Callable[[], float] = time.monotonic, listen: bool = True
    ) -> None:
        super().__init__(config, clock)
        pace = SitePace(self.room)
        pace.bridge = self
        self.room.pace = pace
        entries = None if config.mapping is None else read_mapping(config.mapping).experiments
        self.session: Session | None = None
        self.server = RunServer(self, entries, self._stopping)
        self._ending, self._thread = threading.Event(), None if not listen else threading.Thread(
            target=self._listen, name="sharpie", daemon=True
        )
        self._outcome: EnvStep
        if listen:
            try:
                key = read_key(None, config.key_file, os.environ.get("SHARPIE_CONNECTION_KEY"))
            except ValueError as error:
                raise ConfigError([f"hitl: {error}"]) from None
            self.site = Site(config.hostname, config.port, key, config.tls)
        if config.trust_server_code:
            log.warning("hitl.trust_server_code has no use here: a run serves its own environment and agents")

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """See `Bridge`; begins to ask the site for sessions."""
        if self.session is not None:
            self.session.abort()
        self._outcome = first
        super().attach(stage, first)
        if self._thread is not None and not self._thread.is_alive():
            stage.notice(f"people: from the SHARPIE site at {self.site.url}")
            self._thread.start()
