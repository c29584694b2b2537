"""Sinks whose calls do not listen to ``abort``: they end when the test says so."""

from __future__ import annotations

import threading

from ops.sinks.base import Channel, RelayBlock, SinkLease
from penstock.log.restores import Seen


class DeafSink:
    """Its calls wait for ``over``.  A test says what its channels note of them."""

    name = "deaf"
    max_block_events = max_block_bytes = 1

    def __init__(self) -> None:
        self.over = threading.Event()

    def preflight(self, topic: str, partitions: int) -> None:
        """It takes everything."""

    def open(self, served: SinkLease) -> Channel:
        """A channel that notes in the sink what is done with it."""
        return _DeafChannel(self)

    def close(self) -> None:
        """Nothing is open."""

    def sends(self, block: RelayBlock) -> None:
        """A call begins, and waits here."""
        assert self.over.wait(60)

    def closes(self) -> None:
        """A channel was closed."""


class _DeafChannel:
    def __init__(self, sink: DeafSink) -> None:
        self._sink = sink

    def seen(self) -> Seen | None:
        return None

    def send_block(self, block: RelayBlock) -> None:
        self._sink.sends(block)

    def close(self) -> None:
        self._sink.closes()

    def abort(self) -> None:
        """It does not listen."""
