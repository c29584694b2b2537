"""Blocks to a broker.  The peer is a bare client in a loop, over the same events from memory.

The log is read apart: both have everything in memory, and both make the CloudEvents headers of each
event. Ours checks and sends blocks as a relay does, for several partitions at once. The latency is
that of the whole: from COMMIT until the broker has acknowledged the event to the relay.
"""

from __future__ import annotations

import itertools
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import latency
from benchmarks.bench import Bench
from benchmarks.measure import Aim, Case, Figure, Gap, Settings
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease
from penstock.errors import PenstockError
from penstock.records import Event

ROWS, PARTITIONS, RELAY = 100_000, 4, "bench"
PAYLOAD = b'{"account": "0123456789", "amount": 1250, "note": "' + b"x" * 150 + b'"}'
AIM, LATENCY_AIM = Aim(ratio=0.8), 25
BEGUN = datetime(2026, 11, 26, tzinfo=UTC)

#: Events of a partition, in blocks.
Blocks = list[RelayBlock]


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """Each broker: how many events a second, and how late at 1,000 a second."""
    count = settings.amount(ROWS)
    for kind in (Kafka, Pulsar):
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
            yield from _latency(bench, settings, name, broker.address)


def _latency(bench: Bench, settings: Settings, name: str, sink: str) -> Iterator[Figure]:
    count = settings.amount(latency.RATE * 20)
    work = ["hot", str(count), str(latency.RATE), "1"]
    warm = min(latency.RATE * latency.WARM_SECONDS, count // 2)
    found = latency.measured(bench, 1, work, warm, kind="relay", sink=sink)
    yield latency.figure_of(f"{name}_p50", found.percentile(50), found, 1, None)
    yield latency.figure_of(f"{name}_p99", found.percentile(99), found, 1, LATENCY_AIM)


class Broker(ABC):
    """A broker of its own, and both ways to send to it."""

    address: str
    sink: Sink

    @abstractmethod
    def bare(self, topic: str, records: Sequence[Sequence[Event]]) -> float:
        """Send the records of each partition with the client alone.  Returns the seconds."""


class Kafka(Broker):
    """One node; the peer is one idempotent producer."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        from ops.sinks.cloudevents import to_properties
        from tools.servers import KafkaServer

        self._server = KafkaServer(folder)
        stack.callback(self._server.kill)
        self._server.start()
        self.address = f"kafka://{self._server.url()}/bench?create=true"
        self.sink = stack.enter_context(closing(open_sink(self.address)))
        self._encode = to_properties

    def bare(self, topic: str, records: Sequence[Sequence[Event]]) -> float:
        from confluent_kafka import Producer

        producer: Any = Producer(
            {
                "bootstrap.servers": self._server.url(),
                "enable.idempotence": True,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 0,
                "log_level": 0,
            }
        )
        sink: Any = self.sink
        name = sink.settings.topic(topic)
        producer.list_topics(name, timeout=30)
        begun = perf_counter()
        for partition, part in enumerate(records):
            for event in part:
                producer.produce(
                    name,
                    event.payload,
                    key=event.key,
                    partition=partition,
                    headers=self._encode(event),
                )
        if producer.flush(120):
            raise RuntimeError("the bare producer did not finish")
        return perf_counter() - begun


class Pulsar(Broker):
    """A standalone; the peer is a producer for each partition with the client's batching."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        import pulsar

        from ops.sinks.cloudevents import to_properties
        from tools.pulsar import PulsarStandalone

        server = PulsarStandalone(Path(folder), die_with_parent=True)
        stack.callback(server.stop)
        server.start()
        self.address = f"{server.service_url}/public/default?admin={server.admin_url}&create=true"
        self.sink = stack.enter_context(closing(open_sink(self.address)))
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self._client = pulsar.Client(server.service_url, logger=quiet)
        stack.callback(self._client.close)
        self._encode = to_properties

    def bare(self, topic: str, records: Sequence[Sequence[Event]]) -> float:
        import pulsar

        name = f"persistent://public/default/{topic.replace('/', '.')}-partition-"
        producers = [
            self._client.create_producer(
                f"{name}{partition}",
                batching_enabled=True,
                block_if_queue_full=True,
                compression_type=pulsar.CompressionType.LZ4,
            )
            for partition in range(PARTITIONS)
        ]
        begun = perf_counter()
        for producer, part in zip(producers, records, strict=True):
            for event in part:
                producer.send_async(
                    event.payload,
                    _nothing,
                    properties=self._encode(event),
                    partition_key=event.key,
                )
        for producer in producers:
            producer.flush()
        spent = perf_counter() - begun
        for producer in producers:
            producer.close()
        return spent


def _nothing(*_: object) -> None:
    """The answers are waited for together."""


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
        channel = self._broker.sink.open(SinkLease(RELAY, topic, topic, partition, 1, 1))
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
