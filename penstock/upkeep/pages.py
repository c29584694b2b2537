"""/livez, /readyz and /metrics of a long-running program."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.errors import ConfigurationError, PortTaken
from penstock.upkeep.metrics import CONTENT_TYPE, exposition
from penstock.upkeep.state import State


class HealthServer:
    """Serves the pages of a state on a port.  With 0 the kernel chooses the port."""

    def __init__(self, host: str, port: int, state: State) -> None:
        answers = {
            "/livez": lambda: _verdict(state.not_live()),
            "/readyz": lambda: _verdict(state.not_ready(), "not ready: "),
            "/metrics": lambda: (200, CONTENT_TYPE, exposition(state.figures())),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(answers))
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


def _verdict(problem: str, prefix: str = "") -> tuple[int, str, bytes]:
    text = f"{prefix}{problem}\n" if problem else "ok\n"
    return (503 if problem else 200), "text/plain; charset=utf-8", text.encode()


def _handler(
    answers: dict[str, Callable[[], tuple[int, str, bytes]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            answer = answers.get(self.path.partition("?")[0])
            status, kind, body = (
                answer() if answer else (404, "text/plain; charset=utf-8", b"not found\n")
            )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler
