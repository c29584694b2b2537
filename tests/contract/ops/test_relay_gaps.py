"""A sink that has lost events: what is no gap, what is sent again, and what stops the relay."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.relay import block as block_module
from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.seal import seal
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, EventRefused, RelayBlock
from ops.sinks.redis_streams import RedisChannel
from penstock import database
from penstock.archive.targets import Target
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letters
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, without
from tests.kit.copies import copy_all, drop
from tests.kit.proof import proves
from tests.kit.sinks import InFront, relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, more
from tests.relay.stores import Streams, StreamsServer, ids

#: A range is a gap also where a person has left it out.
NOBODY_MOVES: Guard = {
    "postgres": ("missing_events", "n.reason IN ('start', 'seek')", "false"),
    "mysql": ("missing_events", "put_by IN ('start', 'seek')", "FALSE"),
}


#: What a person has left out is not recorded.
NOT_LEFT_OUT: Guard = {
    "postgres": ("leave_out", "VALUES (owner.id, leave_out.part", "VALUES (-1, leave_out.part"),
    "mysql": ("leave_out", "VALUES (owner_id, partition_id,", "VALUES (-1, partition_id,"),
}


@pytest.fixture
def streams(streams_server: StreamsServer) -> Streams:
    """Streams that nobody else has."""
    return Streams(streams_server, uuid.uuid4().hex, STREAM)


def relayed(
    db: ContractDatabase, streams: Streams, options: str = "", seconds: float = 30, **more: Any
) -> RelayResult:
    """One run."""
    sink = open_sink(f"{streams.address}{options}")
    sink.max_block_events = 4
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, **more)
    try:
        return relay.run_for(seconds)
    finally:
        sink.close()


def failing(db: ContractDatabase, streams: Streams, options: str = "", **more: Any) -> RelayResult:
    """Short runs, until one has failed."""
    for _ in range(100):
        result = relayed(db, streams, options, seconds=0.5, **more)
        if result.failures:
            return result
    raise AssertionError("no run has failed")


@proves("a sink that was changed is not continued")
def test_a_lost_sink_stops_the_relay_and_resend_brings_everything_again(
    db: ContractDatabase, streams: Streams
) -> None:
    own = db.connect()
    filled(own)
    assert relayed(db, streams).events == 10
    streams.server.client.delete(streams.stream)
    assert relayed(db, streams).drained  # nothing is to be sent, so nothing is looked for
    more(own, events=5, start=11)
    stopped = failing(db, streams)
    assert (stopped.events, stopped.drained) == (0, False)
    assert "SinkBehind" in stopped.last_error
    assert "resend=true" in stopped.last_error
    assert streams.ids() == []
    done = relayed(db, streams, "?resend=true")
    assert (done.events, done.failures, done.drained) == (5, 0, True)
    assert streams.ids() == ids(1, 15)
    assert [fields[b"data"] for _, fields in streams.server.entries(streams.stream)] == [
        b"%d" % number for number in range(1, 16)
    ]


class Refusing(InFront):
    """Takes an event the first time, and never again: its server was set up anew."""

    def __init__(self, sink: Any, sequence: int) -> None:
        super().__init__(sink)
        self.max_block_events = 4
        self.sequence = sequence

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Refuse it by its sequence."""
        if any(each.sequence == self.sequence for each in block.events):
            raise EventRefused(self.sequence, "too large now")
        super().send_block(channel, block)


def _refused_again(db: ContractDatabase, streams: Streams, targets: Sequence[Target] = ()) -> None:
    own = db.connect()
    streams.server.client.delete(streams.stream)
    more(own, events=1, start=21)
    with closing(open_sink(f"{streams.address}?resend=true")) as sink:
        relay = Relay(db.url, SUBSCRIPTION, Refusing(sink, 3), backoff=FAST, archive=targets)
        done = relay.run_for(30)
    assert (done.dead_letters, done.failures, done.drained) == (1, 0, True)
    assert streams.ids() == [*ids(1, 2), *ids(4, 21)]
    (letter,) = dead_letters(own, SUBSCRIPTION)
    assert (letter.sequence, letter.reason) == (3, "too large now")


@proves("a sink that was changed is not continued")
def test_an_event_that_is_refused_when_it_is_sent_again_is_a_dead_letter(
    db: ContractDatabase, streams: Streams
) -> None:
    """Guard: BlockWork.refused looks at the part that was sent."""
    filled(db.connect(), events=20)
    assert relayed(db, streams).events == 20
    _refused_again(db, streams)


def test_it_reads_what_is_sent_again_from_the_archive(
    db: ContractDatabase, streams: Streams, tmp_path: Path
) -> None:
    own = db.connect()
    filled(own)
    more(own, events=5, start=11)
    assert relayed(db, streams).events == 15
    target = Target("one", str(tmp_path / "archive"))
    seal(own, STREAM, max_events=5, max_age_seconds=None)
    copy_all(own, STREAM, target)
    database.call(own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=1,
                  max_bytes=None, origin="hand", targets=["one"])  # fmt: skip
    drop(own, STREAM, [target])
    assert dict(database.call(own, "low_sequences", topic=STREAM)) == {0: 16}
    more(own, events=5, start=16)
    streams.server.client.delete(streams.stream)
    lacking = failing(db, streams, "?resend=true")
    assert not lacking.drained
    assert streams.ids() == []
    assert relayed(db, streams, "?resend=true", archive=[target]).drained
    assert streams.ids() == ids(1, 20)
    _refused_again(db, streams, [target])


class Counting(InFront):
    """What it is sent, in parts of so many bytes."""

    def __init__(self, sink: Any) -> None:
        super().__init__(sink)
        self.max_block_bytes = 5
        self.ranges: list[tuple[int, int]] = []

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Note it."""
        self.ranges.append((block.first_sequence, block.last_sequence))
        super().send_block(channel, block)


def test_what_is_sent_again_has_no_more_bytes_than_a_block(
    db: ContractDatabase, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: _end_within. At least one event is in each, and few are read at a time."""
    monkeypatch.setattr(block_module, "_PIECE", 3)
    own = db.connect()
    filled(own, events=13)  # payloads of one byte, then of two
    assert relayed(db, streams).events == 13
    streams.server.client.delete(streams.stream)
    more(own, events=1, start=14)
    with closing(open_sink(f"{streams.address}?resend=true")) as sink:
        counting = Counting(sink)
        assert Relay(db.url, SUBSCRIPTION, counting, backoff=FAST).run_for(30).drained
    assert streams.ids() == ids(1, 14)
    # The first one finds the gap; the block itself comes last.
    assert counting.ranges == [(14, 14), (1, 5), (6, 9), (10, 11), (12, 13), (14, 14)]


@proves("a sink that was changed is not continued")
def test_what_a_person_has_left_out_is_no_gap(
    db: ContractDatabase, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink is told in a thread of the relay, so other partitions do not wait for it."""
    threads: list[str] = []
    skip = RedisChannel._skip

    def skipping(*given: Any) -> None:
        threads.append(threading.current_thread().name)
        skip(*given)

    monkeypatch.setattr(RedisChannel, "_skip", skipping)
    own = db.connect()
    filled(own)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 4)
    assert relayed(db, streams).events == 7
    more(own, events=10, start=11)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 16)
    assert relayed(db, streams).drained
    assert streams.ids() == [*ids(4, 10), *ids(16, 20)]
    assert threads == ["relay", "relay"]


def _left_out_and_lost(db: ContractDatabase, streams: Streams) -> Any:
    """A person has left out 1 to 3 and 11 to 15. Then the sink loses everything."""
    own = db.connect()
    filled(own)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 4)
    assert relayed(db, streams).events == 7
    more(own, events=10, start=11)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 16)
    assert relayed(db, streams).events == 5
    streams.server.client.delete(streams.stream)
    more(own, events=1, start=21)
    return own


@proves("a sink that was changed is not continued")
def test_what_a_seek_has_left_out_is_not_sent_after_a_later_loss(
    db: ContractDatabase, streams: Streams
) -> None:
    """Guard: the ranges that leave_out records. A seek back sends what lies after it."""
    own = _left_out_and_lost(db, streams)
    assert relayed(db, streams, "?resend=true").drained
    assert streams.ids() == [*ids(4, 10), *ids(16, 21)]
    streams.server.client.delete(streams.stream)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 13)
    more(own, events=1, start=22)
    assert relayed(db, streams, "?resend=true").drained
    assert streams.ids() == ids(13, 22)
    ranges = db.run("SELECT first_sequence, last_sequence FROM penstock.left_out")
    assert [tuple(each) for each in ranges] == [(1, 12)]


@proves("a sink that was changed is not continued", guard="who moved it")
def test_without_the_record_a_later_loss_would_bring_it(
    db: ContractDatabase, streams: Streams
) -> None:
    without(db, NOT_LEFT_OUT)
    _left_out_and_lost(db, streams)
    with pytest.raises(AssertionError, match="assert"):
        assert relayed(db, streams, "?resend=true").drained
        assert streams.ids() == [*ids(4, 10), *ids(16, 21)]


@proves("a sink that was changed is not continued", guard="who moved it")
def test_otherwise_a_seek_would_stop_the_relay(db: ContractDatabase, streams: Streams) -> None:
    without(db, NOBODY_MOVES)
    filled(db.connect())
    stream.seek(db.connect(), SUBSCRIPTION, STREAM, 0, 4)
    assert "SinkBehind" in failing(db, streams).last_error


@pytest.mark.mariadb_differs("what calls missing_events there")
def test_dead_letters_are_no_gap(db: ContractDatabase, streams: Streams) -> None:
    """The sink has never had them, and it was emptied since."""
    own = db.connect()
    filled(own, events=4)
    member, lease = member_with_lease(own, "a")
    database.call(own, "dead_letter", subscription=SUBSCRIPTION, consumer=member.consumer,
                  partition_id=lease.partition_id, lease_epoch=lease.lease_epoch, sequence=2,
                  reason="poison")  # fmt: skip
    sink = streams.sink("?resend=true")
    relay_once(own, member, lease, sink)
    assert streams.ids() == ["1-1", *ids(3, 4)]
    streams.server.client.delete(streams.stream)
    more(own, events=1, start=5)
    relay_once(own, member, lease, sink)
    assert streams.ids() == ["1-1", *ids(3, 5)]
    sink.close()
    place = {"partition_id": lease.partition_id, "first_sequence": 2, "last_sequence": 2}
    asked = {"subscription": SUBSCRIPTION, **place}
    assert database.call(own, "missing_events", **asked) == [(0, 1, False)]
    assert database.call(own, "missing_events", **asked | {"subscription": "nobody"}) == []
