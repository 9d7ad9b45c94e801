"""What a server refuses before it listens, what it says where it listens, and the files that it serves."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from harl.config import ConfigError
from harl.hitl.network.pages import SECURITY
from harl.hitl.network.server import Server
from harl.hitl.network.tokens import gather
from harl.hitl.room import Room
from tests.hitl.rooms import web_config
from tests.hitl.talking import ENVIRON, TOKENS, Client, serving

TLS = Path(__file__).parents[1] / "data" / "tls"


def made(environ: dict[str, str] | None = None, agents: tuple[str, ...] | None = None, **changes: object) -> Server:
    config = web_config(**{"port": 0, **changes})
    return Server(Room(config), config, environ=environ or {}, agents=agents)


def faults(environ: dict[str, str] | None = None, agents: tuple[str, ...] | None = None, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        made(environ, agents, **changes)
    return str(caught.value)


# Tokens.


def test_tokens_are_drawn_anew_for_each_run() -> None:
    links, others = made().links(), made().links()
    assert list(links) == ["observer", "controller", "trainer", "admin"]
    assert not set(links.values()) & set(others.values())
    assert all(len(link.partition("#token=")[2]) >= 32 for link in links.values())


def test_given_tokens_stand_in_the_links_behind_the_hash() -> None:
    with serving() as server:
        assert server.links()["trainer"] == f"http://127.0.0.1:{server.port}/#token={TOKENS['trainer']}"


def test_environment_goes_before_the_file_and_agents_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(
        "controller: {token: from-the-file-0123456789, agents: [mover]}\nadmin: admin-of-the-file-0123456789\n"
    )
    tokens, errors = gather(str(file), {"HARL_TOKEN_CONTROLLER": "from-the-environment"}, True, ("mover", "arm"))
    assert errors == []
    assert tokens.grant("from-the-file-0123456789") is None
    found = tokens.grant("from-the-environment")
    assert found is not None
    assert (found.role, found.agents) == ("controller", ("mover",))
    admin = tokens.grant("admin-of-the-file-0123456789")
    assert admin is not None
    assert (admin.role, admin.agents) == ("admin", None)
    assert tokens.grant("") is None


def test_a_token_for_one_agent_drives_no_other(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("controller: {token: of-the-mover-0123456789, agents: [mover]}\n")
    with serving(environ={}, token_file=str(file)) as server, Client(server) as client:
        client.say("hello", v=1, token="of-the-mover-0123456789")
        client.hear("welcome")
        client.say("control", op="request", agent="arm")
        assert client.hear("error")["code"] == "role"
        client.say("control", op="request", agent="mover")
        assert client.hear("control")["state"] == "granted"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("admin: short", "admin: the token has 5 characters; allowed are 16 to 256"),
        ("admin: 12345678901234567890", "put quotes around digits"),
        ("admin: has a space in it 0123", "ASCII characters without spaces"),
        ("admln: long-enough-0123456789", "'admln' is no role; allowed: observer, controller, trainer, admin; did you"),
        ("admin: same-token-0123456789\nobserver: same-token-0123456789", "have the same token"),
        (
            "controller: {token: long-enough-0123456789, agents: [movr]}",
            "no agent 'movr'; allowed: mover, arm; did you",
        ),
        ("controller: {token: long-enough-0123456789, agents: mover}", "agents has to be a list"),
        ("- a list", "has to map roles"),
        ("admin: 'unclosed-secret-0123", "is not a YAML file"),
        (None, "cannot be read: No such file"),
    ],
)
def test_faulty_token_files_are_refused_without_showing_tokens(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "tokens.yaml"
    if text is not None:
        file.write_text(text)
    told = faults(token_file=str(file), agents=("mover", "arm"))
    assert said in told
    assert "0123" not in told.replace(str(file), "")


def test_faulty_variables_are_refused() -> None:
    told = faults({"HARL_TOKEN_ADMIN": "", "HARL_TOKEN_ADMN": "long-enough-0123456789"})
    assert "HARL_TOKEN_ADMIN: the token has 0 characters" in told
    assert "HARL_TOKEN_ADMN: names no role" in told
    assert "did you mean HARL_TOKEN_ADMIN?" in told


def test_no_secret_is_written_or_logged_SEC05(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving() as server, Client(server).hello("admin") as client:
        client.say("control", op="request", agent="mover")
        client.hear("control")
        with Client(server) as stranger:
            stranger.say("hello", v=1, token="stranger-0123456789")
            stranger.closed_with()
        resume = client.welcome["resume"]
        assert not [name for name, link in server.links().items() if TOKENS[name] in link.partition("#")[0]]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("harl")]
    assert ours
    for secret in (*TOKENS.values(), "stranger-0123456789", resume):
        assert not [text for text in ours if secret in text]
    assert TOKENS["admin"] not in repr(server.settings)


# Where it listens.


def test_another_host_needs_tokens_and_says_that_it_is_not_encrypted_SEC02() -> None:
    told = faults(host="0.0.0.0")
    assert "hitl.host=0.0.0.0: whoever reaches this address could take part" in told
    assert "HARL_TOKEN_OBSERVER" in told
    server = made({"HARL_TOKEN_OBSERVER": TOKENS["observer"]}, host="0.0.0.0")
    assert list(server.links()) == ["observer"]
    assert "unencrypted" in server.warnings[0]
    encrypted = made(ENVIRON, host="0.0.0.0", tls__cert=str(TLS / "cert.pem"), tls__key=str(TLS / "key.pem"))
    assert encrypted.warnings == ()
    assert made().warnings == ()


def test_a_port_in_use_is_refused() -> None:
    with serving() as server:
        other = made(port=server.port)
        with pytest.raises(ConfigError, match=f"hitl.port={server.port}: another program listens there"):
            other.start()
        other.close("never started")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "256.1.1.1", "a" * 70 + ".invalid"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    assert "there is no such host" in faults(host=host)


def test_an_address_of_another_machine_is_refused() -> None:
    server = made(ENVIRON, host="192.0.2.1")
    with pytest.raises(ConfigError, match="is no address of this machine"):
        server.start()


def test_all_faults_are_told_at_once() -> None:
    told = faults(
        {"HARL_TOKEN_ADMIN": "short"}, host="no-such-host.invalid", origins=("*", "example.org"), tls__cert="cert.pem",
        consent="/no/such/file",
    )  # fmt: skip
    for part in ("HARL_TOKEN_ADMIN", "hitl.host", "'*' is no origin", "'example.org'", "hitl.tls.key", "hitl.consent"):
        assert part in told


# Encryption.


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("cert.pem", None, "hitl.tls.key: is missing; hitl.tls.cert needs it"),
        (None, "key.pem", "hitl.tls.cert: is missing; hitl.tls.key needs it"),
        ("none.pem", "key.pem", "none.pem: cannot be read: No such file"),
        ("cert.pem", "cert.pem", "no PEM certificate and its unprotected key"),
        ("cert.pem", "locked.pem", "no PEM certificate and its unprotected key"),
    ],
)
def test_faulty_certificates_are_refused(cert: str | None, key: str | None, said: str) -> None:
    paths = {"tls__cert": cert and str(TLS / cert), "tls__key": key and str(TLS / key)}
    assert said in faults(**paths)


def test_page_and_socket_can_be_encrypted() -> None:
    trusting = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with serving(tls__cert=str(TLS / "cert.pem"), tls__key=str(TLS / "key.pem")) as server:
        assert server.links()["admin"].startswith("https://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin = {"Origin": f"https://127.0.0.1:{server.port}"}
        with Client(server, ssl=trusting, additional_headers=origin).hello() as client:
            client.still_works()
            assert isinstance(client.socket.socket, ssl.SSLSocket)
            session = client.socket.socket.session
            assert session is None or not session.has_ticket, "a client that reads and writes in two threads may break"


# Terms.


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff\xfe", "no UTF-8"), (b" \n", "has 2 bytes"), (b"a" * 100_001, "has")]
)
def test_faulty_terms_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "terms.txt").write_bytes(content)
    assert said in faults(consent=str(tmp_path / "terms.txt"))


def test_terms_without_a_version_have_that_of_their_text(tmp_path: Path) -> None:
    versions = []
    for text in ("one", "two"):
        (tmp_path / "terms.txt").write_text(text)
        agreement = made(consent=str(tmp_path / "terms.txt")).settings.agreement
        assert agreement is not None
        versions.append(agreement.version)
    assert len(set(versions)) == 2


# Files.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text("<!doctype html>ⓗ", encoding="utf-8")
    (folder / "js").mkdir()
    (folder / "js" / "main.js").write_text("1")
    (folder / ".hidden").write_text("no")
    with serving(page=folder, origins=("https://study.example.org",)) as server:
        yield server


def ask(server: Server, path: str, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{server.port}")
    connection.endheaders()
    return connection.getresponse()


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/", 200, "text/html; charset=utf-8"),
        ("/?room=1", 200, "text/html; charset=utf-8"),
        ("/js/main.js", 200, "text/javascript; charset=utf-8"),
        ("/schema.json", 200, "application/schema+json"),
        ("/health", 200, "text/plain; charset=utf-8"),
        ("/none", 404, "text/plain; charset=utf-8"),
        ("/.hidden", 404, "text/plain; charset=utf-8"),
        ("/../server.py", 404, "text/plain; charset=utf-8"),
        ("/js/../../server.py", 404, "text/plain; charset=utf-8"),
        ("/%2e%2e/server.py", 404, "text/plain; charset=utf-8"),
    ],
)
def test_files_of_the_page_and_nothing_else_are_served(site: Server, path: str, status: int, kind: str) -> None:
    answer = ask(site, path)
    body = answer.read()
    assert (answer.status, answer.headers["Content-Type"]) == (status, kind)
    assert len(body) == int(answer.headers["Content-Length"]) > 0
    for name, value in SECURITY.items():
        assert answer.headers[name] == value
    assert "unsafe" not in SECURITY["Content-Security-Policy"]


@pytest.mark.skipif(int(version("websockets").partition(".")[0]) < 17, reason="before 17, websockets took GET alone")
def test_head_has_the_headers_alone_and_other_methods_nothing(site: Server) -> None:
    answer = ask(site, "/", "HEAD")
    assert (answer.status, answer.read()) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0
    refused = ask(site, "/", "DELETE")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8765", 200),
        ("study.example.org", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("127.0.0.1@evil.example", 403),
        ("", 403),
    ],
)
def test_names_that_others_made_lead_here_are_refused_SEC03(site: Server, host: str, status: int) -> None:
    assert ask(site, "/", host=host).status == status
    assert ask(site, "/health", host=host).status == 200


def test_what_is_sent_after_an_acknowledgement_does_not_wait_for_the_client() -> None:
    with serving() as run, socket.create_connection(("127.0.0.1", run.port)):
        listening = run._socket
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
