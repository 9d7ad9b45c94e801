"""What a server needs before it listens: addresses, tokens, certificates, origins; all faults are said at once."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harl.config import ConfigError, WebConfig
from harl.hitl.network.tokens import VARIABLE, Tokens, gather
from harl.hitl.network.wire import MAX_TEXT

LONGEST_CONSENT = 100_000
"""Bytes of a consent text."""
BACKLOG = 256
"""Connections that the kernel keeps until they are accepted."""
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


@dataclass(frozen=True)
class Agreement:
    """The text that people agree to before they take part."""

    version: str
    text: str


@dataclass(frozen=True)
class Settings:
    """A checked configuration."""

    host: str
    port: int
    family: socket.AddressFamily
    address: str
    """Numeric, of `host`."""
    loopback: bool
    tokens: Tokens
    tls: ssl.SSLContext | None
    origins: frozenset[str]
    scripts: bool
    agreement: Agreement | None
    warnings: tuple[str, ...]
    """For people, before the run begins."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def link_host(self) -> str:
        """What stands in links: the name of this machine where the address stands for all of them."""
        if ipaddress.ip_address(self.address).is_unspecified:
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host


def check(config: WebConfig, environ: Mapping[str, str] = os.environ, agents: Sequence[str] | None = None) -> Settings:
    """The settings that a configuration stands for.

    Args:
        config: the `hitl` section.
        environ: environment variables, for tokens.
        agents: names of the agents, for the token file; None where they are not known.

    Raises:
        ConfigError: with everything that is wrong.
    """
    errors: list[str] = []
    family, address = _resolve(config, errors)
    loopback = ipaddress.ip_address(address).is_loopback
    tokens, faults = gather(config.token_file, environ, loopback, agents)
    errors += faults
    if not loopback and not tokens.grants and not faults:
        errors.append(
            f"hitl.host={config.host}: whoever reaches this address could take part; give each role that shall be "
            f"there a token, in {VARIABLE}OBSERVER, …CONTROLLER, …TRAINER, …ADMIN or in hitl.token_file, or keep "
            "hitl.host=127.0.0.1"
        )
    tls = _encryption(config, errors)
    origins = _origins(config, errors)
    agreement = _agreement(config, errors)
    if errors:
        raise ConfigError(errors)
    warnings = []
    if not loopback and tls is None:
        warnings.append(
            f"hitl.host={config.host} without hitl.tls.cert and hitl.tls.key: tokens and all that people do cross the "
            "network unencrypted"
        )
    return Settings(
        config.host, config.port, family, address, loopback, tokens, tls, origins, config.scripts, agreement,
        tuple(warnings),
    )  # fmt: skip


def listen(settings: Settings, send_buffer: int) -> socket.socket:
    """A socket that listens there; raises `ConfigError` where that cannot be had."""
    try:
        listening = socket.create_server((settings.address, settings.port), family=settings.family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError([_listening_fault(settings, error)]) from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    # Accepted sockets inherit it. Without it the frame after an acknowledgement waits 40 ms for the client's own
    # acknowledgement (Nagle); asyncio sets it only on sockets that name their protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _listening_fault(settings: Settings, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"hitl.port={settings.port}: another program listens there; take another port, or 0 for a free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"hitl.host={settings.host}: is no address of this machine"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"hitl.port={settings.port}: this user may not listen there; take a port from 1024 on"
    return f"hitl.host={settings.host}, hitl.port={settings.port}: cannot listen there: {error.strerror}"


def _resolve(config: WebConfig, errors: list[str]) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        errors.append(f"hitl.host={config.host}: there is no such host; this machine alone: 127.0.0.1, all: 0.0.0.0")
        return socket.AF_INET, "127.0.0.1"
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0]).partition("%")[0]


def _encryption(config: WebConfig, errors: list[str]) -> ssl.SSLContext | None:
    cert, key = config.tls.cert, config.tls.key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = ("cert", "key") if key is None else ("key", "cert")
        errors.append(f"hitl.tls.{missing}: is missing; hitl.tls.{given} needs it")
        return None
    unreadable = [f"hitl.tls.{name}={path}: {fault}" for name, path in (("cert", cert), ("key", key))
                  if (fault := _unreadable(path))]  # fmt: skip
    if unreadable:
        errors += unreadable
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Tickets come after the handshake. A client that reads and writes in two threads, as scripts do, may then find both
    # at work on one SSL object, and now and then loses the connection at its start.
    context.num_tickets = 0
    try:
        # Without this a protected key would ask for its password on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "the key is protected by a password, or is no key"
        errors.append(f"hitl.tls.cert={cert}, hitl.tls.key={key}: no PEM certificate and its unprotected key: {reason}")
        return None
    return context


def _unreadable(path: str) -> str | None:
    try:
        Path(path).open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _origins(config: WebConfig, errors: list[str]) -> frozenset[str]:
    origins = [origin.lower().rstrip("/") for origin in config.origins or ()]
    errors += [
        f"hitl.origins: {origin[:80]!r} is no origin; write them as https://study.example.org or http://10.0.0.5:8080"
        for origin in origins
        if not _ORIGIN.fullmatch(origin)
    ]
    return frozenset(origins)


def _agreement(config: WebConfig, errors: list[str]) -> Agreement | None:
    if config.consent is None:
        return None
    where = f"hitl.consent={config.consent}"
    try:
        data = Path(config.consent).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        errors.append(f"{where}: cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError:
        errors.append(f"{where}: is no UTF-8 text")
        return None
    version = config.consent_version or hashlib.sha256(data).hexdigest()[:12]
    if not text.strip() or len(data) > LONGEST_CONSENT:
        errors.append(f"{where}: has {len(data)} bytes; a text to agree to has 1 to {LONGEST_CONSENT}")
    if len(version) > MAX_TEXT:
        errors.append(f"hitl.consent_version: has {len(version)} characters; allowed are {MAX_TEXT}")
    return Agreement(version, text)
