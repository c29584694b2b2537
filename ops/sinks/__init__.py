"""Where relays write: brokers, queues, webhooks and files, by the interface of `base`."""

from __future__ import annotations

from ops.sinks.address import open_sink
from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    Sink,
    SinkMisconfigured,
    SinkUnavailable,
)

__all__ = [
    "EventRefused",
    "RelayBlock",
    "Sink",
    "SinkMisconfigured",
    "SinkUnavailable",
    "open_sink",
]
