"""Serving one session: connect to its room, learn what is wanted, play an episode, or refuse so that people know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harl.config.fields import ConfigError
from harl.envs.api import EnvError
from harl.hitl.sharpie_site import trusted
from harl.hitl.sharpie_site.episode import Chooser, Episode
from harl.hitl.sharpie_site.frames import send_refusal
from harl.hitl.sharpie_site.journal import Journal
from harl.hitl.sharpie_site.mapping import ExperimentEntry
from harl.hitl.sharpie_site.messages import ProtocolError, loads, log
from harl.hitl.sharpie_site.people import NobodyThere, People, PersonLeft, Stopped
from harl.hitl.sharpie_site.serving import NotServed, Serving, TeamAgent
from harl.hitl.sharpie_site.settings import Tempo, read_roles
from harl.hitl.sharpie_site.site import Site, receive
from harl.hitl.sharpie_site.updates import Updates

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
    repeat: bool = False,
) -> int:
    """Play one episode in a room; returns its number of steps.

    Args:
        websocket: connection to the room.
        environment_settings, agents_settings, experiment_settings: as `load_episode` gave them.
        serving, entry: see `load_environment`.
        link, room: names of the session, for the journal.
        repeat: show the first frame again and again until somebody answers.

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
            return Episode(websocket, env, chooser, people, updates, tempo.target_fps, journal, repeat).play()
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
    repeat: bool = False,
) -> bool:
    """Connect to a room and play an episode in it; whatever goes wrong is said to the people there and logged.

    Args:
        hostname, port, connection_key: of the site, where `site` does not say more.
        link, room: the session.
        serving: what this runner serves; without it, everything is refused politely.
        site: the site, where it needs TLS.
        repeat: see `run_episode`.

    Returns:
        Whether the episode was played to its end.

    Raises:
        RefusedBySite: there is no such session, or the key is wrong.
        OSError: there is no site.
    """
    from websockets.exceptions import ConnectionClosed

    serving, site = serving or Serving(), site or Site(hostname, port, connection_key)
    where = f"{link}/{room}"
    entry = serving.mapping.experiments.get(link)
    settings = None
    with site.room(link, room) as websocket:
        if entry is None and not serving.trust_server_code:
            log.warning("%s: refused, no experiment %r in the mapping", where, link)
            send_refusal(websocket, "This runner does not serve this experiment. Please tell whoever runs the study.")
            return False
        try:
            settings = load_episode(websocket)
        except ProtocolError as error:
            log.error("%s: %s; going on with the settings of the mapping", where, error)
            settings = local_settings(entry or OURS)
        except ConnectionClosed as error:
            log.error("%s: the site closed the room instead of sending its settings: %s", where, error)
        if settings is not None:
            return _played(websocket, settings, where, serving, entry, link, room, repeat)
    if entry is None:
        return False
    log.warning("%s: going on with the settings of the mapping", where)
    with site.room(link, room) as websocket:
        return _played(websocket, local_settings(entry), where, serving, entry, link, room, repeat)


def _played(
    websocket: Any,
    settings: Settings,
    where: str,
    serving: Serving,
    entry: ExperimentEntry | None,
    link: str,
    room: str,
    repeat: bool,
) -> bool:
    from websockets.exceptions import ConnectionClosed

    try:
        steps = run_episode(websocket, *settings, serving=serving, entry=entry, link=link, room=room, repeat=repeat)
    except (PersonLeft, ConnectionClosed) as error:
        log.warning("%s: the episode broke off: %s", where, error)
        return False
    except (NobodyThere, Stopped, NotServed) as error:
        log.warning("%s: %s", where, error)
        refusal = str(error)
    except (ProtocolError, EnvError, ConfigError) as error:
        log.error("%s: %s", where, error)
        refusal = "This experiment cannot be played: the runner's set-up is faulty."
    except Exception:
        log.exception("%s: the environment or a policy failed", where)
        refusal = "The episode failed on the runner."
    else:
        log.info("%s: played %d steps", where, steps)
        return True
    try:
        send_refusal(websocket, refusal)
    except ConnectionClosed as error:
        log.warning("%s: nobody could be told: %s", where, error)
    return False
