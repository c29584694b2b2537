"""Blocks and relays on every engine: recorded, sent, committed; refused, failed, taken over."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ops.relay.block import Backoff, resolve_block
from ops.relay.relay import Relay
from ops.sinks.base import Channel, EventRefused, RelayBlock, SinkPaused, SinkUnavailable
from ops.sinks.jsonl import JsonlSink
from penstock import database
from penstock.errors import BelowLowSequence, InvalidArgument, StaleLease
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letters
from penstock.subscriptions.overview import describe_subscription
from penstock.subscriptions.stream import Membership
from penstock.upkeep.sweeping import sweep
from tests import command
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront, relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, holders, member_with_lease, more, stored

FAST = Backoff(base_seconds=0.01, max_seconds=0.05)

EVERY_BLOCK_ANEW: Guard = {
    "postgres": ("open_block", "IF NOT was_open THEN", "was_open := false; IF true THEN"),
    "mysql": ("open_block", "SET was_open = block IS NOT NULL;", "SET was_open = FALSE;"),
}


#: A block counts as open wherever the position stands before it again.
OPEN_AGAIN: Guard = {
    "postgres": ("move_position", "IF wanted < stood_at THEN", "IF false THEN"),
    "mysql": ("move_position", "IF wanted < stood_at THEN", "IF FALSE THEN"),
}


class Scripted(InFront):
    """A sink that does what the test says, in front of a real one."""

    def __init__(self, folder: Path) -> None:
        self.files = JsonlSink(str(folder))
        super().__init__(self.files)
        self.name = "scripted"
        self.max_block_events = 4
        self.raises: list[Exception] = []
        self.refuses: set[int] = set()
        self.blocks: list[RelayBlock] = []

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Raise what is next, refuse what is poison, else as the sink."""
        self.blocks.append(block)
        if self.raises:
            raise self.raises.pop(0)
        for event in block.events:
            if event.sequence in self.refuses:
                raise EventRefused(event.sequence, "poison")
        channel.send_block(block)

    def written(self, partition: int = 0) -> list[tuple[int, int]]:
        """Sequence and number of every event, in the order of the file."""
        files = self.files.directory.glob(f"*.{partition}.jsonl")
        lines = [line for file in files for line in file.read_bytes().splitlines()]
        found = [json.loads(line) for line in lines]
        return [(int(f["sequence"]), int(base64.b64decode(f["data_base64"]))) for f in found]


@pytest.fixture
def sink(tmp_path: Path) -> Scripted:
    """It writes to files."""
    return Scripted(tmp_path / "out")


def _fence(member: Membership, lease: Lease) -> dict[str, Any]:
    return {
        "subscription": member.subscription,
        "consumer": member.consumer,
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }


def _open(
    connection: Any, member: Membership, lease: Lease, max_events: int = 4, max_bytes: int = 1 << 20
) -> tuple[Any, ...]:
    (row,) = database.call(
        connection,
        "open_block",
        **_fence(member, lease),
        max_events=max_events,
        max_bytes=max_bytes,
    )
    return row[1:5]


def _taken_over_block(db: ContractDatabase) -> list[tuple[Any, ...]]:
    """A block is open when its relay dies; the successor would cut it elsewhere."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    found = [_open(own, member, lease)]
    end_lease(db, "a")
    successor, again = member_with_lease(own, "b")
    found.append(_open(own, successor, again, max_events=7))
    return found


def test_a_successor_finds_the_open_block(db: ContractDatabase) -> None:
    """Guard: what was written down before it was sent."""
    assert _taken_over_block(db) == [(1, 4, False, 1), (1, 4, True, 1)]


def test_without_it_the_successor_cuts_another_one(db: ContractDatabase) -> None:
    """Mutant: the newest block is not looked at."""
    without(db, EVERY_BLOCK_ANEW)
    assert _taken_over_block(db)[1][:2] == (1, 7)


def test_blocks_are_bounded_by_events_and_bytes(db: ContractDatabase) -> None:
    """At least one event, whatever its size; nothing when nothing is there."""
    own = db.connect()
    filled(own)  # nine payloads of one byte, and one of two
    member, lease = member_with_lease(own, "a")
    assert _open(own, member, lease, max_events=100, max_bytes=3)[:2] == (1, 3)
    stream.commit(own, member, [(lease, 3)])
    assert _open(own, member, lease, max_events=100, max_bytes=0)[:2] == (4, 4)
    stream.commit(own, member, [(lease, 4)])
    assert _open(own, member, lease, max_events=100)[:2] == (5, 10)
    stream.commit(own, member, [(lease, 10)])
    fence = _fence(member, lease)
    assert database.call(own, "open_block", **fence, max_events=9, max_bytes=9) == []
    more(own, events=1, start=11)
    assert _open(own, member, lease)[:2] == (11, 11)


def test_a_block_below_the_low_sequence_is_a_typed_error(db: ContractDatabase) -> None:
    """Guard: require_readable."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    db.run("UPDATE penstock.partitions SET low_sequence = 4")
    with pytest.raises(BelowLowSequence):
        _open(own, member, lease)


def test_who_lost_the_lease_opens_counts_and_gives_up_nothing(db: ContractDatabase) -> None:
    """Guard: the fence in each of the calls."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 1)
    fence = _fence(member, lease)
    for name, binds in (
        ("open_block", {"max_events": 1, "max_bytes": 1}),
        ("relay_failure", {"block_id": 1, "error": "x", "base_seconds": 1, "max_seconds": 2}),
        ("dead_letter", {"sequence": 1, "reason": "x"}),
    ):
        with pytest.raises(StaleLease):
            database.call(own, name, **fence, **binds)
    assert (count(db, "blocks"), count(db, "relay_failures"), count(db, "dead_letters")) == (0,) * 3


def _open_and_lost(db: ContractDatabase) -> tuple[Any, Membership, Lease]:
    """A block of four is open, and its sink has lost what it knew of it."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    assert _open(own, member, lease) == (1, 4, False, 1)
    return own, member, lease


@proves("Kafka, exactly once")
@pytest.mark.parametrize(
    "case", [("sent", 4, (5, 10)), ("not-sent", 0, (1, 7))], ids=["sent", "not-sent"]
)
def test_a_person_says_whether_a_block_was_sent(
    db: ContractDatabase,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, int, tuple[int, int]],
) -> None:
    """Either way it is not open any more: what comes next is a new block."""
    sent, position, block = case
    own, member, lease = _open_and_lost(db)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    said = command.run(capsys, "relay", "resolve", SUBSCRIPTION, STREAM, "0", f"--{sent}")
    assert said.code == 0, said.err
    assert f"is at position {position}" in said.err
    with pytest.raises(InvalidArgument, match=r"no block .* is open"):
        resolve_block(own, SUBSCRIPTION, STREAM, 0, was_sent=True)
    with pytest.raises(StaleLease):  # Guard: whoever held the lease does not send it meanwhile
        _open(own, member, lease)
    (lease,) = stream.check_in(own, member)
    assert _open(own, member, lease, max_events=7) == (*block, False, 1)


def test_dead_letters_are_copies_and_leave_the_block(db: ContractDatabase) -> None:
    """Given up once, however often; the block is read without it."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    _open(own, member, lease)
    for _ in range(2):
        database.call(own, "dead_letter", **_fence(member, lease), sequence=3, reason="r" * 3_000)
    (dead,) = dead_letters(own, SUBSCRIPTION)
    assert (dead.topic, dead.partition, dead.sequence, dead.reason) == (STREAM, 0, 3, "r" * 2_000)
    ((_, events),) = stream.poll(own, member, [lease], 3)
    assert str(dead.event_id) == str(events[2].event_id)
    binds = {"partition_id": lease.partition_id, "first_sequence": 1, "last_sequence": 4}
    rows = database.call(own, "read_block", subscription=SUBSCRIPTION, **binds)
    assert [row[0] for row in rows] == [1, 2, 4]
    assert database.call(own, "read_block", subscription="nobody", **binds) == []


def test_the_backoff_grows_and_is_bounded(db: ContractDatabase, sink: Scripted) -> None:
    """Counted by the database, with up to a half taken off."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    sink.raises = [SinkUnavailable("away")] * 8
    for attempt in range(8):
        result = relay_once(own, member, lease, sink, Backoff(1, 20))
        assert result is not None
        assert result.retry_after is not None
        assert min(2.0**attempt, 20) / 2 <= result.retry_after <= min(2.0**attempt, 20)
    assert {(block.first_sequence, block.last_sequence) for block in sink.blocks} == {(1, 4)}
    assert stored(own) == 0


def test_a_sink_says_when_to_come_again_and_asks_for_a_pause(
    db: ContractDatabase, sink: Scripted
) -> None:
    """Guards: retry_after instead of the backoff; SinkPaused pauses the subscription."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    sink.raises = [SinkUnavailable("busy", retry_after=77.5), SinkPaused("gone\n" + "x" * 2_000)]
    first = relay_once(own, member, lease, sink, FAST)
    assert first is not None and first.retry_after == 77.5
    relay_once(own, member, lease, sink, FAST)
    found = describe_subscription(own, SUBSCRIPTION)
    assert found.paused_at is not None
    assert (found.paused_reason or "").startswith("the sink asked for it: gone")


def test_whatever_a_sink_says_is_counted_and_waited_for(
    db: ContractDatabase, sink: Scripted
) -> None:
    """Guards: the text of an error can be stored; who says "at once" is not asked in a loop."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    sink.raises = [SinkUnavailable("a\x00b \ud800", retry_after=0.0)]
    failed = relay_once(own, member, lease, sink, FAST)
    assert failed is not None and failed.retry_after == FAST.base_seconds
    assert "a\ufffdb" in failed.error


def test_a_relay_carries_everything_once_and_in_order(db: ContractDatabase, sink: Scripted) -> None:
    """Failures and refusals among it."""
    own = db.connect()
    filled(own, partitions=2, events=25)
    sink.raises = [SinkUnavailable("away"), ValueError("a bug")]
    sink.refuses = {3, 17}
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST)
    result = relay.run_for(30)
    assert (result.events, result.dead_letters, result.failures) == (46, 4, 2)
    assert result.drained
    for partition in range(2):
        assert sink.written(partition) == [
            (number, number) for number in range(1, 26) if number not in sink.refuses
        ]
    assert len(dead_letters(own, SUBSCRIPTION)) == 4


def test_the_continuous_form_follows_and_ends(db: ContractDatabase, sink: Scripted) -> None:
    """Also where nobody can be woken."""
    own = db.connect()
    filled(own, events=5)
    relay = Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, idle_seconds=0.05)
    stop = threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    try:
        for start in (6, 11):
            wait_until(lambda: stored(own) == start - 1, "all were sent")  # noqa: B023
            more(own, events=5, start=start)
        wait_until(lambda: stored(own) == 15, "the last ones were sent")
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert sink.written() == [(number, number) for number in range(1, 16)]


def test_sweep_frees_what_a_dead_relay_held(db: ContractDatabase) -> None:
    """Once."""
    own = db.connect()
    filled(own)
    member_with_lease(own, "a")
    end_lease(db, "a")
    assert sweep(own).expired_consumers == 1
    assert sweep(own).expired_consumers == 0
    assert holders(own) == {}


def _sent_once_more(db: ContractDatabase, sink: Scripted) -> tuple[bool, int]:
    """A seek to where the newest block begins, which has had a failure.  Reopened, and its end."""
    own = db.connect()
    filled(own, events=8)
    sink.raises = [SinkUnavailable("away")]
    assert Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(60).drained
    stream.seek(own, SUBSCRIPTION, STREAM, 0, sink.blocks[-1].first_sequence)
    sink.max_block_events = 2
    assert Relay(db.url, SUBSCRIPTION, sink, backoff=FAST).run_for(60).drained
    again = next(each for each in sink.blocks[3:] if each.first_sequence == 5)
    return again.reopened, again.last_sequence


def test_a_seek_to_the_newest_block_does_not_open_it_again(
    db: ContractDatabase, sink: Scripted
) -> None:
    """It was committed, so what is sent from there is a new block, without the old attempts."""
    assert _sent_once_more(db, sink) == (False, 6)


def test_otherwise_it_would_be_sent_as_it_was(db: ContractDatabase, sink: Scripted) -> None:
    without(db, OPEN_AGAIN)
    assert _sent_once_more(db, sink) == (True, 8)
