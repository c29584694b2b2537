"""A relay as a worker of the daemon; its other workers are those of penstock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ops.relay.relay import Relay
from ops.sinks.base import Sink
from penstock.consumer.running.worker import ConsumerWorker


class RelayWorker(ConsumerWorker):
    """A relay that opens its own sink at every start.  ``timed`` measures the sink's blocks."""

    prefix = "relayed"

    def __init__(
        self,
        name: str,
        make: Callable[[Sink], Relay],
        open_sink: Callable[[], Sink],
        timed: Callable[[str, Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        super().__init__(name, lambda: make(self._sink))
        self._open_sink = open_sink
        self._timed = timed
        self._sink: Sink

    def run(self, stop: threading.Event) -> None:
        """Relay until told to stop."""
        self._sink = self._open_sink()
        measured = self._timed(self.name, self._sink.send_block)
        self._sink.send_block = measured  # type: ignore[method-assign]
        try:
            super().run(stop)
        finally:
            self._sink.close()
