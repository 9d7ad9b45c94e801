"""The way into a room of a site: connect, and learn what is wanted there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harl.hitl.sharpie_site.mapping import ExperimentEntry
from harl.hitl.sharpie_site.messages import ProtocolError, loads, log
from harl.hitl.sharpie_site.settings import Tempo, read_roles
from harl.hitl.sharpie_site.site import Site, receive

SETTINGS_S = 20.0
"""Seconds in which a site must send its settings."""
OURS = ExperimentEntry()
"""Stands for experiments of which the site's own code is served."""

Settings = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def load_episode(websocket: Any) -> Settings:
    """Ask the site for the settings of environment, agents and experiment. Nothing is written to disk.

    Raises:
        ProtocolError: what came are no settings, or they did not come in time.
    """
    websocket.send(json.dumps({"type": "private", "message": "settings"}))
    parts: list[dict[str, Any]] = []
    while len(parts) < 3:
        text = receive(websocket, SETTINGS_S)
        if text is None:
            raise ProtocolError(f"the site sent no settings within {SETTINGS_S:.0f} s")
        message = loads(text)
        if message.get("type") != "websocket.message":  # what people of the room do comes in between
            parts.append(message)
    environment, agents, experiment = parts
    read_roles(agents)
    Tempo.read(experiment)
    return environment, agents, experiment


def local_settings(entry: ExperimentEntry) -> Settings:
    """The settings that a mapping gives, for sites that cannot send theirs."""
    agents: dict[str, Any] = {}
    for role, agent in entry.agents.items():
        driven = agent.checkpoint is not None or agent.object is not None
        agents[role] = {
            "participant": not driven if agent.participant is None else agent.participant,
            "keyboard_inputs": {"default": agent.default},
            "multiple_keyboard_inputs": agent.several_keys,
            "inputs_type": agent.inputs_type,
        }
        if driven:
            agents[role]["policy"] = {"checkpoint_interval": agent.interval or 0, "files": {}}
    return {}, agents, {"target_fps": entry.target_fps, "wait_for_inputs": entry.wait_for_inputs}


@contextmanager
def entered(site: Site, link: str, room: str, entry: ExperimentEntry | None) -> Iterator[tuple[Any, Settings | None]]:
    """A connection to a room, and the settings of its experiment.

    Where the site cannot tell them, they are those of the mapping; None where there is no mapping either.

    Raises:
        RefusedBySite, OSError: there is no such session, or no site.
    """
    from websockets.exceptions import ConnectionClosed

    where = f"{link}/{room}"
    with site.room(link, room) as websocket:
        try:
            settings = load_episode(websocket)
        except ProtocolError as error:
            log.error("%s: %s; going on with the settings of the mapping", where, error)
            yield websocket, None if entry is None else local_settings(entry)
            return
        except ConnectionClosed as error:
            log.error("%s: the site closed the room instead of sending its settings: %s", where, error)
        else:
            yield websocket, settings
            return
    if entry is not None:
        log.warning("%s: going on with the settings of the mapping", where)
    with site.room(link, room) as websocket:
        yield websocket, None if entry is None else local_settings(entry)
