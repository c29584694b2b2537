"""A TCP proxy that can fall silent: it acknowledges every byte of a flow and forwards none.

Behind it neither TCP's keepalives nor its limit for unacknowledged data notice anything.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

HOST = "127.0.0.1"


@dataclass(eq=False)
class Flow:
    """One connection of a client, and the proxy's own to the server."""

    client: socket.socket
    server: socket.socket
    said: bytes = b""
    is_silent: bool = False
    #: Whether the network drops its packets.
    is_lost: bool = False
    has_ended: bool = False
    port: int = 0
    #: Bytes that the client has sent since, which nobody got.
    swallowed: threading.Event = field(default_factory=threading.Event)

    @property
    def is_open(self) -> bool:
        """Whether it still is a way to the server."""
        return bool(self.said) and not (self.has_ended or self.is_lost or self.is_silent)

    def forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is self.client:
                    self.said = self.said or data
                if self.is_silent:
                    if source is self.client:
                        self.swallowed.set()
                    continue
                sink.sendall(data)
        if not self.is_silent:
            self.end()

    def end(self) -> None:
        self.has_ended = True
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class SilentProxy:
    """In front of one server."""

    def __init__(self, url: str, listening: socket.socket | None = None) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or HOST, parts.port or 0)
        self._listening = listening or socket.create_server((HOST, 0))
        self._flows: list[Flow] = []
        user = parts.netloc.rpartition("@")[0]
        host, port = self._listening.getsockname()[:2]
        place = f"{host}:{port}"
        query = "ssl_disabled=true" if parts.scheme.startswith("m") else "sslmode=disable"
        self.url = urlunsplit(
            parts._replace(netloc=f"{user}@{place}" if user else place, query=query)
        )
        self._threads: list[threading.Thread] = []
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()

    def silence(self, name: bytes = b"") -> list[Flow]:
        """Let the present flows fall silent: all, or those whose client has said this name."""
        chosen = [flow for flow in self._flows if name in flow.said]
        assert chosen, f"nobody has said {name!r}"
        for flow in chosen:
            flow.is_silent = True
        return chosen

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._serving.join()
        for flow in self._flows:
            flow.end()
        for thread in self._threads:
            thread.join()
        for flow in self._flows:
            flow.client.close()
            flow.server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (_, port) = self._listening.accept()
                self.forward(client, port)

    def forward(self, client: socket.socket, port: int = 0) -> None:
        """Bring a client to the server."""
        flow = Flow(client, socket.create_connection(self._server), port=port)
        self._flows.append(flow)
        for way in ((flow.client, flow.server), (flow.server, flow.client)):
            self._threads.append(threading.Thread(target=flow.forward, args=way, daemon=True))
            self._threads[-1].start()


@contextmanager
def silent_proxy(url: str) -> Iterator[SilentProxy]:
    """A proxy in front of the server of an address."""
    proxy = SilentProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
