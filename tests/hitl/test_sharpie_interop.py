"""The runner at a real SHARPIE site: the released package in an environment of its own (`make sharpie`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import harl
from tests.hitl.sharpie_fakes import picture_of
from tests.hitl.sharpie_training import FAMILIES, FOR_ITSELF, PAYS, T, chances, remembered, run, training
from tests.hitl.windows import until
from tests.interop.sharpie.real_site import KEY, RealSite, Runner, find_python

MAPPING = Path(__file__).parent / "sharpie_mapping.yaml"
SITE_PYTHON = find_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SITE_PYTHON is None,
        reason="no environment with SHARPIE: SHARPIE_VENV is not set, and `make sharpie` has not been run",
    ),
]

SCENARIOS: dict[str, tuple[str, list[tuple[str, str, list[Any]]], int]] = {
    "one": ("it-actions", [("alice", "agent_0", [1, 0, -1])], 1),
    "two": ("it-two", [("alice", "agent_0", [1]), ("bob", "agent_1", [-1])], 1),
    "episodes": ("it-shared", [("alice", "agent_0", [0, 1])], 2),
    "reward": ("it-reward", [("alice", "agent_0", [0, 1, -1, 1])], 1),
    "text": ("it-other", [("alice", "agent_0", ["left", "stop", 0])], 1),
    "multi": ("it-multi", [("alice", "agent_0", [[1, -1], [0]])], 1),
}
CDN = "https://cdn.jsdelivr.net/npm/"
ACTIONS = {
    "one": [{"agent_0": k} for k in (1, 0, -1, 1, 0, -1)],
    "two": [{"agent_0": 1, "agent_1": -1, "agent_2": 7}] * 5,
    "episodes": [{"agent_0": k, "agent_1": 7} for k in (7, 1, 7, 1)],
    "reward": [{"agent_0": 7}] * 4,
    "text": [{"agent_0": 100}] * 4,
    "multi": [{"agent_0": k} for k in ([1, -1], [0], [1, -1], [0])],
}
"""What is executed in each step, by what each person answers to the frame before it."""


@contextlib.contextmanager
def started(folder: Path) -> Iterator[RealSite]:
    assert SITE_PYTHON is not None
    made = RealSite(folder, SITE_PYTHON)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """A site whose queue is served by `queue_runner`."""
    with started(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(scope="module")
def quiet_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """A site whose queue nobody serves but the test itself."""
    with started(tmp_path_factory.mktemp("quiet_site")) as made:
        yield made


def command(site: RealSite, *arguments: str, mapping: Path = MAPPING) -> list[str]:
    return [sys.executable, "-m", "harl.hitl.sharpie", "--hostname", "127.0.0.1", "--port", str(site.port),
            "--mapping", str(mapping), "--record", str(site.folder / "journals"), *arguments]  # fmt: skip


@pytest.fixture(scope="module")
def queue_runner(site: RealSite) -> Iterator[Runner]:
    with site.runner(command(site, "runserver"), "queue") as runner:
        yield runner


def journal(site: RealSite, link: str, room: str) -> list[dict[str, Any]]:
    """Lines of all journals of a room, oldest first."""
    files = sorted((site.folder / "journals" / link).glob(f"{room}_*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def play(site: RealSite, name: str) -> list[Any]:
    """Send the people of a scenario; what each of them saw, once they are done."""
    link, people, episodes = SCENARIOS[name]
    sent = []
    for user, role, answers in people:
        if sent:  # of two forms at the same moment the site makes two sessions, and then knows neither
            site.stored(link, name, "not_ready")
        sent.append(site.person(user, link, name, role, answers, "--episodes", str(episodes)))
    return [person.episodes() for person in sent]


def check(site: RealSite, name: str, seen: list[Any], stored: Any) -> None:
    """Everybody saw whole episodes in right colours, and the site and the journal have every step of them."""
    link, _, episodes = SCENARIOS[name]
    numbers = list(range(1, len(ACTIONS[name]) + 2))
    for person in seen:
        assert [(episode["done"], episode["error"]) for episode in person] == [(True, None)] * episodes
        assert person[-1]["last"]["completed"] is True
        for episode in person:  # the first frame is repeated, without a number, for those who come late
            assert sorted({number or 1 for number in episode["steps"]}) == numbers
        red = picture_of(person[-1]["last"])[:, :56]
        np.testing.assert_allclose(red.mean(axis=(0, 1)), (255, 0, 0), atol=8)
    assert [session["status"] for session in stored] == ["completed"]
    assert [episode["completed"] for episode in stored[0]["episodes"]] == [True] * episodes
    for episode in stored[0]["episodes"]:
        assert [record[0] for record in episode["records"]] == numbers
        assert [record[2] for record in episode["records"]] == [{}, *ACTIONS[name]]
    kinds = [line["kind"] for line in journal(site, link, name)]
    assert kinds.count("step") == len(ACTIONS[name]) * episodes
    if name == "reward":
        assert seen[0][-1]["last"]["redirect"] == "https://example.org/done"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_from_the_queue(site: RealSite, queue_runner: Runner, name: str) -> None:
    seen = play(site, name)
    check(site, name, seen, site.stored(SCENARIOS[name][0], name))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_without_the_queue(quiet_site: RealSite, name: str) -> None:
    link = SCENARIOS[name][0]
    with quiet_site.runner(command(quiet_site, "room", link, name, "--wait", "60"), name):
        seen = play(quiet_site, name)
        check(quiet_site, name, seen, quiet_site.stored(link, name))


def test_transitions_of_a_rewarded_policy_are_right(site: RealSite, queue_runner: Runner) -> None:
    site.fixture_log.unlink(missing_ok=True)
    # The first answer is to the first state, before any step; then 1, no key, -1, 1.
    (episode,) = site.person("alice", "it-reward", "transitions", "agent_0", [-1, 1, 0, -1, 1]).episodes()
    assert episode["done"]
    site.stored("it-reward", "transitions")
    lines = [json.loads(line) for line in site.fixture_log.read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "update"]
    assert [update["reward"] for update in updates] == [1, 14.0, -1, 1]
    assert [update["done"] for update in updates] == [False, False, False, True]
    assert [update["action"] for update in updates] == [7] * 4
    assert [update["observation"][0] for update in updates] == [0, 1, 2, 3]
    assert [update["next_observation"][0] for update in updates] == [1, 2, 3, 4]


def test_large_observations_and_numbers_that_are_none_are_stored(site: RealSite, queue_runner: Runner) -> None:
    (episode,) = site.person("alice", "it-bigobs", "big", "agent_0", [1]).episodes()
    assert episode["done"]
    (session,) = site.stored("it-bigobs", "big")
    states = [record[1]["agent_0"] for record in session["episodes"][0]["records"]]
    assert [len(state) for state in states] == [300] * 5
    assert all(state[1] is None for state in states)
    assert [state[0] for state in states] == [0, 1, 2, 3, 4]


def test_an_experiment_that_waits_for_keys(site: RealSite, queue_runner: Runner) -> None:
    (episode,) = site.person("alice", "it-wait", "wait", "agent_0", [1]).episodes()
    assert (episode["done"], episode["frames"]) == (True, 5)


def test_an_unknown_experiment_is_refused_and_its_people_are_told(site: RealSite, queue_runner: Runner) -> None:
    (episode,) = site.person("alice", "it-unknown", "unknown", "agent_0", [1]).episodes()
    assert episode["error"] == "This runner does not serve this experiment. Please tell whoever runs the study."
    assert site.stored("it-unknown", "unknown", "aborted")[-1]["status"] == "aborted"


def test_a_participant_who_leaves_ends_their_episode_alone(site: RealSite, queue_runner: Runner) -> None:
    leaver = site.person("alice", "it-long", "leaver", "agent_0", [1], "--stop-after", "5")
    stayer = site.person("bob", "it-actions", "stayer", "agent_0", [1])
    assert leaver.episodes()[0]["frames"] == 5
    assert stayer.episodes()[0]["done"]
    queue_runner.wait_for("it-long/leaver: the episode broke off: A user has disconnected")
    assert [line["kind"] for line in journal(site, "it-long", "leaver")].count("step") >= 4
    assert len(site.stored("it-long", "leaver", "aborted")[0]["episodes"][0]["records"]) >= 5


def test_a_tab_closed_while_pending_blocks_nobody(site: RealSite, queue_runner: Runner) -> None:
    site.person("alice", "it-long", "closed", "agent_0", [1], "--close").episodes()
    assert site.person("bob", "it-actions", "after-closed", "agent_0", [1]).episodes()[0]["done"]
    given_up = ("it-long/closed: refused: nobody answered", "it-long/closed: the episode broke off")
    deadline = time.monotonic() + 60
    while not any(text in queue_runner.said for text in given_up):
        assert time.monotonic() < deadline, queue_runner.said
        time.sleep(0.1)


def test_a_wrong_key_is_said_and_tried_again(site: RealSite) -> None:
    with site.runner(command(site, "runserver"), "wrong-key", SHARPIE_CONNECTION_KEY="wrong") as runner:
        runner.wait_for("HTTP 403: it does not know this connection key")
        runner.wait_for("next attempt in")
        assert runner.process.poll() is None
    assert "Traceback" not in runner.said


def test_a_site_that_is_killed_and_started_again_is_served_again(site: RealSite, queue_runner: Runner) -> None:
    person = site.person("alice", "it-long", "killed", "agent_0", [1])
    queue_runner.wait_for("it-long/killed: taken from the queue")
    deadline = time.monotonic() + 60
    while len(journal(site, "it-long", "killed")) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    site.kill()
    person.episodes()
    queue_runner.wait_for("it-long/killed: the episode broke off")
    steps = [line["step"] for line in journal(site, "it-long", "killed") if line["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert journal(site, "it-long", "killed")[-1]["kind"] == "end"
    site.start()
    assert site.person("bob", "it-actions", "restarted", "agent_0", [1]).episodes()[0]["done"]
    assert "Traceback" not in queue_runner.said


def test_a_run_that_learns_serves_the_site(quiet_site: RealSite, tmp_path: Path) -> None:
    """What the person pressed is what the learner was given, by its own recording."""
    with quiet_site.runner(
        [sys.executable, "-m", "harl.train", "algo=happo", "env=mpe", "env.kwargs.max_cycles=6", "hitl=sharpie",
         "hitl.hostname=127.0.0.1", f"hitl.port={quiet_site.port}", "hitl.link=mpe-spread", "train.num_env_steps=1e9",
         f"output_dir={tmp_path}", "logger.progress=off", "logger.tensorboard=false", "eval.use_eval=false"],
        "training",
    ) as runner:  # fmt: skip
        runner.wait_for("people: from the SHARPIE site")
        (episode,) = quiet_site.person("alice", "mpe-spread", "training", "agent_0", [1, 2, 3, 4]).episodes()
        assert episode["done"]
        records = quiet_site.stored("mpe-spread", "training")[0]["episodes"][0]["records"]
        assert [record[2].get("agent_0") for record in records] == [None, 1, 2, 3, 4, 1, 2]
    assert "Traceback" not in runner.said
    from harl.hitl.recording.recordings import find_sessions

    episodes = [episode for session in find_sessions(tmp_path) for episode in session.episodes()]
    (driven,) = [episode for episode in episodes if episode.human_steps]
    assert driven.load()["executed"][:, 0, 0].tolist() == [1, 2, 3, 4, 1, 2]


@pytest.mark.parametrize("algo", FAMILIES)
def test_what_two_people_do_stands_in_the_buffer_of_a_run_and_changes_its_policies(
    quiet_site: RealSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    """Alice drives agent_0 while bob judges agent_1."""
    monkeypatch.setenv("SHARPIE_CONNECTION_KEY", KEY)
    length, keys, marks, seen = 120, [2, 2, 0, 1, 2], [1, -1, -1], []

    def play() -> None:
        alice = quiet_site.person("alice", "walk", algo, "agent_0", keys)
        quiet_site.stored("walk", algo, "not_ready")
        bob = quiet_site.person("bob", "walk", algo, "agent_1", marks)
        seen.extend(person.episodes()[0] for person in (alice, bob))
        quiet_site.stored("walk", algo)

    changes = (f"env.kwargs.length={length}", "hitl.link=walk", *FOR_ITSELF)
    runner = training(algo, quiet_site.port, tmp_path, play, *changes)
    memory, before = remembered(runner), [chances(runner, agent) for agent in (0, 1)]
    run(runner)
    after = [chances(runner, agent) for agent in (0, 1)]
    assert [(person["done"], person["error"]) for person in seen] == [(True, None)] * 2
    steps = memory.steps()
    start = next(i for i, step in enumerate(steps) if step.human[0])
    steps = steps[start : start + length]
    assert len(steps) >= length - T
    assert len(steps) == length or algo == "happo"
    pressed, judged = (
        {number: script[i % len(script)] for i, number in enumerate(person["steps"])}
        for person, script in zip(seen, (keys, marks), strict=True)
    )
    # A first frame that was sent again is answered again.
    assert [step.actions[0] for step in steps[1:]] == [pressed[number] for number in range(2, len(steps) + 1)]
    assert steps[0].actions[0] in keys
    assert [step.human for step in steps] == [[True, False]] * len(steps)
    for i, step in enumerate(steps):
        assert step.rewards[0] == pytest.approx(PAYS * (step.obs[0] + step.actions[0] - 1))
        if algo == "hasac" or (start + i) % T < T - 1:  # on-policy, the last step of a rollout is judged too late
            assert step.rewards[1] == pytest.approx(judged[i + 2]), i
    assert all(np.abs(one - other).max() > 1e-3 for one, other in zip(before, after, strict=True))


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HAPPO team that has learned for a short while."""
    runner = harl.make_runner(
        ["algo=happo", "env=mpe", f"output_dir={tmp_path_factory.mktemp('runs')}", "train.num_env_steps=60_000",
         "logger.tensorboard=false", "logger.progress=off", "eval.use_eval=false"]
    )  # fmt: skip
    runner.run()
    return runner.folder.path


def _serve(route: Any, base: str) -> None:
    """The site alone is asked. The page's style, which it takes from another host, comes from a folder of npm packages
    where SHARPIE_CDN names one; without it the page works unstyled.
    """
    url = route.request.url
    folder = os.environ.get("SHARPIE_CDN")
    if url.startswith((base, "data:")):
        route.continue_()
    elif folder and url.startswith(CDN):
        route.fulfill(path=Path(folder) / url.removeprefix(CDN).partition("?")[0])
    else:
        route.abort()


def test_a_person_in_a_browser_plays_with_a_trained_team(
    quiet_site: RealSite, team: Path, browser: Any, tmp_path: Path
) -> None:
    """The real page in Chromium: agent_0 is driven by keys, the rest and the pauses by the team."""
    agents = {f"agent_{i}": {"checkpoint": str(team), "which": "latest"} for i in range(3)}
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(yaml.safe_dump({"experiments": {"mpe-spread": {"agents": agents}}}))
    base = f"http://127.0.0.1:{quiet_site.port}"
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    page.route("**/*", lambda route: _serve(route, base))
    closed: list[bool] = []
    page.on("websocket", lambda socket: socket.on("close", lambda _: closed.append(True)))
    with quiet_site.runner(command(quiet_site, "room", "mpe-spread", "browser", mapping=mapping), "browser-runner"):
        page.goto(f"{base}/accounts/login/?next=/")
        page.fill("#id_username", "alice")
        page.fill("#id_password", "interop")
        page.click("button[type=submit]")
        page.goto(f"{base}/experiment/mpe-spread/config")
        page.fill("#id_room", "browser")
        page.select_option("#id_role", "agent_0")
        page.click("form button[type=submit]")
        page.goto(f"{base}/experiment/mpe-spread/run/browser")
        page.wait_for_function("document.getElementById('image').naturalWidth > 0", timeout=60_000)
        page.keyboard.down("ArrowRight")
        page.wait_for_timeout(1000)
        page.screenshot(path=tmp_path / "sharpie.png")
        page.keyboard.up("ArrowRight")
        page.wait_for_function("document.getElementById('loading_div').innerText.includes('completed')", timeout=60_000)
        until(page, lambda: closed)  # said by the browser a little after its page has written "completed"
        records = quiet_site.stored("mpe-spread", "browser")[0]["episodes"][0]["records"]
    assert [record[0] for record in records] == list(range(1, 27))
    pressed = [record[2].get("agent_0") for record in records]
    assert pressed.count(2) >= 5
    assert page.evaluate("document.getElementById('image').naturalWidth") == 700
    page.close()
