"""Relays of a subscription to a real Pulsar broker, under kills; and the textbook relay, caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks.base import SinkMisconfigured
from penstock.log.histories import reconcile
from penstock.subscriptions import stream
from tests.kit.sinks import Alone
from tests.relay.chaos import PARTITIONS, SUBSCRIPTION, Chaos, Difference, Stuck, chaos, compare
from tests.relay.pulsar_broker import Broker

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

Make = Callable[..., Chaos]

EXACT = Difference(lost=0, doubled=0, in_order=True)


@pytest.fixture
def make_log(
    connection: psycopg.Connection[Any], database_url: str, broker: Broker, topic: str
) -> Iterator[Make]:
    """Makes the log whose relay writes to Pulsar."""
    with ExitStack() as stack:

        def make(**fields: Any) -> Chaos:
            sink = broker.sink()
            sink.preflight(topic, PARTITIONS)
            return stack.enter_context(
                chaos(connection, database_url, topic=topic, sink=broker.address, **fields)
            )

        yield make


def difference(log: Chaos, broker: Broker) -> Difference:
    """What Pulsar holds, against the log."""
    total = Difference(0, 0, True)
    target = broker.sink().pulsar_topic(log.topic)
    for partition in range(PARTITIONS):
        found = [
            (int(message.properties()["ce_sequence"]), message.data())
            for message in broker.read(target, partition)
        ]
        here = compare(log.expected(partition), found)
        total = Difference(
            total.lost + here.lost,
            total.doubled + here.doubled,
            total.in_order and here.in_order,
        )
    return total


def test_killed_twice_and_still_exactly_once(make_log: Make, broker: Broker) -> None:
    log = make_log()
    log.publish(8_000)
    log.run(kills=2, pauses=1)
    assert (log.kills, log.pauses) == (2, 1)
    assert difference(log, broker) == EXACT


def crash_after_sending(log: Chaos) -> None:
    """The relay dies when its third block is stored and not committed; meanwhile the log grows."""
    log.publish(4000)
    first = log.start("--crash", "after")
    assert first.wait(timeout=120) == -9
    log.publish(2000)


def test_a_block_that_was_open_when_a_history_began(make_log: Make, broker: Broker) -> None:
    """Nothing was lost, and Pulsar holds it once, though the producer has another name."""
    log = make_log()
    crash_after_sending(log)
    reconcile(log.connection, "a test")
    relay = log.start()
    log.until_done(log.published, relay)
    assert difference(log, broker) == EXACT


@pytest.mark.parametrize("options", [[], ["--blind"]], ids=["looking", "blind"])
def test_the_successor_sends_the_recorded_block(
    make_log: Make, broker: Broker, options: list[str]
) -> None:
    """Two things make it exact, and each alone would: the record, and the look at what is there."""
    log = make_log()
    crash_after_sending(log)
    relay = log.start(*options)
    log.until_done(log.published, relay)
    assert difference(log, broker) == EXACT


def test_without_the_record_a_successor_is_not_exact(make_log: Make, broker: Broker) -> None:
    """The guard of the test above: what is not recorded is cut elsewhere."""
    log = make_log(timeout=10)
    crash_after_sending(log)
    log.connection.execute("DELETE FROM penstock.blocks")
    with suppress(Stuck):
        log.until_done(log.published, log.start("--blind"))
    assert not difference(log, broker).exact


@pytest.mark.long
def test_the_textbook_relay_is_caught_by_one_kill(make_log: Make, broker: Broker) -> None:
    """Sequence ids and default batching, in the same place of the same work."""
    log = make_log(textbook=True)
    log.publish(4000)
    first = log.start("--crash", "after")
    assert first.wait(timeout=120) == -9
    log.publish(2000)
    log.until_done(log.published, log.start())
    found = difference(log, broker)
    assert not found.exact, found


def test_a_relay_does_not_start_where_deduplication_is_off(
    make_log: Make, broker: Broker, pulsar_sink: Callable[..., Alone]
) -> None:
    log = make_log()
    log.publish(10)
    sink = pulsar_sink()
    path = sink.pulsar_topic(log.topic).replace("://", "/")
    broker.admin("POST", f"{path}/deduplicationEnabled", False)
    relay = Relay(log.url, SUBSCRIPTION, sink, backoff=Backoff(0.01, 0.1))
    with pytest.raises(SinkMisconfigured, match="deduplication is off"):
        relay.run_for(10)
    assert log.done() == 0
    assert broker.sequences(sink.pulsar_topic(log.topic), 0) == []


def test_a_subscription_that_was_moved_back_doubles_nothing(
    make_log: Make, broker: Broker, pulsar_sink: Callable[..., Alone]
) -> None:
    log = make_log()
    log.publish(200)
    sink = pulsar_sink()
    assert Relay(log.url, SUBSCRIPTION, sink).run_for(30).drained
    stream.seek(log.connection, SUBSCRIPTION, log.topic, 0, 10)
    assert Relay(log.url, SUBSCRIPTION, sink).run_for(30).drained
    assert difference(log, broker) == EXACT
    # Further back than a block: what Pulsar holds could be anything, so it stops and says so.
    stream.seek(log.connection, SUBSCRIPTION, log.topic, 0, 30)
    sink.max_block_events = 20
    result = Relay(log.url, SUBSCRIPTION, sink, backoff=Backoff(0.01, 0.1)).run_for(2)
    assert (result.events, result.drained) == (0, False)
    assert result.failures > 1
    assert "holds sequence 100" in result.last_error
    assert difference(log, broker) == EXACT


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_thousand_events_and_ten_kills(make_log: Make, broker: Broker, seed: int) -> None:
    log = make_log(seed=seed, timeout=300)
    log.publish(100_000)
    log.run(kills=10, pauses=3 if seed == 2 else 0)
    assert log.kills == 10
    assert difference(log, broker) == EXACT


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_textbook_relay_under_ten_kills(make_log: Make, broker: Broker) -> None:
    log = make_log(textbook=True, timeout=300)
    log.publish(100_000)
    log.run(kills=10)
    found = difference(log, broker)
    assert not found.exact, found
