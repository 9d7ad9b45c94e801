"""The scripted person: what it sees, decides and does, alone and over the real socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harl
from harl.hitl import replay, robot
from harl.hitl.controls import layout_controls
from harl.hitl.network.frames import Codec, Received
from harl.hitl.network.rates import Bucket
from harl.hitl.recording.recordings import find_sessions
from harl.hitl.scripted.client import Robot
from harl.hitl.scripted.heuristics import press, targets, walk
from harl.hitl.scripted.keys import Action, Keys
from harl.hitl.scripted.mind import Mind, _Agent
from harl.hitl.scripted.scene import Body, Eyes, Sight
from harl.hitl.scripted.traits import Heuristic, Traits
from harl.hitl.scripted.visit import Invitation, RobotError
from harl.hitl.seats import describe_space
from tests.hitl.playing import TOKENS, Run
from tests.hitl.recording_fixtures import configured, mpe

PATIENCE = 60.0
EXACT = Traits(noise=0.0, flip=0.0, delay_steps=(0, 0))


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for role, token in TOKENS.items():
        monkeypatch.setenv(f"HARL_TOKEN_{role.upper()}", token)


def keys_of(scenario: str, *overrides: str) -> dict[str, Keys]:
    layout = mpe(scenario, *overrides)[0].layout
    controls = layout_controls(layout, scenario)
    return {
        name: Keys({"action_space": describe_space(space), **controls[name].describe()})
        for name, space in zip(layout.agents, layout.action_spaces, strict=True)
    }


# Keys.


def test_keys_are_put_together_as_on_the_page() -> None:
    last = keys_of("simple_spread")["agent_0"]
    assert (last.action([]), last.action(["left"]), last.action(["left", "up"])) == (0, 1, 4)
    both = keys_of("simple_reference")["agent_0"]
    assert (both.action(["say A"]), both.action(["say C", "left"]), both.action(["dance"])) == (0, 11, 0)
    box = keys_of("simple_spread", "env.continuous_actions=true")["agent_0"]
    assert box.action(["right"]) == [0.0, 0.0, 1.0, 0.0, 0.0]
    parts = Keys(
        {
            "action_space": {"kind": "multidiscrete", "nvec": [3, 2]},
            "controls": [{"label": "a", "action": [2, None]}, {"label": "b", "action": [None, 1]}],
            "combine": "component",
            "noop": [0, 0],
        }
    )
    assert (parts.action(["a"]), parts.action(["a", "b"])) == ([2, 0], [2, 1])


@pytest.mark.parametrize(
    ("space", "one", "other", "same"),
    [
        ({"kind": "discrete", "n": 5}, 3, 3.0, True),
        ({"kind": "discrete", "n": 5}, 3, 2.0, False),
        ({"kind": "multidiscrete", "nvec": [3, 2]}, [1, 0], [1.0, 1.0], False),
        ({"kind": "box", "low": [0, 0], "high": [1, 1]}, [0.1, 0.9], [0.2, 1.0], True),
        ({"kind": "box", "low": [0, 0], "high": [1, 1]}, [0.1, 0.9], [0.6, 1.0], False),
    ],
)
def test_actions_are_compared(space: dict[str, Any], one: Action, other: Any, same: bool) -> None:
    keys = Keys({"action_space": space, "controls": [], "combine": "last", "noop": 0})
    assert keys.same(one, other) is same
    assert not keys.same(one, [0.0] * 7)


def test_keys_know_what_an_action_does_of_them() -> None:
    last = keys_of("simple_spread")["agent_0"]
    assert [last.share(way, 3.0) for way in ("left", "down", "dance")] == [0, 1, 0]
    both = keys_of("simple_reference")["agent_0"]
    action = both.action(["say C", "left"])
    assert [both.share(word, action) for word in ("say C", "say A", "left", "up")] == [1, 0, 1, 0]
    box = keys_of("simple_spread", "env.continuous_actions=true")["agent_0"]
    assert [box.share(way, [0.0, 0.2, 0.7, 0.0, 0.0]) for way in ("left", "right", "up")] == [0.2, 0.7, 0]
    parts = Keys(
        {
            "action_space": {"kind": "multidiscrete", "nvec": [3, 2]},
            "controls": [{"label": "a", "action": [2, None]}, {"label": "b", "action": [None, 1]}],
            "combine": "component",
            "noop": [0, 0],
        }
    )
    assert (parts.share("a", [2, 0]), parts.share("b", [2, 0])) == (1, 0)


# Seeing.


def test_speed_is_seen_from_two_drawings_of_one_episode() -> None:
    envs, _ = mpe()
    envs.reset([1])
    eyes = Eyes()
    eyes.read(0, 0, envs.scene(0) or {})
    envs.step(np.full((1, 3, 1), 2, np.float32))
    envs.step(np.full((1, 3, 1), 2, np.float32))
    drawing = envs.scene(0) or {}
    seen = eyes.read(0, 2, drawing).agents["agent_0"]
    assert seen.velocity == pytest.approx([0.25, 0.0], abs=0.02)  # at rest, then 0.5 in the second of two steps
    assert eyes.read(1, 0, drawing).agents["agent_0"].velocity.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scenario", ["simple_reference", "simple_speaker_listener"])
def test_goals_are_read_from_colours(scenario: str) -> None:
    envs, _ = mpe(scenario, envs=20)
    envs.reset(list(range(20)))
    goals = envs.get_state()["goals"]
    walkers = ["agent_1", "agent_0"] if scenario == "simple_reference" else ["listener_0"]
    for n in range(20):
        scene = Eyes().read(0, 0, envs.scene(n) or {})
        assert targets(scenario, scene) == dict(zip(walkers, goals[n].tolist(), strict=True))


# Heuristics.


def test_walker_stops_where_it_coasts_to_the_target() -> None:
    def body(x: float, speed: float) -> Body:
        return Body(np.array([x, 0.0]), np.array([speed, 0.0]), "#000000")

    target = np.array([1.0, 0.05])
    assert walk(body(0.0, 0.0), target) == "right"
    assert walk(body(0.6, 1.0), target) is None
    assert walk(body(0.8, 1.5), target) == "left"


def returns(scenario: str, episodes: int, expert: bool, noise: float = 0.0) -> float:
    """Mean return, summed over agents, of the heuristic or of random actions."""
    envs, _ = mpe(scenario)
    keys, rng, layout = keys_of(scenario), np.random.default_rng(0), envs.layout
    envs.reset([5])
    total = 0.0
    for episode in range(episodes):
        eyes = Eyes()
        for t in range(25):
            scene = eyes.read(episode, t, envs.scene(0) or {})
            actions = np.zeros((1, layout.num_agents, 1), np.float32)
            for i, agent in enumerate(layout.agents):
                random = not expert or rng.random() < noise
                own = keys[agent].random(rng) if random else keys[agent].action(press(scenario, scene, agent))
                actions[0, i, 0] = own
            total += float(envs.step(actions).rewards.sum())
    return total / episodes


@pytest.mark.parametrize("scenario", ["simple_spread", "simple_reference", "simple_speaker_listener"])
def test_heuristic_knows_the_task(scenario: str) -> None:
    random, expert = returns(scenario, 20, False), returns(scenario, 20, True)
    assert expert > 0.5 * random
    assert expert > returns(scenario, 20, True, noise=0.5)


def test_large_teams_share_out_landmarks_too() -> None:
    envs, _ = mpe("simple_spread", "env.kwargs.N=8")
    envs.reset([3])
    assert sorted(targets("simple_spread", Eyes().read(0, 0, envs.scene(0) or {})).values()) == list(range(8))


def test_unknown_task_is_refused() -> None:
    envs, _ = mpe()
    envs.reset([3])
    with pytest.raises(ValueError, match="no heuristic for 'chess'"):
        press("chess", Eyes().read(0, 0, envs.scene(0) or {}), "agent_0")


# Deciding.


class Table:
    """A mind at a world that is stepped without a socket: leases are granted, inputs act in the next step."""

    def __init__(self, traits: Traits, agents: tuple[str, ...] = ("agent_0", "agent_1", "agent_2"), seed: int = 0):
        self.envs, _ = mpe()
        self.envs.reset([seed])
        self.keys = keys_of("simple_spread")
        self.mind = Mind(agents, 3, self.keys, Heuristic("simple_spread", self.keys), traits, np.random.default_rng(1))
        self.names = self.envs.layout.agents
        self.held: dict[str, Any] = {}
        self.silent = False
        """Whether requests get no answer."""
        self.sights: list[Sight] = []
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.clock = 0
        self.human = np.zeros(3, np.int64)
        self._eyes = Eyes()
        self._look(dict.fromkeys(self.names, "policy"), {})

    def play(self, steps: int, policy: int | None = 0) -> None:
        """Steps in which the policies do `policy`, or (None) what the expert would."""
        for _ in range(steps):
            own = {
                name: self.mind.expert.act(self.sights[-1], name) if policy is None else policy for name in self.names
            }
            actions = {name: float(action) for name, action in {**own, **self.held}.items()}
            self.envs.step(np.array([[[actions[name]] for name in self.names]], np.float32))
            self.human += [name in self.held for name in self.names]
            self.clock += 1
            self._look({name: "human" if name in self.held else "policy" for name in self.names}, actions)

    def _look(self, source: dict[str, str], actions: dict[str, Any]) -> None:
        episode, step = divmod(self.clock, 25)
        scene = self._eyes.read(episode, step, self.envs.scene(0) or {})
        self.sights.append(Sight(self.clock, episode, step, scene, actions, source, self.clock / 10))
        messages = [*self.mind.see(self.sights[-1]), *self.mind.presses(self.clock / 10)]
        for message in messages:
            self.sent.append((self.clock, message))
            if message["type"] == "control" and not self.silent:
                messages += self.mind.hear({"agent": message["agent"], "state": "granted"})
            elif message["type"] == "input" and message["held"]:
                self.held[message["agent"]] = message["action"]
            elif message["type"] == "input" and not message["held"]:
                del self.held[message["agent"]]


def test_person_who_always_drives_solves_the_task() -> None:
    table = Table(EXACT)
    table.play(25)
    assert table.human.tolist() == [25, 25, 25]
    landmarks = np.array([mark.place for mark in table.sights[-2].scene.landmarks])
    bodies = np.array([body.place for body in table.sights[-2].scene.agents.values()])
    assert np.linalg.norm(landmarks[:, None] - bodies[None], axis=2).min(axis=1).max() < 0.3


@pytest.mark.parametrize("delay", [0, 3])
def test_reactions_come_as_many_steps_later(delay: int) -> None:
    table = Table(Traits(noise=0.0, delay_steps=(delay, delay)), ("agent_1",))
    table.play(20)
    inputs = [(clock, message["action"]) for clock, message in table.sent if message["type"] == "input"]
    assert len(inputs) == 21
    for clock, action in inputs:
        seen = table.sights[max(0, clock - delay)]
        assert action == table.mind.expert.act(seen, "agent_1")


def test_what_the_network_takes_counts_as_reaction() -> None:
    table = Table(Traits(noise=0.0, delay_steps=(3, 3)), ("agent_1",))
    table.mind.lag = 2.0
    table.play(20)
    for clock, message in table.sent:
        if message["type"] == "input" and clock > 3:
            assert message["action"] == table.mind.expert.act(table.sights[clock - 1], "agent_1")


def resting(table: Table) -> float:
    """Mean distance of the landmarks to the nearest agent, over the last steps of all episodes."""
    distances = []
    for sight in table.sights:
        if sight.step > 17:
            landmarks = np.array([mark.place for mark in sight.scene.landmarks])
            bodies = np.array([body.place for body in sight.scene.agents.values()])
            distances.append(np.linalg.norm(landmarks[:, None] - bodies[None], axis=2).min(axis=1).mean())
    return float(np.mean(distances))


def test_whoever_anticipates_loses_little_by_reacting_late() -> None:
    far = {}
    for anticipates, delay in ((False, 0), (False, 3), (True, 3)):
        table = Table(Traits(noise=0.1, delay_steps=(delay, delay), anticipates=anticipates))
        table.play(500)
        far[anticipates, delay] = resting(table)
    assert far[True, 3] < 1.5 * far[False, 0]
    assert far[True, 3] < 0.6 * far[False, 3]


def test_what_was_pressed_counts_for_as_many_steps_as_it_was_held() -> None:
    agent = _Agent(pressed=deque([(3, 1), (7, 2), (8, 4)]))
    assert agent.done(2, 10) == [None, 1, 1, 1, 1, 2, 4, 4]
    assert agent.done(5, 8) == [1, 1, 2]
    assert agent.done(9, 9) == []
    agent.did.extend([(4, 0), (8, 3)])
    assert agent.done(5, 10) == [1, 1, 2, 3, 4], "what is seen to have been done instead"
    agent.drop()
    assert agent.done(8, 10) == [None, None]


@pytest.mark.parametrize("since", [0, 1, 5])
def test_bodies_are_foreseen_where_they_come_to_be(since: int) -> None:
    envs, _ = mpe()
    envs.reset([1])
    state = envs.get_state()
    state["agent_positions"] = np.array([[[-5.0, 0.0], [0.0, 0.0], [5.0, 0.0]]])  # nobody runs into anybody
    envs.set_state(state)
    expert, names = Heuristic("simple_spread", keys_of("simple_spread")), envs.layout.agents
    eyes, rng, sights, done = Eyes(), np.random.default_rng(since), [], []
    for step in range(since + 4):
        scene = eyes.read(0, step, envs.scene(0) or {})
        sights.append(Sight(step, 0, step, scene, {}, {}))
        done.append(rng.integers(5, size=3))
        envs.step(done[-1].reshape(1, 3, 1).astype(np.float32))
    known = done[max(0, since - 1) :]
    ahead = expert.ahead(sights[since], {name: [int(step[i]) for step in known] for i, name in enumerate(names)})
    after = envs.get_state()
    for i, name in enumerate(names):
        # Drawings have three digits, and speeds are differences of them over a tenth of a second.
        assert ahead.scene.agents[name].place == pytest.approx(after["agent_positions"][0, i], abs=0.02)
        assert ahead.scene.agents[name].velocity == pytest.approx(after["agent_velocities"][0, i], abs=0.02)


def test_whoever_anticipates_does_what_the_moment_asks_for() -> None:
    """What is done is a function of the state that it is done in, or nobody could learn it from that state."""
    table = Table(Traits(noise=0.0, delay_steps=(3, 3), anticipates=True))
    expert = table.mind.expert
    assert isinstance(expert, Heuristic)
    fits = []
    for _ in range(400):
        now = table.sights[-1]
        true = expert.ahead(now, {name: [now.actions[name]] for name in table.names} if now.step else {})
        wanted = {name: expert.act(true, name) for name in table.names}
        if now.step > 3:
            fits += [table.held[name] == wanted[name] for name in table.names]
        table.play(1)
    assert np.mean(fits) > 0.9


def test_an_anticipating_person_takes_in_what_the_policy_did_last() -> None:
    """A sight says what was done in the step that led to it, and shows nothing of where that will lead."""
    table = Table(Traits(noise=0.0, delay_steps=(0, 0), anticipates=True, gate="random", segment=1), seed=2)
    table.play(12, policy=2)
    given = {clock: message for clock, message in table.sent if message["type"] == "input" and message["held"]}
    assert given
    for clock, message in given.items():
        now, expert = table.sights[clock], table.mind.expert
        assert isinstance(expert, Heuristic)
        true = expert.ahead(now, {name: [now.actions[name]] for name in table.names} if now.step else {})
        assert message["action"] == expert.act(true, message["agent"])


def test_an_expert_without_foresight_cannot_anticipate() -> None:
    class Blind:
        act = mistaken = None

    with pytest.raises(ValueError, match="needs an expert with `ahead`; Blind has none"):
        Mind((), 0, {}, Blind(), Traits(anticipates=True), np.random.default_rng(1))  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="2"):
        robot.main(["--url", "ws://127.0.0.1:9/", "--policy", "checkpoint", "somewhere", "--anticipate"])


def test_what_was_pressed_in_vain_is_not_taken_for_done() -> None:
    """Between a lease and its first effect the policy goes on, and the sights say what it did."""
    table = Table(Traits(noise=0.0, delay_steps=(0, 0), anticipates=True))
    mind, names = table.mind, table.names
    pressed = dict.fromkeys(names, 3)
    for name in names:
        mind._agents[name].pressed.append((0, 3))
    now = Sight(1, 0, 1, table.sights[0].scene, dict.fromkeys(names, 2), dict.fromkeys(names, "policy"))
    expert = mind.expert
    assert isinstance(expert, Heuristic)
    found = mind._allowing_for(now, now).scene.agents
    true = expert.ahead(now, {name: [2] for name in names}).scene.agents
    vain = expert.ahead(now, {name: [pressed[name]] for name in names}).scene.agents
    for name in names:
        np.testing.assert_array_equal(found[name].velocity, true[name].velocity)
        assert (found[name].velocity != vain[name].velocity).any()


@pytest.mark.parametrize("gate", ["always", "random", "error"])
@pytest.mark.parametrize("budget", [0.1, 0.3])
def test_budget_is_kept(gate: Any, budget: float) -> None:
    table = Table(Traits(gate=gate, budget=budget))
    table.play(500)
    share = table.human.sum() / (3 * 500)
    assert 0.5 * budget < share <= budget
    assert table.mind.driven == table.human.sum()


def test_takeovers_last_a_segment() -> None:
    table = Table(Traits(gate="random", segment=6, flip=0.0))
    table.play(200)
    held = np.array([[sight.source[name] == "human" for name in table.names] for sight in table.sights])
    for column in held.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], column.astype(int), [0]])))
        lengths = (edges[1::2] - edges[::2])[:-1]  # the last one may be under way
        assert len(lengths) > 3
        assert set(lengths.tolist()) == {6}


def test_a_team_is_taken_over_as_one() -> None:
    table = Table(Traits(gate="error", budget=0.3, together=True))
    table.play(500, policy=1)
    driven = [tuple(sight.source[name] == "human" for name in table.names) for sight in table.sights]
    assert set(driven) == {(True,) * 3, (False,) * 3}
    assert 0.15 < table.human.sum() / 1500 <= 0.3


def test_mistakes_are_what_the_gate_opens_for() -> None:
    calm = Table(Traits(gate="error", flip=0.0))
    calm.play(100, policy=None)
    wrong = Table(Traits(gate="error", flip=0.0))
    wrong.play(100, policy=1)
    assert calm.human.sum() == 0
    assert (wrong.human > 20).all()


def test_flips_open_the_gate_without_a_reason() -> None:
    table = Table(Traits(gate="error", flip=0.5))
    table.play(200, policy=None)
    assert table.human.sum() > 0


@pytest.mark.parametrize(
    ("traits", "low", "high"), [(Traits(noise=0.2), 0.1, 0.25), (Traits(suboptimal=True), 0.3, 0.5)]
)
def test_noise_is_as_frequent_as_asked_for(traits: Traits, low: float, high: float) -> None:
    table = Table(Traits(noise=traits.noise, suboptimal=traits.suboptimal, delay_steps=(0, 0)))
    table.play(200)
    inputs = [(clock, message) for clock, message in table.sent if message["type"] == "input"]
    odd = [m["action"] != table.mind.expert.act(table.sights[clock], m["agent"]) for clock, m in inputs]
    assert low < np.mean(odd) < high  # a random action is the right one in a fifth of the cases


def test_feedback_says_what_the_expert_thinks_after_a_while() -> None:
    traits = Traits(gate="error", threshold=1.0, flip=0.0, feedback=True, feedback_rate=5.0)
    for policy, value in ((None, 1.0), (1, -1.0)):
        table = Table(traits)
        table.play(400, policy=policy)
        presses = [(clock, message) for clock, message in table.sent if message["type"] == "feedback"]
        assert 120 < len(presses) < 180  # of 200 judgements in 40 s, a fifth is missed
        assert np.mean([message["value"] == value for _, message in presses]) > (0.99 if value > 0 else 0.5)
        for clock, message in presses:
            assert message["seen"] == {"ep": clock // 25, "step": clock % 25}


def test_delay_of_feedback_is_drawn_from_its_range() -> None:
    table = Table(
        Traits(gate="error", feedback=True, feedback_rate=10.0, feedback_delay_s=(0.5, 0.5), feedback_misses=0.0)
    )
    table.play(3, policy=None)
    assert [at - 0.5 for at, _, _ in table.mind._presses] == pytest.approx([0.2, 0.3])


def test_lease_that_is_lost_is_asked_for_again() -> None:
    table = Table(EXACT, ("agent_0",))
    table.play(3)
    table.mind.hear({"agent": "agent_0", "state": "expired"})
    table.held.clear()
    table.play(2)
    requests = [clock for clock, message in table.sent if message["type"] == "control"]
    assert requests == [0, 4]


def test_whoever_gets_no_answer_asks_again() -> None:
    table = Table(EXACT, ("agent_0",))
    table.mind.hear({"agent": "agent_0", "state": "denied"})
    table.held.clear()
    table.silent = True
    table.play(110)
    assert [clock for clock, message in table.sent if message["type"] == "control"] == [0, 1, 50, 99]


def test_no_more_is_asked_for_than_the_server_hears() -> None:
    """It would drop requests above its rate without an answer: a request that is too much is made later."""
    now = [0.0]
    person = Robot(Invitation(url="ws://127.0.0.1:9/", token="x" * 20), EXACT, clock=lambda: now[0])
    person._requests = Bucket(6.0, 3.0, 0.0)
    table = Table(EXACT, ())
    mind = Mind(table.names, 3, table.keys, table.mind.expert, EXACT, np.random.default_rng(1))
    meta = {"env_steps": 0, "pace": "free", "actions": {}, "source": {}}
    asked = []
    for step in range(1, 22):
        now[0] = step / 10
        payload = json.dumps(table.envs.scene(0)).encode()
        frame = Received(Codec.STATE, 0, 0, step, now[0], {**meta, "env_steps": step}, payload)
        messages = person._look(frame, {"num_envs": 1}, 0, mind)
        asked.append(len(messages))
        for message in messages:
            mind.hear({"agent": message["agent"], "state": "denied"})
    assert asked == [3, 0, 0, 0, 0] * 4 + [3]


# Over the socket.


def drive(run: Run, traits: Traits, enough: int = 30, **invitation: Any) -> Robot:
    """Let a person take part until it has driven for some steps."""
    person = Robot(Invitation(**{"url": run.url, "token": TOKENS["trainer"], **invitation}), traits)

    async def until_enough() -> None:
        task = asyncio.create_task(person.run(PATIENCE))
        while run.human.sum() < enough and not task.done():
            await asyncio.sleep(0.02)
        await asyncio.to_thread(run.stop)  # the person hears of it meanwhile
        await task

    asyncio.run(until_enough())
    return person


@pytest.mark.parametrize("pace", ["realtime", "lockstep"])
def test_person_drives_over_the_socket_and_it_is_recorded(tmp_path: Path, pace: str) -> None:
    with Run(tmp_path, pace=pace, fps=50.0, record="touched") as run:
        person = drive(run, EXACT, 60)
    assert person.summary.acks["applied"] > 10
    assert not person.summary.errors
    assert person.summary.takeovers >= 3
    assert "4003" in person.summary.ended
    (recorded,) = find_sessions(tmp_path)
    episodes = list(recorded.episodes())
    assert sum(episode.human_steps for episode in episodes) == run.human.sum()
    envs, _ = mpe()
    for episode in episodes:
        assert replay.replay(episode, envs).differs_at is None
        assert episode.people == ["robot"]
    arrays = episodes[0].load()
    driven = arrays["source"] == 1
    assert driven.any()
    assert (arrays["seq"][driven] >= 1).all()
    assert (arrays["seq"][~driven] == -1).all()


def test_two_people_drive_in_two_environments(tmp_path: Path) -> None:
    with Run(tmp_path, "simple_reference", envs=3, pace="realtime", fps=50.0) as run:
        people = [
            Robot(Invitation(url=run.url, token=TOKENS["controller"], name=f"p{env}", env=env), EXACT) for env in (0, 2)
        ]

        async def until_enough() -> None:
            task = asyncio.create_task(robot.take_part(people, PATIENCE))
            while min(run.human[[0, 2]].sum(axis=1)) < 20 and not task.done():
                await asyncio.sleep(0.02)
            await asyncio.to_thread(run.stop)
            await task

        asyncio.run(until_enough())
    assert run.human[1].sum() == 0
    assert all(person.summary.acks["applied"] > 3 for person in people)


def test_feedback_comes_to_the_run(tmp_path: Path) -> None:
    traits = Traits(gate="error", threshold=1.0, feedback=True, feedback_rate=4.0, feedback_delay_s=(0.0, 0.1))
    with Run(tmp_path, pace="realtime", fps=50.0, record="touched") as run:
        person = Robot(Invitation(url=run.url, token=TOKENS["trainer"], name="tess"), traits)

        async def until_enough() -> None:
            task = asyncio.create_task(person.run(PATIENCE))
            while person.summary.presses < 5 and not task.done():
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(run.stop)
            await task

        asyncio.run(until_enough())
    events = list(find_sessions(tmp_path)[0].events("feedback"))
    assert len(events) >= 5
    assert {event.person for event in events} == {"tess"}
    assert any(event.data["credited"] for event in events)


def test_command_tells_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(tmp_path, pace="realtime", fps=50.0) as run:
        link = f"{run.url.replace('ws', 'http')}#token={TOKENS['controller']}"
        assert robot.main(["--url", link, "--seconds", "2", "--agents", "agent_1", "--delay-steps", "0"]) == 0
        human = run.human.copy()
    said = capsys.readouterr()
    assert "environment shown: " in said.out
    assert "time was up" in said.out
    assert human[0, 1] > 0
    assert human[0, [0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "chess"], "is no address"),
        (["--url", "ws://127.0.0.1:9/"], "a token is needed"),
        (["--url", "ws://127.0.0.1:9/", "--token", "x" * 20], "cannot connect to ws://127.0.0.1:9/"),
    ],
)
def test_wrong_commands_are_told_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert robot.main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--budget 2", "--budget: '2' is not a number from 0 to 1"),
        ("--noise a", "--noise: 'a' is not a number from 0 to 1"),
        ("--delay-steps 4..2", "'4..2' is no number of steps, as 3, and no range of them, as 2..4"),
        ("--delay-steps x", "'x' is no number of steps, as 3, and no range of them, as 2..4"),
        ("--segment 0", "'0' is not a whole number from 1 on"),
        ("--seed=-1", "'-1' is not a whole number from 0 on"),
        ("--policy chess", "--policy takes heuristic, or checkpoint and a run folder"),
        ("--gate often", "invalid choice: 'often'"),
        ("--env a", "'a' has to be indices of environments, as 0,1"),
        ("--env=-1", "'-1' has to be indices of environments, as 0,1"),
        ("--env 0,", "'0,' has to be indices of environments, as 0,1"),
        ("--env 0,00", "'0,00' names 0 twice"),
        ("--agents ,", "',' has to be names of agents, as agent_0,agent_1"),
        ("--agents b,a,b", "'b,a,b' names b twice"),
        ("--fps 0", "'0' is not a number of frames from 0.1 to 10000"),
        ("--seconds=-3", "'-3' is not a number of seconds above 0"),
        ("--seconds nan", "'nan' is not a number of seconds above 0"),
    ],
)
def test_options_out_of_range_are_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        robot.main(["--url", "ws://127.0.0.1:9/", "--token", "x", *arguments.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shown", "role", "arguments", "message"),
    [
        ("all", "controller", ["--env", "9"], "there is no environment 9; the run has 2, counted from 0"),
        ("one", "controller", ["--env", "0,1"], "environment 1 is not shown, only 0 is; start the run with hitl.envs="),
        ("all", "observer", [], "driving needs the link of a controller, or of one who may do more; this one is of"),
        ("all", "controller", ["--feedback"], "praise and blame need the link of a trainer, or of one who may do more"),
    ],
)
def test_what_a_run_or_its_link_does_not_allow_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shown: str, role: str, arguments: list[str], message: str
) -> None:
    with Run(tmp_path, envs=2, pace="realtime", shown=shown) as run:
        link = run.bridge.links[role]
        assert robot.main(["--url", link, "--seconds", "20", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_wrong_token_and_unknown_agents_are_told(tmp_path: Path) -> None:
    with Run(tmp_path, pace="realtime") as run:
        for changes, message in (
            ({"token": "wrong-0123456789abcdef"}, "not let in: this link is wrong"),
            ({"agents": ("agent_9",)}, "no agents agent_9; there are agent_0, agent_1, agent_2"),
        ):
            invitation = Invitation(**{"url": run.url, "token": TOKENS["controller"], **changes})  # type: ignore[arg-type]
            with pytest.raises(RobotError, match=message):
                asyncio.run(Robot(invitation, EXACT).run(20.0))


@pytest.mark.parametrize(("given", "told"), [([], "of its terms: "), (["--consent", "2"], "of its terms, not to 2: ")])
def test_whoever_has_not_agreed_to_the_terms_is_told_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], told: str
) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("What you do here is recorded.")
    with Run(tmp_path, pace="realtime", consent=str(terms), consent_version="3") as run:
        arguments = ["--url", run.url, "--token", TOKENS["controller"], "--seconds", "20"]
        assert robot.main([*arguments, *given]) == 1
        said = capsys.readouterr().err
        assert f"agreement to version 3 {told}give --consent 3\n" in said
        assert robot.main([*arguments, "--seconds", "0.5", "--consent", "3"]) == 0


def test_run_that_ends_at_once_ends_the_person(tmp_path: Path) -> None:
    with Run(tmp_path, pace="realtime") as run:
        threading.Timer(1.0, run.stop).start()
        started = time.monotonic()
        summary = asyncio.run(Robot(Invitation(url=run.url, token=TOKENS["controller"]), EXACT).run(PATIENCE))
        assert time.monotonic() - started < PATIENCE
    assert "4003" in summary.ended


# A trained team as the expert.


@pytest.mark.parametrize("scenario", ["simple_spread", "simple_reference", "simple_speaker_listener"])
def test_what_agents_see_is_computed_from_the_drawing(scenario: str) -> None:
    envs, _ = mpe(scenario)
    world = robot._World(SimpleNamespace(config=SimpleNamespace(env=configured(scenario).env)))  # type: ignore[arg-type]
    rng, eyes = np.random.default_rng(0), Eyes()
    numbers = np.array([space.n for space in envs.layout.action_spaces])  # type: ignore[attr-defined]
    now = envs.reset([4])
    same = np.ones(now.obs.shape[1:], np.bool_)
    same[1 if scenario == "simple_speaker_listener" else slice(None), :2] = False  # speeds are those of the step before
    for t in range(20):
        seen = world.observations(eyes.read(0, t, envs.scene(0) or {}))
        np.testing.assert_allclose(seen[same], now.obs[0][same], atol=2e-4)  # drawings round places
        assert t < 2 or np.abs(seen[~same]).max() > 0
        now = envs.step(np.floor(rng.random((1, len(numbers), 1)) * numbers[None, :, None]).astype(np.float32))


def test_team_of_a_checkpoint_is_an_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = ["logger.tensorboard=false", "logger.progress=off", "eval.use_eval=false"]
    small = [
        "train.num_env_steps=100",
        "train.n_rollout_threads=1",
        "train.episode_length=50",
        f"output_dir={tmp_path}",
    ]
    runner = harl.make_runner(["algo=happo", "env=mpe", *small, *quiet])
    runner.run()
    (folder,) = {path.parent for path in tmp_path.rglob("config.yaml")}
    envs, _ = mpe()
    now = envs.reset([4])
    keys = keys_of("simple_spread")
    expert = robot.checkpoint(folder, "latest")({}, keys)
    scene = Eyes().read(0, 0, envs.scene(0) or {})
    acted = harl.load(folder, "latest").act(now.obs[0])
    assert isinstance(acted, np.ndarray)
    for i, agent in enumerate(envs.layout.agents):
        sight = Sight(0, 0, 0, scene, {agent: acted[i, 0]}, {})
        assert expert.act(sight, agent) == acted[i, 0]
        assert not expert.mistaken(None, sight, agent)
    with pytest.raises(RobotError, match="the checkpoint is of agent_0, agent_1, agent_2, the run has a, b"):
        robot.checkpoint(folder, "latest")({}, dict.fromkeys("ab", keys["agent_0"]))
    numbers = keys_of("simple_spread", "env.continuous_actions=true")
    told = r"agent_1 is a choice of 5 in the checkpoint, and 5 numbers from \[0.0, .*\] to \[1.0, .*\] in the run"
    with pytest.raises(RobotError, match=told):
        robot.checkpoint(folder, "latest")({}, {**keys, "agent_1": numbers["agent_1"]})
    assert (
        robot.main(["--url", "ws://127.0.0.1:9/", "--token", "x", "--policy", "checkpoint", str(tmp_path / "no")]) == 1
    )
    assert "does not exist" in capsys.readouterr().err
