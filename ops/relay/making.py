"""Makes the relay that a sink's address asks for: that of a stream, or that of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ops.relay.lanes import AT_ONCE
from ops.sinks.routed import routing_of

if TYPE_CHECKING:
    from ops.relay.queue_relay import QueueRelay
    from ops.relay.relay import Relay
    from ops.sinks.base import Sink
    from penstock.archive.targets import Target


def relay_to(
    sink: Sink,
    url: str | None,
    subscription: str,
    *,
    archive: Sequence[Target] = (),
    at_once: int = AT_ONCE,
    max_attempts: int | None = None,
    consumer_id: str | None = None,
    weight: float = 1.0,
    idle_seconds: float = 0.5,
) -> Relay | QueueRelay:
    """A relay of a subscription.  ``order=`` of the sink's address says that it is a queue.

    A queue has no leases to share, and reads nothing from the archive.  Its attempts that somebody
    asks for count whatever their reason is.
    """
    if order := routing_of(sink).order:
        from ops.relay.queue_options import QueueRelayOptions
        from ops.relay.queue_relay import QueueRelay

        options = QueueRelayOptions(order=order, at_once=at_once)
        if max_attempts is not None:
            options = replace(options, attempts=max_attempts, counts_absence=True)
        return QueueRelay(url, subscription, sink, options)
    from ops.relay.relay import Relay

    return Relay(
        url,
        subscription,
        sink,
        consumer_id=consumer_id,
        weight=weight,
        idle_seconds=idle_seconds,
        archive=archive,
        at_once=at_once,
        max_attempts=max_attempts,
    )
