"""A counter of ids that is set back while others are at work: nothing is lost or given twice (S2).

Scripted interleavings: what commits while the sequencer opens an era, and what the sequencer's own
transaction publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from ops.retention.storage_postgres import note_snapshots
from penstock import log
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    part,
    put,
    texts,
    topic,
    value,
    wait_until_blocked,
)
from tests.kit.proof import proves
from tests.kit.storage import many, move_low, next_slice
from tests.postgres.log.test_counters import _set_back
from tests.postgres.log.test_early_events import OLD, _gap, _jump, _waiting

#: Where a pass stops when the function has it between two of its statements.
_LOCK = "pg_advisory_xact_lock(11)"


@contextmanager
def _stopped_pass(passing: Connection, url: str, lock: str) -> Iterator[None]:
    """A pass that waits for a lock; it goes on, and ends, when the block is left."""
    with (
        open_transaction(url) as holder,
        psycopg.connect(url, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        holder.execute(lock.encode())
        running = pool.submit(log.sequence, passing)
        try:
            wait_until_blocked(other, backend_pid(passing))
            yield
        finally:
            holder.rollback()
            running.result(60)


# What commits while an era is being opened.


def _commit(publisher: Connection, _: Connection) -> None:
    publisher.commit()


def _commit_prepared(publisher: Connection, other: Connection) -> None:
    name = str(backend_pid(publisher))
    publisher.execute(f"PREPARE TRANSACTION '{name}'".encode())
    other.execute(f"COMMIT PREPARED '{name}'".encode())


Commit = Callable[[Connection, Connection], None]


def _committed_at_the_opening(
    connection: Connection, url: str, commit: Commit, *, again: bool, max_events: int
) -> None:
    """Ids from before the counter was set back; committed after the counters were raised."""
    _gap(connection)
    with (
        open_transaction(url) as publisher,
        psycopg.connect(url, autocommit=True) as passing,
    ):
        for text in "abc":
            put(publisher, text)
        _set_back(connection, "events_id")
        with _stopped_pass(passing, url, "LOCK TABLE penstock.histories IN EXCLUSIVE MODE"):
            if again:
                _set_back(connection, "events_id")
            commit(publisher, connection)
    drain(connection, max_events)
    assert _waiting(connection) == 0
    assert texts(connection) == [*OLD, *"abc"]
    put(connection, "late")
    drain(connection, max_events)
    assert texts(connection) == [*OLD, *"abc", "late"]


@proves("S2 over a counter that jumps", how="while an era is opened")
@pytest.mark.parametrize("commit", [_commit, _commit_prepared])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("max_events", [1, 10_000])
def test_what_commits_while_an_era_is_opened_is_sequenced(
    connection: Connection, database_url: str, commit: Commit, again: bool, max_events: int
) -> None:
    """Guard: take_boundary looks at the events that base can have, and not only at the counter."""
    _committed_at_the_opening(connection, database_url, commit, again=again, max_events=max_events)


@proves("S2 over a counter that jumps", guard="take_boundary")
def test_without_the_look_at_events_they_are_lost(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the boundary is what the counter says."""
    without_guard(connection, "take_boundary", "highest_number('events', 'id')", "0")
    with pytest.raises(AssertionError):
        _committed_at_the_opening(connection, database_url, _commit, again=False, max_events=10_000)


@proves("S2 over a counter that jumps", how="while an era is opened")
@pytest.mark.parametrize("max_events", [1, 10_000])
def test_what_stays_open_over_the_opening_is_sequenced(
    connection: Connection, database_url: str, max_events: int
) -> None:
    """Guard: straddles; ids above the boundary, below it, and from a prepared transaction."""
    _gap(connection)
    with open_transaction(database_url) as above, open_transaction(database_url) as below:
        put(above, "above")
        name = str(backend_pid(above))
        above.execute(f"PREPARE TRANSACTION '{name}'".encode())
        _set_back(connection, "events_id")
        put(below, "below")
        log.sequence(connection, max_events)
        assert value(connection, "SELECT max(era) FROM penstock.eras") == 2
        _jump(connection, 40)
        put(connection, "new")
        drain(connection, max_events)
        below.commit()
    connection.execute(f"COMMIT PREPARED '{name}'".encode())
    assert _waiting(connection) == 2
    drain(connection, max_events)
    assert texts(connection)[:4] == [*OLD, "new"]
    assert sorted(texts(connection)[4:]) == ["above", "below"]
    assert _waiting(connection) == 0


# What the sequencer's own transaction publishes.


def _own_event_below_the_last_known(connection: Connection, url: str) -> None:
    """Another transaction has ended between the sequencer's lock and its look at what is there."""
    _gap(connection)
    put(connection, "first")
    after_the_lock = "SELECT * INTO STRICT tick FROM ticks"
    without_guard(connection, "sequence", after_the_lock, f"PERFORM {_LOCK}; {after_the_lock}")
    with psycopg.connect(url) as passing:
        with _stopped_pass(passing, url, f"SELECT {_LOCK}"):
            connection.execute("SELECT pg_current_xact_id()")
        listed, horizon = passing.execute(
            "SELECT ARRAY(SELECT pg_snapshot_xip(target)), horizon FROM penstock.ticks"
            " ORDER BY id DESC LIMIT 1"
        ).fetchall()[0]
        assert listed == [horizon], "the sequencer itself was open, and nobody else"
        _set_back(connection, "events_id")
        put(passing, "own")
        _jump(connection, 9)
    drain(connection)
    assert texts(connection) == [*OLD, "first", "own"]
    assert _waiting(connection) == 0


@proves("S2 over a counter that jumps", how="by the sequencer itself")
def test_what_the_sequencer_itself_publishes_does_not_wait(
    connection: Connection, database_url: str
) -> None:
    """Guard: is_quiet looks for events of the last tick's own transaction."""
    _own_event_below_the_last_known(connection, database_url)


@proves("S2 over a counter that jumps", guard="the sequencer's own events")
def test_without_that_look_the_log_is_taken_for_quiet(
    connection: Connection, database_url: str
) -> None:
    """Mutant: only transactions after the last tick's."""
    without_guard(connection, "is_quiet", "e.tx = t.horizon", "false")
    with pytest.raises(AssertionError):
        _own_event_below_the_last_known(connection, database_url)


# The counter of the index of the log.


def _index_begins_anew(connection: Connection, url: str, stop: str, to: int) -> None:
    """Its counter is set back while a pass is under way, which had seen nothing amiss."""
    topic(connection)
    put(connection, "1")
    drain(connection)
    next_slice(connection, "chunks")
    for text in "23":
        put(connection, text)
        drain(connection)
    without_guard(connection, "sequence", stop, f"PERFORM {_LOCK}; {stop}")
    put(connection, "4")
    with psycopg.connect(url, autocommit=True) as passing:
        with _stopped_pass(passing, url, f"SELECT {_LOCK}"):
            connection.execute("SELECT setval('penstock.chunks_id', %s)", (to,))
        for text in "56":
            put(connection, text)
            drain(connection)
    assert texts(connection) == list("123456")
    assert log.gaps(connection, TOPIC) == []
    highest = value(connection, "SELECT max(chunk_id) FROM penstock.chunks")
    assert value(connection, "SELECT last_value FROM penstock.chunks_id") >= highest


#: Before the pass appends, and after it.
_BEFORE, _AFTER = "begun := tick.complete;", "INSERT INTO ticks"
_STOPS = [(_BEFORE, 1), (_AFTER, 1), (_AFTER, 100_002)]


@proves("S21 of the index's counter")
@pytest.mark.parametrize(("stop", "to"), _STOPS)
def test_an_index_that_begins_anew_during_a_pass_gives_no_sequence_twice(
    connection: Connection, database_url: str, stop: str, to: int
) -> None:
    """Guards: a pass knows of the newest chunk what the last one knew, and tells what it gives."""
    _index_begins_anew(connection, database_url, stop, to)


@proves("S21 of the index's counter", guard="the newest chunk that the tick knows")
@pytest.mark.parametrize(
    ("mutant", "stopped"),
    [
        (("sequence", "GREATEST(c.last_value, tick.chunk_id)", "c.last_value"), (_BEFORE, 1)),
        (("sequence", "tick.chunk_id + cardinality(pass.grown)", "0"), (_BEFORE, 1)),
    ],
)
def test_without_it_the_counter_alone_is_asked(
    connection: Connection,
    database_url: str,
    mutant: tuple[str, str, str],
    stopped: tuple[str, int],
) -> None:
    """Mutants: sequences come twice, or the database refuses the pass."""
    without_guard(connection, *mutant)
    with pytest.raises((AssertionError, psycopg.errors.UniqueViolation)):
        _index_begins_anew(connection, database_url, *stopped)


_SET_BACK_AMONG_THEM = """
    CREATE FUNCTION penstock.set_back() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM setval('penstock.chunks_id', 1) WHERE NEW.chunk_id = 5;
        RETURN NEW;
    END $$;
    CREATE TRIGGER set_back BEFORE INSERT ON penstock.chunks
    FOR EACH ROW EXECUTE FUNCTION penstock.set_back()"""


def _many_chunks_in_a_pass(connection: Connection, url: str, how: str) -> None:
    """The counter is set back while a pass appends five chunks, or has appended them."""
    topic(connection)
    put(connection, "first")
    drain(connection)
    if how == "after rolled-back passes":
        connection.execute("SELECT nextval('penstock.chunks_id') FROM generate_series(1, 40)")
    if how == "between two chunks":
        connection.execute(_SET_BACK_AMONG_THEM)
    many(connection, 4500)
    with (
        psycopg.connect(url, autocommit=True) as passing,
        _stopped_pass(passing, url, "LOCK TABLE penstock.ticks IN SHARE MODE"),
    ):
        connection.execute("SELECT setval('penstock.chunks_id', 2)")
    connection.execute("DROP FUNCTION IF EXISTS penstock.set_back CASCADE")
    highest = value(connection, "SELECT max(chunk_id) FROM penstock.chunks")
    assert value(connection, "SELECT max(chunk_id) FROM penstock.ticks") >= highest
    put(connection, "last")
    drain(connection)
    assert len(texts(connection)) == 4502
    assert log.gaps(connection, TOPIC) == []


@proves("S21 of the index's counter")
@pytest.mark.parametrize(
    "how", ["after the chunks", "after rolled-back passes", "between two chunks"]
)
def test_a_pass_tells_of_all_its_chunks(
    connection: Connection, database_url: str, how: str
) -> None:
    """Guards: a pass counts its chunks, not its partitions, and knows the last number it got."""
    _many_chunks_in_a_pass(connection, database_url, how)


@proves("S21 of the index's counter", guard="what a pass records")
@pytest.mark.parametrize(
    ("mutant", "how"),
    [
        (("sequence", "currval('chunks_id')", "0"), "after rolled-back passes"),
        (("append_chunks", "array_agg(g.p", "array_agg(DISTINCT g.p"), "between two chunks"),
        (("sequence", " + cardinality(pass.grown)", ""), "between two chunks"),
    ],
)
def test_without_one_of_them_sequences_come_twice(
    connection: Connection, database_url: str, mutant: tuple[str, str, str], how: str
) -> None:
    """Mutants: without the last number; one chunk for each partition; no count."""
    without_guard(connection, *mutant)
    with pytest.raises((AssertionError, psycopg.errors.UniqueViolation)):
        _many_chunks_in_a_pass(connection, database_url, how)


def _chunk_in_a_merged_slice(connection: Connection, url: str, partition: int) -> None:
    """A pass that waited while a merge was built writes its chunk into a slice of the merge."""
    topic(connection, 2)
    for number in range(4):
        publish(connection, TOPIC, b"%d" % number, partition=0)
        drain(connection)
    next_slice(connection, "chunks")
    publish(connection, TOPIC, b"last", partition=0)
    drain(connection)
    move_low(connection, 3, part(connection))
    connection.execute("SELECT * FROM penstock.merge_chunks()")
    note_snapshots(connection)
    publish(connection, TOPIC, b"new", partition=partition)
    with (
        psycopg.connect(url, autocommit=True) as passing,
        _stopped_pass(passing, url, "LOCK TABLE penstock.chunks IN SHARE MODE"),
    ):
        connection.execute("SELECT setval('penstock.chunks_id', 1)")
    note_snapshots(connection)
    swapped = value(connection, "SELECT penstock.swap_merged_slice()")
    _has_all(connection, partition)
    assert not swapped
    drain(connection)
    assert [done.state for done in drop_slices(url)] == [SliceState.MERGED]
    _has_all(connection, partition)


def _has_all(connection: Connection, partition: int) -> None:
    first = [event.payload for event in log.fetch(connection, TOPIC, 0, 4)]
    second = [event.payload for event in log.fetch(connection, TOPIC, 1, 1)]
    expected = [[b"3", b"last"], []]
    expected[partition].append(b"new")
    assert [first, second] == expected


@proves("S21 of the index's counter")
@pytest.mark.parametrize("partition", [0, 1])
def test_a_chunk_that_comes_into_a_merged_slice_is_kept(
    connection: Connection, database_url: str, partition: int
) -> None:
    """Guard: merge_is_whole; swap_merged_slice throws away a merge that lacks a chunk."""
    _chunk_in_a_merged_slice(connection, database_url, partition)


@proves("S21 of the index's counter", guard="merge_is_whole")
@pytest.mark.parametrize(
    ("mutant", "partition"),
    [
        (("swap_merged_slice", "NOT merge_is_whole(merge)", "false"), 0),
        (("swap_merged_slice", "NOT merge_is_whole(merge)", "false"), 1),
        (("merge_is_whole", "), 0))", "), newest.next_sequence))"), 1),
    ],
)
def test_without_a_look_at_the_slices_the_chunk_is_lost(
    connection: Connection, database_url: str, mutant: tuple[str, str, str], partition: int
) -> None:
    """Mutants: none is asked; or only partitions that the merge has."""
    without_guard(connection, *mutant)
    with pytest.raises((AssertionError, psycopg.ProgrammingError)):
        _chunk_in_a_merged_slice(connection, database_url, partition)
