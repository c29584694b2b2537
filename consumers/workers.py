"""A relay as a worker of the daemon; its other workers are those of penstock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ops.relay.relay import Relay
from ops.sinks.base import Sink
from penstock.consumer.worker import ConsumerWorker


class RelayWorker(ConsumerWorker):
    """A relay that opens its own sink at every start."""

    prefix = "relayed"

    def __init__(
        self, name: str, make: Callable[[Sink], Relay], open_sink: Callable[[], Sink]
    ) -> None:
        super().__init__(name, lambda: make(self._sink))
        self._open_sink = open_sink
        self._sink: Sink

    def run(self, stop: threading.Event) -> None:
        """Relay until told to stop."""
        self._sink = self._open_sink()
        try:
            super().run(stop)
        finally:
            self._sink.close()
