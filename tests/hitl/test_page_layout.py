"""The page fits from a telephone to a desk, and is usable by keyboard alone and by those who do not see it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.hitl.windows import banner, drive, sees, until

PAGE = Path(__file__).parents[2] / "harl" / "hitl" / "page"
CONTROLS = "button, input, select, summary, a[href], [tabindex='0']"
# What can be used: not hidden, not off; of a radio group the checked one stands for all.
USABLE = f"""
  const usable = [...document.querySelectorAll({CONTROLS!r})].filter((element) =>
    element.checkVisibility({{visibilityProperty: true}}) && !element.disabled
      && !element.closest('dialog:not([open])'));
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scenario", ["simple_spread", "simple_reference"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_everything_fits_and_can_be_reached(peer: Any, join: Any, width: int, scenario: str, scheme: str) -> None:
    run = peer(scenario)
    page = join(run, "admin", width=width, color_scheme=scheme, has_touch=width == 360)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.locator("#praise").click()
    sees(page, "document.querySelector('.events li') !== null")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "there is something to scroll sideways"
    found = page.evaluate(
        f"""() => {{
          {USABLE}
          return usable.filter((element) => !element.classList.contains('skip')).map((element) => {{
            element.scrollIntoView({{block: 'center', inline: 'center'}});
            const shown = element.type === 'radio' ? element.parentElement : element;
            const box = shown.getBoundingClientRect();
            const on = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
            const reached = shown.contains(on) || on?.contains(shown);
            return {{name: element.id || element.textContent, left: box.left, right: box.right, width: box.width,
              height: box.height, reached}};
          }});
        }}"""
    )
    assert len(found) > 15
    for each in found:
        assert each["reached"], f"{each['name']} is covered by something else"
        assert each["left"] >= 0, each
        assert each["right"] <= width, each
        assert each["height"] >= 43.5, f"{each['name']} is too low for a finger: {each['height']}"
        assert each["width"] >= 40, f"{each['name']} is too narrow for a finger: {each['width']}"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["simple_spread", "simple_reference", "simple_speaker_listener"])
@pytest.mark.parametrize(
    ("width", "height", "touch"),
    [(360, 640, True), (390, 844, True), (844, 390, True), (720, 450, False), (768, 1024, True), (1440, 900, False)],
    ids=["phone", "larger phone", "phone on its side", "desk at 200%", "tablet", "desk"],
)
def test_picture_taking_over_and_feedback_are_seen_at_once(
    peer: Any, join: Any, width: int, height: int, touch: bool, scenario: str
) -> None:
    page = join(peer(scenario), width=width, height=height, has_touch=touch, is_mobile=touch)
    boxes = page.evaluate(
        """() => Object.fromEntries(['canvas', 'banner', 'take', 'praise', 'blame'].map((id) => {
          const box = document.getElementById(id).getBoundingClientRect();
          const on = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
          return [id, {...box.toJSON(), free: document.getElementById(id).contains(on), text: on?.textContent}];
        }))"""
    )
    for name, box in boxes.items():
        assert 0 <= box["left"] < box["right"] <= width, name
        assert 0 <= box["top"] < box["bottom"] <= height, name
        assert box["free"], f"{name} is covered by {box['text']!r}"
    for name in ("praise", "blame"):
        lines = f"document.querySelector('#{name} span:not(.sign)').getClientRects().length"
        assert page.evaluate(lines) == 1, f"the word on {name} is broken"
    assert boxes["canvas"]["height"] >= 185
    assert boxes["canvas"]["width"] >= 300
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_names_stand_on_nobody_and_stay_where_they_are(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    found = page.evaluate(
        """async () => {
          const { Tags } = await import('/tags.js');
          const look = {width: 340, height: 320};
          let seed = 7;
          const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
          let covered = 0, outside = 0, jumps = 0;
          for (let round = 0; round < 200; round += 1) {
            const tags = new Tags();
            const taken = Array.from({length: 6}, () => ({x: 340 * random(), y: 320 * random(), r: 15, weight: 1}));
            const wanted = taken.slice(0, 2).map((circle, i) => ({...circle, name: `a${i}`, width: 58}));
            const first = tags.arrange(wanted, taken, look);
            const nudged = taken.map((circle) => ({...circle, x: circle.x + 0.5}));
            const next = tags.arrange(wanted.map((tag) => ({...tag, x: tag.x + 0.5})), nudged, look);
            for (const [name, [x, y]] of first) {
              const over = ({x: cx, y: cy, r}) => Math.hypot(
                Math.max(Math.abs(x - cx) - 29, 0), Math.max(Math.abs(y - cy) - 10, 0)) < r;
              covered += taken.some(over);
              outside += x < 29 || x > 311 || y < 10 || y > 310;
              jumps += Math.hypot(next.get(name)[0] - x, next.get(name)[1] - y) > 3;
            }
          }
          return {covered, outside, jumps};
        }"""
    )
    assert found["outside"] == 0
    assert found["covered"] <= 4, "of 400, in a crowd that leaves no room"
    assert found["jumps"] == 0


@pytest.mark.slow
def test_what_is_drawn_over_a_picture_is_of_the_same_frame_as_the_picture(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    order = page.evaluate(
        """async () => {
          const { View } = await import('/view.js');
          const canvas = document.createElement('canvas');
          canvas.style.width = canvas.style.height = '200px';
          document.body.append(canvas);
          const order = [];
          const view = new View(canvas, (frame) => { order.push(`drawn over ${frame?.step}`); return new Map(); });
          view.addEventListener('drawn', ({detail}) => order.push(`list of ${detail.step}`));
          view.resize();
          const turn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          for (const step of [1, 2]) {
            view.show({codec: 'state', env: 0, ep: 0, step, payload: {bounds: [-1, -1, 1, 1], shapes: []}});
            await turn();
          }
          canvas.remove();
          return order;
        }"""
    )
    assert [each for i, each in enumerate(order) if each not in order[:i]] == [
        "list of 1", "drawn over 1", "list of 2", "drawn over 2",
    ]  # fmt: skip


@pytest.mark.slow
def test_no_action_is_shown_where_none_has_led_to(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    shown = page.evaluate(
        """async () => {
          const { shownActions } = await import('/agents.js');
          const frame = (step) => ({step, meta: {actions: {a: 3}}});
          return [null, frame(0), {step: 2, meta: {}}, frame(1)].map(shownActions);
        }"""
    )
    assert shown == [{}, {}, {}, {"a": 3}]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_rendered_picture_does_not_glare_in_the_dark(peer: Any, join: Any, scheme: str) -> None:
    page = join(peer(), color_scheme=scheme)
    page.locator("#open-settings").click()
    page.locator("#set-mode").select_option("jpeg")
    page.get_by_role("button", name="Done").click()
    brightest = """() => {
      const canvas = document.getElementById('canvas');
      const copy = document.createElement('canvas');
      [copy.width, copy.height] = [canvas.width, canvas.height];
      const context = copy.getContext('2d', {willReadFrequently: true});
      context.drawImage(canvas, 0, 0);
      const {data} = context.getImageData(canvas.width >> 1, 0, 1, canvas.height);
      return Math.max(...data.filter((_, i) => i % 4 < 3));
    }"""
    if scheme == "light":
        sees(page, f"({brightest})() >= 250")
        return
    sees(page, f"({brightest})() > 150")  # the picture is there, on a ground that is darker
    assert page.evaluate(brightest) < 215


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1440])
def test_dialogs_fit(peer: Any, join: Any, width: int) -> None:
    page = join(peer(), width=width)
    page.locator("#open-settings").click()
    box = page.locator("#settings").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert (
        page.evaluate(
            "(() => { const d = document.getElementById('settings'); return d.scrollWidth - d.clientWidth; })()"
        )
        <= 0
    )


@pytest.mark.slow
def test_everything_is_done_by_keyboard_alone(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run, "admin")
    everything = page.evaluate(
        f"""() => {{ {USABLE}
          const stops = usable.filter((element) => element.type !== 'radio' || element.checked);
          stops.forEach((element, i) => {{ element.dataset.at = i; }});
          return stops.map((element) => element.dataset.at); }}"""
    )
    reached: list[str] = []
    for _ in range(3 * len(everything)):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.dataset.at ?? ''"))
    assert set(everything) <= set(reached), "Tab does not lead there, or does not lead away again"
    outlined = """() => { const style = getComputedStyle(document.activeElement);
      return style.outlineStyle !== 'none' || document.activeElement.id === 'play'
        || document.activeElement.type === 'radio'; }"""
    for _ in everything:
        page.keyboard.press("Shift+Tab")
        assert page.evaluate(outlined), "the focus cannot be seen"

    page.locator("#pause").focus()
    page.keyboard.press("Enter")
    until(page, lambda: run.bridge.room.pace.paused_by == "ada")
    sees(page, "document.getElementById('pause-text').textContent === 'Go on'")
    page.keyboard.press("Space")
    until(page, lambda: run.bridge.room.pace.paused_by is None)
    page.locator("#take").focus()
    page.keyboard.down("Space")
    banner(page, "You drive agent_0")
    page.keyboard.up("Space")
    banner(page, "Policy drives")
    page.locator("#praise").focus()
    page.keyboard.press("Enter")
    until(page, lambda: run.feedback)
    page.get_by_role("radio", name="Hold").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="Sticky").is_checked()
    page.locator(".agent").nth(2).focus()
    page.keyboard.press("Enter")
    banner(page, "Policy drives")
    hint = "document.getElementById('banner-hint').textContent"
    sees(page, f"{hint} === 'click the picture, or tab to it, to use the keys'")
    page.locator("#play").focus()
    sees(page, f"{hint} === 'press Space to drive agent_2'")


@pytest.mark.slow
def test_what_has_the_focus_elsewhere_is_left_alone(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    page.locator("#open-settings").click()
    page.locator("#set-name").fill("")
    page.locator("#set-name").press_sequentially("p-. =")
    assert page.locator("#set-name").input_value() == "p-. ="
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 15)
    assert not run.feedback
    assert run.bridge.room.pace.paused_by is None


@pytest.mark.slow
def test_it_is_told_in_words(peer: Any, join: Any) -> None:
    page = join(peer())
    words = "document.getElementById('live').textContent"
    drive(page)
    sees(page, f"{words}.includes('You drive agent_0')")
    page.keyboard.up("Space")
    sees(page, f"{words}.includes('Policy drives')")
    page.keyboard.press("Equal")
    sees(page, f"{words}.includes('Good for the team')")
    sees(page, "/^Episode \\d+, step \\d+\\. .*agent_0 at /.test(document.getElementById('canvas').ariaLabel)")
    page.locator("#words summary").click()
    sees(page, "/agent_2 at /.test(document.getElementById('words-body').textContent)")
    unnamed = page.evaluate(
        f"""() => {{ {USABLE}
          const named = (e) => e.ariaLabel || e.textContent.trim() || e.labels?.length;
          return usable.filter((element) => !named(element)).map((element) => element.outerHTML); }}"""
    )
    assert not unnamed
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.slow
def test_a_screen_reader_hears_at_most_one_message_a_second_and_the_newest(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    heard = page.evaluate(
        """async () => {
          const { Announcer } = await import('/announce.js');
          const element = document.createElement('p');
          const heard = [];
          const hear = () => heard.push([performance.now(), element.textContent]);
          new MutationObserver(hear).observe(element, {childList: true});
          const announcer = new Announcer(element);
          for (const text of ['one', 'two', 'three', 'four']) announcer.say(text);
          await new Promise((done) => setTimeout(done, 2500));
          return heard;
        }"""
    )
    assert [text for _, text in heard] == ["one", "four"]
    assert heard[1][0] - heard[0][0] > 900


@pytest.mark.slow
def test_a_screen_reader_hears_what_is_said_twice_in_a_row_twice(peer: Any, join: Any) -> None:
    page = join(peer(), "controller")
    words = "document.getElementById('live').textContent"
    page.evaluate(
        """() => {
          window.heard = [];
          const live = document.getElementById('live');
          let before = live.textContent;
          new MutationObserver(() => {
            if (live.textContent !== before) window.heard.push(live.textContent.trim());
            before = live.textContent;
          }).observe(live, {childList: true});
        }"""
    )
    for times in (1, 2, 3):
        page.locator("#success").click()
        sees(page, f"window.heard.filter((text) => /a success$/.test(text)).length === {times}")
    assert "a success" in page.evaluate(words)


@pytest.mark.slow
def test_a_click_beside_everything_leaves_the_keys_where_they_were(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run, height=420)
    assert page.evaluate("document.documentElement.scrollHeight > innerHeight"), "or nothing could scroll"
    page.mouse.click(4, 300)
    drive(page)
    assert page.evaluate("scrollY") == 0
    page.keyboard.up("Space")
    banner(page, "Policy drives")
    page.locator("#praise").focus()
    assert page.evaluate("document.activeElement.id") == "praise", "what is chosen by key keeps the focus"


@pytest.mark.slow
def test_the_name_stays_on_one_line_before_anybody_has_agreed(peer: Any, visit: Any, tmp_path: Any) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("What you do here is recorded.")
    run = peer(consent=str(terms), consent_version="3", record="watched")
    page = visit(run.link("controller") + "&name=ada", width=360)
    page.locator("#consent").wait_for()
    lines = page.evaluate(
        """() => {
          const range = document.createRange();
          range.selectNodeContents(document.querySelector('.brand').lastChild);
          return range.getClientRects().length; }"""
    )
    assert lines == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_moving_things_hold_still_for_those_who_ask(peer: Any, join: Any) -> None:
    page = join(peer(), reduced_motion="reduce")
    page.locator("#praise").click()
    sees(page, "document.querySelector('#praise.flash') !== null")
    assert page.evaluate("getComputedStyle(document.getElementById('praise')).animationName") == "none"


def ratio(page: Any, pair: tuple[str, str]) -> float:
    """Contrast of two of the page's colours, as WCAG computes it."""
    shown: float = page.evaluate(
        """(pair) => {
          const style = getComputedStyle(document.documentElement);
          const light = (name) => {
            const colour = style.getPropertyValue(`--${name}`).trim();
            const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
              .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const [low, high] = pair.map(light).sort((a, b) => a - b);
          return (high + 0.05) / (low + 0.05);
        }""",
        list(pair),
    )
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(peer: Any, join: Any, scheme: str) -> None:
    page = join(peer(), color_scheme=scheme)
    grounds = ("ground", "surface", "raised")
    pairs = [(ink, ground) for ink in ("ink", "soft", "good", "bad", "accent") for ground in grounds]
    pairs += [(f"{state}-ink", f"{state}-ground") for state in ("you", "other", "lost", "policy")]
    pairs += [("ink", "paper"), ("on-mine", "mine")]
    for pair in pairs:
        assert ratio(page, pair) >= 4.5, pair
    assert ratio(page, ("mine", "paper")) >= 3, "the outline of my agent"


def test_files_of_the_page_need_nothing_from_elsewhere_and_hold_no_inline_code() -> None:
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        text = path.read_text(encoding="utf-8")
        links = set(re.findall(r"\b(?:https?:)?//[a-z][^\s\"'`)]*", text)) - {"http://www.w3.org/2000/svg"}
        outside = {link for link in links if re.match(r"(https?:)?//[\w-]+\.\w", link)}
        assert not outside, f"{path.name}: {outside}"
        assert len(text.splitlines()) <= 400, path.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)|javascript:", html)
    named = re.findall(r"(?:src|href)=\"([^\"#]+)\"", html)
    imported = [
        name for path in PAGE.glob("*.js") for name in re.findall(r"from \"\./([\w.]+)\"", path.read_text("utf-8"))
    ]
    assert {*named, *imported} == {path.name for path in files} - {"index.html"}
