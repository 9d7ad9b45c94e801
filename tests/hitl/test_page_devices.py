"""Fingers, gamepads, moved keys, and what happens to the connection and on the way in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.hitl.windows import banner, drive, sees, until

pytestmark = pytest.mark.slow

UP, RIGHT = 4, 2
GAMEPAD = """
  window.pad = {id: 'a gamepad', connected: true, mapping: 'standard', index: 0, axes: [0, 0, 0, 0],
    buttons: Array.from({length: 17}, () => ({pressed: false, value: 0}))};
  navigator.getGamepads = () => (window.pad ? [window.pad] : [null]);
  Object.defineProperty(document, 'hasFocus', {value: () => true});
"""


class Fingers:
    """Touches that stay until they are lifted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.session = page.context.new_cdp_session(page)
        self.points: dict[int, dict[str, float]] = {}

    def press(self, finger: int, selector: str) -> None:
        self._send("touchStart", finger, self._centre(selector))

    def slide(self, finger: int, selector: str) -> None:
        self._send("touchMove", finger, self._centre(selector))

    def lift(self, finger: int) -> None:
        del self.points[finger]
        self._dispatch("touchEnd")

    def cancel(self) -> None:
        self.points.clear()
        self._dispatch("touchCancel")

    def _centre(self, selector: str) -> dict[str, float]:
        box = self.page.locator(selector).bounding_box()
        return {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}

    def _send(self, kind: str, finger: int, place: dict[str, float]) -> None:
        self.points[finger] = {**place, "id": finger}
        self._dispatch(kind)

    def _dispatch(self, kind: str) -> None:
        self.session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(self.points.values())})


def test_two_thumbs_drive(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run, width=360, has_touch=True, is_mobile=True)
    page.locator(".cross").scroll_into_view_if_needed()
    fingers = Fingers(page)
    fingers.press(1, "#take")
    banner(page, "You drive agent_0")
    fingers.press(2, ".cap.up")
    until(page, lambda: run.inputs and run.inputs[-1]["action"] == UP)
    fingers.slide(2, ".cap.right")
    until(page, lambda: run.inputs[-1]["action"] == RIGHT)
    until(page, lambda: [each for each in run.human_steps() if each.action == [RIGHT]])
    fingers.lift(2)
    until(page, lambda: run.inputs[-1]["action"] is None)
    fingers.lift(1)
    banner(page, "Policy drives")
    assert page.evaluate("scrollX") == 0


def test_a_touch_that_is_cancelled_lets_go(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run, width=360, has_touch=True, is_mobile=True)
    page.locator(".cross").scroll_into_view_if_needed()
    fingers = Fingers(page)
    fingers.press(1, "#take")
    fingers.press(2, ".cap.up")
    until(page, lambda: run.human_steps())
    fingers.cancel()
    banner(page, "Policy drives")
    until(page, lambda: not run.inputs[-1]["held"])


def test_a_gamepad_drives_praises_and_lets_go_when_it_is_gone(peer: Any, join: Any) -> None:
    run = peer("simple_speaker_listener", continuous=True)
    page = join(run, prepare=lambda page: page.add_init_script(GAMEPAD))
    page.keyboard.press("PageDown")
    page.evaluate("window.dispatchEvent(Object.assign(new Event('gamepadconnected'), {gamepad: window.pad}))")
    page.locator(".toast", has_text="a gamepad").wait_for()
    page.evaluate("window.pad.buttons[5].pressed = true")
    banner(page, "You drive listener_0")
    page.evaluate("window.pad.axes = [0.1, 0, 0, 0]")
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 20)
    assert run.inputs[-1]["action"] is None, "within the dead zone"
    page.evaluate("window.pad.axes = [0.575, 0, 0, 0]")
    action = until(page, lambda: run.inputs[-1]["action"])
    assert action == [0, 0, 0.5, 0, 0]
    page.evaluate("window.pad.buttons[0].pressed = true")
    until(page, lambda: [each["value"] for each in run.feedback] == [1])
    page.evaluate("window.pad.buttons[1].pressed = true")
    until(page, lambda: [each["value"] for each in run.feedback] == [1, -1])
    page.evaluate("window.pad = null; window.dispatchEvent(new Event('gamepaddisconnected'))")
    banner(page, "Policy drives")
    until(page, lambda: not run.inputs[-1]["held"])


def test_keys_are_moved_and_stay_so(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#open-settings").click()
    page.get_by_role("button", name="up: ↑. Change").click()
    page.keyboard.press("Space")
    assert "taken by “Take over”" in page.locator("#keymap-note").inner_text()
    page.get_by_role("button", name="up: ↑. Change").click()
    page.keyboard.press("KeyI")
    page.get_by_role("button", name="Take over: Space. Change").click()
    page.keyboard.press("KeyT")
    assert page.locator("#keymap-note").inner_text() == "Take over is now T."
    page.get_by_role("button", name="Done").click()
    for again in (False, True):
        if again:
            page.reload()
            sees(page, "document.getElementById('veil').hidden")
        page.locator("#play").focus()
        assert page.locator("#take-key").inner_text() == "T"
        page.keyboard.press("Space")
        page.keyboard.down("KeyT")
        banner(page, "You drive agent_0")
        page.keyboard.down("ArrowUp")
        page.keyboard.down("KeyI")
        until(page, lambda: run.inputs[-1]["action"] == UP)
        page.keyboard.up("KeyI")
        until(page, lambda: run.inputs[-1]["action"] is None)
        page.keyboard.up("ArrowUp")
        page.keyboard.up("KeyT")
        banner(page, "Policy drives")
    page.locator("#open-settings").click()
    page.get_by_role("button", name="Keys as they were").click()
    assert page.get_by_role("button", name="up: ↑. Change").is_visible()


def test_single_key_shortcuts_can_be_turned_off(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#open-settings").click()
    page.get_by_label("Single-key shortcuts").uncheck()
    page.get_by_role("button", name="Done").click()
    page.locator("#play").focus()
    for key in ("Equal", "KeyP", "Home"):
        page.keyboard.press(key)
    drive(page)
    until(page, lambda: run.inputs)
    assert not run.feedback
    assert not run.marks
    assert run.bridge.room.pace.paused_by is None


@pytest.mark.parametrize(
    ("agent", "held", "expected"),
    [
        ({"kind": "multidiscrete", "nvec": [3, 2]}, [[[2, None], "a"], [[None, 1], "b"]], [2, 1]),
        ({"kind": "multidiscrete", "nvec": [3, 2]}, [[[2, None], "a"], [[1, None], "a"]], [1, 0]),
        ({"kind": "multidiscrete", "nvec": [3, 2]}, [], None),
        ({"kind": "box", "low": [-1, -2], "high": [1, None]}, [[[-1, 0], "x"], [[0, 3], "y"]], [-1, 3]),
        ({"kind": "box", "low": [-1, -2], "high": [1, None]}, [[[-1, 0], "x"], [[1, 0], "x"]], [1, 0]),
    ],
)
def test_held_controls_make_an_action(peer: Any, join: Any, agent: Any, held: Any, expected: Any) -> None:
    page = join(peer(), "observer")
    found = page.evaluate(
        """async ([space, held]) => {
          const { combine } = await import('/held.js');
          const controls = held.map(([action, group], i) => ({action, group, id: String(i)}));
          const way = space.kind === 'box' ? 'sum' : 'component';
          const agent = {action_space: space, combine: way, noop: [0, 0], controls};
          return combine(agent, controls.map((control) => [control, 1]));
        }""",
        [agent, held],
    )
    assert found == expected


def test_the_token_leaves_the_address_bar_and_survives_a_reload(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run, "controller")
    assert "token" not in page.url
    assert run.bridge.links["controller"].split("token=")[1] not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    sees(page, "document.body.dataset.role === 'controller'")


def test_without_or_with_a_wrong_token_the_door_is_shown(peer: Any, visit: Any) -> None:
    run = peer()
    place = run.link("trainer").split("#")[0]
    page = visit(place)
    page.locator("#door").wait_for()
    page.locator("#door-token").fill("not the token of this run")
    page.get_by_role("button", name="Enter").click()
    sees(page, "document.getElementById('door-text').textContent.includes('wrong')")
    page.locator("#door-token").fill(run.link("trainer"))
    page.get_by_role("button", name="Enter").click()
    sees(page, "document.body.dataset.role === 'trainer'")


def test_a_lost_connection_is_shown_and_comes_back_to_the_same_session(peer: Any, join: Any) -> None:
    run = peer()
    sockets: list[Any] = []

    def between(route: Any) -> None:
        sockets.append(route)
        route.connect_to_server()

    page = join(run, prepare=lambda page: page.route_web_socket("**/socket", between))
    drive(page)
    page.keyboard.down("ArrowUp")
    until(page, lambda: run.human_steps())
    session = list(run.bridge.room.people)
    sockets[-1].close(code=1012)
    banner(page, "Connection lost")
    until(page, lambda: run.bridge.room.driver(0, 0) is None)
    banner(page, "Policy drives")
    assert list(run.bridge.room.people) == session, "the same session goes on"
    page.keyboard.up("Space")
    page.keyboard.up("ArrowUp")
    drive(page)
    until(page, lambda: run.bridge.room.driver(0, 0) == "ada")
    assert len(sockets) == 2


def test_back_off_doubles_up_to_eight_seconds(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    delays = page.evaluate(
        """async () => {
          const { Connection } = await import('/connection.js');
          const connection = new Connection('ws://127.0.0.1:1/socket');
          connection.wanted = true;
          const delays = [];
          connection.addEventListener('link', ({detail}) => {
            if (detail.state === 'lost') delays.push(detail.delay);
          });
          for (let i = 0; i < 8; i += 1) {
            connection.closed({code: 1006, reason: ''});
            clearTimeout(connection.timer);
          }
          return delays;
        }"""
    )
    limits = [500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]
    assert all(0.75 * limit <= delay <= limit for delay, limit in zip(delays, limits, strict=True)), delays


def test_the_end_of_the_run_is_told(peer: Any, join: Any) -> None:
    run = peer(record="touched")
    page = join(run)
    assert page.locator("#rec-text").inner_text() == "Recording"
    run.close()
    sees(page, "document.getElementById('rec-text').textContent === 'Not recording'")
    page.locator("#ended").wait_for()
    assert page.locator("#ended-title").inner_text() == "The run is over"
    told = page.locator("#ended-text").inner_text()
    assert "The test is over. Nothing more is recorded" in told
    assert "no longer" not in told, "tokens that were given hold for a continued run too"
    assert not page.locator("#ended-again").is_visible(), "nobody answers now"
    page.get_by_role("button", name="Close").click()
    banner(page, "The run is over")
    assert page.evaluate("document.querySelector('.panel').inert && document.querySelector('.transport').inert")
    assert page.evaluate("sessionStorage.getItem('harl.token')") is None


@pytest.mark.parametrize("agrees", [True, False])
def test_terms_are_agreed_to_before_taking_part(peer: Any, visit: Any, tmp_path: Any, agrees: bool) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("What you do here is recorded.\n<b>Not markup</b>")
    run = peer(consent=str(terms), consent_version="3", record="watched")
    sockets: list[Any] = []

    def between(route: Any) -> None:
        sockets.append(route)
        route.connect_to_server()

    page = visit(run.link("controller") + "&name=ada", prepare=lambda page: page.route_web_socket("**/socket", between))
    page.locator("#consent").wait_for()
    said = page.locator("#rec-text")
    assert (said.inner_text(), page.locator("#rec").get_attribute("data-on")) == (
        "Recording begins after you agree", "false",
    )  # fmt: skip
    assert "<b>Not markup</b>" in page.locator("#consent-text").inner_text()
    assert page.locator("#consent-version").inner_text() == "Version 3"
    assert not page.locator("#drive-block").is_visible()
    page.get_by_role("button", name="I agree" if agrees else "Only watch").click()
    if not agrees:
        sees(page, "document.getElementById('rec-text').textContent === 'You are not recorded'")
        assert not page.locator("#drive-block").is_visible()
        sockets[-1].close(code=1012)
        until(page, lambda: len(sockets) == 2)
        banner(page, "Policy drives")
        steps = len(run.executed)
        until(page, lambda: len(run.executed) > steps + 90)  # more than an episode
        assert [person.role for person in run.bridge.room.people.values()] == ["observer"], "coming back is no consent"
        assert not (tmp_path / "people").exists()
        return
    page.locator("#drive-block").wait_for()
    assert said.inner_text() == "Recording"
    drive(page)
    page.keyboard.up("Space")
    page.reload()
    sees(page, "document.body.dataset.role === 'controller'")
    assert not page.locator("#consent").is_visible()


def test_a_second_window_of_one_session_takes_over_from_the_first(peer: Any, join: Any) -> None:
    run = peer()
    received: list[str] = []

    def listen(page: Any) -> None:
        page.on("websocket", lambda socket: socket.on("framereceived", lambda text: received.append(text)))

    page = join(run, prepare=listen)
    welcome = next(json.loads(text) for text in received if isinstance(text, str) and '"welcome"' in text)
    token = run.link("trainer").split("token=")[1]
    page.evaluate(
        """async ([token, resume]) => {
          const { Connection } = await import('/connection.js');
          const second = new Connection(new URL('socket', location.href).href.replace('http', 'ws'));
          second.addEventListener('welcome', () => { window.welcomed = true; });
          second.resume = resume;
          second.open(() => ({token, device: 'desktop'}));
        }""",
        [token, welcome["resume"]],
    )
    sees(page, "window.welcomed === true")
    page.locator("#ended").wait_for()
    assert page.locator("#ended-title").inner_text() == "Opened in another window"
    assert len(run.bridge.room.people) == 1
