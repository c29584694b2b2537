"""Who stands below the low sequence: an error or the archive, and retention waits or records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ops.seal import seal
from penstock import database, subscriptions
from penstock.archive.targets import Target
from penstock.consumer.stream.cold_reads import ColdReads
from penstock.errors import BelowLowSequence, WrongMode
from penstock.leases.coordination import marks
from penstock.log.bookmarks import place_bookmark
from penstock.records import Lease
from penstock.subscriptions import policies, queue, stream
from penstock.topics import names
from tests.contract.consumer.test_consumer_archive import archived, cold, publish
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST, Scripted
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.cleaning import clean_unread
from tests.kit.copies import copy_all
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.queue import pass_time
from tests.kit.sinks import relay_once
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease, slow_leases, stored

DAY = 86_400.0
HELD = (
    f'subscription "{SUBSCRIPTION}" stands at 0, log epoch 3 ends at 30; it stands below the low'
    " sequence, and nobody who holds the partition reads the archive"
)

#: A queue may begin where only the archive has events.
ANY_START: Guard = {
    "postgres": ("subscribe", "PERFORM require_start_of_queue(owner_id, source_id);", ""),
    "mysql": ("add_topic", "CALL require_start_of_queue(owner_id, part_id, wanted);", ""),
}
#: Whoever stands below the low sequence reads the archive.
ANY_READER: Guard = {
    "postgres": ("can_read_archive", "a.lease_epoch = l.lease_epoch", "true"),
    "mysql": ("can_read_archive", "a.lease_epoch = l.lease_epoch", "TRUE"),
}
#: A queue passes over what was dropped and says nothing.
SILENT: Guard = {
    "postgres": ("undealt_parts", "WHERE n.reached < n.low_sequence - 1", "WHERE false"),
    "mysql": ("undealt_parts", "AND reached < low - 1 THEN", "AND FALSE THEN"),
}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An archive target."""
    return Target("one", str(tmp_path / "one"))


def low(own: Any) -> int:
    """The low sequence."""
    return dict(database.call(own, "low_sequences", topic=STREAM))[0]


def received(own: Any) -> list[int]:
    """All that a queue hands out."""
    found: list[int] = []
    while True:
        pass_time(own, 1)
        deliveries = queue.receive(own, "late", 100)
        if not deliveries:
            return found
        found += [each.event.sequence for each in deliveries]
        queue.acknowledge(own, "late", [each.receipt for each in deliveries])


def late_queue(db: ContractDatabase, own: Any) -> None:
    """A queue that stands at the beginning, as an earlier version let one begin there."""
    queue.subscribe(own, "late", [STREAM])
    db.run("UPDATE penstock.positions SET position = 0 WHERE position = 20")


@proves("D5, D9 below the low sequence")
def test_a_queue_cannot_begin_where_only_the_archive_has_events(
    db: ContractDatabase, target: Target
) -> None:
    """No queue reads the archive.  Refused as a whole; a stream may begin there."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    place_bookmark(own, STREAM, "then", 3)
    for start in ("1", "2.15", "bookmark:then", f"subscription:{SUBSCRIPTION}"):
        with pytest.raises(BelowLowSequence, match="a queue reads nothing from the archive"):
            queue.subscribe(own, "late", [STREAM], start=start)
    assert [each.name for each in subscriptions.list_subscriptions(own)] == [SUBSCRIPTION]
    queue.subscribe(own, "late", [STREAM], start="21")
    assert received(own) == list(range(21, 26))


@proves("D5, D9 below the low sequence", guard="require_start_of_queue")
def test_without_the_guard_a_queue_begins_there_and_never_gets_them(
    db: ContractDatabase, target: Target
) -> None:
    """Mutant: what it passes over is recorded at least."""
    own = db.connect()
    cold(own, target)
    without(db, ANY_START)
    queue.subscribe(own, "late", [STREAM], start="1")
    assert received(own) == list(range(21, 26))
    assert recorded(own, "late") == [(1, 10), (11, 20)]


def recorded(own: Any, subscription: str) -> list[tuple[int, int]]:
    """What it never got."""
    found = subscriptions.skips(own, subscription)
    return [(each.first_sequence, each.last_sequence) for each in found]


@proves("D5, D9 below the low sequence")
def test_retention_waits_for_a_queue_that_began_below(db: ContractDatabase, target: Target) -> None:
    """What is left comes, and what was gone before is recorded when the queue passes it."""
    own = db.connect()
    cold(own, target)
    late_queue(db, own)
    assert queue.statistics(own, "late").ready == 5
    assert [each.event.sequence for each in queue.peek(own, "late", 3)] == [21, 22, 23]
    (pointers,) = queue.pointers(own, "late")
    assert (pointers.reader, pointers.repair) == (21, 21)
    publish(own, 26, 45)
    archived(own, target)
    assert low(own) == 21
    assert recorded(own, "late") == []
    assert received(own) == list(range(21, 46))
    assert recorded(own, "late") == [(1, 10), (11, 20)]
    assert stream.position(own, "late", STREAM) == {0: 45}
    archived(own, target)
    assert low(own) == 41


@proves("D5, D9 below the low sequence", guard="the record")
@pytest.mark.parametrize("order", ["none", "key"])
def test_without_the_record_it_passes_over_them_in_silence(
    db: ContractDatabase, target: Target, order: str
) -> None:
    """Mutant, and that both orders record."""
    own = db.connect()
    cold(own, target)
    late_queue(db, own)
    queue.configure(own, "late", order=order)
    if order == "none":
        without(db, SILENT)
    assert received(own) == list(range(21, 26))
    assert recorded(own, "late") == ([] if order == "none" else [(1, 10), (11, 20)])


def polled(member: Any) -> Callable[..., Any]:
    """A poll for ColdReads."""

    def poll(connection: Any, leases: Any, most: int, each: int | None) -> Any:
        return stream.poll(connection, member, leases, most, each)

    return poll


@proves("D5, D9 below the low sequence")
def test_retention_waits_for_a_stream_until_somebody_reads_the_archive(
    db: ContractDatabase, target: Target
) -> None:
    """The holder's read frees it, and the next holder, who may have no targets, takes that back."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    publish(own, 26, 45)
    archived(own, target)
    assert low(own) == 21
    member, lease = member_with_lease(own, "a")
    with pytest.raises(BelowLowSequence):
        stream.poll(own, member, [lease])
    assert clean_unread(own, STREAM)[0][2:] == (21, HELD)
    ((_, events),) = ColdReads(SUBSCRIPTION, polled(member), [target]).poll(own, [lease], 5)
    assert [each.sequence for each in events] == [1, 2, 3, 4, 5]
    archived(own, target)
    assert low(own) == 41
    assert recorded(own, SUBSCRIPTION) == []
    end_lease(db, "a")
    other, taken = member_with_lease(own, "b")
    publish(own, 46, 65)
    archived(own, target)
    assert low(own) == 41
    stream.note_archive_reads(own, SUBSCRIPTION, [lease])
    archived(own, target)
    assert low(own) == 41, "of an old lease_epoch nothing counts"
    ColdReads(SUBSCRIPTION, polled(other), [target]).poll(own, [taken], 5)
    archived(own, target)
    assert low(own) == 61
    stream.reset(own, SUBSCRIPTION, 2)
    publish(own, 66, 85)
    archived(own, target)
    assert low(own) == 61, "a seek begins a lease_epoch too"


@proves("D5, D9 below the low sequence", guard="the lease_epoch")
def test_without_the_guard_it_waits_for_nobody_below(db: ContractDatabase, target: Target) -> None:
    """Mutant: who ever read the archive once is believed to do so for ever."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    stream.note_archive_reads(own, SUBSCRIPTION, [lease])
    stream.leave(own, member)
    member_with_lease(own, "b")
    publish(own, 26, 45)
    archived(own, target)
    assert low(own) == 21
    without(db, ANY_READER)
    archived(own, target)
    assert low(own) == 41


@proves("D5, D9 below the low sequence")
def test_a_relay_with_targets_frees_retention_and_one_without_does_not(
    db: ContractDatabase, target: Target, tmp_path: Path
) -> None:
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    publish(own, 26, 45)
    member, lease = member_with_lease(own, "a")
    sink = Scripted(tmp_path / "out")
    with pytest.raises(BelowLowSequence):
        relay_once(own, member, lease, sink, FAST)
    archived(own, target)
    assert low(own) == 21
    sent = relay_once(own, member, lease, sink, FAST, targets=[target])
    assert sent is not None
    archived(own, target)
    assert low(own) == 41


def test_a_consumer_says_it_once_for_a_lease(db: ContractDatabase, target: Target) -> None:
    """Not with every read; and a queue has nothing to say."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    reads = ColdReads(SUBSCRIPTION, polled(member), [target])
    reads.poll(own, [lease], 5)
    db.run("DELETE FROM penstock.archive_readers")
    reads.poll(own, [lease], 5)
    assert db.run("SELECT lease_epoch FROM penstock.archive_readers") == []
    queue.subscribe(own, "late", [STREAM])
    with pytest.raises(WrongMode):
        stream.note_archive_reads(own, "late", [lease])
    stream.note_archive_reads(own, SUBSCRIPTION, [lease])
    assert len(db.run("SELECT lease_epoch FROM penstock.archive_readers")) == 1
    stream.unsubscribe(own, SUBSCRIPTION)
    assert db.run("SELECT lease_epoch FROM penstock.archive_readers") == []


def test_what_is_said_in_a_transaction_that_is_rolled_back_is_said_again(
    db: ContractDatabase, target: Target
) -> None:
    """Else retention would wait for it until the lease changes hands."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    reads = ColdReads(SUBSCRIPTION, polled(member), [target])
    noted = "SELECT lease_epoch FROM penstock.archive_readers"
    reads._learn(own, [lease])  # on PostgreSQL the refusal of a poll ends a transaction
    with closing(database.connect(db.url, autocommit=False)) as other:
        reads.poll(other, [lease], 5)
        other.rollback()
        assert db.run(noted) == []
        reads.poll(other, [lease], 5)
        other.commit()
    assert db.run(noted) == [(lease.lease_epoch,)]


@proves("D5, D9 below the low sequence")
def test_a_note_of_a_registry_counts_for_the_holder_that_the_database_knows(
    db: ContractDatabase, target: Target
) -> None:
    """etcd and Redis give lease_epochs that the database has not seen: no holder is believed so.

    The mutant is that of who ever read the archive.
    """
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    publish(own, 26, 45)
    part = next(iter(names.partition_ranges(own, STREAM))).partition_id

    def held(lease_epoch: int) -> Lease:
        return Lease(STREAM, 0, part, lease_epoch, "ACTIVE", 0, 1)

    stream.note_archive_reads(own, SUBSCRIPTION, [held(7)])
    archived(own, target)
    assert low(own) == 21, "it has not been told who holds it"
    marks.tell(own, SUBSCRIPTION, [held(7)])
    archived(own, target)
    assert low(own) == 41
    marks.tell(own, SUBSCRIPTION, [held(8)])
    publish(own, 46, 65)
    archived(own, target)
    assert low(own) == 41, "the next holder has not said it"
    stream.note_archive_reads(own, SUBSCRIPTION, [held(11)])
    stream.note_archive_reads(own, SUBSCRIPTION, [held(8)])
    archived(own, target)
    assert low(own) == 61, "of the holder that the database knows it counts, whatever was said"


@proves("D5, D9 below the low sequence")
def test_who_reads_without_targets_takes_it_back(db: ContractDatabase, target: Target) -> None:
    """For a reader that holds no lease; of the partitions that it names."""
    own = db.connect()
    cold(own, target)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    publish(own, 26, 45)
    (part,) = (each.partition_id for each in names.partition_ranges(own, STREAM))
    places = {"subscription": SUBSCRIPTION, "partition_ids": [part]}
    database.call(own, "note_archive_reads", **places, lease_epochs=[0])
    database.call(
        own, "withdraw_archive_reads", subscription=SUBSCRIPTION, partition_ids=[part + 1]
    )
    assert len(db.run("SELECT lease_epoch FROM penstock.archive_readers")) == 1
    database.call(own, "withdraw_archive_reads", **places)
    archived(own, target)
    assert low(own) == 21


# One skip does not lead to the next.


def three_epochs(db: ContractDatabase, own: Any, target: Target) -> None:
    """Thirty unread events: the first log epoch was sealed two days ago, the others now."""
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    publish(own, 1, 30)
    seal(own, STREAM, max_events=10)
    copy_all(own, STREAM, target)
    database.call(own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=1,
                  max_bytes=None, origin="hand", targets=["one"])  # fmt: skip
    ago = "INTERVAL '2' DAY"
    db.run(f"UPDATE penstock.log_epochs SET sealed_at = sealed_at - {ago} WHERE log_epoch = 1")
    policies.set_policy(
        own, "keep", {"max_lag_seconds": DAY}, scope="subscription", name=SUBSCRIPTION
    )


@proves("D5, D9 below the low sequence")
def test_a_skip_lets_go_what_is_old_enough_and_nothing_else(
    db: ContractDatabase, target: Target
) -> None:
    """Each log epoch waits for its own day, however often retention runs."""
    own = db.connect()
    three_epochs(db, own, target)
    for _ in range(3):
        clean_unread(own, STREAM)
        assert low(own) == 11
    ((*_, reason),) = clean_unread(own, STREAM)
    assert reason.startswith(f'subscription "{SUBSCRIPTION}" stands at 0, log epoch 2 ends at 20')
    (skip,) = subscriptions.skips(own, SUBSCRIPTION)
    assert (skip.first_sequence, skip.last_sequence, skip.max_lag_seconds) == (1, 10, DAY)
    ago = "INTERVAL '2' DAY"
    db.run(f"UPDATE penstock.log_epochs SET sealed_at = sealed_at - {ago} WHERE log_epoch = 2")
    clean_unread(own, STREAM)
    assert (low(own), recorded(own, SUBSCRIPTION)) == (21, [(1, 10), (11, 20)])


@proves("D5, D9 below the low sequence")
def test_what_a_reader_of_the_archive_will_read_is_no_skip(
    db: ContractDatabase, target: Target
) -> None:
    """It was passed over once, by its policy; what goes afterwards stays readable for it."""
    own = db.connect()
    three_epochs(db, own, target)
    clean_unread(own, STREAM)
    slow_leases(own)
    member, lease = member_with_lease(own, "a")
    ColdReads(SUBSCRIPTION, polled(member), [target]).poll(own, [lease], 5)
    clean_unread(own, STREAM)
    assert (low(own), recorded(own, SUBSCRIPTION)) == (31, [(1, 10)])
    assert stored(own) == 0
