"""Another Penstock database under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from ops.sinks.address import open_sink
from ops.sinks.base import Sink
from penstock import database, log
from penstock.upkeep.sequencing import sequence_round
from tests.relay.conformance.under_test import Stored, UnderTest

#: Both databases may be copies of one template; then a topic is not relayed to itself.
PREFIX = "there"
_PAGE = 20_000


class OnPenstock(UnderTest):
    """A migrated database of any engine."""

    name = "penstock"
    fixture = "target_url"
    cannot: ClassVar[Mapping[str, str]] = {
        "foreign writer": "others may publish to the topic: the relay compares its own row",
        "throttled": "a database tells nobody to slow down",
    }

    def __init__(self, url: str, restart: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self._restart = restart
        parts = urlsplit(url)
        engine = "mysql" if parts.scheme == "mysql" else "postgresql"
        place = f"{parts.hostname}:{parts.port}{parts.path}"
        self.bare = f"penstock+{engine}://{place}?prefix={PREFIX}"
        self.address = f"{self.bare}&create=true"
        self.away = f"penstock+{engine}://127.0.0.1:1/none"
        self.environ = {
            "PENSTOCK_SINK_USERNAME": unquote(parts.username or ""),
            "PENSTOCK_SINK_PASSWORD": unquote(parts.password or ""),
        }

    def stored(self, topic: str, known_as: str, partition: int) -> list[Stored]:
        """The events, by the sequences that they had in their own database."""
        found: list[Stored] = []
        with closing(self._connect()) as own:
            sequence_round(own, max_passes=10_000)
            while events := log.fetch(own, f"{PREFIX}/{topic}", partition, len(found) + 1, _PAGE):
                found += [
                    (each.headers["penstock-origin"]["sequence"], each.payload) for each in events
                ]
        return found

    def restart(self) -> None:
        """The crash of its server."""
        self._restart()

    def too_large(self) -> int:
        """A topic takes one mebibyte, unless it says something else."""
        return 2 << 20

    def wrong(self, topic: str) -> tuple[str, str]:
        """Without the login."""
        return self.bare, "PENSTOCK_SINK_USERNAME"

    @contextmanager
    def expired(self) -> Iterator[tuple[Sink, str]]:
        """The password is another one now."""
        secret = "hunter2"
        yield (
            open_sink(self.address, environ={**self.environ, "PENSTOCK_SINK_PASSWORD": secret}),
            secret,
        )

    @contextmanager
    def full(self, topic: str) -> Iterator[None]:
        """Too many events of the topic wait for their sequences."""
        with closing(self._connect()) as own:
            limit: dict[str, Any] = {"topic": f"{PREFIX}/{topic}", "max_bytes": None}
            database.call(own, "set_backpressure", **limit, max_events=1)
            database.call(own, "measure_pressure")
            yield
            database.call(own, "set_backpressure", **limit, max_events=None)

    def _connect(self) -> Any:
        return database.connect(self.url)
