"""A sink that has lost events: what is no gap, what is sent again, and what stops the relay."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from ops.relay.relay import Relay, RelayResult
from ops.seal import seal
from ops.sinks.address import open_sink
from penstock import database
from penstock.archive.targets import Target
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, without
from tests.kit.copies import copy_all, drop
from tests.kit.sinks import relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, more
from tests.relay.stores import Streams, StreamsServer, ids

#: A range is a gap also where a person has left it out.
NOBODY_MOVES: Guard = {
    "postgres": ("missing_events", "n.reason IN ('start', 'seek')", "false"),
    "mysql": ("missing_events", "put_by IN ('start', 'seek')", "FALSE"),
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
        result = relayed(db, streams, options, seconds=0.1, **more)
        if result.failures:
            return result
    raise AssertionError("no run has failed")


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


def test_what_a_person_has_left_out_is_no_gap(db: ContractDatabase, streams: Streams) -> None:
    own = db.connect()
    filled(own)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 4)
    assert relayed(db, streams).events == 7
    more(own, events=10, start=11)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 16)
    assert relayed(db, streams).drained
    assert streams.ids() == [*ids(4, 10), *ids(16, 20)]


def test_otherwise_a_seek_would_stop_the_relay(db: ContractDatabase, streams: Streams) -> None:
    without(db, NOBODY_MOVES)
    filled(db.connect())
    stream.seek(db.connect(), SUBSCRIPTION, STREAM, 0, 4)
    assert "SinkBehind" in failing(db, streams).last_error


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
    assert database.call(own, "missing_events", **asked) == [(0, 1)]
    assert database.call(own, "missing_events", **asked | {"subscription": "nobody"}) == []
