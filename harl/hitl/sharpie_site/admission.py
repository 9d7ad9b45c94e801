"""Who of a site's experiment sits where in the environment of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harl.envs.api import Layout
from harl.hitl.sharpie_site.mapping import ExperimentEntry
from harl.hitl.sharpie_site.seat import SiteSeat
from harl.hitl.sharpie_site.serving import NotServed
from harl.hitl.sharpie_site.settings import read_roles


def seats_for(
    session: str, agents_settings: Mapping[str, Any], layout: Layout, entry: ExperimentEntry | None
) -> list[SiteSeat]:
    """A seat for each participant of the site's settings.

    Args:
        session: its name.
        agents_settings: role → settings of the site.
        layout: agents of the run.
        entry: of the mapping, which may give roles other names; None where roles are agents.

    Raises:
        NotServed: a role is no agent of this run, or two are the same.
        ProtocolError: the settings are none.
    """
    seats: list[SiteSeat] = []
    for role, settings in read_roles(agents_settings).items():
        if not settings.participant:
            continue
        own = entry.agents.get(role) if entry is not None else None
        agent = role if own is None or own.plays is None else own.plays
        if agent not in layout.agents:
            raise NotServed(f"the role {role!r} is no agent of this runner; it has {', '.join(layout.agents)}")
        if agent in (seat.agent for seat in seats):
            raise NotServed(f"the agent {agent!r} has two people")
        index = layout.agents.index(agent)
        shared = settings.has_policy if own is None or own.shared is None else own.shared
        seats.append(SiteSeat(session, role, agent, index, settings, layout.action_spaces[index], shared))
    return seats
