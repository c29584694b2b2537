"""A sink that takes events in any order, and fails as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ops.sinks.base import Channel, RelayBlock, SinkLease, SinkUnavailable
from penstock.log.restores import Seen
from penstock.records import Event

#: Raises for an event what the sink says of it; it may wait, until it is told to end.
Fails = Callable[[Event, threading.Event], None]


class Taking:
    """Notes what it was sent."""

    name = "taking"
    max_block_events = 100
    max_block_bytes = 1 << 20
    any_order = True

    def __init__(self, fails: Fails = lambda event, ended: None) -> None:
        self.fails = fails
        self.taken: list[str] = []
        self.is_away = False

    def preflight(self, topic: str, partitions: int) -> None:
        """Anything goes."""

    def open(self, lease: SinkLease) -> Channel:
        """A channel for one event at a time."""
        return _Channel(self)

    def close(self) -> None:
        """Nothing is shared."""


class _Channel:
    def __init__(self, sink: Taking) -> None:
        self._sink = sink
        self._ended = threading.Event()

    def seen(self) -> Seen | None:
        return None

    def send_block(self, block: RelayBlock) -> None:
        for event in block.events:
            if self._sink.is_away:
                raise SinkUnavailable("nobody is there")
            self._sink.fails(event, self._ended)
            self._sink.taken.append(event.payload.decode())

    def close(self) -> None:
        self._ended.set()

    def abort(self) -> None:
        self._ended.set()
