"""The page in a real browser, at a real server: what people do there arrives, and they see that it did."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harl.hitl.bridge import Source
from tests.hitl.windows import banner, drive, sees, until

Window = Any
UP, RIGHT, LEFT = 4, 2, 1


def newest(run: Any) -> dict[str, Any]:
    return run.inputs[-1]


def test_holding_a_key_drives_an_agent_and_letting_go_gives_it_back(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    banner(page, "Policy drives")
    drive(page)
    until(page, lambda: run.inputs and newest(run)["held"])
    assert newest(run)["action"] is None, "nothing is pressed: do nothing, but drive"
    page.keyboard.down("ArrowUp")
    until(page, lambda: newest(run)["action"] == UP)
    assert page.locator(".cap.up").get_attribute("aria-pressed") == "true"
    done = until(page, lambda: [each for each in run.human_steps() if each.action == [UP]])
    assert {each.agent for each in done} == {"agent_0"}
    sees(page, "document.querySelector('.agent .driver').textContent === 'you'")
    assert page.locator("#take").get_attribute("aria-pressed") == "true"

    page.keyboard.up("ArrowUp")
    until(page, lambda: newest(run)["action"] is None)
    page.keyboard.up("Space")
    until(page, lambda: not newest(run)["held"])
    banner(page, "Policy drives")
    before = len(run.human_steps())
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 15)
    assert len(run.human_steps()) == before
    assert run.executed[-1].source is Source.POLICY


@pytest.mark.slow
def test_what_is_held_is_repeated_with_rising_numbers_and_key_repeat_is_not_taken_for_presses(
    peer: Any, join: Any
) -> None:
    run = peer()
    page = join(run)
    drive(page)
    page.keyboard.down("ArrowUp")
    until(page, lambda: newest(run)["action"] == UP)
    page.keyboard.down("ArrowUp")  # the second one is a repeat to the page
    page.keyboard.down("Space")
    already = len(run.inputs)
    until(page, lambda: len(run.inputs) >= already + 8)
    numbers = [each["seq"] for each in run.inputs]
    assert numbers == sorted(set(numbers))
    assert all(each["held"] and each["action"] == UP for each in run.inputs[already:])
    assert newest(run)["seen"] > (0, 0)
    page.keyboard.up("Space")
    until(page, lambda: not newest(run)["held"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [
        "window.dispatchEvent(new Event('blur'))",
        "window.dispatchEvent(new Event('pagehide'))",
        "document.dispatchEvent(new Event('fullscreenchange'))",
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))",
    ],
    ids=["blur", "pagehide", "fullscreen", "hidden"],
)
@pytest.mark.parametrize("sticky", [False, True], ids=["hold", "sticky"])
def test_an_agent_is_given_back_when_the_page_may_no_longer_hear_keys(
    peer: Any, join: Any, event: str, sticky: bool
) -> None:
    run = peer()
    page = join(run)
    if sticky:
        page.locator("#modes label", has_text="Sticky").click()
        page.locator("#play").focus()
    drive(page)
    page.keyboard.down("ArrowUp")
    until(page, lambda: run.human_steps())
    page.evaluate(event)
    banner(page, "Policy drives")
    until(page, lambda: run.bridge.room.driver(0, 0) is None)
    assert page.locator(".cap.up").get_attribute("aria-pressed") == "false"


def test_closing_the_page_gives_the_agent_back(peer: Any, join: Any) -> None:
    run = peer()
    page, other = join(run), join(run, "observer", "bob")
    drive(page)
    until(other, lambda: run.bridge.room.driver(0, 0) == "ada")
    banner(other, "ada drives agent_0")
    page.close()
    until(other, lambda: run.bridge.room.driver(0, 0) is None)
    banner(other, "Policy drives")


def test_of_opposite_keys_the_one_pressed_last_counts(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    drive(page)
    for press, expected in [("ArrowLeft", LEFT), ("ArrowRight", RIGHT)]:
        page.keyboard.down(press)
        until(page, lambda expected=expected: newest(run)["action"] == expected)
    page.keyboard.up("ArrowRight")
    until(page, lambda: newest(run)["action"] == LEFT)


@pytest.mark.slow
def test_a_tap_before_the_agent_is_granted_still_acts(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#modes label", has_text="Any key").click()
    page.locator("#play").focus()
    page.keyboard.press("ArrowUp")
    until(page, lambda: [each for each in run.human_steps() if each.action == [UP]])
    until(page, lambda: run.bridge.room.driver(0, 0) is None)
    banner(page, "Policy drives")


@pytest.mark.slow
def test_sticky_holds_until_the_key_is_pressed_again_or_escape(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#modes label", has_text="Sticky").click()
    page.locator("#play").focus()
    for end in ("Space", "Escape"):
        page.keyboard.press("Space")
        banner(page, "You drive agent_0")
        already = len(run.inputs)
        until(page, lambda already=already: len(run.inputs) > already + 3)
        assert newest(run)["held"]
        page.keyboard.press(end)
        banner(page, "Policy drives")
        until(page, lambda: run.bridge.room.driver(0, 0) is None)


@pytest.mark.slow
def test_somebody_else_drives(peer: Any, join: Any) -> None:
    run = peer()
    first, second = join(run, name="ada"), join(run, "controller", "bob")
    drive(first)
    banner(second, "ada drives agent_0")
    second.keyboard.down("Space")
    second.locator(".toast", has_text="ada drives agent_0").wait_for()
    second.keyboard.up("Space")
    second.keyboard.press("PageDown")
    drive(second, "agent_1")
    until(second, lambda: run.bridge.room.driver(0, 1) == "bob")
    assert run.bridge.room.driver(0, 0) == "ada"


@pytest.mark.slow
def test_an_administrator_takes_an_agent_from_its_driver(peer: Any, join: Any) -> None:
    run = peer()
    driver, admin = join(run, name="ada"), join(run, "admin", "eve")
    drive(driver)
    admin.get_by_role("button", name="Take agent_0 from its driver").click()
    banner(driver, "Policy drives")
    driver.locator(".toast", has_text="eve").wait_for()
    until(driver, lambda: run.bridge.room.driver(0, 0) is None)


@pytest.mark.slow
def test_who_does_nothing_is_warned_and_gives_the_agent_back(peer: Any, join: Any) -> None:
    run = peer(takeover__idle_s=3.0)
    page = join(run)
    page.keyboard.down("Space")
    banner(page, "Still there?")
    until(page, lambda: run.bridge.room.driver(0, 0) is None)
    banner(page, "Policy drives")


def test_feedback_by_key_and_button_with_undo_and_credit(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    until(page, lambda: len(run.executed) > 90)
    page.keyboard.press("Equal")
    page.keyboard.press("Minus")
    page.locator("#feedback-target").select_option("agent_2")
    page.locator("#praise").click()
    until(page, lambda: len(run.feedback) == 3)
    assert [(each["value"], each["agent"]) for each in run.feedback] == [(1, "team"), (-1, "team"), (1, "agent_2")]
    numbers = [each["seq"] for each in run.feedback]
    assert numbers == sorted(set(numbers))
    assert all(each["shown_ms"] >= 0 for each in run.feedback)
    sees(page, "[...document.querySelectorAll('.events .where')].every((e) => /step/.test(e.textContent))")
    assert (page.locator("#praised").inner_text(), page.locator("#blamed").inner_text()) == ("2", "1")

    page.locator("#play").focus()
    page.keyboard.press("Backspace")
    until(page, lambda: len(run.feedback) == 4)
    assert run.feedback[-1]["undo"]
    assert run.feedback[-1]["seq"] == numbers[-1]
    sees(page, "document.querySelector('.events .undone .where').textContent === 'taken back'")
    assert page.locator("#praised").inner_text() == "1"
    page.locator("#undo").click()
    until(page, lambda: run.feedback[-1]["seq"] == numbers[1])


@pytest.mark.slow
def test_pace_and_marks(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#pause").click()
    sees(page, "document.getElementById('pause-text').textContent === 'Go on'")
    sees(page, "document.querySelector('#reading-pace .value').textContent === 'paused'")
    page.wait_for_timeout(300)
    steps = len(run.executed)
    page.keyboard.press("Period")
    until(page, lambda: len(run.executed) == steps + 3)
    page.keyboard.press("KeyP")
    until(page, lambda: len(run.executed) > steps + 3)
    page.locator("#faster").click()
    until(page, lambda: run.bridge.room.pace.speed == 2)
    sees(page, "document.getElementById('speed').textContent === '2×'")
    page.locator("#success").click()
    until(page, lambda: run.marks)
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    until(page, lambda: len(run.marks) == 3)
    assert [label for label, _ in run.marks] == ["success", "fail", "discard"]


@pytest.mark.slow
def test_readings_are_those_of_the_run(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    drive(page)
    page.keyboard.down("ArrowUp")
    sees(page, "/key to picture/.test(document.querySelector('#reading-latency .unit').textContent)")
    sees(page, "Number(document.querySelector('#reading-rate .value').textContent) > 0")
    sees(page, "Number(document.querySelector('#reading-episode .value').textContent) >= 1")
    sees(page, "Number(document.querySelector('#reading-fps .value').textContent) > 0")
    for name in ("reward", "return"):
        value = page.locator(f"#reading-{name} .value").inner_text()
        assert re.fullmatch(r"−?\d+(\.\d+)?", value), value
    assert page.locator("#rec-text").inner_text() == "Not recording"
    assert "simple_spread" in page.locator("#title").inner_text()
    assert "ada · trainer" in page.locator("#who").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["observer", "controller"])
def test_a_role_is_offered_what_it_may_and_no_more(peer: Any, join: Any, role: str) -> None:
    run = peer()
    page = join(run, role)
    drives = role == "controller"
    assert page.locator("#drive-block").is_visible() is drives
    assert page.locator("#transport").is_visible() is drives
    assert page.locator("#success").is_visible() is drives
    for element in ("#feedback-block", "#pause", "#praise"):
        assert not page.locator(element).is_visible()
    page.locator("#play").focus()
    for key in ("Equal", "Minus", "KeyP", *([] if drives else ["Space", "ArrowUp", "Home"])):
        page.keyboard.press(key)
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 30)
    assert not run.feedback
    assert run.bridge.room.pace.paused_by is None
    if not drives:
        assert not run.inputs
        assert not run.marks


@pytest.mark.slow
def test_moving_and_speaking_together(peer: Any, join: Any) -> None:
    run = peer("simple_reference")
    page = join(run)
    drive(page)
    page.keyboard.down("ArrowUp")
    page.keyboard.down("Digit3")
    until(page, lambda: newest(run)["action"] == 2 * 5 + UP)
    until(page, lambda: [each for each in run.human_steps() if each.action == [2 * 5 + UP]])
    sees(page, "document.querySelector('.agent .does').textContent === 'up, say C'")


@pytest.mark.slow
def test_continuous_actions_add_up(peer: Any, join: Any) -> None:
    run = peer("simple_speaker_listener", continuous=True)
    page = join(run)
    page.keyboard.press("PageDown")
    drive(page, "listener_0")
    for key in ("ArrowUp", "ArrowLeft", "ArrowRight"):
        page.keyboard.down(key)
    until(page, lambda: newest(run)["action"] == [0, 0, 1, 0, 1])
    until(page, lambda: [each for each in run.human_steps() if each.action == [0, 0, 1, 0, 1]])


@pytest.mark.slow
def test_pictures_are_drawn_and_their_memory_is_given_back(peer: Any, join: Any) -> None:
    run = peer()
    count = """
      window.urls = [0, 0];
      const [make, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
      URL.createObjectURL = (blob) => { window.urls[0] += 1; return make.call(URL, blob); };
      URL.revokeObjectURL = (url) => { window.urls[1] += 1; return revoke.call(URL, url); };
    """
    page = join(run, prepare=lambda page: page.add_init_script(count))
    page.locator("#open-settings").click()
    page.locator("#set-mode").select_option("jpeg")
    page.get_by_role("button", name="Done").click()
    sees(page, "window.urls[0] >= 5 && window.urls[0] - window.urls[1] <= 1")
    pixels = page.evaluate("""() => {
      const canvas = document.getElementById('canvas');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(Array.from({length: data.length / 4}, (_, i) => data[4 * i] >> 5)).size;
    }""")
    assert pixels > 2, "a picture has more than its ground"
    page.locator("#open-settings").click()
    page.locator("#set-mode").select_option("none")
    page.get_by_role("button", name="Done").click()
    made = page.evaluate("window.urls[0]")
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 45)
    assert page.evaluate("window.urls[0]") <= made + 2
    sees(page, "Number(document.querySelector('#reading-step .value').textContent) >= 0")


@pytest.mark.slow
def test_another_environment_is_chosen_where_all_are_shown(peer: Any, join: Any) -> None:
    run = peer(num_envs=3, envs="all")
    page = join(run)
    page.locator("#env").fill("2")
    page.locator("#env").press("Enter")
    until(page, lambda: {person.env for person in run.bridge.room.people.values()} == {2})
    page.locator("#play").focus()
    drive(page)
    until(page, lambda: run.bridge.room.driver(2, 0) == "ada")
    assert run.bridge.room.driver(0, 0) is None
    assert not join(peer(), name="bob").locator("#env").is_visible()
