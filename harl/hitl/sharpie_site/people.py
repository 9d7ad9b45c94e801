"""People of a room: their answers to a frame, and how long they are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harl.hitl.sharpie_site.messages import ProtocolError, loads, log
from harl.hitl.sharpie_site.settings import Role, Tempo
from harl.hitl.sharpie_site.site import receive

ABSENT = ("policy", "default", "previous")
"""Who acts for a person who does not answer."""


REPEAT_S = 2.0
"""Before the first frame is repeated for the first time; twice that between two repetitions."""


class PersonLeft(Exception):  # noqa: N818 - people may leave
    """Somebody left the room, or the site closes it; the text is the site's."""


class Stopped(Exception):  # noqa: N818 - as asked
    """The runner was asked to stop."""


class NobodyThere(Exception):  # noqa: N818 - people may stay away
    """Nobody has answered for as long as anybody is waited for."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long people are waited for, in seconds, and who acts after that."""

    timeout_s: float = 10.0
    """An answer to a frame."""
    thinking_s: float = 120.0
    """The same in experiments that wait for a key at every frame."""
    join_s: float = 30.0
    """The first answer of all; the first frame is repeated until then."""
    settle_s: float = 0.25
    """Before the first frame: a site gives a session away a moment before the last person in it can be reached."""
    gone_s: float = 60.0
    """Silence of everybody, beyond the wait for one answer, after which an episode ends."""
    last_s: float = 1.0
    """The answers to the last frame."""
    absent: str = "policy"
    """`policy` (default where there is none), `default` (what stands for no key), or `previous` (their last input)."""

    def answer(self, tempo: Tempo) -> float:
        """Longest wait for an answer to one frame."""
        return self.thinking_s if tempo.wait_for_inputs else self.timeout_s


def read_answers(websocket: Any, timeout: float | None) -> dict[str, Any] | None:
    """Inputs by role of the next message; empty for a message without any, None where none comes in time.

    Raises:
        PersonLeft: the message says so.
    """
    text = receive(websocket, timeout)
    if text is None:
        return None
    try:
        message = loads(text)
    except ProtocolError as error:
        log.warning("ignored: %s", error)
        return {}
    if message.get("error"):
        raise PersonLeft(str(message["error"])[:200])
    batch = message.get("batch_actions", {})
    if not isinstance(batch, Mapping):
        log.warning("ignored: batch_actions is a %s, not an object", type(batch).__name__)
        return {}
    return dict(batch)


class People:
    """Gathers the answers to each frame of an episode.

    Args:
        websocket: connection to the room.
        roles: the agents; those with a participant are waited for.
        waits: for how long.
        tempo: whether the page waits for keys.
        stopping: whether nobody may be waited for any longer.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        websocket: Any,
        roles: Mapping[str, Role],
        waits: Waits,
        tempo: Tempo,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.websocket, self.roles, self.waits, self.clock = websocket, roles, waits, clock
        self.stopping = stopping
        self.expected = {name for name, role in roles.items() if role.participant}
        """Roles with a person."""
        self.absent: set[str] = set()
        """Those that did not answer the last frame; they are not waited for until they answer again."""
        self.joined: set[str] = set()
        """Those that ever answered."""
        self.strangers: set[str] = set()
        self._settled = False
        self._longest = waits.answer(tempo)
        self._heard = clock()

    def settle(self) -> None:
        """Give everybody time to get into the room, once."""
        if self.expected and not self._settled:
            time.sleep(self.waits.settle_s)
        self._settled = True

    def clear(self) -> None:
        """Forget answers to earlier frames, before the next one is sent."""
        while self.expected and (batch := read_answers(self.websocket, 0)) is not None:
            self._take(batch)

    def answers(self, repeat: Callable[[], None] | None = None) -> dict[str, Any]:
        """Inputs by role to the frame that was just sent; roles that did not answer in time are left out.

        Args:
            repeat: sends the frame again; called now and then while somebody is awaited who has never answered, since
                pages that open late have missed it.

        Raises:
            PersonLeft: somebody left.
            Stopped: the runner stops.
            NobodyThere: nobody has answered for too long, see `Waits`.
        """
        if not self.expected:
            return {}
        start = self.clock()
        again = start + REPEAT_S
        got: dict[str, Any] = {}
        awaited = self.expected - self.absent
        while missing := awaited - got.keys():
            coming = bool(missing - self.joined)
            left = start + (max(self.waits.join_s, self._longest) if coming else self._longest) - self.clock()
            if left <= 0:
                self._note_absent(missing)
                break
            if self.stopping():
                raise Stopped("the runner was stopped")
            batch = read_answers(self.websocket, min(left, 1.0))
            if batch is None:
                if coming and repeat is not None and again <= self.clock():
                    repeat()
                    again = self.clock() + 2 * REPEAT_S
                continue
            got.update(self._take(batch))
        if not awaited and (batch := read_answers(self.websocket, 0)) is not None:
            got.update(self._take(batch))
        silence = self.clock() - (self._heard if self.joined else start)
        if not got and (not self.joined or silence > self.waits.gone_s + self._longest):
            raise NobodyThere(f"nobody answered for {silence:.0f} s")
        return got

    def last(self) -> dict[str, Any]:
        """Inputs to the last frame, as far as they come soon; people leave after it, which is no fault here.

        The answers of those who stay may come after somebody has left: a site passes all of them on together.
        """
        from websockets.exceptions import ConnectionClosed

        got: dict[str, Any] = {}
        limit, here = self.clock() + self.waits.last_s, len(self.expected)
        while here and (self.expected - self.absent) - got.keys() and (left := limit - self.clock()) > 0:
            try:
                got.update(self._take(read_answers(self.websocket, left) or {}))
            except PersonLeft:
                here -= 1
            except ConnectionClosed:
                break
        return got

    def _take(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        known = {role: value for role, value in batch.items() if role in self.expected}
        for role in batch.keys() - self.expected - self.strangers:
            self.strangers.add(role)
            log.warning("ignored: an input for %r, where nobody sits", str(role)[:80])
        if known:
            self._heard = self.clock()
            self.joined |= known.keys()
            for role in self.absent & known.keys():
                log.info("%s answers again", role)
            self.absent -= known.keys()
        return known

    def _note_absent(self, missing: set[str]) -> None:
        for role in sorted(missing):
            log.warning("%s did not answer in time: %s acts", role, self.waits.absent)
        self.absent |= missing
