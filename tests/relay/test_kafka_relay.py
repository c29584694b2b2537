"""Relays of a subscription to a real Kafka: killed, put back, with a partition that was emptied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from ops.duties import verbs
from ops.duties.engine import SPARK
from ops.duties.setup import Setup
from ops.duties.units import MAIN
from ops.relay.block import Backoff, resolve_block
from ops.relay.relay import Relay
from penstock.errors import InvalidArgument
from penstock.spark.options import DatabaseAddress
from penstock.subscriptions import stream
from tests.kit.proof import proves
from tests.relay.chaos import PARTITIONS, SUBSCRIPTION, Chaos, Difference, chaos, compare
from tests.relay.kafka import KafkaBroker, headers
from tests.support import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

Make = Callable[..., Chaos]

EXACT = Difference(lost=0, doubled=0, in_order=True)
FAST = Backoff(base_seconds=0.01, max_seconds=0.1)


@pytest.fixture
def make_log(
    connection: psycopg.Connection[Any], database_url: str, kafka_broker: KafkaBroker, topic: str
) -> Iterator[Make]:
    """Makes the log whose relay writes to Kafka."""
    with ExitStack() as stack:

        def make(own: Any = connection, url: str = database_url, **fields: Any) -> Chaos:
            return stack.enter_context(
                chaos(own, url, topic=topic, sink=kafka_broker.address, **fields)
            )

        yield make


def difference(log: Chaos, broker: KafkaBroker, passed: int = 0) -> Difference:
    """What committed readers find in Kafka, against the log after ``passed`` events of each."""
    total = EXACT
    name = broker.sink().settings.topic(log.topic)
    for partition in range(PARTITIONS):
        found = [
            (int(headers(each)["ce_sequence"]), each.value() or b"")
            for each in broker.read(name, partition)
        ]
        here = compare(log.expected(partition)[passed:], found)
        total = Difference(
            total.lost + here.lost,
            total.doubled + here.doubled,
            total.in_order and here.in_order,
        )
    return total


@proves("Kafka, exactly once")
def test_killed_and_paused_and_still_exactly_once(
    make_log: Make, kafka_broker: KafkaBroker
) -> None:
    log = make_log()
    log.publish(4_000)
    log.run(kills=1, pauses=1)
    assert (log.kills, log.pauses) == (1, 1)
    assert difference(log, kafka_broker) == EXACT


@proves("Kafka, exactly once")
def test_a_database_put_back_under_kafka_stops(
    make_log: Make,
    kafka_broker: KafkaBroker,
    postgres_server: PostgresServer,
    migrated_template: str,
) -> None:
    """LogBehind: a log of the same name that does not reach what Kafka holds."""
    log = make_log()
    log.publish(200)
    with closing(kafka_broker.sink()) as sink:
        assert Relay(log.url, SUBSCRIPTION, sink, backoff=FAST).run_for(60).drained
        url = postgres_server.create("put_back_under_kafka", migrated_template)
        try:
            with psycopg.connect(url, autocommit=True) as own:
                back = make_log(own, url)
                back.publish(100)
                result = Relay(url, SUBSCRIPTION, sink, backoff=FAST).run_for(1)
                assert (result.events, result.drained) == (0, False)
                assert result.last_error.startswith("LogBehind")
                assert "kafka of the relay" in result.last_error
        finally:
            postgres_server.drop("put_back_under_kafka")
    assert difference(log, kafka_broker) == EXACT


@proves("Kafka, exactly once")
def test_a_partition_that_lost_its_records_waits_for_a_person(
    make_log: Make, kafka_broker: KafkaBroker
) -> None:
    """The relay died before it could note what it had sent, and Kafka has deleted it."""
    log = make_log()
    log.publish(2_000)
    assert log.start("--crash", "after").wait(timeout=120) == -9
    with closing(kafka_broker.sink()) as sink:
        name = sink.settings.topic(log.topic)
        sent = [len(kafka_broker.read(name, each)) for each in range(PARTITIONS)]
        for partition in range(PARTITIONS):
            kafka_broker.empty(name, partition)
        said = ""
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:  # first the dead one's lease has to end
            said = Relay(log.url, SUBSCRIPTION, sink, backoff=FAST).run_for(0.5).last_error
        assert "penstock relay resolve" in said
        stands = stream.position(log.connection, SUBSCRIPTION, log.topic)
        for partition in range(PARTITIONS):
            if stands[partition] > sent[partition]:
                continue  # it had no open block, and has gone on
            was_sent = stands[partition] < sent[partition]
            with suppress(InvalidArgument):  # nor had this one
                resolve_block(log.connection, SUBSCRIPTION, log.topic, partition, was_sent=was_sent)
        assert Relay(log.url, SUBSCRIPTION, sink, backoff=FAST).run_for(60).drained
        for partition in range(PARTITIONS):
            found = kafka_broker.sequences(name, partition)
            assert found == list(range(sent[partition] + 1, 1_001))


@pytest.mark.long  # it needs both of the largest servers
@pytest.mark.spark
def test_over_the_executors_of_spark(
    make_log: Make, kafka_broker: KafkaBroker, spark: SparkSession
) -> None:
    """Each task is one more consumer of the subscription, with channels of its own."""
    log = make_log()
    log.publish(600)
    place = (MAIN, SUBSCRIPTION)
    setup = Setup(
        {MAIN: DatabaseAddress(log.url)}, (), {place: kafka_broker.address}, max_seconds=60
    )
    done = verbs.relay(setup, [place], engine=SPARK, spark=lambda: spark)
    assert sum(each.events for each in done) == 600
    assert difference(log, kafka_broker) == EXACT
