"""Dropped log epochs come back whole or not at all, and are read like any other events."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any

import pytest

import penstock
from ops.backfill import requests as requests
from ops.backfill.rehydrate import Row, _lots, bring_back, release
from ops.backfill.requests import BackfillClaim, BackfillUnit
from ops.seal import log_epochs, seal
from penstock import database, log
from penstock.errors import (
    BelowLowSequence,
    EpochError,
    InvalidArgument,
    RetentionRefused,
    StaleAttempt,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import (
    commit_parking,
    dead_letter,
    dead_letters,
    give_up,
)
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, give_up_soon, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.log import drain, part, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease

NO_COMPARISON: Guard = {
    "postgres": (
        "finish_rehydration",
        "IS DISTINCT FROM (content.event_count, content.checksum)",
        "IS NULL",
    ),
    "mysql": (
        "finish_rehydration",
        "NOT (sealed_count <=> found_count AND sealed_checksum <=> found_checksum)",
        "FALSE",
    ),
}
NO_GAP: Guard = {
    "postgres": (
        "read_rehydrated",
        "find_rehydrated_end(read_rehydrated.partition_id, read_rehydrated.from_sequence,",
        "GREATEST(0, read_rehydrated.from_sequence - 1 +",
    ),
    "mysql": (
        "read_rehydrated",
        "CALL find_rehydrated_end(of_partition, from_sequence, max_events, last)",
        "SET last = from_sequence + max_events - 1",
    ),
}
NO_LEFTOVERS: Guard = {
    "postgres": (
        "begin_rehydration",
        "sequence BETWEEN sealed.first_sequence AND sealed.last_sequence",
        "sequence < 0",
    ),
    "mysql": ("begin_rehydration", "IF is_missing AND", "IF FALSE AND"),
}
ONLY_FINISHED: Guard = {
    "postgres": NO_GAP["postgres"],
    "mysql": ("store_letters", "AND is_rehydrated(part_id, b.sequence)", ""),
}
NOBODY_READS: Guard = {
    "postgres": (
        "release_rehydrated",
        "AND COALESCE((lowest_position(p.id, NULL)).position, e.last_sequence) >= e.last_sequence",
        "",
    ),
    "mysql": ("release_rehydrated", "IF COALESCE(lowest, last) >= last THEN", "IF TRUE THEN"),
}
EVENTS = 10


def _kept(connection: Any, first: int = 1, last: int = 40) -> list[Row]:
    """The rows as the archive has them."""
    rows = database.call(
        connection,
        "archive_fetch",
        topic=STREAM,
        partition=0,
        from_sequence=first,
        max_events=last - first + 1,
    )
    return [(row[0], str(row[1]), *row[2:9]) for row in rows]


def _dropped(connection: Any, keep: int = 1) -> tuple[list[Row], list[Event]]:
    """Four log epochs of ten events, all but some dropped; the rows and the events of before."""
    topic(connection, 1, STREAM)
    headers: list[dict[str, Any] | None] = [None, {}, {"a": 1.50, "b": ["\u00e9", None]}]
    publish_batch(
        connection,
        [
            Message(
                STREAM,
                bytes([n, 0, 255]) * n,
                key=None if n % 3 else f"k\u00fc{n}",
                type="t\u2603",
                headers=headers[n % 3],
            )
            for n in range(4 * EVENTS)
        ],
    )
    drain(connection)
    seal(connection, STREAM, max_events=EVENTS)
    rows, events = _kept(connection), log.fetch(connection, STREAM, 0, 1, 100)
    given = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": ["a"]}
    database.call(connection, "set_retention", max_bytes=None, topic=STREAM, **given)
    for epoch in log_epochs(connection, STREAM)[: 4 - keep]:
        database.call(
            connection, "record_copy", topic=STREAM, partition=0, log_epoch=epoch.log_epoch,
            target="a", location="nowhere", event_count=epoch.event_count, checksum=epoch.checksum,
            layout=1, first_row=0,
        )  # fmt: skip
    clean_unread(connection, STREAM)
    if database.dialect_of(connection) == "postgres":  # as if their slices were gone, too
        gone = f"SELECT o.id FROM penstock.events AS o ORDER BY o.id LIMIT {EVENTS * (4 - keep)}"
        database.execute(connection, f"DELETE FROM penstock.events AS e WHERE e.id IN ({gone})")
    return rows, events


def _request(connection: Any, **window: Any) -> tuple[BackfillClaim, list[BackfillUnit]]:
    requests.request_backfill(connection, STREAM, "rehydrate", "", requests.Window(**window))
    claim = requests.claim_backfill(connection, "one")
    assert claim is not None
    return claim, requests.open_units(connection, claim, None, 100)


def _of(unit: BackfillUnit, rows: list[Row]) -> list[Row]:
    return rows[unit.first_sequence - 1 : unit.last_sequence]


def _bring(connection: Any, rows: list[Row], **window: Any) -> None:
    claim, units = _request(connection, **window)
    for unit in units:
        assert bring_back(connection, claim, unit, _of(unit, rows))
    requests.finish(connection, claim)


@proves("what came back is what was sealed")
def test_what_came_back_is_read_as_it_was(db: ContractDatabase) -> None:
    """By fetch: the same events, with every byte, header and time."""
    own = db.connect()
    rows, events = _dropped(own)
    _bring(own, rows)
    assert _kept(own, 1, 30) == rows[:30]
    assert log.fetch(own, STREAM, 0, 1, 30) == events[:30]
    assert log.fetch(own, STREAM, 0, 25, 100) == events[24:30]
    assert log.fetch(own, STREAM, 0, 31, 100) == events[30:]
    assert _plan(own) == ["hot"] * 4


def _plan(connection: Any) -> list[str]:
    plan = database.call(
        connection, "fetch_plan", topic=STREAM, partition=0, from_sequence=1, max_events=100
    )
    return [row[0] for row in plan]


def test_an_event_that_came_back_can_be_given_up(db: ContractDatabase) -> None:
    """Its payload is in the dead letters, and the position moves on."""
    own = db.connect()
    rows, events = _dropped(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    _bring(own, rows)
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 30)
    member, lease = member_with_lease(own, "a")
    for sequence in (30, 31):
        give_up(own, member, lease, sequence, "broken", attempts=1)
    letters = [dead_letter(own, SUBSCRIPTION, each.id) for each in dead_letters(own, SUBSCRIPTION)]
    found = {each.letter.sequence: each.payload for each in letters if each}
    assert found == {each.sequence: each.payload for each in events[29:31]}
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 31}


@proves("what came back is what was sealed", guard="the end in read_rehydrated")
def test_a_gap_is_not_passed_over(db: ContractDatabase) -> None:
    """A read ends before what did not come back, and refuses to begin there.

    Guard: the end of what follows each other.
    """
    own = db.connect()
    rows, events = _dropped(own)
    _bring(own, rows, to_sequence=1)
    _bring(own, rows, from_sequence=21, to_sequence=21)
    assert _plan(own) == ["hot", "cold", "hot", "hot"]
    assert log.fetch(own, STREAM, 0, 5, 100) == events[4:10]
    for sequence in (11, 20):
        with pytest.raises(BelowLowSequence):
            log.fetch(own, STREAM, 0, sequence, 1)
    without(db, NO_GAP)
    assert log.fetch(own, STREAM, 0, 5, 100) == events[4:10] + events[20:30]


def test_a_consumer_that_seeks_there_reads_on_without_a_gap(db: ContractDatabase) -> None:
    """From what came back into what was never dropped."""
    own = db.connect()
    rows, events = _dropped(own)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 5)
    member, lease = member_with_lease(own, "a")
    with pytest.raises(BelowLowSequence):
        stream.poll(own, member, [lease])
    _bring(own, rows)
    read: list[Event] = []
    while found := stream.poll(own, member, [lease], max_events=7):
        ((_, events_of_lease),) = found
        read += events_of_lease
        lease = dataclasses.replace(lease, position=read[-1].sequence)
        stream.commit(own, member, [(lease, lease.position)])
    assert [each.payload for each in read] == [each.payload for each in events[4:]]
    assert [each.sequence for each in read] == list(range(5, 41))


def test_one_commit_parks_what_came_back_and_what_is_brought(db: ContractDatabase) -> None:
    """Guard: what came back is copied by the database alone, and counted once."""
    own = db.connect()
    rows, events = _dropped(own)
    _bring(own, rows, to_sequence=1)
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    member, lease = member_with_lease(own, "a")
    connection = db.connect(autocommit=False)
    commit_parking(connection, member, lease, 20, after=0, sequences=[4, 13], brought=[events[12]])
    connection.commit()
    letters = sorted(dead_letters(own, SUBSCRIPTION), key=lambda each: each.sequence)
    assert [each.sequence for each in letters] == [4, 13]
    for letter in letters:
        whole = dead_letter(own, SUBSCRIPTION, letter.id)
        assert whole is not None
        assert whole.payload == events[letter.sequence - 1].payload
    assert db.run("SELECT attempts, attempts_before FROM penstock.dead_letters") == [(0, 0)] * 2


@proves("what came back is what was sealed", guard="finish_rehydration")
def test_what_is_not_what_was_sealed_does_not_come_back(db: ContractDatabase) -> None:
    """A flipped bit, a missing event, another one's event: nothing is seen, nothing is recorded.

    Guard: the comparison in `finish_rehydration`.
    """
    own = db.connect()
    rows, _ = _dropped(own)
    claim, (unit, *_) = _request(own)
    good = _of(unit, rows)
    flipped = [(*row[:6], b"\x00" + row[6][1:] if row[6] else b"x", *row[7:]) for row in good]
    for bad in (flipped, good[:-1], good[1:], [], [*good[:-1], rows[20]]):
        with pytest.raises(RetentionRefused):
            bring_back(own, claim, unit, bad)
        assert count(db, "rehydrated_events") == 0
        with pytest.raises(BelowLowSequence):
            log.fetch(own, STREAM, 0, 1, 1)
    assert len(requests.open_units(own, claim, None, 100)) == 3
    without(db, NO_COMPARISON)
    assert bring_back(own, claim, unit, good[:-1])


@proves("what came back is what was sealed")
def test_nobody_sees_a_part_of_it(db: ContractDatabase) -> None:
    """Also not when the runner dies before its commit."""
    own = db.connect()
    rows, _ = _dropped(own)
    claim, (unit, *_) = _request(own)
    seen: list[int] = []

    def watched() -> Any:
        for row in _of(unit, rows):
            with pytest.raises(BelowLowSequence):
                log.fetch(seen_by, STREAM, 0, 1, 1)
            seen.append(row[0])
            yield row
        raise KeyboardInterrupt

    seen_by = db.connect()
    with pytest.raises(KeyboardInterrupt):
        bring_back(own, claim, unit, watched())
    assert seen == list(range(1, 11))
    assert count(db, "rehydrated_events") == 0
    assert requests.open_units(own, claim, None, 1) == [unit]


def _leave(connection: Any, rows: list[Row]) -> None:
    """Rows of the second log epoch that no finish has compared with its seal."""
    claim, (unit,) = _request(connection, from_sequence=11, to_sequence=11)
    forged = [(*row[:6], b"FORGED", *row[7:]) for row in _of(unit, rows)]
    place = {"request": claim.request, "attempt": claim.attempt, "partition": 0, "log_epoch": 2}
    ((is_missing,),) = database.call(connection, "begin_rehydration", **place)
    assert is_missing
    for events in _lots(forged):
        database.call(connection, "put_rehydrated", **place, events=events)
    requests.cancel(connection, claim.request)


@proves("what came back is what was sealed")
def test_what_was_never_finished_is_not_read(db: ContractDatabase) -> None:
    """Neither by fetch nor by a letter, and the next attempt brings what was sealed.

    Guards: the end of a read, and that an attempt begins without leftovers.
    """
    own = db.connect()
    rows, events = _dropped(own)
    _bring(own, rows, to_sequence=1)
    _leave(own, rows)
    assert count(db, "rehydrated_events") == 2 * EVENTS
    assert log.fetch(own, STREAM, 0, 1, 100) == events[:10]
    _bring(own, rows, from_sequence=11, to_sequence=11)
    assert log.fetch(own, STREAM, 0, 1, 100) == events[:20]
    release(own, STREAM)
    assert count(db, "rehydrated_events") == 0
    _leave(own, rows)
    without(db, NO_LEFTOVERS)
    with pytest.raises(RetentionRefused):
        _bring(own, rows, from_sequence=11, to_sequence=11)


@proves("what came back is what was sealed", guard="begin_rehydration")
def test_a_letter_takes_nothing_that_was_never_finished(db: ContractDatabase) -> None:
    """The event of a letter is one that was compared with the seal.

    Guard: only what was finished is read.
    """
    own = db.connect()
    rows, _ = _dropped(own)
    if db.engine != "postgres":  # their slice is gone, too
        db.run(f"DELETE FROM penstock.events ORDER BY id LIMIT {3 * EVENTS}")
    stream.subscribe(own, SUBSCRIPTION, [STREAM], 1)
    _leave(own, rows)
    member, lease = member_with_lease(own, "a")

    def park() -> None:
        with closing(db.connect(autocommit=False)) as connection:  # or it keeps the guard's lock
            commit_parking(connection, member, lease, 20, after=0, sequences=[13], brought=[])
            connection.commit()

    with pytest.raises(BelowLowSequence):
        park()
    without(db, ONLY_FINISHED)
    park()


def test_who_lost_its_attempt_brings_nothing(db: ContractDatabase) -> None:
    """The fence of `put_rehydrated` and of `finish_rehydration`; a claim waits for neither."""
    own = db.connect()
    rows, _ = _dropped(own)
    claim, (unit, *_) = _request(own)
    requests.cancel(own, claim.request)
    with pytest.raises(StaleAttempt):
        bring_back(own, claim, unit, _of(unit, rows))
    place = {"request": claim.request, "attempt": 1, "partition": 0, "log_epoch": 1}
    with pytest.raises(StaleAttempt):
        database.call(own, "put_rehydrated", **place, events="[]")
    with pytest.raises(StaleAttempt):
        database.call(own, "finish_rehydration", **place, lease_seconds=60)


def test_a_log_epoch_comes_back_once(db: ContractDatabase) -> None:
    """Two requests of the same window: the second finds it there."""
    own = db.connect()
    rows, events = _dropped(own)
    first, units = _request(own)
    second, _ = _request(own)
    assert bring_back(own, first, units[0], _of(units[0], rows))
    assert not bring_back(own, second, units[0], iter(()))
    assert count(db, "rehydrated_events") == EVENTS
    assert log.fetch(own, STREAM, 0, 1, 100) == events[:10]
    other = BackfillUnit(0, 9, 1, 10, None, False)
    with pytest.raises(EpochError):
        bring_back(own, first, other, iter(()))


def test_what_came_back_can_be_taken_away_again(db: ContractDatabase) -> None:
    """By age, and not while a subscription has to read it.

    Guard: the position of the slowest subscription.
    """
    own = db.connect()
    rows, events = _dropped(own)
    _bring(own, rows)
    assert release(own, STREAM, older_than_seconds=3600) == 0
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 15)
    assert release(own, STREAM) == 1
    with pytest.raises(BelowLowSequence):
        log.fetch(own, STREAM, 0, 1, 1)
    assert log.fetch(own, STREAM, 0, 15, 100) == events[14:30]
    for bad in ({"max_epochs": 0}, {"older_than_seconds": -1.0}):
        with pytest.raises(InvalidArgument):
            release(own, STREAM, **bad)
    without(db, NOBODY_READS)
    assert release(own, STREAM, max_epochs=1) == 1
    assert [row[1] for row in database.call(own, "rehydrated_of", topic=STREAM)] == [3]


def test_a_deleted_topic_leaves_nothing_of_it(db: ContractDatabase) -> None:
    """Neither what came back nor its requests; those of another topic stay."""
    own = db.connect()
    rows, _ = _dropped(own)
    _bring(own, rows)
    topic(own, 1, "tests/other")
    requests.request_backfill(own, "tests/other", "copy", "a", dry_run=True)
    claim, _ = _request(own, to_sequence=1)
    penstock.delete_topic(own, STREAM)
    for table in ("rehydrated_events", "rehydrated_epochs", "backfill_units"):
        assert count(db, table) == 0, table
    assert [each.topic for each in requests.list_backfills(own)] == ["tests/other"]
    with pytest.raises(StaleAttempt):
        requests.extend(own, claim)


def test_a_seek_and_a_release_follow_each_other(db: ContractDatabase) -> None:
    """Both lock the topic: no subscription goes back to what is just being taken away."""
    own = db.connect()
    rows, _ = _dropped(own)
    _bring(own, rows)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    with open_transaction(db) as one:
        stream.seek(one, SUBSCRIPTION, STREAM, 0, 5)
        with pytest.raises(Exception, match=r"(?i)lock"), open_transaction(db) as two:
            give_up_soon(db, two)
            release(two, STREAM)
        one.commit()
    assert release(own, STREAM) == 0
    assert part(own, 0, STREAM)
