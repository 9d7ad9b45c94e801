"""A scripted person at the other end of the socket: speaks the protocol as the page does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shlex
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from harl.hitl.network.frames import Codec, Received, unpack
from harl.hitl.network.protocol import SUBPROTOCOL, VERSION
from harl.hitl.network.rates import Bucket
from harl.hitl.people import ROLES
from harl.hitl.scripted.keys import Keys
from harl.hitl.scripted.mind import Mind
from harl.hitl.scripted.scene import Eyes, Sight
from harl.hitl.scripted.traits import Expert, Heuristic, Traits
from harl.hitl.scripted.visit import Invitation, RobotError, Summary

REMIND_S = 0.1
"""Between two messages about what is held, as the page sends them."""
PING_S = 1.0
INPUTS_PER_S, OTHER_PER_S = 60.0, 20.0
"""What a server allows that does not say so."""
BELOW = 0.9
"""Share of what is allowed that is used."""
LAST_LOOK_S = 1.0
"""Longest wait, after letting go of everything, for a frame that shows it."""
WELCOME_S = 30.0
"""Longest wait for the welcome: a run takes a while to start."""


MakeExpert = Callable[[Mapping[str, Any], Mapping[str, Keys]], Expert]
"""What `welcome` said, and keys of each agent → who knows what to do."""


def heuristic(welcome: Mapping[str, Any], keys: Mapping[str, Keys]) -> Expert:
    """The heuristic of the scenario."""
    return Heuristic(str(welcome["scenario"]), keys)


class Robot:
    """One connection, for one environment.

    Args:
        invitation: where.
        traits: how the person is.
        make_expert: what the person knows.
        seed: of all chances.
        clock: seconds.
    """

    def __init__(
        self,
        invitation: Invitation,
        traits: Traits,
        make_expert: MakeExpert = heuristic,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.invitation, self.traits = invitation, traits
        self.summary = Summary()
        self._make_expert, self._clock = make_expert, clock
        self._rng = np.random.default_rng(seed)
        self._seq = 0
        self._seen_at: dict[int, tuple[int, int]] = {}
        self._rtts: deque[float] = deque(maxlen=20)
        self._inputs = self._requests = Bucket(0.0, 1.0, clock())
        self._said: dict[str, Any] = {}
        """What was held last, of each agent."""
        self._pace = "free"
        self._spoke_at: dict[str, float] = {}
        self._eyes = Eyes()
        self._holding: set[str] = set()
        """Agents whose lease is this person's."""
        self._unseen: dict[str, set[int]] = {}
        """Numbers of the inputs of the last lease of each agent, from the one on that a frame showed last."""

    async def run(self, seconds: float | None = None) -> Summary:
        """Take part until the run is over, or for some time.

        Raises:
            RobotError: nobody is there, or they do not let this person in.
        """
        place, token = self.invitation.place
        try:
            async with connect(
                place, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, max_size=None, open_timeout=WELCOME_S
            ) as socket:
                await self._take_part(socket, token, seconds)
                self.summary.ended = self.summary.ended or "time was up"
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise RobotError(f"cannot connect to {place}: {error}") from None
        return self.summary

    async def _take_part(self, socket: ClientConnection, token: str, seconds: float | None) -> None:
        ends = asyncio.get_running_loop().time() + (float("inf") if seconds is None else seconds)
        welcome = await self._come_in(socket, token)
        told = welcome["agents"]
        keys = {name: Keys(about) for name, about in told.items()}
        unknown = sorted(set(self.invitation.agents or ()) - set(told))
        if unknown:
            raise RobotError(f"no agents {', '.join(unknown)}; there are {', '.join(told)}")
        env = welcome["env"] if self.invitation.env is None else self.invitation.env
        _may_do(welcome, env, self.traits.feedback)
        expert = self._make_expert(welcome, keys)
        ttl = int(welcome["lease_ttl_ms"])
        self._pace = welcome["pace"]
        limits = welcome.get("limits", {})
        inputs, others = limits.get("input_per_s", INPUTS_PER_S), limits.get("other_per_s", OTHER_PER_S)
        self._inputs, self._requests = self._bucket(inputs), self._bucket(others, len(told))
        agents = self.invitation.agents or tuple(told)
        mind = Mind(agents, len(told), keys, expert, self.traits, self._rng, ttl)
        watch = {"env": env, "mode": "state", "fps": self.invitation.fps}
        await self._say(socket, {"type": "subscribe", **watch})
        reminders = asyncio.create_task(self._remind(socket, mind))
        hear = functools.partial(self._take, welcome=welcome, env=env, mind=mind)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await self._listen(socket, hear, lambda: False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOOK_S):  # for the last step that was driven
                    for message in mind.leave():
                        await self._say(socket, message)
                    await self._listen(socket, hear, lambda: mind.free)
        except ConnectionClosed:
            ended = f"the connection was closed: {socket.close_code} {socket.close_reason or ''}"
            self.summary.ended = ended.rstrip()
        finally:
            reminders.cancel()
            self.summary.steps, self.summary.driven = mind.steps, mind.driven

    async def _listen(
        self, socket: ClientConnection, hear: Callable[[str | bytes], list[dict[str, Any]]], over: Callable[[], bool]
    ) -> None:
        """Answer what comes, until there is no more to wait for; raises `ConnectionClosed`."""
        while not over():
            for message in hear(await socket.recv()):
                await self._say(socket, message)

    async def _come_in(self, socket: ClientConnection, token: str) -> dict[str, Any]:
        invitation = self.invitation
        hello: dict[str, Any] = {"type": "hello", "token": token, "client": "robot/1", "name": invitation.name}
        await self._say(socket, {**hello, "device": "script", "consent": invitation.consent})
        try:
            async with asyncio.timeout(WELCOME_S):
                async for data in socket:
                    message = {} if isinstance(data, bytes) else json.loads(data)
                    if message.get("type") == "welcome":
                        if "state" not in message.get("modes", ["state"]):
                            raise RobotError(
                                f"{message['env_id']} draws no scenes, and this person sees nothing else; it has to "
                                "be an environment with VectorEnv.scene"
                            )
                        _has_agreed(message, invitation.consent)
                        return dict(message)
                    if message.get("type") == "error":
                        raise RobotError(f"not let in: {message['text']}")
        except TimeoutError:
            raise RobotError(f"no welcome within {WELCOME_S:g} s") from None
        except ConnectionClosed as error:
            raise RobotError(f"not let in: {error}") from None
        raise RobotError(f"not let in: {socket.close_code} {socket.close_reason}")

    def _take(self, data: str | bytes, welcome: Mapping[str, Any], env: int, mind: Mind) -> list[dict[str, Any]]:
        """What to say to a message."""
        if isinstance(data, bytes):
            return self._look(unpack(data), welcome, env, mind)
        message = json.loads(data)
        kind = message["type"]
        if kind == "control" and self._is_mine(message, welcome, env):
            if message["state"] == "granted":
                self.summary.takeovers += 1
                self._holding.add(message["agent"])
                self._unseen[message["agent"]] = set()
            else:
                self._holding.discard(message["agent"])
            return mind.hear(message)
        if kind == "ack":
            self._note_ack(message, mind)
        elif kind == "pong":
            self._rtts.append(self._clock() * 1000 - message["t"])
        elif kind == "error" or (kind == "notice" and message["level"] == "warning"):
            self.summary.complain(message["text"])
        return []

    def _look(self, frame: Received, welcome: Mapping[str, Any], env: int, mind: Mind) -> list[dict[str, Any]]:
        if frame.codec is not Codec.STATE or frame.env != env:
            return []
        self.summary.frames += 1
        meta, now = frame.meta, self._clock()
        self._pace = meta["pace"]
        scene = self._eyes.read(frame.episode, frame.step, json.loads(frame.payload))
        clock = int(meta["env_steps"]) // int(welcome["num_envs"])
        sight = Sight(clock, frame.episode, frame.step, scene, meta["actions"], self._source(meta, welcome), now)
        messages = mind.see(sight)
        requests = [message["agent"] for message in messages if message["type"] == "control"]
        if requests and not self._requests.take(now, len(requests)):  # the server would drop them without an answer
            messages = [message for message in messages if message["type"] != "control"]
            for agent in requests:
                mind.hear({"agent": agent, "state": "denied"})
        return [*messages, *mind.presses(now)]

    def _is_mine(self, message: Mapping[str, Any], welcome: Mapping[str, Any], env: int) -> bool:
        """Whether a message about a lease is about this person's own."""
        if message.get("env", env) != env:
            return False
        # Only who asked is told of a refusal, which names who holds the agent instead.
        return bool(message["state"] == "denied" or message["holder"] == welcome["name"])

    def _source(self, meta: Mapping[str, Any], welcome: Mapping[str, Any]) -> dict[str, str]:
        """Who decided the step of a frame: what it says, with `other` for agents that somebody else drove."""
        return {
            agent: "other" if source == "human" and not self._drove(agent, meta, welcome) else source
            for agent, source in meta["source"].items()
        }

    def _drove(self, agent: str, meta: Mapping[str, Any], welcome: Mapping[str, Any]) -> bool:
        """Whether this person drove the step of a frame that says it was a person.

        A frame names the number of the input, which others may have used too, and who drives after the step: nobody,
        where this person has let go meanwhile.
        """
        number, unseen = meta["applied"].get(agent), self._unseen.get(agent, set())
        drove = number in unseen and meta["driver"][agent] in (welcome["name"], None)
        if drove:
            unseen.difference_update([earlier for earlier in unseen if earlier < number])
        elif agent not in self._holding:
            unseen.clear()  # what comes now is not of the lease that is over
        return drove

    def _note_ack(self, message: Mapping[str, Any], mind: Mind) -> None:
        self.summary.acks[message["status"]] += 1
        seen, applied = self._seen_at.pop(message["seq"], None), message.get("applied")
        if seen is not None and applied and applied["ep"] == seen[0]:
            lag = applied["step"] - seen[1]
            self.summary.lags.append(lag)
            mind.lag = lag if len(self.summary.lags) == 1 else 0.9 * mind.lag + 0.1 * lag

    async def _remind(self, socket: ClientConnection, mind: Mind) -> None:
        """Ping, press keys whose time has come, and repeat what is held while nothing is seen."""
        pinged = -PING_S
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(REMIND_S / 2)
                now = self._clock()
                if now - pinged >= PING_S:
                    pinged = now
                    rtt = {"rtt": statistics.median(self._rtts)} if self._rtts else {}
                    await self._say(socket, {"type": "ping", "t": now * 1000, **rtt})
                late = [m for m in mind.remind() if now - self._spoke_at.get(m["agent"], 0.0) >= REMIND_S]
                for message in [*late, *mind.presses(now)]:
                    await self._say(socket, message)

    async def _say(self, socket: ClientConnection, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "input" and not self._worth_saying(message):
            return
        if kind in ("input", "feedback"):
            self._seq += 1
            message = {**message, "seq": self._seq}
        if kind == "input":
            self._spoke_at[message["agent"]] = self._clock()
            self._said[message["agent"]] = message["action"] if message["held"] else None
            if message["held"]:
                self._unseen.setdefault(message["agent"], set()).add(self._seq)
            else:
                self._holding.discard(message["agent"])
            self.summary.inputs += 1
            self._seen_at[self._seq] = (message["seen"]["ep"], message["seen"]["step"])
            while len(self._seen_at) > 1000:
                del self._seen_at[next(iter(self._seen_at))]
        self.summary.presses += kind == "feedback"
        clean = {name: value for name, value in message.items() if value is not None or name == "action"}
        await socket.send(json.dumps({"v": VERSION, **clean}))

    def _worth_saying(self, message: Mapping[str, Any]) -> bool:
        """Whether an input changes anything, and is within what the server takes; it would drop some that matter.

        Where nobody waits and frames come at their own rate, what is held goes on being held. In lockstep each step
        waits for an input, and in free pace an input brings a frame of what it did.
        """
        now, agent = self._clock(), message["agent"]
        if not message["held"]:
            return True
        fresh = now - self._spoke_at.get(agent, 0.0) < REMIND_S
        if fresh and self._pace == "realtime" and self._said.get(agent) == message["action"]:
            return False
        return self._inputs.take(now)

    def _bucket(self, allowed: float, least: float = 1.0) -> Bucket:
        """What to use of a rate that is allowed, with at least so many at once."""
        return Bucket(BELOW * allowed, max(least, BELOW * allowed / 4), self._clock())


def _has_agreed(welcome: Mapping[str, Any], given: str | None) -> None:
    """Raise `RobotError` where there are terms, and this person has not agreed to them: it could only watch."""
    terms = welcome.get("consent")
    if terms is not None and not welcome["agreed"]:
        other = "" if given is None else f", not to {given}"
        raise RobotError(
            f"the run asks for agreement to version {terms['version']} of its terms{other}: give --consent "
            f"{shlex.quote(terms['version'])}"
        )


def _may_do(welcome: Mapping[str, Any], env: int, feedback: bool) -> None:
    """Raise `RobotError` where the link does not allow what this person is for, or the environment is not shown."""
    role, number = welcome["role"], welcome["num_envs"]
    needed, what = ("trainer", "praise and blame need") if feedback else ("controller", "driving needs")
    if ROLES.index(role) < ROLES.index(needed):
        raise RobotError(f"{what} the link of a {needed}, or of one who may do more; this one is of the role {role}")
    if welcome["envs"] != "all" and env != welcome["env"]:
        raise RobotError(
            f"environment {env} is not shown, only {welcome['env']} is; start the run with hitl.envs=all for others"
        )
    if not 0 <= env < number:
        raise RobotError(f"there is no environment {env}; the run has {number}, counted from 0")
