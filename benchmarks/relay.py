"""Blocks to a broker.  The peer is a bare client in a loop, over the same events from memory.

The log is read apart: both have everything in memory, and both make the CloudEvents headers of each
event. Ours checks and sends blocks as a relay does, for several partitions at once. The latency is
that of the whole: from COMMIT until the broker has acknowledged the event to the relay.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from time import perf_counter

from benchmarks import latency
from benchmarks.bench import Bench
from benchmarks.measure import Aim, Case, Figure, Gap, Settings
from benchmarks.relay_brokers import BROKERS, PARTITIONS, Broker
from ops.sinks.base import Channel, RelayBlock, SinkLease
from penstock.errors import PenstockError
from penstock.records import Event

ROWS, RELAY = 100_000, "bench"
PAYLOAD = b'{"account": "0123456789", "amount": 1250, "note": "' + b"x" * 150 + b'"}'
AIM, LATENCY_AIM = Aim(ratio=0.8), 25
BEGUN = datetime(2026, 11, 26, tzinfo=UTC)

#: Events of a partition, in blocks.
Blocks = list[RelayBlock]


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """Each broker: how many events a second, and how late at 1,000 a second."""
    for kind in BROKERS:
        count = settings.amount(ROWS // kind.fewer)
        with ExitStack() as stack:
            name = f"relay_{kind.__name__.lower()}"
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
                broker = kind(folder, stack)
            except PenstockError as error:
                yield Gap(name, str(error))
                continue
            runs = _Runs(broker, count // PARTITIONS)
            size = broker.sink.max_block_events
            against = "a bare client, from memory"
            yield Case(name, runs.events, size, runs.ours, runs.peer, against, AIM)
            if kind.has_latency:
                yield from _latency(bench, settings, name, broker.address)


def _latency(bench: Bench, settings: Settings, name: str, sink: str) -> Iterator[Figure]:
    count = settings.amount(latency.RATE * 20)
    work = ["hot", str(count), str(latency.RATE), "1"]
    warm = min(latency.RATE * latency.WARM_SECONDS, count // 2)
    found = latency.measured(bench, 1, work, warm, kind="relay", sink=sink)
    yield latency.figure_of(f"{name}_p50", found.percentile(50), found, 1, None)
    yield latency.figure_of(f"{name}_p99", found.percentile(99), found, 1, LATENCY_AIM)


class _Runs:
    """Both sides, each run into a topic of its own."""

    def __init__(self, broker: Broker, each: int) -> None:
        self.events = each * PARTITIONS
        self._broker = broker
        self._each = each
        self._numbers = itertools.count(1)

    def peer(self) -> float:
        topic, parts = self._topic()
        return self._broker.bare(topic, parts)

    def ours(self) -> float:
        topic, parts = self._topic()
        channels = [self._opened(topic, partition) for partition in range(PARTITIONS)]
        size = self._broker.sink.max_block_events
        blocks = [
            [_block(topic, part[first : first + size]) for first in range(0, len(part), size)]
            for part in parts
        ]
        with ThreadPoolExecutor(PARTITIONS) as pool:
            begun = perf_counter()
            list(pool.map(_send_all, channels, blocks))
            spent = perf_counter() - begun
        for each in channels:
            each.close()
        return spent

    def _topic(self) -> tuple[str, list[list[Event]]]:
        topic = f"bench/relay{next(self._numbers)}"
        self._broker.sink.preflight(topic, PARTITIONS)
        parts = [
            [_event(topic, partition, sequence) for sequence in range(2, self._each + 2)]
            for partition in range(PARTITIONS)
        ]
        return topic, parts

    def _opened(self, topic: str, partition: int) -> Channel:
        """A channel that has sent one event: a lease begins once."""
        channel = self._broker.sink.open(SinkLease(RELAY, topic, topic, partition, 1, 1, RELAY))
        channel.send_block(_block(topic, [_event(topic, partition, 1)]))
        return channel


def _send_all(channel: Channel, blocks: Blocks) -> None:
    for block in blocks:
        channel.send_block(block)


def _event(topic: str, partition: int, sequence: int) -> Event:
    return Event(
        topic=topic,
        partition=partition,
        sequence=sequence,
        event_id=uuid.UUID(int=partition << 64 | sequence),
        key=f"account-{sequence % 997}",
        type="moved",
        content_type="application/json",
        headers={},
        payload=PAYLOAD,
        created_at=BEGUN + timedelta(microseconds=sequence),
        sequenced_at=BEGUN,
        history=1,
    )


def _block(topic: str, events: Sequence[Event]) -> RelayBlock:
    first, last = events[0], events[-1]
    return RelayBlock(
        relay=RELAY,
        topic=topic,
        known_as=topic,
        partition=first.partition,
        history=1,
        lease_epoch=1,
        first_sequence=first.sequence,
        last_sequence=last.sequence,
        reopened=False,
        events=tuple(events),
    )
