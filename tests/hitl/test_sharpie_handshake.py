"""The way to a site: TLS, and connections that die before the site has answered."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from unittest.mock import Mock

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidMessage

from harl.hitl.sharpie import start_experiment
from harl.hitl.sharpie_site.site import ROOM_ATTEMPTS, CutOff, Site
from tests.hitl.sharpie_fakes import KEY, FakeSite, obliging
from tests.hitl.test_sharpie_site import hasty, runner, serving

__all__ = ["hasty"]
CERTIFICATE = Path(__file__).parents[1] / "data" / "tls" / "cert.pem"


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    return made


def test_a_site_behind_tls_is_served_where_its_certificate_is_known() -> None:
    site = FakeSite()
    site.people["walk"] = obliging()
    with site.running(tls=context()) as port:
        known = Site("127.0.0.1", port, KEY, tls=True, ca_file=str(CERTIFICATE))
        assert start_experiment("", 0, "", "walk", "A1", serving=serving(), site=known)
        with pytest.raises(OSError, match="certificate"):
            start_experiment("", 0, "", "walk", "A2", serving=serving(), site=Site("127.0.0.1", port, KEY, tls=True))
    assert ("walk", "A2") not in site.got


@pytest.mark.parametrize("tls", [None, str(CERTIFICATE)], ids=["ws", "wss"])
def test_a_session_is_not_lost_with_a_connection_that_dies_in_the_opening_handshake(
    tls: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The site has given the session away by then, and would never offer it again."""
    site = FakeSite()
    site.people["walk"] = obliging()
    site.cut = {"/runner": 1, "/experiment": ROOM_ATTEMPTS - 1}
    site.queue.put(("walk", "A1"))
    with (
        caplog.at_level(logging.WARNING, "harl.sharpie"),
        site.running(tls=None if tls is None else context()) as port,
        runner(port, tls=tls),
    ):
        site.wait_for(lambda: site.closed.get(("walk", "A1")) == 1000)
    assert [frame["step"] for frame in site.frames("walk", "A1")] == [1, 2, 3, 4, 5, 6]
    assert site.connections.count("/experiment/walk/run/A1") == ROOM_ATTEMPTS
    assert caplog.text.count("walk/run/A1 was cut off") == ROOM_ATTEMPTS - 1


def test_a_room_whose_connections_always_die_is_given_up() -> None:
    site = FakeSite()
    site.cut = {"/experiment": 100}
    with site.running() as port, pytest.raises(CutOff, match="did not open a WebSocket"):
        Site("127.0.0.1", port, KEY).room("walk", "A1")
    assert len(site.connections) == ROOM_ATTEMPTS


@pytest.mark.parametrize(
    "error",
    [ConnectionClosedError(None, None), EOFError("cut"), InvalidMessage("cut"), TimeoutError("timed out")],
    ids=lambda error: type(error).__name__,
)
def test_however_a_connection_dies_it_is_cut_off(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("websockets.sync.client.connect", Mock(side_effect=error))
    with pytest.raises(CutOff, match="did not open a WebSocket"):
        Site("127.0.0.1", 1, KEY).queue()


def test_a_refusal_is_an_answer_and_not_asked_for_again() -> None:
    site = FakeSite()
    site.refuse = {"/experiment": 500}
    with site.running() as port, pytest.raises(Exception, match="HTTP 500"):
        Site("127.0.0.1", port, KEY).room("walk", "A1")
    assert len(site.connections) == 1
