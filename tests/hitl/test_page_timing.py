"""What the page says of time, and when it speaks: from the first moment of a takeover, and not of pauses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.hitl.windows import banner, drive, sees, until

pytestmark = pytest.mark.slow

UP, LEFT = 4, 1
DETAIL = "document.querySelector('#reading-latency .unit').textContent"


def test_a_pause_is_no_latency(peer: Any, join: Any) -> None:
    run = peer()
    page = join(run)
    drive(page)
    page.keyboard.press("KeyP")
    sees(page, "document.getElementById('pause-text').textContent === 'Go on'")
    page.keyboard.down("ArrowUp")
    page.wait_for_timeout(500)
    page.keyboard.press("KeyP")
    until(page, lambda: [each for each in run.human_steps() if each.action == [UP]])
    steps = len(run.executed)
    until(page, lambda: len(run.executed) > steps + 15)  # a frame shows it
    assert "key to picture" not in page.evaluate(DETAIL)
    page.keyboard.down("ArrowLeft")
    sees(page, f"{DETAIL}.includes('key to picture')")


def test_what_a_pause_interrupts_is_not_measured(peer: Any, join: Any) -> None:
    page = join(peer(), "observer")
    measured = page.evaluate(
        """async () => {
          const { Takeover } = await import('/takeover.js');
          let seq = 0;
          const room = {pace: {state: 'realtime'}, connection: {send: () => true}, nextSeq: () => (seq += 1),
            held: new EventTarget(), agent: () => null, seen: () => ({}), leaseTtl: () => 500};
          const takeover = new Takeover(room);
          takeover.lease = 'agent_0';
          takeover.input(1, true);
          const running = takeover.shown(1);
          takeover.input(2, true);
          takeover.paused();
          return [typeof running, takeover.shown(2)];
        }"""
    )
    assert measured == ["number", None]


@pytest.mark.parametrize("how", ["hold", "tap"])
def test_the_first_inputs_of_a_takeover_in_a_free_run_are_not_stale(peer: Any, join: Any, how: str) -> None:
    """The run flies by until somebody drives: what the page says first is about what it has seen since."""
    run = peer(pace="auto")
    received: list[dict[str, Any]] = []

    def hear(data: Any) -> None:
        if isinstance(data, str):
            received.append(json.loads(data))

    page = join(run, prepare=lambda page: page.on("websocket", lambda socket: socket.on("framereceived", hear)))
    sees(page, "Number(document.querySelector('#reading-episode .value').textContent.replace(/\\D/g, '')) > 30")
    if how == "tap":
        page.locator("#modes label", has_text="Any key").click()
        page.locator("#play").focus()
        page.keyboard.press("ArrowUp")
        until(page, lambda: [each for each in run.human_steps() if each.action == [UP]])
        until(page, lambda: run.bridge.room.driver(0, 0) is None)
    else:
        page.keyboard.down("ArrowUp")
        drive(page)
        until(page, lambda: [each for each in run.human_steps() if each.action == [UP]])
        page.keyboard.up("Space")
    banner(page, "Policy drives")
    acks = until(page, lambda: [message for message in received if message["type"] == "ack"])
    assert {message["status"] for message in acks} == {"applied"}


def test_lockstep_waits_for_no_key_but_single_steps_of_a_trainer_do(peer: Any, join: Any) -> None:
    run = peer(pace="lockstep", takeover__lease_ttl_ms=500)
    page = join(run)
    page.locator("#modes label", has_text="Sticky").click()
    page.locator("#play").focus()
    page.keyboard.press("Space")
    banner(page, "You drive agent_0")
    before = len(run.human_steps())
    until(page, lambda: len(run.human_steps()) > before + 10)
    assert run.human_steps()[-1].action == [0.0], "no key: the no-op"

    page.keyboard.press("KeyP")
    sees(page, "document.getElementById('pause-text').textContent === 'Go on'")
    page.wait_for_timeout(1000)
    before = len(run.human_steps())
    page.keyboard.down("ArrowUp")
    until(page, lambda: run.inputs[-1]["action"] == UP)
    assert len(run.human_steps()) == before, "a key alone is no step of a paused run"
    page.keyboard.press("Period")
    until(page, lambda: len(run.human_steps()) > before)
    page.wait_for_timeout(500)
    assert [each.action for each in run.human_steps()[before:]] == [[UP]]
    page.keyboard.up("ArrowUp")
