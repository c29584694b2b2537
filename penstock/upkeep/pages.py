"""/livez, /readyz and /metrics of a long-running program, and what it may have beside them."""

from __future__ import annotations

import errno
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from penstock.errors import ConfigurationError, PortTaken
from penstock.upkeep.metrics import CONTENT_TYPE, exposition
from penstock.upkeep.state import State

logger = logging.getLogger(__name__)

#: A longer body is refused before it is read.
MOST_BODY_BYTES = 65_536
_LENGTH = re.compile("[0-9]{1,10}", re.ASCII)
_PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page of a program; the names of headers are in small letters."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    address: str


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = _PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


#: What answers requests for all other pages.
Pages = Callable[[PageRequest], PageAnswer]


class HealthServer:
    """Serves the pages of a state on a port.  With 0 the kernel chooses the port.

    ``more`` answers what is none of them; without it there is nothing else.
    """

    def __init__(self, host: str, port: int, state: State, more: Pages | None = None) -> None:
        answers = {
            "/livez": lambda: _verdict(state.not_live()),
            "/readyz": lambda: _verdict(state.not_ready(), "not ready: "),
            "/metrics": lambda: PageAnswer(200, exposition(state.figures()), CONTENT_TYPE),
        }
        given = {"health": answers, "more": (more,) if more else ()}
        try:
            self._server = ThreadingHTTPServer((host, port), type("Handler", (_Handler,), given))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"port {port} is taken", hint="choose another with --http-port, or 0 for any"
                ) from None
            raise ConfigurationError(
                f"cannot listen on {host} port {port}: {error.strerror}",
                hint="choose others with --http-host and --http-port",
            ) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _verdict(problem: str, prefix: str = "") -> PageAnswer:
    text = f"{prefix}{problem}\n" if problem else "ok\n"
    return PageAnswer(503 if problem else 200, text.encode())


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    timeout = 10
    health: ClassVar[Mapping[str, Callable[[], PageAnswer]]] = {}
    more: ClassVar[tuple[Pages, ...]] = ()

    def do_GET(self) -> None:
        self._send(self._answer())

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    do_POST = do_DELETE = do_GET

    def version_string(self) -> str:
        return "penstock"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""

    def _answer(self) -> PageAnswer:
        path, _, query = self.path.partition("?")
        if path in self.health and self.command in {"GET", "HEAD"}:
            return self.health[path]()
        if path in self.health or not self.more:
            return PageAnswer(404, b"not found\n")
        body = self._body()
        if isinstance(body, PageAnswer):
            return body
        headers = {name.lower(): value for name, value in self.headers.items()}
        method = "GET" if self.command == "HEAD" else self.command
        address = str(self.client_address[0])
        try:
            return self.more[0](PageRequest(method, path, query, headers, body, address))
        except Exception:
            # Nothing of the request is logged: its body may hold a secret.
            logger.exception("a page failed", extra={"path": path[:256]})
            return PageAnswer(500, b"the page has failed; the log says why\n")

    def _body(self) -> bytes | PageAnswer:
        """The body, or what is wrong with it."""
        if "transfer-encoding" in self.headers:
            return PageAnswer(411, b"say how long the body is\n")
        given = self.headers.get("content-length", "0")
        if not _LENGTH.fullmatch(given):
            return PageAnswer(400, b"the length of the body is no number\n")
        if int(given) > MOST_BODY_BYTES:
            return PageAnswer(413, b"the body is too long\n")
        body = self.rfile.read(int(given))
        return body if len(body) == int(given) else PageAnswer(400, b"the body is torn\n")

    def _send(self, answer: PageAnswer, *, with_body: bool = True) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)
