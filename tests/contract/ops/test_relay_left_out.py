"""What a person has left out of a sink stays so, whatever becomes of the position's own row."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest

from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, EventRefused, RelayBlock
from penstock import database
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.contract.stream_kit import Guard, without
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.storage import cut
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more
from tests.relay.stores import Streams, StreamsServer, ids

FORGETS: Guard = {
    "postgres": ("carry_positions", "p.reason IN ('start', 'seek')", "false"),
    "mysql": ("carry_positions", "p.reason IN ('start', 'seek')", "FALSE"),
}
MOVES_ON: Guard = {
    "postgres": ("stay_put", "earlier.reason IN", "NOT earlier.reason IN"),
    "mysql": ("stay_put", "put_by IN", "NOT put_by IN"),
}


@pytest.fixture
def streams(streams_server: StreamsServer) -> Streams:
    """Streams that nobody else has."""
    return Streams(streams_server, uuid.uuid4().hex, STREAM)


class Refusing(InFront):
    """Refuses some events for ever."""

    def __init__(self, sink: Any, sequences: range) -> None:
        super().__init__(sink)
        self.max_block_events = 4
        self.sequences = sequences

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Refuse them one by one."""
        for each in block.events:
            if each.sequence in self.sequences:
                raise EventRefused(each.sequence, "poison")
        super().send_block(channel, block)


def relayed(
    db: ContractDatabase, streams: Streams, refused: range = range(0), options: str = ""
) -> RelayResult:
    """One run, until everything is sent or something has failed."""
    with closing(open_sink(f"{streams.address}{options}")) as sink:
        relay = Relay(db.url, SUBSCRIPTION, Refusing(sink, refused), backoff=FAST)
        for _ in range(100):
            result = relay.run_for(0.5)
            if result.failures or result.drained:
                return result
    raise AssertionError("nothing has happened")


def _filler(db: ContractDatabase, count: int) -> None:
    """Commits of somebody else."""
    for _ in range(count):
        db.run(
            "INSERT INTO penstock.positions"
            " (subscription_id, partition_id, position, lease_epoch, reason)"
            " VALUES (1000000, 1, 1, 0, 'commit')"
        )


def _carried(db: ContractDatabase, own: Any) -> None:
    """The slice of every position is full, and what it has is carried on."""
    _filler(db, 25)
    if db.engine == "postgres":
        cut(own, "positions", 20)
    else:
        ((newest,),) = db.run("SELECT MAX(id) FROM penstock.positions")
        db.run(
            "ALTER TABLE penstock.positions PARTITION BY RANGE (id) ("
            f"PARTITION old VALUES LESS THAN ({newest + 1}),"
            " PARTITION rest VALUES LESS THAN (1000000000))"
        )
    _filler(db, 1)
    ((carried,),) = database.call(own, "carry_positions", max_rows=10)
    assert carried >= 1


def _put(db: ContractDatabase, streams: Streams) -> Any:
    """The sink has 1 to 10. A person has left 11 to 15 out of it."""
    own = db.connect()
    filled(own)
    assert relayed(db, streams).events == 10
    more(own, events=10, start=11)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 16)
    return own


@proves("a sink that was changed is not continued")
def test_it_stays_left_out_when_its_slice_is_dropped(
    db: ContractDatabase, streams: Streams
) -> None:
    """Guard: carry_positions keeps who has put a position."""
    own = _put(db, streams)
    _carried(db, own)
    done = relayed(db, streams, options="?resend=true")
    assert (done.events, done.failures) == (5, 0)
    assert streams.ids() == [*ids(1, 10), *ids(16, 20)]


@proves("a sink that was changed is not continued", guard="carry_positions")
def test_without_its_reason_resend_would_bring_it(db: ContractDatabase, streams: Streams) -> None:
    without(db, FORGETS)
    own = _put(db, streams)
    _carried(db, own)
    relayed(db, streams, options="?resend=true")
    assert streams.ids() == ids(1, 20)


@proves("a sink that was changed is not continued")
def test_it_stays_left_out_when_the_next_block_is_given_up_whole(
    db: ContractDatabase, streams: Streams
) -> None:
    """Guard: stay_put. Nothing was sent since, so the sink was not asked where it ends."""
    own = _put(db, streams)
    more(own, events=4, start=21)
    done = relayed(db, streams, refused=range(16, 24), options="?resend=true")
    assert (done.events, done.dead_letters, done.failures) == (1, 8, 0)
    assert streams.ids() == [*ids(1, 10), "1-24"]
    streams.server.client.delete(streams.stream)
    more(own, events=1, start=25)
    assert relayed(db, streams, options="?resend=true").drained
    assert streams.ids() == [*ids(1, 10), *ids(24, 25)]


@proves("a sink that was changed is not continued", guard="stay_put")
def test_otherwise_a_healthy_sink_would_be_behind(db: ContractDatabase, streams: Streams) -> None:
    without(db, MOVES_ON)
    own = _put(db, streams)
    more(own, events=4, start=21)
    assert "SinkBehind" in relayed(db, streams, refused=range(16, 24)).last_error
