"""Retention: nothing is removed before it is safe, and no publisher waits for a drop of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from ops.archive.archiving import archive_epochs
from ops.backfill.missing import backfill
from ops.retention.clean import CleanResult, drop_slices
from ops.retention.storage import SliceState
from ops.retention.storage_postgres import slice_state
from ops.seal import log_epochs
from penstock.archive.copies import key_of
from penstock.archive.targets import Target
from penstock.database import call
from penstock.errors import BelowLowSequence, EpochError, RetentionRefused
from penstock.log import fetch
from tests.archive.logs import Log, archived, archived_rows, archived_table, only_file, states
from tests.kit.cleaning import clean as verb, clean_believing
from tests.kit.proof import proves

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


TARGETS = ("local", "first", "second")


def clean(url: str, topic: str) -> tuple[CleanResult, ...]:
    """Clean, with targets that always work."""
    return clean_believing(url, topic, *TARGETS)


def record(log: Log, *, target: str = "local") -> None:
    """Record copies of everything that is sealed, as a target that always works would."""
    for epoch in log_epochs(log.connection, log.topic):
        call(
            log.connection,
            "record_copy",
            topic=log.topic,
            partition=epoch.partition,
            log_epoch=epoch.log_epoch,
            target=target,
            location="nowhere",
            event_count=epoch.event_count,
            checksum=epoch.checksum,
            layout=1,
            first_row=0,
        )


def keep(log: Log, *, seconds: int = 0, copies: int = 1) -> None:
    """Set the retention policy of the topic."""
    log.connection.execute(
        "SELECT penstock.set_retention(%s, %s, %s, targets => %s)",
        (log.topic, seconds, copies, list(TARGETS)),
    )


def subscribe(log: Log, name: str) -> None:
    """A subscription that stands at the beginning."""
    log.connection.execute("SELECT penstock.subscribe(%s, %s)", (name, [log.topic]))


def seek_to_end(log: Log, name: str, partition: int) -> None:
    """The subscription has handled everything of a partition."""
    log.connection.execute(
        "SELECT penstock.seek(%s, %s, %s, 'latest')", (name, log.topic, partition)
    )


def low_sequences(log: Log) -> list[int]:
    """The low sequence of each partition."""
    return [low for _, low in sorted(call(log.connection, "low_sequences", topic=log.topic))]


def reasons(log: Log) -> list[str]:
    """Clean, and answer what holds each partition."""
    return [result.reason for result in clean(log.url, log.topic)]


def test_without_a_policy_nothing_goes(log: Log) -> None:
    """No retention policy: never."""
    log.publish_odd()
    log.seal()
    record(log)

    assert reasons(log) == ["no retention policy"] * 2
    assert low_sequences(log) == [1, 1]


def test_a_subscription_holds_what_it_has_not_passed(log: Log) -> None:
    """Not before every subscription is past it.

    Guard: the subscription's line in the SQL function `retention_hold`.
    """
    log.publish_odd()
    (first, _) = log.seal()
    record(log)
    keep(log)
    subscribe(log, "projection")
    seek_to_end(log, "projection", 1)

    held, free = clean(log.url, log.topic)

    assert 'subscription "projection" stands at 0' in held.reason
    assert (held.old_low_sequence, held.low_sequence) == (1, 1)
    assert (free.partition, free.low_sequence) == (1, first.last_sequence + 1)
    seek_to_end(log, "projection", 0)
    assert clean(log.url, log.topic)[0].low_sequence == first.last_sequence + 1


def test_a_missing_copy_holds(log: Log) -> None:
    """Not before the copies that the policy asks for are verified.

    Guard: the copies' line in the SQL function `retention_hold`.
    """
    log.publish_odd()
    (first, _) = log.seal()
    keep(log, copies=2)

    assert reasons(log) == ["log epoch 1 has 0 of 2 verified copies"] * 2
    record(log, target="first")
    assert reasons(log) == ["log epoch 1 has 1 of 2 verified copies"] * 2
    record(log, target="second")
    call(
        log.connection,
        "forget_copy",
        topic=log.topic,
        partition=0,
        log_epoch=1,
        target="first",
        reason="its file is gone",
    )
    assert reasons(log)[0] == "log epoch 1 has 1 of 2 verified copies"
    assert low_sequences(log) == [1, first.last_sequence + 1]


def test_a_copy_that_does_not_verify_is_refused(log: Log) -> None:
    """Another count or another checksum than the seal's records nothing.

    Guard: the comparison in the SQL function `record_copy`.
    """
    log.publish_odd()
    (epoch, _) = log.seal()
    binds: dict[str, Any] = {
        "topic": log.topic,
        "partition": 0,
        "log_epoch": 1,
        "target": "local",
        "location": "nowhere",
        "layout": 1,
        "first_row": 0,
    }

    for count, checksum in (
        (epoch.event_count - 1, epoch.checksum),
        (epoch.event_count, "0" * 64),
    ):
        with pytest.raises(RetentionRefused):
            call(log.connection, "record_copy", **binds, event_count=count, checksum=checksum)
    keep(log)
    assert reasons(log) == ["log epoch 1 has 0 of 1 verified copies"] * 2


def test_age_holds(log: Log) -> None:
    """Not before its time."""
    log.publish_odd()
    log.seal()
    record(log)
    keep(log, seconds=3600)

    assert reasons(log) == ["log epoch 1 is younger than 3600 s"] * 2
    assert low_sequences(log) == [1, 1]


def test_what_is_not_sealed_stays(log: Log) -> None:
    """The open end of the log is never touched."""
    log.publish_many(20)
    log.seal()
    log.publish_many(20)
    record(log)
    keep(log)

    clean(log.url, log.topic)

    assert low_sequences(log) == [11, 11]
    assert [event.sequence for event in fetch(log.connection, log.topic, 0, 11)] == list(
        range(11, 21)
    )


def test_readers_below_the_low_sequence_get_the_typed_error(log: Log) -> None:
    """What is gone is never skipped in silence."""
    log.publish_many(20)
    log.seal()
    record(log)
    keep(log)
    clean(log.url, log.topic)

    with pytest.raises(BelowLowSequence, match="low sequence 11"):
        fetch(log.connection, log.topic, 0, 10)


@proves("D9 at a damaged copy")
def test_one_flipped_bit_keeps_everything(log: Log, target: Target) -> None:
    """The copy is recorded as verified, its file has its size; the run reads it and stops.

    The other partition's copy is whole and stays too, until the damaged one was made again.
    """
    first, second = archived(log, target)
    keep(log)
    file = only_file(target, log, key_of(first))
    whole = file.read_bytes()
    place = len(whole) // 3
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

    run = verb(log.url, log.topic, target)

    assert [(each.partition, each.log_epoch) for each in run.read.damaged] == [key_of(first)]
    assert run.read.copies == 2
    assert low_sequences(log) == [1, 1]
    assert states(log) == ["missing", "verified"]
    file.write_bytes(whole)
    record(log)
    assert not verb(log.url, log.topic, target).read.damaged
    assert low_sequences(log) == [each.last_sequence + 1 for each in (first, second)]


def droppable(log: Log) -> None:
    """More than a slice of events, all of them gone logically, and a tick after them."""
    log.publish_many(10_100)
    log.seal(max_events=100_000)
    record(log)
    keep(log)
    clean(log.url, log.topic)
    log.publish_many(1)


def test_a_slice_goes_when_everything_in_it_is_gone(log: Log) -> None:
    """One unread partition keeps the whole slice; then it goes, and the rest can still be read."""
    log.publish_many(10_100)
    log.seal(max_events=100_000)
    record(log)
    keep(log)
    subscribe(log, "slow")
    seek_to_end(log, "slow", 0)
    clean(log.url, log.topic)
    log.publish_many(1)
    assert low_sequences(log) == [5_051, 1]

    assert drop_slices(log.url) == []

    seek_to_end(log, "slow", 1)
    clean(log.url, log.topic)
    (dropped,) = drop_slices(log.url)
    assert (dropped.state, dropped.first_id, dropped.last_id) == (SliceState.DROPPED, 1, 10_000)
    assert drop_slices(log.url) == []
    assert log.one("SELECT to_regclass('penstock.events_1') IS NULL")
    assert log.one("SELECT min(id) FROM penstock.events") == 10_001
    assert [event.payload for event in fetch(log.connection, log.topic, 1, 5_051)] == [b"p1"]


def test_an_open_publisher_is_waited_for(log: Log, database_url: str) -> None:
    """An event whose transaction took its id long ago and is still open keeps its slice.

    Guard: the transactions' line in the SQL function `settled_events`.
    """
    with psycopg.connect(database_url) as late:
        late.execute("SELECT penstock.publish(%s, 'late', partition => 0)", (log.topic,))
        droppable(log)
        assert drop_slices(log.url) == []
        late.commit()
    assert drop_slices(log.url) == []
    log.sequence()
    (dropped,) = drop_slices(log.url)
    assert dropped.state is SliceState.DROPPED, "and the late one is kept"
    last = log.one("SELECT max(high_watermark) FROM penstock.high_watermarks(%s)", log.topic)
    assert fetch(log.connection, log.topic, 0, last)[0].payload == b"late"


def test_a_reader_delays_the_drop_and_nobody_else(log: Log, database_url: str) -> None:
    """Clean gives up when its patience is over, publishers never wait, a later run finishes it.

    Guard: DETACH ... CONCURRENTLY and FINALIZE; a plain DETACH or DROP makes the publisher wait.
    """
    droppable(log)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM penstock.events").fetchone()

        (first,) = drop_slices(log.url, patience_seconds=0)
        (second,) = drop_slices(log.url, patience_seconds=0)
        with psycopg.connect(database_url, autocommit=True) as publisher:
            publisher.execute("SET lock_timeout = '50ms'")
            publisher.execute("SELECT penstock.publish(%s, 'x')", (log.topic,))

    assert [first.state, second.state] == [SliceState.HALF_DETACHED] * 2
    assert "timeout" in first.detail
    assert "timeout" in second.detail
    (third,) = drop_slices(log.url)
    assert (third.state, third.detail) == (SliceState.DROPPED, "")


def test_a_run_that_died_between_detach_and_drop(log: Log) -> None:
    """A detached table is dropped by the next run."""
    droppable(log)
    log.connection.execute(
        "ALTER TABLE penstock.events DETACH PARTITION penstock.events_1 CONCURRENTLY"
    )
    with psycopg.connect(log.url, autocommit=True) as connection:
        assert slice_state(connection, "events_1") is SliceState.DETACHED

    (dropped,) = drop_slices(log.url)

    assert dropped.state is SliceState.DROPPED
    assert log.one("SELECT to_regclass('penstock.events_1') IS NULL")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_after_the_drop_the_archive_answers(
    spark: SparkSession, log: Log, target: Target, tmp_path: Path
) -> None:
    """What the database has dropped is whole in the archive, and goes from there to a new target.

    A copy that is lost after the drop is made again from another target, and only from one.
    """
    log.publish_odd()
    sealed = log.seal()
    rows = log.rows()
    archive_epochs(spark, log.url, log.topic, target)
    keep(log)
    clean(log.url, log.topic)
    assert low_sequences(log) == [epoch.last_sequence + 1 for epoch in sealed]
    second = Target("second", str(tmp_path / "second"))

    assert archived_rows(target, log) == rows
    with pytest.raises(EpochError, match=r"no longer in the database; .* --source local"):
        backfill(spark, log.url, log.topic, second)
    made = backfill(spark, log.url, log.topic, second, sources=[target])
    assert [key_of(copy.epoch) for copy in made] == [key_of(epoch) for epoch in sealed]
    assert archived_rows(second, log) == rows

    only_file(target, log, (0, 1)).unlink()
    assert len(backfill(spark, log.url, log.topic, target, sources=[second])) == 1
    assert archived_table(target, log.known_as).num_rows == len(rows)
