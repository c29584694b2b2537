"""The cases.  Each gets a sink under test, and a topic of its own with one partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest

from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, EventRefused, RelayBlock, SinkMisconfigured, SinkUnavailable
from penstock.errors import SinkError
from penstock.log.restores import Seen
from penstock.subscriptions import stream
from penstock.topics import names
from penstock.upkeep.sequencing import sequence_round
from tests.consumers.process import until
from tests.kit.sinks import Alone, InFront
from tests.relay.blocks import block, event
from tests.relay.conformance.under_test import UnderTest

RELAY = "to-the-sink"


@dataclass(frozen=True)
class At:
    """A sink under test, and where in it."""

    under_test: UnderTest
    topic: str
    #: For a case that needs a log.
    request: pytest.FixtureRequest

    def relay(self) -> Alone:
        """Another relay process, whose sink takes the topic."""
        made = Alone(self.under_test.sink())
        made.preflight(self.topic, 1)
        return made

    def block(self, first: int, last: int, lease: int = 1, *, reopened: bool = False) -> RelayBlock:
        """A block of the topic."""
        return block(first, last, topic=self.topic, lease_epoch=lease, reopened=reopened)

    def require(self, last: int) -> None:
        """The sink holds all events up to here: once and in order, or at least once."""
        found = self.under_test.stored(self.topic, self.topic, 0)
        wanted = [(n, event(n, topic=self.topic).payload) for n in range(1, last + 1)]
        if self.under_test.exactly:
            assert found == wanted
        else:
            assert list(dict.fromkeys(found)) == wanted


def order(at: At) -> None:
    """Blocks follow each other, and the events of a key keep their order."""
    with closing(at.relay()) as relay:
        for first in (1, 41, 81):
            relay.send_block(at.block(first, first + 39))
    at.require(120)


def repeat(at: At) -> None:
    """A block that was sent and not committed is sent again by a successor."""
    with closing(at.relay()) as first, closing(at.relay()) as second:
        first.send_block(at.block(1, 40))
        second.send_block(at.block(1, 40, 2, reopened=True))
        second.send_block(at.block(41, 60, 2))
        second.send_block(at.block(41, 60, 2, reopened=True))
    at.require(60)


def late(at: At) -> None:
    """A relay wakes up when its successor is further; whatever it does, nothing is spoiled."""
    with closing(at.relay()) as first, closing(at.relay()) as second:
        first.send_block(at.block(1, 40))
        second.send_block(at.block(41, 60, 2))
        second.send_block(at.block(61, 80, 2))
        for again in (False, True):
            with suppress(SinkError):
                first.send_block(at.block(41, 60, reopened=again))
        with suppress(SinkUnavailable):  # the late one may have fenced it
            second.send_block(at.block(81, 90, 2))
        second.send_block(at.block(81, 90, 2, reopened=True))
    at.require(90)


def seen(at: At) -> None:
    """What the sink holds of this relay, and of no other."""
    with closing(at.relay()) as relay, closing(at.relay()) as other:
        assert other.seen(RELAY, at.topic, at.topic, 0) is None
        relay.send_block(at.block(1, 40))
        # It may not tell while the transaction of what is confirmed is being closed.
        told = until(lambda: other.seen(RELAY, at.topic, at.topic, 0), "it tells")
        assert told == Seen(40, 1)


def foreign(at: At) -> None:
    """Somebody else writes to the place: the relay stops and says so."""
    with closing(at.relay()) as relay:
        at.under_test.spoil(at.topic, at.topic)
        with pytest.raises(SinkMisconfigured):
            relay.send_block(at.block(1, 40))


def too_large(at: At) -> None:
    """The third of five is refused by its sequence, and nothing of the block is lost or doubled."""
    events = [event(n, topic=at.topic) for n in range(1, 6)]
    events[2] = event(3, topic=at.topic, payload=bytes(at.under_test.too_large()))
    whole = block(1, 5, topic=at.topic, events=tuple(events))
    left = block(1, 5, topic=at.topic, reopened=True, events=(*events[:2], *events[3:]))
    with closing(at.relay()) as relay:
        with pytest.raises(EventRefused) as refused:
            relay.send_block(whole)
        assert refused.value.sequence == 3
        relay.send_block(left)
    found = at.under_test.stored(at.topic, at.topic, 0)
    assert [sequence for sequence, _ in found] == [1, 2, 4, 5]


def unavailable(at: At) -> None:
    """Nobody answers: a typed error, and the block can be sent later."""
    with closing(Alone(open_sink(at.under_test.away))) as away, pytest.raises(SinkError):
        away.send_block(at.block(1, 40))
    with closing(at.relay()) as relay:
        relay.send_block(at.block(1, 40, reopened=True))
    at.require(40)


def throttled(at: At) -> None:
    """It is told to slow down: the block is sent later, when the sink has said if it says so."""
    with closing(at.relay()) as relay:
        relay.send_block(at.block(1, 40))
        with at.under_test.throttled() as (sink, seconds), closing(Alone(sink)) as slower:
            with pytest.raises(SinkUnavailable) as told:
                slower.send_block(at.block(41, 60))
            assert told.value.retry_after == seconds
        relay.send_block(at.block(41, 60, reopened=True))
    at.require(60)


def expired(at: At) -> None:
    """The login is not valid any more: the error says what to set, without the secret."""
    with closing(at.relay()) as relay:
        relay.send_block(at.block(1, 40))
        with at.under_test.expired() as (sink, secret), closing(Alone(sink)) as refused:
            with pytest.raises(SinkMisconfigured) as told:
                refused.send_block(at.block(41, 60))
            assert told.value.hint
            assert secret not in f"{told.value!r} {told.value} {told.value.hint}"
        relay.send_block(at.block(41, 60, reopened=True))
    at.require(60)


def back_pressure(at: At) -> None:
    """The sink takes no more, in the middle of a block; when it does, the rest goes."""
    with closing(at.relay()) as relay:
        relay.send_block(at.block(1, 40))
        with at.under_test.full(at.topic), pytest.raises(SinkUnavailable):
            relay.send_block(at.block(41, 100))
        relay.send_block(at.block(41, 100, reopened=True))
    at.require(100)


class _Stopping(InFront):
    """The relay is told to stop as soon as it sends a block."""

    def __init__(self, under_test: UnderTest) -> None:
        super().__init__(under_test.sink())
        self.max_block_events = 40
        self.stop = threading.Event()

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        self.stop.set()
        super().send_block(channel, block)


def shut_down(at: At) -> None:
    """A relay that is told to stop in the middle of a block finishes it, and its threads end."""
    connection = at.request.getfixturevalue("connection")
    url = at.request.getfixturevalue("database_url")
    names.create_topic(connection, at.topic, 1, create_namespaces=True)
    stream.subscribe(connection, RELAY, [at.topic])
    connection.execute(
        "SELECT penstock.publish(topic => %s, payload => convert_to(g::text, 'UTF8'), key => 'k')"
        " FROM generate_series(1, 120) AS g",
        (at.topic,),
    )
    sequence_round(connection, max_passes=100)
    known_as = names.describe_topic(connection, at.topic).known_as
    threads = threading.active_count()
    for done in (40, 80):
        stopping = _Stopping(at.under_test)
        with closing(stopping):
            Relay(url, RELAY, stopping, idle_seconds=0.05).run(stopping.stop)
        assert stream.position(connection, RELAY, at.topic) == {0: done}
        wanted = [(number, str(number).encode()) for number in range(1, done + 1)]
        assert at.under_test.stored(at.topic, known_as, 0) == wanted
    until(lambda: threading.active_count() <= threads, "the sink's threads have ended")


def closed(at: At) -> None:
    """An error in the middle of a block: its channel is closed, and nothing of it comes later."""
    events = [event(n, topic=at.topic) for n in range(1, 41)]
    odd = [*events[:20], event(21, topic=at.topic, type="\ud800"), *events[21:]]
    threads = threading.active_count()
    with closing(at.relay()) as relay:
        with pytest.raises(EventRefused) as refused:
            relay.send_block(block(1, 40, topic=at.topic, events=tuple(odd)))
        assert refused.value.sequence == 21
    with closing(at.relay()) as successor:
        successor.send_block(at.block(1, 40, 2, reopened=True))
    at.require(40)
    until(lambda: threading.active_count() <= threads, "the sink's threads have ended")


def preflight(at: At) -> None:
    """A place that is not set up is refused, and the error says what to set."""
    address, said = at.under_test.wrong(f"{at.topic}-wrong")
    with closing(open_sink(address)) as sink, pytest.raises(SinkMisconfigured) as refused:
        sink.preflight(f"{at.topic}-wrong", 1)
    assert said in str(refused.value)


#: By the names under which a sink says that it cannot have one.
CASES: dict[str, Callable[[At], None]] = {
    "order": order,
    "repeat of a block": repeat,
    "late relay": late,
    "what it has seen": seen,
    "foreign writer": foreign,
    "too large": too_large,
    "unavailable": unavailable,
    "throttled": throttled,
    "login expired": expired,
    "back pressure": back_pressure,
    "shut-down": shut_down,
    "closed after an error": closed,
    "preflight": preflight,
}
