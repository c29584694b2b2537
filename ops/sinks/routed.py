"""A sink whose relay has rules: what it gets was changed by them, and goes where they say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from ops.sinks.base import Channel, EventRefused, RelayBlock, Sink, SinkLease, abort_of
from ops.sinks.routing import Routing
from penstock.log.restores import Seen
from penstock.records import Event


def routing_of(sink: Sink) -> Routing:
    """The rules of a sink; none for one without."""
    found = getattr(sink, "routing", None)
    return found if isinstance(found, Routing) else Routing()


class RoutedSink:
    """Another sink behind the rules of a relay."""

    def __init__(self, sink: Sink, routing: Routing) -> None:
        self.name = sink.name
        self.any_order = getattr(sink, "any_order", False)
        self.max_block_events = sink.max_block_events
        self.max_block_bytes = sink.max_block_bytes
        #: Addresses that are one topic there are one place: each place is compared for itself.
        self.routing = replace(routing, named=getattr(sink, "address_of", str))
        self._sink = sink
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        #: Topics that events have chosen, and with how many partitions they were proven.
        self._proven: dict[str, int] = {}

    def preflight(self, topic: str, partitions: int) -> None:
        """As the sink, for the topic there.  Where events choose it, it is asked when one does."""
        self._partitions[topic] = partitions
        if not self.routing.splits:
            self._sink.preflight(self.routing.topic(topic), partitions)

    def open(self, lease: SinkLease) -> Channel:
        """A channel of the sink, behind the rules."""
        at_sink = replace(lease, topic=self.routing.topic(lease.topic))
        return RoutedChannel(self, self._sink.open(at_sink))

    def close(self) -> None:
        """As the sink."""
        self._sink.close()

    def require(self, block: RelayBlock) -> None:
        """Prove that the sink takes a topic that events have chosen, again when it has grown."""
        with self._lock:
            wanted = max(self._partitions.get(block.source_topic, 1), block.partition + 1)
            if self._proven.get(block.topic, 0) < wanted:
                self._sink.preflight(block.topic, wanted)
                self._proven[block.topic] = wanted


class RoutedChannel:
    """One partition, whose events may go to several places."""

    def __init__(self, sink: RoutedSink, channel: Channel) -> None:
        self._sink = sink
        self._channel = channel

    def seen(self) -> Seen | None:
        """As the sink; None where events choose their place, because none stands for all."""
        return None if self._sink.routing.splits else self._channel.seen()

    def send_block(self, block: RelayBlock) -> None:
        """Send each place its part of the block.  A place that has it already drops it."""
        for part in list(self._parts(block)):
            if part.place:
                self._sink.require(part)
            self._channel.send_block(part)

    def close(self) -> None:
        """As the sink."""
        self._channel.close()

    def abort(self) -> None:
        """As the sink."""
        abort_of(self._channel)()

    def _parts(self, block: RelayBlock) -> Iterator[RelayBlock]:
        routing = self._sink.routing
        places: dict[str, list[Event]] = {} if routing.splits else {"": []}
        if block.place:
            places = {block.place: []}
        for event in filter(routing.takes, block.events):
            try:
                place, sent = routing.place(event), routing.sent(event)
            except ValueError as error:
                raise EventRefused(event.sequence, f"its relay's rules: {error}") from error
            if block.place in {"", place}:
                places.setdefault(place, []).append(sent)
        for place, events in places.items():
            yield replace(
                block,
                topic=place or routing.topic(block.topic),
                source_topic=block.topic,
                place=place,
                events=tuple(events),
            )
