"""`hitl=sharpie`: the bridge to the people of a SHARPIE site, whose runner the run is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from harl.config import ConfigError, SharpieConfig
from harl.envs.api import EnvStep, FloatArray
from harl.hitl.bridge import Override, PeopleError, Stage
from harl.hitl.pace import Pace
from harl.hitl.people_bridge import PeopleBridge
from harl.hitl.sharpie_site.mapping import SiteMapping, read_mapping
from harl.hitl.sharpie_site.messages import end_flags, log
from harl.hitl.sharpie_site.pictures import as_rgb
from harl.hitl.sharpie_site.reception import Reception
from harl.hitl.sharpie_site.session import Session, Shot
from harl.hitl.sharpie_site.site import Site, read_key

JOIN_S = 5.0
"""Longest wait for the threads of the network when the run ends."""


class SitePace(Pace):
    """The pace of a run that serves a site: while a session goes on, as its people answer."""

    bridge: SharpieBridge

    def hold(self, stopping: Callable[[], bool], meanwhile: Callable[[], None]) -> bool:
        """See `Pace`."""
        missed = self.bridge.wait_for_answers(stopping)
        return super().hold(stopping, meanwhile) if missed is None else missed


class SharpieBridge(PeopleBridge):
    """People at a SHARPIE site, in environment `hitl.env_index` of the run, one session at a time.

    An episode of a session is one of the environment: it begins with the next one that the environment begins. Between
    sessions the run goes on without people.

    Args:
        config: the `hitl` section.
        clock: seconds, monotonic.
        listen: whether to ask the site for sessions; else whoever does gives them to `reception`.
        mapping: links that are served, and names of roles; None for that of the file that the configuration names.

    Raises:
        ConfigError: there is no key, the mapping is wrong, or there is a room without a link.
    """

    config: SharpieConfig

    def __init__(
        self,
        config: SharpieConfig,
        clock: Callable[[], float] = time.monotonic,
        listen: bool = True,
        mapping: SiteMapping | None = None,
    ) -> None:
        super().__init__(config, clock)
        pace = SitePace(self.room)
        pace.bridge = self
        self.room.pace = pace
        self._ending = threading.Event()
        if mapping is None and config.mapping is not None:
            mapping = read_mapping(config.mapping)
        self.reception = Reception(self.room, config, mapping, self._ending)
        self._site: Site | None = None
        self._thread: threading.Thread | None = None
        self._outcome: EnvStep
        self._next_frame = 0.0
        self._blind = False
        """Whether a picture could not be drawn."""
        self._saying: set[str] = set()
        """Agents of whom it has been told that what their people say is recorded alone."""
        self._watching = False
        """Whether the environment is asked for the last pictures of its episodes."""
        if not listen:
            return
        problems = []
        if config.room is not None and config.link is None:
            problems.append("hitl.room is set without hitl.link: a room belongs to the link of an experiment")
        try:
            key = read_key(None, config.key_file, os.environ.get("SHARPIE_CONNECTION_KEY"))
        except ValueError as error:
            problems.append(f"hitl.key_file: {error}")
        if problems:
            raise ConfigError(problems)
        self._site = Site(config.hostname, config.port, key, config.tls)
        if config.trust_server_code:
            log.warning("hitl.trust_server_code has no use in a run: it serves its own environment and agents")

    # The run's thread.

    def attach(self, stage: Stage, first: EnvStep) -> None:
        """See `Bridge`; begins to ask the site for sessions."""
        if (session := self.reception.session) is not None:
            session.abort()
        self._outcome = first
        super().attach(stage, first)
        self.reception.open(stage.layout)
        if self._site is not None and self._thread is None:
            stage.notice(f"people: from the SHARPIE site at {self._site.url}")
            self._thread = threading.Thread(target=self.reception.listen, args=(self._site,), daemon=True)
            self._thread.start()

    def wait_for_answers(self, stopping: Callable[[], bool]) -> bool | None:
        """Wait until the people of the session have answered what they were shown.

        Returns:
            Whether somebody did not in time; None where there is nothing to wait for, or the pace is another.
        """
        session, env = self.reception.session, self.config.env_index
        if session is None or session.over:
            return None
        self._place({env})
        if not session.begun:
            if self.step[env]:
                return False  # on to the end of the episode that has begun without them
            # People may have come in since the last step, too late to be followed by its end.
            if (chronicle := self._chronicle_for_people()) is not None:
                chronicle.follow({env}, self.episode.tolist(), self.step.tolist(), self.env_steps, self._outcome)
            self.show(env, False, True)
        if not session.lockstep:
            return None
        if session.finished:
            session.wait_for_end(stopping)
            return None
        return session.wait(self.room.position[env], stopping)

    def override_actions(
        self, env_steps: int, obs: FloatArray, available_actions: FloatArray | None, proposed: FloatArray
    ) -> Override:
        """See `Bridge`; an evaluation waits before each episode until a session wants it.

        Raises:
            PeopleError: no session came to an evaluation within `hitl.max_pause_s`.
        """
        if self._stage.purpose == "evaluate" and not self.step[self.config.env_index]:
            self._wait_for_session()
        override = super().override_actions(env_steps, obs, available_actions, proposed)
        session = self.reception.session
        watching = session is not None and not session.over and not session.finished
        if watching != self._watching:
            self._watching = watching
            self._stage.watch_ends([self.config.env_index] if watching else [])
        return override

    def _wait_for_session(self) -> None:
        stage, limit = self._stage, self.config.max_pause_s
        deadline = self.clock() + limit
        while not stage.stopping():
            session = self.reception.session
            if session is not None and not session.finished and not session.over:
                return
            if self.clock() > deadline:
                raise PeopleError(f"no session came from {self._site} within hitl.max_pause_s={limit:g} s")
            with self.room.changed:
                self.room.changed.wait(0.1)

    def publish(self, outcome: EnvStep) -> None:
        """See `Bridge`."""
        self._outcome = outcome
        super().publish(outcome)

    def show(self, env: int, done: bool, at_once: bool) -> bool:
        """See `PeopleBridge`; the network's thread encodes and sends."""
        session, now = self.reception.session, self.clock()
        if session is None or session.over or session.finished or env != self.config.env_index:
            return False
        if not session.begun and (self.step[env] or not at_once):
            return False
        if session.begun and not session.lockstep and not done and now < self._next_frame:
            return False
        if not session.begun:
            self._say_what_hints_do(session)
        self._next_frame = now + session.between
        session.offer(self._shot(session, env, done))
        if env in self.crediting.ledgers:
            self.crediting.ledgers[env].show(*self.room.position[env], now)
        return True

    def _say_what_hints_do(self, session: Session) -> None:
        saying = {seat.agent for seat in session.seats.values() if seat.settings.inputs_type == "other"}
        new = sorted(saying - self._saying)
        if new:
            self._saying |= saying
            self._stage.notice(
                f"people: what {', '.join(new)} says (inputs_type other) is recorded alone: policies of a run take no "
                "hints"
            )

    def _shot(self, session: Session, env: int, done: bool) -> Shot:
        outcome, layout = self._outcome, self._stage.layout
        begun = session.begun
        picture = self._end_picture(env, session.last_picture) if done else self._picture(env)
        rows = outcome.final_obs[env] if done and outcome.final_obs is not None else outcome.obs[env]
        roles = {seat.agent: role for role, seat in session.seats.items()}
        obs: dict[str, Any] = {}
        actions: dict[str, Any] = {}
        for i, agent in enumerate(layout.agents):
            name = roles.get(agent, agent)
            obs[name] = rows[i].copy() if rows.ndim > 2 else rows[i, : layout.obs_dims[i]].copy()
            actions[name] = _native(self.actions[env, i, : layout.action_dims[i]], layout.action_spaces[i])
        rewards = {roles.get(agent, agent): float(outcome.rewards[env, i, 0]) for i, agent in enumerate(layout.agents)}
        # Agents may have terminated one by one; only those of the last step are named in it.
        cut = bool(outcome.truncated[env].any() or (outcome.broken_off is not None and outcome.broken_off[env]))
        flags = end_flags(not cut, cut) if done else (False, False)
        return Shot(
            self.room.position[env],
            picture,
            obs,
            actions if begun else {},
            rewards if begun else 0,
            *flags,
        )

    def _picture(self, env: int) -> NDArray[np.uint8]:
        """The environment as it is now; grey where it cannot be drawn, which is said once and does not stop the run."""
        picture = self._drawn(env, self._stage.render)
        return as_rgb(None) if picture is None else picture

    def _end_picture(self, env: int, before: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """The last state of the episode that has ended; where it cannot be had, the one that was shown before it."""
        picture = self._drawn(env, self._stage.render_end)  # the next episode has begun within the step
        if picture is None:
            picture = before
        return self._picture(env) if picture is None else picture

    def _drawn(self, env: int, draw: Callable[[int], NDArray[np.uint8] | None]) -> NDArray[np.uint8] | None:
        try:
            picture = draw(env)
        except Exception as error:
            if not self._blind:
                self._stage.notice(f"this environment cannot be shown: {type(error).__name__}: {error}")
            self._blind = True
            return None
        if picture is None or not picture.flags.writeable:
            return picture
        return picture.copy()  # the environment may draw into it again before it is sent

    def close(self, reason: str) -> None:
        """See `Bridge`; people are told, after they have seen an episode's last frame where it was reached."""
        session = self.reception.session
        if session is not None and session.finished:
            session.wait_for_end(lambda: False)
        self._ending.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        super().close(reason)


def _native(columns: FloatArray, space: spaces.Space[Any]) -> Any:
    """An action as the environment's own numbers."""
    if isinstance(space, spaces.Discrete):
        return int(columns[0]) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return (columns + space.start).astype(np.int64)
    return columns.copy()
