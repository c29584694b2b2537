"""Where to read: positions of the log, and plans of ranges that are hot, cold or not there yet."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import pytest

from ops.seal import seal
from penstock import database, log
from penstock.errors import (
    EpochError,
    InvalidArgument,
    InvalidPartition,
    LogBehind,
    TopicNotFound,
)
from penstock.log import Lsn
from penstock.log.restores import report_position
from penstock.publishing.publish import publish_batch
from penstock.records import LogEpoch, Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.reads import Reads, counted
from tests.contract.stream_kit import Guard, without
from tests.kit.cleaning import clean_unread
from tests.kit.log import TOPIC, drain, known_as, part, topic
from tests.kit.proof import proves

TARGETS = ["one", "two"]


class Row(NamedTuple):
    """A row of a plan."""

    place: str
    log_epoch: int | None
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str | None
    known_as: str
    target: str | None
    state: str | None
    location: str | None
    layout: int | None
    first_row: int | None


def plan(own: Any, first: int = 1, most: int = 10**18, partition: int = 0) -> list[Row]:
    """The plan from a sequence on."""
    rows = database.call(
        own, "fetch_plan", topic=TOPIC, partition=partition, from_sequence=first, max_events=most
    )
    return [Row(*row) for row in rows]


def shape(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Place, log epoch, range and target of each row."""
    return [
        (each.place, each.log_epoch, each.first_sequence, each.last_sequence, each.target)
        for each in rows
    ]


def filled(own: Any, events: int = 25, size: int = 10) -> list[LogEpoch]:
    """A log with log epochs of ten events, the last five events not sealed."""
    topic(own)
    publish_batch(own, [Message(TOPIC, b"%d" % n) for n in range(events)])
    drain(own)
    return seal(own, TOPIC, max_events=size)


def copied(own: Any, epochs: list[LogEpoch], target: str = "one") -> None:
    """Copies as a target would report them."""
    for each in epochs:
        database.call(
            own, "record_copy", topic=TOPIC, partition=each.partition, log_epoch=each.log_epoch,
            target=target, location=f"{target}/{each.log_epoch}", event_count=each.event_count,
            checksum=each.checksum, layout=1 if target == "one" else 2,
            first_row=0 if target == "one" else 70 * each.log_epoch,
        )  # fmt: skip


def dropped(own: Any, up_to: int) -> None:
    """Retention removes the log epochs up to a sequence."""
    database.call(
        own, "set_retention", topic=TOPIC, minimum_age_seconds=0, copies=1, origin="hand",
        max_bytes=None, targets=TARGETS,
    )  # fmt: skip
    own_low = dict(database.call(own, "low_sequences", topic=TOPIC))[0]
    assert own_low <= up_to
    clean_unread(own, TOPIC)
    assert dict(database.call(own, "low_sequences", topic=TOPIC))[0] == up_to + 1


def test_a_plan_names_hot_and_cold_in_order(db: ContractDatabase) -> None:
    """Guards: the places, the order, and a row for each recorded copy."""
    own = db.connect()
    first, second = filled(own)
    copied(own, [first])
    copied(own, [first], "two")
    dropped(own, 10)
    database.call(
        own, "forget_copy", topic=TOPIC, partition=0, log_epoch=1, target="two", reason="lost"
    )
    found = plan(own)
    assert shape(found) == [
        ("cold", 1, 1, 10, "one"), ("cold", 1, 1, 10, "two"), ("hot", 2, 11, 20, None),
        ("hot", None, 21, 25, None),
    ]  # fmt: skip
    assert [each.state for each in found] == ["verified", "missing", None, None]
    assert [each.checksum for each in found[1:]] == [first.checksum, second.checksum, None]
    assert [each.event_count for each in found] == [10, 10, 10, 5]
    assert found[0].location == "one/1"
    assert {each.known_as for each in found} == {known_as(own)}
    assert [each.layout for each in found] == [1, 2, None, None]
    assert [each.first_row for each in found] == [0, 70, None, None]


@pytest.mark.parametrize(("first", "most", "expected"), [
    (1, 1, [1]), (10, 1, [1]), (10, 2, [1, 2]), (11, 10, [2]), (11, 11, [2, None]), (20, 1, [2]),
    (21, 1, [None]), (25, 10**18, [None]), (26, 1, []), (10**18, 10**18, []),
])  # fmt: skip
def test_a_plan_covers_what_is_asked_for(
    db: ContractDatabase, first: int, most: int, expected: list[int | None]
) -> None:
    """Guards: both ends of a range.  Beyond the tail there is nothing, and that is no error."""
    own = db.connect()
    filled(own)
    assert [each.log_epoch for each in plan(own, first, most)] == expected


def test_a_plan_of_many_segments_goes_on_where_it_ends(db: ContractDatabase) -> None:
    """Guards: the limit of 1,000, also before the end that is not sealed."""
    own = db.connect()
    filled(own, 1, 1)
    db.run("DELETE FROM penstock.log_epochs")
    epochs(db, part(own), 1_500)
    watermark(db, part(own), 1_505)
    found = plan(own)
    assert _epochs_of(found) == list(range(1, 1_001))
    found = plan(own, found[-1].last_sequence + 1)
    assert _epochs_of(found) == [*range(1_001, 1_501), None]
    assert found[-1].last_sequence == 1_505


def _epochs_of(rows: list[Row]) -> list[int | None]:
    return list(dict.fromkeys(each.log_epoch for each in rows))


def test_a_topic_that_was_never_sealed_is_hot(db: ContractDatabase) -> None:
    own = db.connect()
    filled(own, 3)
    assert shape(plan(own)) == [("hot", None, 1, 3, None)]
    assert plan(own, 4) == []


def test_a_plan_is_of_one_moment(db: ContractDatabase) -> None:
    """A seal that commits while a plan's transaction is open is not seen by a half of it."""
    own = db.connect()
    filled(own)
    with open_transaction(db) as other:
        before = plan(other)
        seal(own, TOPIC, max_events=10, max_age_seconds=0)
        for rows in (plan(other), plan(own)):
            ends = [0, *(each.last_sequence for each in rows)]
            assert [each.first_sequence for each in rows] == [end + 1 for end in ends[:-1]]
        assert before[-1].log_epoch is None


def test_positions_tell_their_log_epoch(db: ContractDatabase) -> None:
    """Guards: the look-up of the log epoch, at both of its ends; 0 is for what is not sealed."""
    own = db.connect()
    filled(own)
    found = {n: log.lsn_of(own, TOPIC, 0, n) for n in (1, 10, 11, 20, 21, 25, 99)}
    assert [each.log_epoch for each in found.values()] == [1, 1, 2, 2, 0, 0, 0]
    for sequence, lsn in found.items():
        assert log.sequence_of(own, TOPIC, 0, lsn) == sequence
        assert log.sequence_of(own, TOPIC, 0, str(lsn)) == sequence
    seal(own, TOPIC, max_events=10, max_age_seconds=0)
    assert log.sequence_of(own, TOPIC, 0, "0.21") == 21
    assert log.lsn_of(own, TOPIC, 0, 21) == Lsn(3, 21)


LSN_EPOCH: Guard = {
    "postgres": ("require_sequence", "IF given.log_epoch > 0 AND", "IF false AND"),
    "mysql": ("require_sequence", "IF given_epoch > 0 AND", "IF FALSE AND"),
}


@proves("the whole history", guard="the log epoch of a position")
@pytest.mark.parametrize("lsn", ["1.11", "2.10", "3.21", "7.1"])
def test_a_position_of_another_log_epoch_is_refused(db: ContractDatabase, lsn: str) -> None:
    """Guard: the comparison in require_sequence, and its mutant."""
    own = db.connect()
    filled(own)
    with pytest.raises(EpochError, match="not in log epoch"):
        log.sequence_of(own, TOPIC, 0, lsn)
    without(db, LSN_EPOCH)
    assert log.sequence_of(own, TOPIC, 0, lsn) == Lsn.parse(lsn).sequence


@pytest.mark.parametrize("lsn", [
    "", "1", "1.0", "01.1", "1.01", "-1.1", "1.1 ", "1.1\n", "a.1", "2147483648.1",
    "1.1000000000000000001", None,
])  # fmt: skip
def test_sql_refuses_what_is_no_position(db: ContractDatabase, lsn: str | None) -> None:
    """Guards: the pattern and the bounds in the database."""
    own = db.connect()
    filled(own)
    with pytest.raises(InvalidArgument, match="no position of the log"):
        database.call(own, "sequence_of", topic=TOPIC, partition=0, lsn=lsn)
    for sequence in (0, -1, 10**18 + 1, None):
        with pytest.raises(InvalidArgument, match="no position of the log"):
            database.call(own, "lsn_of", topic=TOPIC, partition=0, sequence=sequence)


def test_refusals_are_typed(db: ContractDatabase) -> None:
    """Guards: each check in front of a plan; a stopped partition is not read from anywhere."""
    own = db.connect()
    filled(own)
    for first, most in ((0, 1), (1, 0), (10**18 + 1, 1), (1, 10**18 + 1), (None, 1), (1, None)):
        with pytest.raises(InvalidArgument, match="a plan of"):
            database.call(
                own, "fetch_plan", topic=TOPIC, partition=0, from_sequence=first, max_events=most
            )
    with pytest.raises(InvalidPartition):
        plan(own, partition=1)
    with pytest.raises(TopicNotFound):
        log.lsn_of(own, "tests/nothing", 0, 1)
    db.run("UPDATE penstock.partitions SET low_sequence = 11")
    assert [each.place for each in plan(own)] == ["cold", "hot", "hot"]
    report_position(own, part(own), 99, history=1, source="a sink")
    for call in (lambda: plan(own), lambda: plan(own, 11)):
        with pytest.raises(LogBehind, match="is stopped"):
            call()


def epochs(db: ContractDatabase, partition_id: int, count: int) -> None:
    """So many log epochs of one event in a partition, each with two copies."""
    numbers = "generate_series(1, %(count)s) AS s (n)"
    if db.engine != "postgres":
        digits = " CROSS JOIN ".join(
            f"(SELECT {place} * d.i AS n FROM JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]',"
            f" '$[*]' COLUMNS (i INT PATH '$')) AS d) AS d{place}"
            for place in (1, 10, 100, 1_000, 10_000, 100_000)
        )
        total = " + ".join(f"d{place}.n" for place in (1, 10, 100, 1_000, 10_000, 100_000))
        numbers = f"(SELECT 1 + {total} AS n FROM {digits} HAVING n <= %(count)s) AS s"
    binds = {"part": partition_id, "count": count}
    db.run(
        "INSERT INTO penstock.log_epochs (partition_id, log_epoch, first_sequence, last_sequence,"
        f" event_count, checksum) SELECT %(part)s, s.n, s.n, s.n, 1, 'c' FROM {numbers}",
        binds,
    )
    for target in TARGETS:
        db.run(
            "INSERT INTO penstock.epoch_copies (partition_id, log_epoch, target, location, state,"
            f" detail) SELECT %(part)s, s.n, '{target}', 'l', 'verified', '' FROM {numbers}",
            binds,
        )


def watermark(db: ContractDatabase, partition_id: int, high: int) -> None:
    """As if the last chunk of the partition ended there; its events are not there."""
    db.run("UPDATE penstock.partitions SET low_sequence = %(high)s", {"high": high - 4})
    db.run("UPDATE penstock.chunks SET first_sequence = %(first)s WHERE partition_id = %(part)s",
           {"first": high, "part": partition_id})  # fmt: skip


#: Without the index: on PostgreSQL it is dropped; the routines of the others do without.
NO_INDEX = (
    "fetch_plan",
    "FROM log_epochs AS e FORCE INDEX (log_epochs_first)",
    "FROM log_epochs AS e IGNORE INDEX (PRIMARY, log_epochs_first)",
)
#: Of a plan of twenty events: forty copies, twenty log epochs, names and rights, and for each copy
#: a look whether its log epoch was rehydrated.
MOST_ROWS = 300

Sizes = [20_000, pytest.param(1_000_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("count", Sizes)
@pytest.mark.timeout(600)
def test_a_plan_reads_what_it_returns(
    db: ContractDatabase, count: int, record_testsuite_property: Any
) -> None:
    """However many log epochs there are.  Guard: the index by first sequence, and its mutant."""
    filler = db.connect()
    filled(filler, 1, 1)
    db.run("DELETE FROM penstock.log_epochs")
    epochs(db, part(filler), count)
    watermark(db, part(filler), count + 5)
    own = db.connect(autocommit=False)
    for start in (1, count // 2, count - 10):
        reads = _planned(own, start)
        assert reads.rows <= MOST_ROWS, f"from {start}: {reads}"
        assert not any(reads.scanned.get(table) for table in ("log_epochs", "epoch_copies")), reads
    _require_one_range_of_copies(own, count // 2)
    if count >= 1_000_000:
        seconds = {most: _timed(own, count // 2, most) for most in (1, 20, 500)}
        record_testsuite_property(f"fetch_plan seconds {db.engine}", seconds)
        if db.engine == "postgres":
            assert seconds[20] <= 0.005, seconds
        return
    own.rollback()
    if db.engine == "postgres":
        database.execute(own, "ALTER TABLE penstock.log_epochs DROP CONSTRAINT log_epochs_first")
    else:
        db.without_guard(*NO_INDEX)
    assert _planned(own, count // 2).rows > count / 2
    own.rollback()


def _require_one_range_of_copies(own: Any, start: int) -> None:
    """On PostgreSQL 500 log epochs need one descent into the manifest.  Guard: no nested loop."""
    if database.dialect_of(own) == "postgres":
        searched = "SELECT pg_stat_get_xact_numscans('penstock.epoch_copies_pkey'::regclass)"
        plan(own, start, 500)
        before = database.execute(own, searched)[0][0]
        assert len(plan(own, start, 500)) == 1_000
        assert database.execute(own, searched)[0][0] - before <= 2


def _planned(own: Any, start: int) -> Reads:
    plan(own, start, 20)
    with counted(own) as reads:
        assert len(plan(own, start, 20)) >= 20
    return reads


def _timed(own: Any, start: int, most: int) -> float:
    """The median of the whole call."""
    taken = []
    for n in range(200):
        begun = time.perf_counter()
        plan(own, start + n, most)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
