"""A relay that takes over many partitions at once, whose channels each take a while to open."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ops.relay.relay import Relay
from ops.sinks.base import Channel, Sink, SinkLease
from penstock.subscriptions import stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.kit.log import wait_until
from tests.kit.sinks import InFront
from tests.relay.conformance.under_test import UnderTest

PARTITIONS = 64
SUBSCRIPTION = "taken-over"
LEASE_SECONDS = 2.0
#: What Kafka needs to take a transactional id over, on a machine that does nothing else.
OPEN_SECONDS = 0.6

Connection = psycopg.Connection[Any]


class SlowToOpen(InFront):
    """Each channel takes a while."""

    def open(self, lease: SinkLease) -> Channel:
        """As Kafka's."""
        time.sleep(OPEN_SECONDS)
        return super().open(lease)


def seconds_to_take_over(connection: Connection, url: str, topic: str, sink: Sink) -> float:
    """From the last sign of life of a relay with all partitions until another has sent in each."""
    names.create_topic(connection, topic, PARTITIONS, create_namespaces=True)
    stream.subscribe(connection, SUBSCRIPTION, [topic])
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=LEASE_SECONDS / 4,
        lease_seconds=LEASE_SECONDS, release_seconds=1,
    )  # fmt: skip
    connection.execute(
        "SELECT penstock.publish(topic => %s, payload => 'x', partition => p)"
        " FROM generate_series(0, %s) AS p",
        (topic, PARTITIONS - 1),
    )
    sequence_round(connection, max_passes=10_000)
    dead = stream.join(connection, SUBSCRIPTION, "dead")
    assert len(stream.check_in(connection, dead)) == PARTITIONS
    begun = time.monotonic()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Relay(url, SUBSCRIPTION, sink, idle_seconds=0.05).run, stop)
        try:
            wait_until(lambda: _done(connection, topic) or running.done(), "all were taken over")
            return time.monotonic() - begun
        finally:
            stop.set()
            running.result(60)


def _done(connection: Connection, topic: str) -> bool:
    return set(stream.position(connection, SUBSCRIPTION, topic).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("under_test", ["jsonl"], indirect=True)
def test_partitions_are_taken_over_at_once(
    connection: Connection, database_url: str, topic: str, under_test: UnderTest
) -> None:
    """64 within the lease and five seconds. Guard: channels are opened in parallel."""
    spent = seconds_to_take_over(connection, database_url, topic, SlowToOpen(under_test.sink()))
    print(f"\n64 partitions after {spent:.1f} s")  # noqa: T201 - pytest -s shows it
    assert spent <= LEASE_SECONDS + 5


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("under_test", ["kafka"], indirect=True)
def test_kafka_is_taken_over_at_once(
    connection: Connection, database_url: str, topic: str, under_test: UnderTest
) -> None:
    """The same on a real broker."""
    with closing(under_test.sink()) as sink:
        sink.preflight(topic, PARTITIONS)
        spent = seconds_to_take_over(connection, database_url, topic, sink)
    print(f"\n64 partitions of Kafka after {spent:.1f} s")  # noqa: T201 - pytest -s shows it
    assert spent <= LEASE_SECONDS + 5
