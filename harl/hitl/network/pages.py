"""What is answered before a connection becomes a socket: the page's files, and refusals of strangers' pages."""

from __future__ import annotations

import http
import ipaddress
import mimetypes
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from harl.hitl.network.settings import Settings

PAGE = Path(__file__).parents[1] / "page"
"""Files of the page, and `schema.json` of the protocol beside them."""
SCHEMA = Path(__file__).parents[1] / "schema.json"
HEALTH = "/health"
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; connect-src 'self'; img-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")


@dataclass(frozen=True)
class StaticFile:
    """A file of the page."""

    kind: str
    body: bytes


def load_files(folder: Path) -> dict[str, StaticFile]:
    """The files of a folder by their path in links; nothing else can be asked for. `/` is `index.html`."""
    files = {
        f"/{path.relative_to(folder).as_posix()}": StaticFile(_content_type(path), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    files["/schema.json"] = StaticFile("application/schema+json", SCHEMA.read_bytes())
    if "/index.html" in files:
        files["/"] = files["/index.html"]
    return files


class Gate:
    """Decides on each request: a file, a refusal, or a socket.

    Args:
        settings: whose Origin and Host are right.
        files: by path.
        full: why there is no place for a further connection from this address, or None.
    """

    def __init__(
        self, settings: Settings, files: Mapping[str, StaticFile], full: Callable[[ServerConnection], str | None]
    ) -> None:
        self._settings, self._files, self._full = settings, files, full
        self._names = {"localhost", settings.host.lower(), socket.gethostname().lower()}
        self._names |= {urlsplit(origin).hostname or "" for origin in settings.origins}

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """The answer to a request; None lets it become a socket."""
        method = getattr(request, "method", "GET")  # before version 17 the library itself refused all others
        path = request.path.partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _answer(405, "Only GET and HEAD are answered here.", method, {"Allow": "GET, HEAD"})
        if path == HEALTH:
            return _answer(200, "ok", method)
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        if len(hosts) != 1 or not self._ours(hosts[0]):
            return _answer(403, "This Host is not served here; hitl.host and hitl.origins say which are.", method)
        if not any("websocket" in value.lower() for value in request.headers.get_all("Upgrade")):
            file = self._files.get(path)
            return _file(file, method) if file is not None else _answer(404, "There is nothing here.", method)
        if not self._welcome(origins, hosts[0]):
            return _answer(403, "Pages of this Origin may not connect; hitl.origins says which may.", method)
        reason = self._full(connection)
        return None if reason is None else _answer(503, reason, method, {"Retry-After": "10"})

    def _ours(self, host: str) -> bool:
        """Whether a Host header names this server: else a stranger's name may have been made to lead here.

        Numeric addresses pass: no such name can be one.
        """
        if not _HOST.fullmatch(host):
            return False
        name = re.sub(r":\d+$", "", host).strip("[]").lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _welcome(self, origins: list[str], host: str) -> bool:
        if not origins:
            return self._settings.scripts
        origin = origins[0].lower()
        own = f"{self._settings.scheme}://{host.lower()}"
        return len(origins) == 1 and (origin == own or origin in self._settings.origins)


def _file(file: StaticFile, method: str) -> Response:
    return _response(200, file.kind, file.body, method, {})


def _answer(status: int, text: str, method: str, extra: Mapping[str, str] | None = None) -> Response:
    return _response(status, "text/plain; charset=utf-8", f"{text}\n".encode(), method, extra or {})


def _response(status: int, kind: str, body: bytes, method: str, extra: Mapping[str, str]) -> Response:
    headers = Headers()
    fields = {"Date": formatdate(usegmt=True), "Connection": "close", "Content-Length": str(len(body))}
    for name, value in {**fields, "Content-Type": kind, **SECURITY, **extra}.items():
        headers[name] = value
    phrase = http.HTTPStatus(status).phrase
    return Response(status, phrase, headers, b"" if method == "HEAD" else body)


def _content_type(path: Path) -> str:
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
