"""Log epochs on every engine: seal, copies, retention; checksums that other programs compute."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest

from ops.seal import copies_of, due_log_epochs, log_epochs, missing_copies, seal
from penstock import database, log
from penstock.archive.checksum import EpochChecksum
from penstock.errors import (
    BelowLowSequence,
    EpochError,
    InvalidArgument,
    InvalidPartition,
    RetentionRefused,
    TopicNotFound,
)
from penstock.publishing.publish import publish_batch
from penstock.records import LogEpoch, Message
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.digests import DigestFields, batch_of, microseconds
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM, filled

#: Where copies count.
TARGETS = ["local", "one", "two"]

NO_POSITION: Guard = {
    "postgres": ("retention_hold", "WHEN slowest.position < epoch.last_sequence", "WHEN false"),
    "mysql": ("retention_hold", "WHEN lowest < last AND", "WHEN FALSE AND"),
}
NO_COPY: Guard = {
    "postgres": ("retention_hold", "WHEN verified < policy.copies", "WHEN false"),
    "mysql": ("retention_hold", "WHEN verified < copies", "WHEN FALSE"),
}
NO_READING: Guard = {
    "postgres": (
        "retention_hold",
        "WHEN run.run IS NOT NULL AND whole < policy.copies",
        "WHEN false",
    ),
    "mysql": (
        "retention_hold",
        "WHEN token IS NOT NULL AND whole < copies",
        "WHEN FALSE",
    ),
}
NO_COMPARISON: Guard = {
    "postgres": (
        "record_copy",
        "IS DISTINCT FROM (record_copy.event_count, record_copy.checksum) THEN",
        "IS NULL THEN",
    ),
    "mysql": (
        "record_copy",
        "IF NOT (sealed_count <=> event_count AND sealed_checksum <=> checksum) THEN",
        "IF FALSE THEN",
    ),
}


def _odd(connection: Any) -> None:
    """Events of every kind: without key, without headers, empty, long, in all of Unicode."""
    topic(connection, 1, STREAM)
    publish_batch(
        connection,
        [
            Message(STREAM, b""),
            Message(STREAM, bytes(range(256)) * 50, key="", type="", headers={}),
            Message(STREAM, b"x", key="🚂 ß\\'\"", type="ü", content_type="text/plain"),
            Message(
                STREAM, b"\0", key="k", headers={"b": 1, "a": [None, 2.50, "é\n", {"z": "🚂"}]}
            ),
        ],
    )
    drain(connection)


def _recomputed(connection: Any, epoch: LogEpoch) -> str:
    """The checksum out of what the archive would store."""
    events = []
    for row in database.call(
        connection,
        "archive_fetch",
        topic=epoch.topic,
        partition=epoch.partition,
        from_sequence=epoch.first_sequence,
        max_events=epoch.event_count,
    ):
        sequence, event_id, key, kind, content_type, headers, payload, created_at, *_ = row
        event = DigestFields(
            sequence, str(event_id), key, kind, content_type, headers, bytes(payload),
            microseconds(created_at),
        )  # fmt: skip
        events.append(event)
    checksum = EpochChecksum()
    checksum.add(batch_of(*events))
    return checksum.hexdigest()


def _record(connection: Any, epoch: LogEpoch, target: str = "local", **changes: Any) -> None:
    given = {"location": "nowhere", "layout": 1, "first_row": 0}
    given |= {"event_count": epoch.event_count, "checksum": epoch.checksum}
    database.call(
        connection,
        "record_copy",
        topic=epoch.topic,
        partition=epoch.partition,
        log_epoch=epoch.log_epoch,
        target=target,
        **given | changes,
    )


def _keep(connection: Any, *, seconds: int = 0, copies: int = 1) -> None:
    given = {"minimum_age_seconds": seconds, "copies": copies, "origin": "hand", "targets": TARGETS}
    database.call(connection, "set_retention", max_bytes=None, topic=STREAM, **given)


def _clean(connection: Any) -> tuple[int, str]:
    """The low sequence after it, and what holds the rest."""
    ((_, _, low, reason),) = clean_unread(connection, STREAM)
    return low, reason


def test_the_checksum_is_the_same_in_the_database_and_outside(db: ContractDatabase) -> None:
    """D10: byte for byte."""
    own = db.connect()
    _odd(own)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    assert (epoch.first_sequence, epoch.last_sequence, epoch.event_count) == (1, 4, 4)
    assert epoch.checksum == _recomputed(own, epoch)


def test_log_epochs_follow_each_other(db: ContractDatabase) -> None:
    """By size, then by age; each event is in one."""
    own = db.connect()
    filled(own, events=10)
    assert seal(own, STREAM, max_events=20) == []
    assert seal(own, STREAM, max_events=20, max_age_seconds=3600) == []
    sealed = seal(own, STREAM, max_events=4)
    assert [(each.first_sequence, each.last_sequence) for each in sealed] == [(1, 4), (5, 8)]
    (rest,) = seal(own, STREAM, max_events=4, max_age_seconds=0)
    assert (rest.log_epoch, rest.first_sequence, rest.last_sequence) == (3, 9, 10)
    assert seal(own, STREAM, max_events=4, max_age_seconds=0) == []
    for each in (*sealed, rest):
        assert each.checksum == _recomputed(own, each)
    assert [each.log_epoch for each in log_epochs(own, STREAM)] == [1, 2, 3]


@pytest.mark.long_on("mariadb")
def test_a_log_epoch_of_many_chunks(db: ContractDatabase) -> None:
    """The aggregation is not cut off at any default of a server."""
    own = db.connect()
    filled(own, events=3_000)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    assert epoch.event_count == 3_000
    assert epoch.checksum == _recomputed(own, epoch)


def test_what_cannot_be_sealed_or_recorded(db: ContractDatabase) -> None:
    """Typed errors."""
    own = db.connect()
    filled(own)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    with pytest.raises(InvalidArgument):
        seal(own, STREAM, max_events=0)
    with pytest.raises(TopicNotFound):
        seal(own, "tests/zzz")
    with pytest.raises(InvalidPartition):
        database.call(own, "seal", topic=STREAM, partition=1, max_events=1, max_age_seconds=None)
    with pytest.raises(EpochError):
        _record(own, LogEpoch(STREAM, 0, 9, 1, 1, 1, "x"))
    for wrong in ({"event_count": 9}, {"checksum": "0" * 64}):
        with pytest.raises(RetentionRefused):
            _record(own, epoch, **wrong)
    assert missing_copies(own, STREAM, "local")[0].checksum == epoch.checksum


def test_without_the_comparison_a_wrong_copy_counts(db: ContractDatabase) -> None:
    """Mutant: record_copy believes its caller."""
    without(db, NO_COMPARISON)
    own = db.connect()
    filled(own)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    _record(own, epoch, checksum="0" * 64)
    assert missing_copies(own, STREAM, "local") == []


def test_copies_are_recorded_forgotten_and_made_again(db: ContractDatabase) -> None:
    """By target; log_epochs_of lists the verified ones."""
    own = db.connect()
    filled(own)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    for target in ("b", "a", "a"):
        _record(own, epoch, target)
    assert log_epochs(own, STREAM)[0].targets == ("a", "b")
    database.call(
        own, "forget_copy", topic=STREAM, partition=0, log_epoch=1, target="a", reason="lost"
    )
    assert log_epochs(own, STREAM)[0].targets == ("b",)
    assert [each.targets for each in missing_copies(own, STREAM, "a")] == [("b",)]
    found = database.call(own, "copies_of", topic=STREAM)
    assert [row[:5] for row in found] == [
        (0, 1, "a", "missing", "lost"),
        (0, 1, "b", "verified", ""),
    ]
    _record(own, epoch, "a")
    assert missing_copies(own, STREAM, "a") == []


def test_where_a_copy_lies_is_recorded(db: ContractDatabase) -> None:
    """Layout, file and first row, also of a copy that moved; a place that cannot be is refused."""
    own = db.connect()
    filled(own)
    (epoch,) = seal(own, STREAM, max_age_seconds=0)
    bad: list[dict[str, Any]] = [
        {"layout": 3}, {"layout": 0}, {"first_row": 1}, {"layout": 2, "first_row": -1}
    ]  # fmt: skip
    for place in bad:
        with pytest.raises(InvalidArgument, match="layout 2 is a file of the day"):
            _record(own, epoch, **place)
    assert copies_of(own, STREAM) == []
    _record(own, epoch)
    _record(own, epoch, layout=2, location="sealed_date=2026-01-01/a.parquet", first_row=5)
    (found,) = copies_of(own, STREAM)
    assert (found.layout, found.location, found.first_row) == (
        2,
        "sealed_date=2026-01-01/a.parquet",
        5,
    )


def test_a_range_of_copies_is_found_and_a_copy_moves_once(db: ContractDatabase) -> None:
    """By partition, target and log epochs; from the file that the caller names, and no other.

    Guard: the old location, in move_copy.
    """
    own = db.connect()
    filled(own, events=10)
    first, second = seal(own, STREAM, max_events=5)
    for row, epoch in enumerate((first, second)):
        _record(own, epoch, layout=2, location="a", first_row=5 * row)
    _record(own, first, "other")

    def between(last: int) -> list[tuple[Any, ...]]:
        span = {"first_log_epoch": 1, "last_log_epoch": last}
        return database.call(
            own, "copies_between", topic=STREAM, partition=0, target="local", **span
        )

    def move(**changes: Any) -> bool:
        given = {"old_location": "a", "location": "b", "first_row": 7, "log_epoch": 2}
        given |= {"target": "local", "partition": 0}
        return bool(database.call(own, "move_copy", topic=STREAM, **given | changes)[0][0])

    sealed = (second.first_sequence, 10, 5, second.checksum)
    assert [row[1:] for row in between(2)][1] == (2, *sealed, "verified", 2, "a", 5)
    assert len(between(1)) == 1
    today = first.sealed_at or log_epochs(own, STREAM)[0].sealed_at
    assert today is not None
    day = today.astimezone(UTC).date()
    on = database.call(own, "log_epochs_sealed_on", topic=STREAM, sealed_date=day)
    assert [tuple(map(int, row)) for row in on] == [(0, 1, 2)]
    before = database.call(
        own, "log_epochs_sealed_on", topic=STREAM, sealed_date=day - timedelta(days=1)
    )
    assert before == []
    for wrong in ({"old_location": "c"}, {"log_epoch": 3}, {"target": "none"}):
        assert not move(**wrong)
    assert move()
    assert not move()
    assert [row[1:] for row in between(2)][1] == (2, *sealed, "verified", 2, "b", 7)
    with pytest.raises(InvalidArgument):
        move(old_location="b", first_row=-1)


def test_nothing_goes_before_it_is_safe(db: ContractDatabase) -> None:
    """D9: policy, positions, copies, age; each holds alone. Then it goes, and is recorded."""
    own = db.connect()
    filled(own, events=10)
    first, _ = seal(own, STREAM, max_events=5)
    assert _clean(own) == (1, "no retention policy")
    _keep(own, copies=2)
    assert _clean(own) == (1, 'subscription "tests" stands at 0, log epoch 1 ends at 5')
    stream.seek(own, "tests", STREAM, 0, 6)
    assert _clean(own) == (1, "log epoch 1 has 0 of 2 verified copies")
    _record(own, first, "one")
    _record(own, first, "two")
    _keep(own, seconds=3600, copies=2)
    assert _clean(own) == (1, "log epoch 1 is younger than 3600 s")
    _keep(own, copies=2)
    assert _clean(own) == (6, 'subscription "tests" stands at 5, log epoch 2 ends at 10')
    assert [each.dropped_at is None for each in log_epochs(own, STREAM)] == [False, True]
    assert db.run(
        "SELECT first_sequence, last_sequence, lowest_position, copies"
        " FROM penstock.retention_drops"
    ) == [(1, 5, 5, 2)]
    with pytest.raises(BelowLowSequence):
        log.fetch(own, STREAM, 0, 5)
    assert [event.sequence for event in log.fetch(own, STREAM, 0, 6)] == [6, 7, 8, 9, 10]


def test_without_subscriptions_a_topic_goes_by_copies_and_age(db: ContractDatabase) -> None:
    """Nobody reads it; all of it goes, and then nothing sealed is left."""
    own = db.connect()
    filled(own, events=10)
    stream.unsubscribe(own, "tests")
    for epoch in seal(own, STREAM, max_events=5):
        _record(own, epoch)
    _keep(own)
    assert _clean(own) == (11, "nothing sealed is left")
    stream.subscribe(own, "late", [STREAM], "earliest")
    assert stream.position(own, "late", STREAM) == {0: 10}


def test_without_the_position_unread_events_go(db: ContractDatabase) -> None:
    """Mutant: retention does not ask the subscriptions."""
    without(db, NO_POSITION)
    own = db.connect()
    filled(own, events=5)
    (epoch,) = seal(own, STREAM, max_events=5)
    _record(own, epoch)
    _keep(own)
    assert _clean(own)[0] == 6


def test_without_the_copies_the_only_one_goes(db: ContractDatabase) -> None:
    """Mutant: retention does not ask for copies; what was read back holds it alone."""
    without(db, NO_COPY)
    own = db.connect()
    filled(own, events=5)
    stream.unsubscribe(own, "tests")
    seal(own, STREAM, max_events=5)
    _keep(own)
    assert [each.targets for each in due_log_epochs(own, STREAM, 10)] == [()]
    assert _clean(own) == (1, "of log epoch 1 this run has read back 0 of 1 copies")
