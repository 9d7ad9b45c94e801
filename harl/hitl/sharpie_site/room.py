"""Serving one session: connect to its room, learn what is wanted, play an episode, or refuse so that people know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harl.config.fields import ConfigError
from harl.envs.api import EnvError
from harl.hitl.sharpie_site import trusted
from harl.hitl.sharpie_site.entrance import OURS, Settings, entered
from harl.hitl.sharpie_site.episode import Chooser, Episode
from harl.hitl.sharpie_site.frames import send_refusal
from harl.hitl.sharpie_site.journal import Journal
from harl.hitl.sharpie_site.mapping import ExperimentEntry
from harl.hitl.sharpie_site.messages import ProtocolError, log
from harl.hitl.sharpie_site.people import NobodyThere, People, PersonLeft, Stopped
from harl.hitl.sharpie_site.serving import NotServed, Serving, TeamAgent
from harl.hitl.sharpie_site.settings import Tempo, read_roles
from harl.hitl.sharpie_site.site import Site
from harl.hitl.sharpie_site.updates import Updates

UNKNOWN = "This runner does not serve this experiment. Please tell whoever runs the study."
FAULTY = "This experiment cannot be played: the runner's set-up is faulty."


def refuse(websocket: Any, where: str, text: str) -> None:
    """Tell the people of a room why they cannot play."""
    from websockets.exceptions import ConnectionClosed

    log.warning("%s: refused: %s", where, text)
    try:
        send_refusal(websocket, text)
    except ConnectionClosed as error:
        log.warning("%s: nobody could be told: %s", where, error)


def load_environment(
    env_config: Mapping[str, Any], *, serving: Serving | None = None, entry: ExperimentEntry | None = None
) -> Any:
    """A fresh environment for an episode.

    Args:
        env_config: the site's settings of the environment; its metadata sets what the mapping lets it.
        serving: makes environments; None for one without a mapping.
        entry: what the mapping has for the experiment; None for the site's own code, which has to be trusted.

    Raises:
        NotServed: there is no entry, and the site's code is not trusted.
        ProtocolError, EnvError, ConfigError: it cannot be made.
    """
    serving = serving or Serving()
    if entry is not None and entry is not OURS:
        metadata = env_config.get("metadata")
        return serving.environment(entry, metadata if isinstance(metadata, Mapping) else {})
    _refuse_distrusted(serving)
    return trusted.environment_of(env_config)


def load_policies(
    agents_settings: Mapping[str, Any],
    *,
    serving: Serving | None = None,
    entry: ExperimentEntry | None = None,
    link: str = "",
) -> tuple[dict[str, Any], dict[str, int]]:
    """Policies of the agents that have one, and every how many steps each is updated; raises like `load_environment`.

    An interval of the mapping counts before the site's; without both, an object is updated at every step.
    """
    serving = serving or Serving()
    roles = read_roles(agents_settings)
    if entry is not None and entry is not OURS:
        policies, agents = serving.policies(link, entry), entry.agents
    elif not any(role.has_policy for role in roles.values()):
        return {}, {}
    else:
        _refuse_distrusted(serving)
        policies, agents = trusted.policies_of(agents_settings), {}
    intervals = {}
    for name in policies:
        own = agents[name].interval if name in agents else None
        role = roles.get(name)
        said = role.interval if role is not None and role.has_policy else 1
        intervals[name] = said if own is None else own
    return policies, intervals


def _refuse_distrusted(serving: Serving) -> None:
    if not serving.trust_server_code:
        raise NotServed("this runner has no mapping for this experiment, and it runs no code that a site sends")


def run_episode(
    websocket: Any,
    environment_settings: Mapping[str, Any],
    agents_settings: Mapping[str, Any],
    experiment_settings: Mapping[str, Any],
    *,
    serving: Serving | None = None,
    entry: ExperimentEntry | None = None,
    link: str = "",
    room: str = "",
) -> int:
    """Play one episode in a room; returns its number of steps.

    Args:
        websocket: connection to the room.
        environment_settings, agents_settings, experiment_settings: as `load_episode` gave them.
        serving, entry: see `load_environment`.
        link, room: names of the session, for the journal.

    Raises:
        NotServed, ProtocolError, EnvError, ConfigError: there is nothing to play.
        PersonLeft, NobodyThere, Stopped: it ended early.
    """
    serving, mapped = serving or Serving(), entry or OURS
    tempo, waits = Tempo.read(experiment_settings), mapped.waits(serving.waits)
    env = load_environment(environment_settings, serving=serving, entry=mapped)
    try:
        policies, intervals = load_policies(agents_settings, serving=serving, entry=mapped, link=link)
        for policy in policies.values():
            if isinstance(policy, TeamAgent):
                policy.reset()
        chooser = Chooser(env, agents_settings, policies, mapped.agents, waits.absent)
        people = People(websocket, chooser.roles, waits, tempo, serving.stopping)
        with Journal(serving.record, link, room) as journal:
            journal.write("start", link=link, room=room, agents=agents_settings, experiment=experiment_settings)
            updates = Updates(policies, intervals)
            return Episode(websocket, env, chooser, people, updates, tempo.target_fps, journal).play()
    finally:
        if hasattr(env, "close"):
            env.close()


def start_experiment(
    hostname: str,
    port: int,
    connection_key: str,
    link: str,
    room: str,
    *,
    serving: Serving | None = None,
    site: Site | None = None,
) -> bool:
    """Connect to a room and play an episode in it; whatever goes wrong is said to the people there and logged.

    Args:
        hostname, port, connection_key: of the site, where `site` does not say more.
        link, room: the session.
        serving: what this runner serves; without it, everything is refused politely.
        site: the site, where it needs TLS.

    Returns:
        Whether the episode was played to its end.

    Raises:
        RefusedBySite: there is no such session, or the key is wrong.
        OSError: there is no site.
    """
    serving, site = serving or Serving(), site or Site(hostname, port, connection_key)
    entry = serving.mapping.experiments.get(link)
    if entry is None and not serving.trust_server_code:
        with site.room(link, room) as websocket:
            refuse(websocket, f"{link}/{room}", UNKNOWN)
        return False
    with entered(site, link, room, entry) as (websocket, settings):
        if settings is None:
            refuse(websocket, f"{link}/{room}", FAULTY)
            return False
        return _played(websocket, settings, serving, entry, link, room)


def _played(
    websocket: Any,
    settings: Settings,
    serving: Serving,
    entry: ExperimentEntry | None,
    link: str,
    room: str,
) -> bool:
    from websockets.exceptions import ConnectionClosed

    where = f"{link}/{room}"
    try:
        steps = run_episode(websocket, *settings, serving=serving, entry=entry, link=link, room=room)
    except (PersonLeft, ConnectionClosed) as error:
        log.warning("%s: the episode broke off: %s", where, error)
        return False
    except (NobodyThere, Stopped, NotServed) as error:
        log.warning("%s: %s", where, error)
        refusal = str(error)
    except (ProtocolError, EnvError, ConfigError) as error:
        log.error("%s: %s", where, error)
        refusal = FAULTY
    except Exception:
        log.exception("%s: the environment or a policy failed", where)
        refusal = "The episode failed on the runner."
    else:
        log.info("%s: played %d steps", where, steps)
        return True
    refuse(websocket, where, refusal)
    return False
