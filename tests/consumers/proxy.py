"""A TCP proxy that notes when somebody connects, also while nobody is behind it."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit


class CountingProxy:
    """Passes connections on to the port that ``target`` answers at that moment."""

    def __init__(self, target: Callable[[], int | None]) -> None:
        self.attempts: list[float] = []
        self._target = target
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy.attempts.append(time.monotonic())
                proxy._pass_on(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, url: str) -> str:
        """The address of a database, by this way."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        port = self._server.server_address[1]
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    def _pass_on(self, client: socket.socket) -> None:
        port = self._target()
        if port is None:
            return
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Bytes one way until its end, which ends the other way too."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
