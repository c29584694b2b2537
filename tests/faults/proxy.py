"""A TCP proxy in front of a database, which can fail as networks do.

Each process of a test gets one of its own, so that a fault meets whom it is meant for, and a
database that comes back on another port is found again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock import event_loops

HOST = "127.0.0.1"
_CHUNK = 1 << 16
_LOOK_SECONDS = 0.01

#: How both drivers send it; the function's name stands in lower case.
COMMIT = b"COMMIT"

Address = tuple[str, int]


@dataclass(eq=False)
class _Pair:
    """One connection of a client, and the proxy's own to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    said: bytes = b""
    doomed: bool = False

    def abort(self) -> None:
        """Both ends, at once."""
        for writer in (self.client, self.server):
            writer.transport.abort()


@dataclass(eq=False)
class Proxy:
    """What is set here holds from the next bytes on.

    ``frozen_to_client`` and ``frozen_to_server`` are words: connections that have said one of them
    (an application name, or nothing for all) get nothing through in that direction any more, as in
    a network that loses packets one way.  ``delay`` is in seconds, for each direction.
    """

    target: Callable[[], Address]
    port: int = 0
    delay: float = 0.0
    frozen_to_client: bytes | None = None
    frozen_to_server: bytes | None = None
    #: "after": the answer to the next COMMIT is lost; "before": the COMMIT itself is.
    cut_commit: str = ""
    cuts: int = 0
    attempts: list[float] = field(default_factory=list)
    pairs: set[_Pair] = field(default_factory=set)

    def url(self, url: str) -> str:
        """The address of a database, by this way."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        host = f"{user}@{HOST}:{self.port}" if user else f"{HOST}:{self.port}"
        # The proxy has to read what is said.
        query = "ssl_disabled=true" if parts.scheme.startswith("mysql") else "sslmode=disable"
        return urlunsplit(parts._replace(netloc=host, query=query))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side ends."""
        self.attempts.append(time.monotonic())
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target())
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pair = _Pair(writer, server_writer)
        self.pairs.add(pair)
        try:
            ways = [self._to_server(reader, pair), self._to_client(server_reader, pair)]
            await asyncio.gather(*ways)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            pair.abort()
            self.pairs.discard(pair)

    async def _to_server(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        while data := await reader.read(_CHUNK):
            pair.said = pair.said or data
            if self._cuts(pair, data):
                break
            await self._through(lambda: self.frozen_to_server, pair)
            pair.server.write(data)
            await pair.server.drain()
        pair.abort()

    def _cuts(self, pair: _Pair, data: bytes) -> bool:
        """Whether the connection ends before these bytes; or it is marked to end after them."""
        if not self.cut_commit or COMMIT not in data:
            return False
        before = self.cut_commit == "before"
        self.cuts += 1
        self.cut_commit = ""
        pair.doomed = not before
        return before

    async def _to_client(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        while data := await reader.read(_CHUNK):
            if pair.doomed:
                break  # it was done, and its client does not learn of it
            await self._through(lambda: self.frozen_to_client, pair)
            pair.client.write(data)
            await pair.client.drain()
        pair.abort()

    async def _through(self, frozen: Callable[[], bytes | None], pair: _Pair) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        while (word := frozen()) is not None and word in pair.said:
            await asyncio.sleep(_LOOK_SECONDS)


class Proxies:
    """Proxies in a thread of their own while the block runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self.made: list[Proxy] = []

    def __enter__(self) -> Proxies:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, target: Callable[[], Address]) -> Proxy:
        """A proxy on a port that the kernel gives."""
        proxy = Proxy(target)

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(proxy.serve, HOST, 0)

        server = self._run(listen())
        proxy.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        self.made.append(proxy)
        return proxy

    def cut(self, proxy: Proxy) -> int:
        """End every connection now, whatever is under way in it.  Returns how many."""

        async def abort() -> int:
            pairs = list(proxy.pairs)
            for pair in pairs:
                pair.abort()
            return len(pairs)

        return int(self._run(abort()))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await event_loops.end_tasks(20)
        for _ in range(3):  # the sockets of what was aborted are closed in the next turns
            await asyncio.sleep(0)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def address_of(url: str) -> Address:
    """Host and port of a database's address."""
    parts = urlsplit(url)
    default = 3306 if parts.scheme.startswith("mysql") else 5432
    return parts.hostname or HOST, parts.port or default
