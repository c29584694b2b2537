"""A relay that leaves events out, or whose events choose their place: still exactly once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ops.relay import places
from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.sinks import redis_streams
from ops.sinks.address import open_sink
from ops.sinks.base import SinkUnavailable
from penstock import database, subscriptions
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import drain
from tests.kit.proof import proves
from tests.kit.sinks import relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease
from tests.relay.stores import Streams, StreamsServer, ids

#: What a person has put somewhere is not looked for: without this, it would be.
NOBODY_PUTS: Guard = {
    "postgres": ("standing_of", "p.reason IN ('start', 'seek')", "false"),
    "mysql": ("standing_of", "p.reason IN ('start', 'seek')", "FALSE"),
}


@pytest.fixture
def streams(streams_server: StreamsServer) -> Streams:
    """Streams that nobody else has."""
    return Streams(streams_server, uuid.uuid4().hex, STREAM)


def typed(own: Any, *types: str) -> None:
    """Events of these types in the only partition, numbered by the log."""
    publish_batch(own, [Message(STREAM, b"{}", type=each, partition=0) for each in types])
    drain(own)


def subscribed(own: Any) -> None:
    """An empty topic of one partition, and its subscription."""
    names.create_topic(own, STREAM, 1, create_namespaces=True)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])


def relayed(
    db: ContractDatabase, streams: Streams, rules: str, block: int = 4, seconds: float = 30
) -> RelayResult:
    """One run with blocks of so many events."""
    sink = open_sink(f"{streams.address}{rules}")
    sink.max_block_events = block
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST)
    try:
        return relay.run_for(seconds)
    finally:
        sink.close()


def failing(db: ContractDatabase, streams: Streams, rules: str) -> RelayResult:
    """Short runs, each longer than the one before, until one has failed."""
    for number in range(1, 40):
        result = relayed(db, streams, rules, seconds=0.1 * number)
        if result.failures:
            return result
    raise AssertionError("no run has failed")


def left_out(db: ContractDatabase) -> int:
    """What the database has counted."""
    ((found,),) = db.run("SELECT SUM(left_out) FROM penstock.relay_places")
    return int(found)


@proves("what rules leave out is no loss")
def test_blocks_of_which_nothing_is_sent_are_passed_and_counted(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    typed(own, "a", *"bbbbbbbbbbb", "a", *"bb")
    done = relayed(db, streams, "#type=a")
    assert (done.events, done.left_out, done.failures, done.drained) == (2, 13, 0, True)
    assert streams.ids() == ["1-1", "1-13"]
    typed(own, *"bbbb", *"bbbb", "a")  # a relay that knows nothing of the one before
    done = relayed(db, streams, "#type=a")
    assert (done.events, done.left_out, done.failures) == (1, 8, 0)
    assert streams.ids() == ["1-1", "1-13", "1-24"]
    assert left_out(db) == 21
    stream.unsubscribe(own, SUBSCRIPTION)
    assert count(db, "relay_places") == 0


@proves("what rules leave out is no loss")
def test_a_sink_that_has_lost_what_it_was_sent_is_still_told_and_filled(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    typed(own, "a", "b", "a", *"bbbbb")
    assert relayed(db, streams, "#type=a").events == 2
    streams.server.client.delete(streams.stream)
    typed(own, "a")
    stopped = failing(db, streams, "#type=a")
    assert "SinkBehind" in stopped.last_error
    assert streams.ids() == []
    assert relayed(db, streams, "?resend=true#type=a").drained
    assert streams.ids() == ["1-1", "1-3", "1-9"]


@proves("what rules leave out is no loss", guard="relay_places")
@pytest.mark.long_on("mysql")
def test_without_what_the_database_keeps_a_filter_would_look_like_a_loss(
    db: ContractDatabase, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places.PassedPlaces, "of", lambda *_: None)
    own = db.connect()
    subscribed(own)
    typed(own, "a", *"bbbbbbb", "a")
    assert "SinkBehind" in failing(db, streams, "#type=a").last_error


@proves("what rules leave out is no loss")
def test_a_filter_can_come_and_go(db: ContractDatabase, streams: Streams) -> None:
    """What a relay without rules has sent was sent: losing it shows."""
    own = db.connect()
    subscribed(own)
    typed(own, *"abab")
    relayed(db, streams, "#type=a")
    typed(own, *"abab")
    assert relayed(db, streams, "").events == 4
    typed(own, *"bbbb", "a")
    assert relayed(db, streams, "#type=a").events == 1
    assert streams.ids() == ["1-1", "1-3", *ids(5, 8), "1-13"]
    typed(own, *"ab")
    assert relayed(db, streams, "").events == 2
    streams.server.client.delete(streams.stream)
    typed(own, *"bbbba")
    assert "SinkBehind" in failing(db, streams, "#type=a").last_error


@pytest.mark.long_on("mysql")
def test_who_puts_the_subscription_somewhere_begins_there(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    typed(own, "a", *"bbbbbbb", "a", "b", "a")
    assert relayed(db, streams, "#type=a").events == 3
    streams.server.client.delete(streams.stream)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 2)
    assert relayed(db, streams, "#type=a").events == 2
    assert streams.ids() == ["1-9", "1-11"]


@proves("what rules leave out is no loss", guard="who put the position")
@pytest.mark.long_on("mysql")
def test_otherwise_it_would_look_for_what_was_sent_before(
    db: ContractDatabase, streams: Streams
) -> None:
    without(db, NOBODY_PUTS)
    own = db.connect()
    subscribed(own)
    typed(own, "a", *"bbbbbbb", "a", "b", "a")
    assert relayed(db, streams, "#type=a").events == 3
    streams.server.client.delete(streams.stream)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 2)
    assert "SinkBehind" in failing(db, streams, "#type=a").last_error


@proves("what rules leave out is no loss")
def test_a_relay_that_is_late_is_refused_and_a_successor_sends_its_block(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    typed(own, "a", *"bbb", *"bbbb", "b", "a", "b", "b")
    rules = "#type=a"
    late = open_sink(f"{streams.address}{rules}")
    late.max_block_events = 4
    member, lease = member_with_lease(own, "late")
    channels: list[Any] = []

    class Paused(redis_streams.RedisChannel):
        def send_block(self, block: Any) -> None:
            channels.append((self, block))
            raise SinkUnavailable("it sleeps")

    inner: Any = late
    inner._sink.open = lambda served: Paused(inner._sink, served, inner._sink._connect())
    stopped = relay_once(own, member, lease, late)
    assert stopped is not None
    assert stopped.error
    ((channel, block),) = channels
    channel.seen()
    end_lease(db, "late")
    assert relayed(db, streams, rules).events == 2
    with pytest.raises(SinkUnavailable, match="not at 0-0"):
        redis_streams.RedisChannel.send_block(channel, block)
    assert streams.ids() == ["1-1", "1-10"]
    late.close()


@proves("what rules leave out is no loss")
@pytest.mark.long_on("mysql")
def test_events_choose_their_streams_and_each_is_exact(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    typed(own, *"aaaabaaaaaab")
    assert relayed(db, streams, "#to=out.{type}").events == 12
    a, b = (f"{streams.prefix}:out.{each}:0" for each in "ab")
    entries = streams.server.entries
    assert [each for each, _ in entries(b)] == ["1-5", "1-12"]
    assert len(entries(a)) == 10
    streams.server.client.delete(b)  # one of the two has lost what it had
    typed(own, *"aaab")
    assert "SinkBehind" in failing(db, streams, "#to=out.{type}").last_error
    done = relayed(db, streams, "?resend=true#to=out.{type}")
    assert done.drained
    assert [each for each, _ in entries(b)] == ["1-5", "1-12", "1-16"]
    assert [each for each, _ in entries(a)] == [
        f"1-{each}" for each in range(1, 16) if each not in {5, 12}
    ]


@pytest.mark.long_on("mysql")
def test_an_event_without_what_a_template_names_is_a_dead_letter(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    subscribed(own)
    publish_batch(
        own, [Message(STREAM, b"{}", headers=each) for each in ({"t": "x"}, {}, {"t": "x"})]
    )
    drain(own)
    done = relayed(db, streams, "#to=out.{header:t}")
    assert (done.events, done.dead_letters) == (2, 1)
    (letter,) = subscriptions.dead_letters.dead_letters(own, SUBSCRIPTION)
    assert "no header t" in letter.reason


def test_a_partition_that_nobody_reads_has_no_places(db: ContractDatabase) -> None:
    own = db.connect()
    subscribed(own)
    asked = {"subscription": "nobody", "partition_id": 65536, "most_places": 10}
    assert database.call(own, "passed_places", **asked) == []
