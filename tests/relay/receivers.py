"""A web server that a test scripts: what it was sent, and what it answers."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(frozen=True)
class Call:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Says:
    """An answer; without a status the connection is closed."""

    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Receiver:
    """What came, in order, and the answer to each of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.connections = 0
        self.answer: Callable[[Call], Says] = lambda _: Says()
        self.port = 0

    @property
    def address(self) -> str:
        """The address as a sink is given it."""
        return f"webhook+http://127.0.0.1:{self.port}/in"

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a process that may call it."""
        allowed = f"http {self.port} 127.0.0.1/32"
        return {"PENSTOCK_WEBHOOK_ALLOW": allowed, "PENSTOCK_WEBHOOK_SECRET": SECRET, **more}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """A client that has gone is what some tests are about."""


def _handler(receiver: Receiver) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def setup(self) -> None:
            receiver.connections += 1
            super().setup()

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # who called is dead
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.path, headers, body)
            receiver.calls.append(call)
            said = receiver.answer(call)
            if not said.status:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in said.headers and said.status != 204:
                self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def receiving(tls: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """A receiver on a port that the kernel gives, with this certificate and key or without TLS."""
    receiver = Receiver()
    server = _Server(("127.0.0.1", 0), _handler(receiver))
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
