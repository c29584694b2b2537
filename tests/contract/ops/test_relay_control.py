"""Control of a relay: its pace, its breaker, what its status says, and a range sent once more."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.backfill.ranges import windows_of
from ops.backfill.requests import Window
from ops.relay import pace
from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.relay.status import relay_status
from ops.seal import seal
from ops.sinks.address import open_sink
from ops.sinks.base import SinkUnavailable
from ops.sinks.jsonl import JsonlSink
from ops.sinks.routed import routing_of
from penstock.errors import InvalidArgument, SubscriptionNotFound
from penstock.publishing.publish import publish
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.ops.test_relay import FAST
from tests.kit.log import drain, wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more
from tests.relay.stores import Streams, StreamsServer, ids


@pytest.fixture
def streams(streams_server: StreamsServer) -> Streams:
    """Streams that nobody else has."""
    return Streams(streams_server, uuid.uuid4().hex, STREAM)


class Clock:
    """Half a second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stands = False

    def __call__(self) -> float:
        self.now += 0.0 if self.stands else 0.5
        return self.now


class Away(InFront):
    """A sink that can be away."""

    def __init__(self, sink: Any) -> None:
        super().__init__(sink)
        self.routing = routing_of(sink)
        self.is_away = True
        self.asked = 0

    def send_block(self, channel: Any, block: Any) -> None:
        """Refuse while it is away."""
        self.asked += 1
        if self.is_away:
            raise SinkUnavailable("it is away")
        channel.send_block(block)


@proves("a relay keeps its pace")
@pytest.mark.long_on("mysql")
def test_a_rate_is_kept(db: ContractDatabase, streams: Streams) -> None:
    own = db.connect()
    filled(own, events=40)
    sink, clock = open_sink(f"{streams.address}#rate=4"), Clock()
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, clock=clock)
    done = relay.run_for(60)
    assert (done.events, done.drained) == (40, True)
    assert done.blocks >= 10  # each block has a second's events
    assert clock.now >= 9.0  # the first second is free
    assert streams.ids() == ids(1, 40)
    sink.close()


@proves("a relay keeps its pace")
def test_an_open_breaker_asks_the_sink_for_nothing_and_then_with_one_block(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    filled(own, partitions=3, events=4)
    sink, clock = Away(open_sink(f"{streams.address}#breaker=2&breaker_seconds=60")), Clock()
    clock.stands = True
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, clock=clock)
    with relay.keeper, relay.open() as connection:
        while relay._breaker.state != pace.OPEN:
            relay.turn(connection)
            relay._lanes.wait(0.05)
            clock.now += 0.01
        relay._finish(connection)
        relay._begins = True
        failed = sink.asked
        assert failed in {2, 3}  # what was under way ended too
        for _ in range(5):
            clock.now += 5
            relay.turn(connection)
        assert (sink.asked, relay._lanes.busy) == (failed, 0)
        (row, *_) = relay_status(own, SUBSCRIPTION)
        assert (row.breaker, row.lag_events) == ("open", 4)
        assert "it is away" in row.last_error
        clock.now += 60
        relay.turn(connection)
        assert (relay._breaker.state, relay._lanes.busy) == (pace.HALF_OPEN, 1)
        sink.is_away = False
        while any(each.lag_events for each in relay_status(own, SUBSCRIPTION)):
            relay.turn(connection)
            relay._lanes.wait(0.05)
            clock.now += 1
        relay.turn(connection)
        assert count(db, "relay_breakers") == 0
        relay._lanes.close()
    assert sink.asked == failed + 3
    sink.close()


class HalfAway(Away):
    """It takes what is of partition 0."""

    def __init__(self, sink: Any) -> None:
        super().__init__(sink)
        self.asked_for: set[int] = set()
        self.both = threading.Event()

    def send_block(self, channel: Any, block: Any) -> None:
        """Refuse the other partition while it is away."""
        self.asked_for.add(block.partition)
        if len(self.asked_for) == 2:
            self.both.set()
        if block.partition == 0:
            channel.send_block(block)
        else:
            super().send_block(channel, block)


def test_the_last_error_is_told_until_it_goes_on(db: ContractDatabase, tmp_path: Path) -> None:
    """By a relay that lives over several turns.  Guards: each condition in send_for."""
    own = db.connect()
    filled(own, partitions=2, events=2)
    sink, clock = HalfAway(JsonlSink(str(tmp_path))), Clock()
    clock.stands = True
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=Backoff(300, 300), clock=clock)
    with relay.joined() as connection:
        half = relay.send_for(connection, 30, stop=sink.both)
        assert (half.events, half.failures, half.drained) == (2, 1, False)
        assert half.last_error.endswith("it is away")
        assert relay.send_for(connection, 0).last_error.endswith("it is away")
        publish(own, STREAM, b"{}", partition=0)
        drain(own)
        wait_until(lambda: relay.send_for(connection, 0.1).events == 3, "it has gone on")
        assert (relay.stats.failures, relay.stats.last_error) == (1, "")
        sink.is_away = False
        clock.now += 400
        assert relay.send_for(connection, 30).drained
        relay.stats.last_error = "it is away"  # and others have sent what was left
        assert relay.send_for(connection, 0).last_error == ""


def test_the_status_says_how_far_how_fast_and_why(db: ContractDatabase, streams: Streams) -> None:
    own = db.connect()
    filled(own, events=10)
    sink = Away(open_sink(f"{streams.address}#type=moved"))
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST)
    assert relay.run_for(10).left_out == 10
    publish(own, STREAM, b"{}", type="moved", partition=0)
    drain(own)
    failing = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST)
    with failing.keeper, closing(failing._lanes), failing.open() as connection:
        while not failing.stats.failures:
            failing.turn(connection)
            failing._lanes.wait(0.05)
        failing._finish(connection)
    (row,) = relay_status(own, SUBSCRIPTION)
    assert (row.topic, row.partition, row.position, row.lag_events) == (STREAM, 0, 10, 1)
    assert (row.left_out, row.breaker) == (10, "closed")
    assert row.attempts >= 1
    assert row.last_error.startswith("SinkUnavailable: it is away") or "away" in row.last_error
    assert row.events_per_second > 0
    assert row.oldest_seconds >= 0
    with pytest.raises(SubscriptionNotFound):
        relay_status(own, "nobody")
    sink.close()


def test_a_range_is_named_by_sequences_positions_and_times(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own, events=10)
    seal(own, STREAM, max_events=5, max_age_seconds=None)
    ((reached,),) = db.run(
        "SELECT MAX(t.at) FROM (SELECT CURRENT_TIMESTAMP(6) AS at) AS t"
        if db.engine != "postgres"
        else "SELECT clock_timestamp()"
    )
    later = reached.replace(tzinfo=reached.tzinfo or dt.UTC) + dt.timedelta(seconds=0)
    more(own, events=5, start=11)
    assert windows_of(own, STREAM, begin="3", end="7") == [Window(0, 3, 7)]
    assert windows_of(own, STREAM) == [Window(0, 1, 15)]
    assert windows_of(own, STREAM, partition=0, begin="2.6", end="99") == [Window(0, 6, 15)]
    assert windows_of(own, STREAM, begin=later.isoformat()) == [Window(0, 11, 15)]
    assert windows_of(own, STREAM, end=later.isoformat()) == [Window(0, 1, 10)]
    for wrong, said in (
        ({"begin": "99"}, "no partition"),
        ({"begin": "2.6"}, "--partition"),
        ({"begin": "yesterday"}, "no time"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            windows_of(own, STREAM, **wrong)  # type: ignore[arg-type]
        assert said in str(refused.value)
    stream.unsubscribe(own, SUBSCRIPTION)
