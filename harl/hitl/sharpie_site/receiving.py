"""The answers of people to one frame, for those who write their own loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harl.hitl.sharpie_site.people import read_answers
from harl.hitl.sharpie_site.settings import read_roles


def receive_message(websocket: Any, agents_settings: Mapping[str, Any], timeout: float | None = 10.0) -> dict[str, Any]:
    """Inputs by role of the next message of the room.

    Args:
        websocket: connection to the room.
        agents_settings: role → settings of the site; where no agent has a participant, nothing is read.
        timeout: seconds; None waits for ever.

    Returns:
        role → input; empty where nothing came in time, or the message has no inputs.

    Raises:
        PersonLeft: somebody left the room.
    """
    if not any(role.participant for role in read_roles(agents_settings).values()):
        return {}
    return read_answers(websocket, timeout) or {}
