"""A real server with a particle world behind it, for the page: a scripted team plays, people may join.

`python -m tests.hitl.page_server [scenario]` prints the links and plays until it is interrupted.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harl.envs.api import FloatArray
from harl.envs.breaking_off import break_off
from harl.envs.mpe import MPEVectorEnv
from harl.hitl.bridge import Source, Stage
from harl.hitl.web import WebBridge
from tests.hitl.rooms import web_config


class Executed(NamedTuple):
    """What one agent of environment 0 did in a step, and why."""

    agent: str
    source: Source
    action: list[float]


class Peer:
    """A run without learning: environments, a scripted policy, and the bridge to the page.

    Args:
        folder: run folder.
        scenario: of the particle worlds.
        continuous: whether actions are numbers.
        changes: of the section `hitl`, as `tests.hitl.rooms.web_config` takes them.
    """

    def __init__(
        self, folder: Path, scenario: str = "simple_spread", continuous: bool = False, num_envs: int = 1, **changes: Any
    ) -> None:
        defaults = {"port": 0, "pace": "realtime", "fps": 15.0, "record": "off", "takeover__lease_ttl_ms": 5000}
        self.bridge = WebBridge(web_config(**{**defaults, **changes}))
        self.env = MPEVectorEnv(num_envs, scenario, continuous)
        self.inputs: list[dict[str, Any]] = []
        self.feedback: list[dict[str, Any]] = []
        self.marks: list[tuple[str, int]] = []
        self.executed: list[Executed] = []
        self.failed: BaseException | None = None
        self._listen()
        layout = self.env.layout
        stage = Stage(
            layout=layout, num_envs=num_envs, purpose="train", title=f"happo on mpe/{scenario}", env_name="mpe",
            scenario=scenario, algo="happo", folder=folder, sums_rewards=False, total_steps=10**9,
            render=self.env.render, scene=self.env.scene, earliest=lambda: 0, stopping=lambda: self._over.is_set(),
            log_probs=lambda obs, masks, actions: None, notice=lambda line: None, metrics=lambda numbers: None,
        )  # fmt: skip
        self._over = threading.Event()
        self._rng = np.random.default_rng(7)
        self.bridge.attach(stage, self.env.reset(list(range(11, 11 + num_envs))))
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def link(self, role: str) -> str:
        return self.bridge.links[role]

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.bridge.close("the test is over")
        if self.failed is not None:
            raise self.failed

    def human_steps(self) -> list[Executed]:
        return [each for each in list(self.executed) if each.source is Source.HUMAN]

    # Within.

    def _listen(self) -> None:
        """Note what the server hands to the room, as it does."""
        room = self.bridge.room
        take, praise, mark = room.input, room.feedback, room.mark

        def heard_input(
            who: str, agent: str, seq: int, ep: int, step: int, action: Any, held: bool, ttl_ms: float
        ) -> None:
            plain = list(action) if isinstance(action, tuple) else action
            self.inputs.append({"agent": agent, "seq": seq, "seen": (ep, step), "action": plain, "held": held})
            take(who, agent, seq, ep, step, action, held, ttl_ms)

        def heard_feedback(who: str, agent: str, seq: int, value: float, *rest: Any, **more: Any) -> None:
            undo = bool(more.get("undo"))
            shown_ms = rest[3] if len(rest) > 3 else None
            self.feedback.append({"agent": agent, "seq": seq, "value": value, "undo": undo, "shown_ms": shown_ms})
            praise(who, agent, seq, value, *rest, **more)

        def heard_mark(who: str, label: str, episode: int) -> None:
            self.marks.append((label, episode))
            mark(who, label, episode)

        room.input, room.feedback, room.mark = heard_input, heard_feedback, heard_mark  # type: ignore[method-assign]

    def _play(self) -> None:
        try:
            outcome, env_steps = self.env.observe(), 0
            while not self._over.is_set():
                proposed = self._policy()
                override = self.bridge.override_actions(env_steps, outcome.obs, None, proposed)
                outcome = break_off(self.env, self.env.step(override.actions), self.bridge.discarded())
                self._note(override.actions, override.source)
                self.bridge.override_rewards(env_steps, outcome.rewards)
                self.bridge.publish(outcome)
                env_steps += self.env.num_envs
                if not self.bridge.room.occupied:
                    time.sleep(0.01)  # nobody is there: nothing to hurry for
        except BaseException as error:
            self.failed = error

    def _note(self, actions: FloatArray, source: Any) -> None:
        for i, agent in enumerate(self.env.layout.agents):
            who = Source.POLICY if source is None else Source(int(source[0, i]))
            width = self.env.layout.action_dims[i]
            self.executed.append(Executed(agent, who, actions[0, i, :width].tolist()))

    def _policy(self) -> FloatArray:
        """Each agent walks towards a landmark of its own, now and then somewhere else, and says something."""
        state, layout = self.env.get_state(), self.env.layout
        actions = np.zeros((self.env.num_envs, layout.num_agents, layout.action_dim), np.float32)
        for env in range(self.env.num_envs):
            for i, meanings in enumerate(layout.meanings or ()):
                places = state["landmark_positions"][env]
                gap = places[i % len(places)] - state["agent_positions"][env, i]
                across = abs(gap[0]) > abs(gap[1])
                way = (2 if gap[0] > 0 else 1) if across else (4 if gap[1] > 0 else 3)
                way = 0 if np.abs(gap).max() < 0.06 else way if self._rng.random() < 0.9 else int(self._rng.integers(5))
                words = [at for at, meaning in enumerate(meanings or ()) if "say" in meaning]
                if layout.action_dims[i] > 1:
                    moves = len(meanings or ()) - len(words)
                    if moves:
                        actions[env, i, way] = 0.7
                    if words:
                        actions[env, i, words[(i + 1) % len(words)]] = 0.8
                elif words:
                    actions[env, i, 0] = 5 * (2 + i) + way if len(words) > 10 else words[1]
                else:
                    actions[env, i, 0] = way
        return actions


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(Path(folder), *sys.argv[1:2], takeover__lease_ttl_ms=500)
        for role in ("observer", "controller", "trainer", "admin"):
            print(f"{role}: {peer.link(role)}", flush=True)
        try:
            while peer.failed is None:
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass
        peer.close()
