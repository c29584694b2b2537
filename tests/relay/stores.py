"""The Redis that the relay's tests write to: one that writes its log to disk."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from ops.sinks.redis_streams import RedisChannel, RedisSink, open_sink
from tests.relay.blocks import TOPIC, lease
from tools.servers import REDIS, StoreServer
from tools.servers.base import HOST


def _options(data: Path, port: int) -> list[str]:
    return [
        *("--dir", str(data), "--port", str(port), "--bind", HOST, "--save", ""),
        *("--appendonly", "yes", "--set-proc-title", "no"),
    ]


class StreamsServer(StoreServer):
    """A Redis with `appendonly`, which can be restarted on its port."""

    def __init__(self, directory: Path, *more: str, tls: bool = False) -> None:
        def options(data: Path, port: int) -> list[str]:
            found = [*_options(data, 0 if tls else port), *more]
            return [*found, "--tls-port", str(port)] if tls else found

        super().__init__(directory, dataclasses.replace(REDIS, options=options))

    @property
    def client(self) -> redis.Redis:
        """A client of the test's own."""
        return redis.Redis(HOST, self.port or 0)

    def restart(self, *, lose: bool = False) -> None:
        """Crash and start again, without what is on the disk if need be."""
        self._wanted_port = self.port
        self.kill()
        if lose:
            shutil.rmtree(self._data)
        self.start()

    def entries(self, stream: str) -> list[tuple[str, dict[bytes, bytes]]]:
        """Every entry of a stream."""
        script = "return redis.call('XRANGE', KEYS[1], '-', '+')"
        found: Any = self.client.eval(script, 1, stream)
        return [
            (entry.decode(), dict(zip(texts[::2], texts[1::2], strict=True)))
            for entry, texts in found
        ]


@dataclasses.dataclass
class Streams:
    """Sinks with a prefix of this test's own."""

    server: StreamsServer
    prefix: str
    topic: str = TOPIC

    def sink(self, options: str = "", **environ: str) -> RedisSink:
        """A sink."""
        return open_sink(urlsplit(f"{self.address}{options}"), environ=environ, beside="")

    def channel(self, options: str = "", **changes: Any) -> RedisChannel:
        """A channel of a lease."""
        return self.sink(options).open(lease(**changes))

    @property
    def address(self) -> str:
        """What a relay is given."""
        return f"redis://{HOST}:{self.server.port}/{self.prefix}"

    @property
    def stream(self) -> str:
        """The stream of partition 0."""
        return f"{self.prefix}:{self.topic}:0"

    def ids(self) -> list[str]:
        """The ids of its entries."""
        return [entry for entry, _ in self.server.entries(self.stream)]


def ids(first: int, last: int, history: int = 1) -> list[str]:
    """The ids of a range."""
    return [f"{history}-{each}" for each in range(first, last + 1)]
