"""Reading leased partitions, on every engine."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from penstock import database
from penstock.errors import BelowLowSequence, LogBehind
from penstock.publishing.publish import publish_batch
from penstock.records import Lease, Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, more


def test_a_poll_answers_in_the_order_it_was_asked(db: ContractDatabase) -> None:
    """Guard: ORDER BY place; a busy partition would starve the others."""
    own = db.connect()
    filled(own, partitions=4)
    member = stream.join(own, SUBSCRIPTION, "a")
    leases = stream.check_in(own, member)
    for turn in range(4):
        turned = leases[turn:] + leases[:turn]
        ((lease, events),) = stream.poll(own, member, turned, max_events=10)
        assert lease == turned[0]
        assert len(events) == 10
    answered = stream.poll(own, member, leases[::-1], max_events=25)
    assert [(lease.partition, len(events)) for lease, events in answered] == [
        (3, 10),
        (2, 10),
        (1, 5),
    ]


@proves("R5")
def test_a_poll_takes_so_many_of_each_partition(db: ContractDatabase) -> None:
    """Guard: max_each; one partition would take the whole room of a consumer that reads ahead."""
    own = db.connect()
    filled(own, partitions=4)
    member = stream.join(own, SUBSCRIPTION, "a")
    leases = stream.check_in(own, member)

    def counts(max_events: int, max_each: int) -> list[int]:
        polled = stream.poll(own, member, leases, max_events, max_each=max_each)
        assert [lease for lease, _ in polled] == leases[: len(polled)]
        return [len(events) for _, events in polled]

    assert counts(100, 3) == [3, 3, 3, 3]
    assert counts(7, 3) == [3, 3, 1]
    assert counts(100, 0) == [1, 1, 1, 1]
    assert counts(100, 99) == [10, 10, 10, 10]


@proves("R5", guard="max_each")
@pytest.mark.parametrize("db", ["postgres", "mysql", "mariadb"], indirect=True)
def test_a_poll_without_max_each_is_noticed(db: ContractDatabase) -> None:
    """Mutant: each partition gives as many as there is room for."""
    own = db.connect()
    filled(own, partitions=2)
    member = stream.join(own, SUBSCRIPTION, "a")
    leases = stream.check_in(own, member)
    db.without_guard("poll", "GREATEST(COALESCE(max_each, wanted), 1)", "wanted")
    polled = stream.poll(own, member, leases, 15, max_each=3)
    assert [len(events) for _, events in polled] == [10, 5]


def _polled(own: Any, held: tuple[Membership, Lease], max_events: int | None) -> int:
    member, lease = held
    return len(
        database.call_events(
            own, "poll", subscription=SUBSCRIPTION, consumer=member.consumer,
            partition_ids=[lease.partition_id], lease_epochs=[lease.lease_epoch], after=[0],
            max_events=max_events, max_each=None,
        )
    )  # fmt: skip


_IN_SQL = pytest.mark.parametrize("db", ["postgres", "mysql", "mariadb"], indirect=True)


@_IN_SQL
@pytest.mark.parametrize(("asked", "given"), [(None, 500), (-5, 1), (0, 1), (501, 501)])
def test_a_poll_has_a_default_and_a_smallest_size(
    db: ContractDatabase, asked: int | None, given: int
) -> None:
    """Guards: COALESCE and GREATEST."""
    own = db.connect()
    filled(own, events=510)
    assert _polled(own, member_with_lease(own, "a"), asked) == given


@_IN_SQL
@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        ("1), 100000)", "1), 20)", 20),
        ("LEAST(GREATEST(COALESCE(max_events, 500), 1), 100000)", "max_events", 29),
    ],
)
def test_a_poll_has_a_largest_size(db: ContractDatabase, old: str, new: str, given: int) -> None:
    """Guard: LEAST, with a smaller bound in place of 100,000.  Mutant: without it."""
    own = db.connect()
    filled(own, events=30)
    db.without_guard("poll", old, new)
    assert _polled(own, member_with_lease(own, "a"), 29) == given


@_IN_SQL
@pytest.mark.parametrize(
    ("old", "new", "asked", "given"),
    [
        ("COALESCE(max_events, 500)", "COALESCE(max_events, 400)", None, 400),
        ("GREATEST(COALESCE(max_events, 500), 1)", "COALESCE(max_events, 500)", -5, 0),
    ],
)
def test_without_a_bound_a_poll_returns_another_number(
    db: ContractDatabase, old: str, new: str, asked: int | None, given: int
) -> None:
    """Mutants: another default, and no smallest size."""
    own = db.connect()
    filled(own, events=510)
    db.without_guard("poll", old, new)
    assert _polled(own, member_with_lease(own, "a"), asked) == given


def test_what_was_published_is_what_is_polled(db: ContractDatabase) -> None:
    """Every field, bytes and all."""
    own = db.connect()
    topic(own, 1, STREAM)
    sent = Message(
        STREAM,
        bytes(range(256)),
        key="Straße 🚂",
        type="moved",
        content_type="text/plain",
        headers={"a": [1, {"b": "ü"}], "c": None},
        event_id=uuid.uuid4(),
    )
    publish_batch(own, [sent, Message(STREAM, b"")])
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    member, lease = member_with_lease(own, "a")
    ((_, (event, empty)),) = stream.poll(own, member, [lease])
    assert (event.payload, event.key, event.type, event.content_type) == (
        sent.payload, sent.key, sent.type, sent.content_type,
    )  # fmt: skip
    assert (event.headers, event.event_id) == (sent.headers, sent.event_id)
    assert (event.topic, event.partition, event.sequence, event.history) == (STREAM, 0, 1, 1)
    assert event.created_at <= event.sequenced_at
    assert (empty.payload, empty.key, empty.headers, empty.sequence) == (b"", None, {}, 2)


def test_pages_follow_each_other_without_a_gap(db: ContractDatabase) -> None:
    """Across chunks of different passes."""
    own = db.connect()
    filled(own, events=7)
    for start in (8, 15, 22):
        more(own, events=7, start=start)
    member, lease = member_with_lease(own, "a")
    seen: list[int] = []
    while found := stream.poll(own, member, [replace(lease, position=len(seen))], max_events=5):
        seen += [int(event.payload) for _, events in found for event in events]
    assert seen == list(range(1, 29))


def test_a_lease_that_is_not_held_gives_nothing(db: ContractDatabase) -> None:
    """By its holder, its epoch, or the deadline."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    assert stream.poll(own, member, [replace(lease, lease_epoch=lease.lease_epoch + 1)]) == []
    assert stream.poll(own, replace(member, consumer="b"), [lease]) == []
    assert stream.poll(own, member, []) == []
    assert len(stream.poll(own, member, [lease])) == 1
    end_lease(db, "a")
    assert stream.poll(own, member, [lease]) == []


def test_below_the_low_sequence_is_a_typed_error(db: ContractDatabase) -> None:
    """Guard: require_readable; what is gone is never skipped in silence."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    db.run("UPDATE penstock.partitions SET low_sequence = 4")
    with pytest.raises(BelowLowSequence, match="low sequence 4"):
        stream.poll(own, member, [lease])
    ((_, events),) = stream.poll(own, member, [replace(lease, position=3)])
    assert [event.sequence for event in events] == list(range(4, 11))


def test_at_the_end_nothing_comes_and_beyond_it_the_reader_is_told(db: ContractDatabase) -> None:
    """Guard: the comparison with the high watermark; a restore may have lost what was read."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    assert stream.poll(own, member, [replace(lease, position=10)]) == []
    with pytest.raises(LogBehind):
        stream.poll(own, member, [replace(lease, position=11)])
