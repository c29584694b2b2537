"""A counter of ids that is set back while others are at work: nothing is lost or given twice (S2).

Scripted interleavings: what commits while the sequencer opens an era, what the sequencer's own
transaction publishes, what retention has removed from the index before the next era, and what is
written into storage that is about to be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from ops.clean import drop_slices
from ops.storage import SliceState
from penstock import log
from penstock.errors import LogBehind
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
    wait_until_blocked,
)
from tests.kit.storage import condemn, cut, droppable, many, move_low, next_slice, slices
from tests.postgres.log.test_counters import _set_back
from tests.postgres.log.test_early_events import OLD, _free_ids, _gap, _jump, _waiting

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


def _from(connection: Connection, sequence: int) -> list[str]:
    return [event.payload.decode() for event in log.fetch(connection, TOPIC, 0, sequence, 1000)]


def _trim(connection: Connection, up_to: int) -> None:
    """Retention has taken the beginning of the index, and the events are there yet."""
    connection.execute("UPDATE penstock.partitions SET low_sequence = %s", (up_to + 1,))
    connection.execute("DELETE FROM penstock.chunks WHERE first_sequence <= %s", (up_to,))


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


@pytest.mark.parametrize("commit", [_commit, _commit_prepared])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("max_events", [1, 10_000])
def test_what_commits_while_an_era_is_opened_is_sequenced(
    connection: Connection, database_url: str, commit: Commit, again: bool, max_events: int
) -> None:
    """Guard: take_boundary looks at the events that base can have, and not only at the counter."""
    _committed_at_the_opening(connection, database_url, commit, again=again, max_events=max_events)


def test_without_the_look_at_events_they_are_lost(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the boundary is what the counter says."""
    without_guard(connection, "take_boundary", "highest_number('events', 'id')", "0")
    with pytest.raises(AssertionError):
        _committed_at_the_opening(connection, database_url, _commit, again=False, max_events=10_000)


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


def test_what_the_sequencer_itself_publishes_does_not_wait(
    connection: Connection, database_url: str
) -> None:
    """Guard: is_quiet looks for events of the last tick's own transaction."""
    _own_event_below_the_last_known(connection, database_url)


def test_without_that_look_the_log_is_taken_for_quiet(
    connection: Connection, database_url: str
) -> None:
    """Mutant: only transactions after the last tick's."""
    without_guard(connection, "is_quiet", "e.tx = t.horizon", "false")
    with pytest.raises(AssertionError):
        _own_event_below_the_last_known(connection, database_url)


# What retention has removed from the index: that it is not there says nothing.


def _trimmed_after_a_caller_with_a_number(connection: Connection, url: str) -> None:
    """Whoever called the sequencer had published before: the tick does not name its number."""
    topic(connection)
    _free_ids(connection, 5)
    with open_transaction(url) as caller:
        value(caller, "SELECT pg_current_xact_id()")
        for text in ("gone", "kept"):
            put(connection, text)
            log.sequence(caller)
        caller.commit()
    _trim(connection, 1)
    _set_back(connection, "chunks_id")
    put(connection, "early")
    waiting = _waiting(connection)
    drain(connection)
    assert _from(connection, 2) == ["kept", "early"]
    assert waiting == 1


def test_in_the_same_cluster_what_was_trimmed_does_not_come_again(
    connection: Connection, database_url: str
) -> None:
    """Guard: loaded_by; where only the counter was set back, the tick's numbers tell what is new.

    The event that is gone from the index has a number above the caller's.
    """
    _trimmed_after_a_caller_with_a_number(connection, database_url)


def test_without_it_what_was_trimmed_comes_again(connection: Connection, database_url: str) -> None:
    """Mutant: the row of the tick is taken for one that a restore has loaded."""
    without_guard(
        connection,
        "loaded_by",
        "((i.system_identifier, i.timeline) IS DISTINCT FROM (a.system_identifier, a.timeline)",
        "(true",
    )
    with pytest.raises(AssertionError):
        _trimmed_after_a_caller_with_a_number(connection, database_url)


def _trimmed_straddler(connection: Connection, url: str) -> None:
    """It was open when the second era began, and its sequence was removed before the third."""
    topic(connection)
    put(connection, "before")
    drain(connection)
    with open_transaction(url) as straddling:
        put(straddling, "straddling")
        connection.execute("UPDATE penstock.eras SET system_identifier = 1")
        drain(connection)
        straddling.commit()
    drain(connection)
    put(connection, "kept")
    drain(connection)
    assert texts(connection) == ["before", "straddling", "kept"]
    _trim(connection, 2)
    _set_back(connection, "events_id")
    drain(connection)
    assert value(connection, "SELECT max(era) FROM penstock.eras") == 3
    assert _from(connection, 3) == ["kept"]


def test_a_straddler_that_was_trimmed_does_not_come_again(
    connection: Connection, database_url: str
) -> None:
    """Guard: repair_events compares it with the last tick, as it does all others of that era."""
    _trimmed_straddler(connection, database_url)


def test_without_the_comparison_the_straddler_comes_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: only the index tells whether it has its sequence."""
    without_guard(connection, "repair_events", "(o.era >= (repair_events.tick).repair_era", "(true")
    with pytest.raises(AssertionError):
        _trimmed_straddler(connection, database_url)


def _trimmed_during_a_repair(connection: Connection, url: str) -> None:
    """A repair has given it its sequence, and the tick after the repair sees its transaction."""
    topic(connection)
    put(connection, "first")
    drain(connection)
    with open_transaction(url) as straddling:
        put(connection, "before it")
        put(straddling, "straddling")
        put(connection, "after it")
        connection.execute("UPDATE penstock.eras SET system_identifier = 1")
        log.sequence(connection, 1)
        straddling.commit()
    log.sequence(connection, 1)
    next_slice(connection, "chunks")
    log.sequence(connection, 1)
    move_low(connection, 3)
    drop_slices(url)
    drain(connection)
    assert _from(connection, 4) == ["after it"]
    assert value(connection, "SELECT count(*) FROM penstock.chunks") == 4
    put(connection, "last")
    drain(connection)
    drop_slices(url)
    assert value(connection, "SELECT count(*) FROM penstock.chunks") == 2


def test_nothing_is_trimmed_while_a_repair_looks_into_the_index(
    connection: Connection, database_url: str
) -> None:
    """Guard: merge_chunks waits for the end of the repair, and of the tick that follows it."""
    _trimmed_during_a_repair(connection, database_url)


def test_without_that_what_was_trimmed_comes_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the index is cleaned meanwhile."""
    without_guard(connection, "merge_chunks", "IF repair_is_under_way() THEN", "IF false THEN")
    with pytest.raises(AssertionError):
        _trimmed_during_a_repair(connection, database_url)


# What is written into storage that is about to be dropped.

_SIZE = 200


def _a_slice_to_drop(connection: Connection, needed: int = 0) -> None:
    """Ids 1 to 5 are free, all others of the slice are sequenced, and few of them are needed."""
    topic(connection)
    cut(connection, "events", _SIZE)
    _free_ids(connection, 5)
    many(connection, _SIZE - 5)
    drain(connection)
    put(connection, "in the next slice")
    drain(connection)
    move_low(connection, _SIZE - 5 - needed)
    condemn(connection)


def _written_while_it_goes(connection: Connection, url: str) -> None:
    """The slice is droppable when somebody who is still open writes into it."""
    _a_slice_to_drop(connection)
    with open_transaction(url) as publisher:
        _set_back(connection, "events_id")
        put(publisher, "early")
        _jump(connection, _SIZE + 1)
        drop_slices(url, patience_seconds=0.2)
        publisher.commit()
    drop_slices(url)
    drain(connection)
    drop_slices(url)
    assert _from(connection, _SIZE - 4) == ["in the next slice", "early"]
    move_low(connection, _SIZE - 3)
    assert [each.state for each in drop_slices(url)] == [SliceState.DROPPED]


def test_what_is_written_into_a_slice_that_goes_is_kept(
    connection: Connection, database_url: str
) -> None:
    """Guards: close_slice waits for whoever writes, and looks again."""
    _written_while_it_goes(connection, database_url)


def test_without_the_trigger_it_is_dropped(connection: Connection, database_url: str) -> None:
    """Mutant: the slice is dropped under whoever writes."""
    without_guard(connection, "close_slice", "EXECUTE format(", "PERFORM format(")
    with pytest.raises(AssertionError):
        _written_while_it_goes(connection, database_url)


def test_nobody_writes_into_a_closed_slice(connection: Connection, database_url: str) -> None:
    """Guard: the trigger refuses it; nothing else of the log is closed."""
    _a_slice_to_drop(connection)
    assert value(connection, "SELECT penstock.close_slice('events_1')")
    _set_back(connection, "events_id")
    with pytest.raises(LogBehind, match="events_id"):
        put(connection, "early")
    _jump(connection, _SIZE + 1)
    put(connection, "new")
    assert [each.state for each in drop_slices(database_url)] == [SliceState.DROPPED]
    drain(connection)
    assert _from(connection, _SIZE - 4) == ["in the next slice", "new"]


@pytest.mark.parametrize("is_sequenced", [False, True])
def test_a_slice_into_which_an_event_came_is_not_closed(
    connection: Connection, is_sequenced: bool
) -> None:
    """Guards: close_slice looks for what waits and for what is needed, and opens it again."""
    _a_slice_to_drop(connection)
    assert droppable(connection) == ["events_1"]
    for text in ("early", "early too"):
        _jump(connection, 1 if text == "early" else 2)
        put(connection, text)
        _jump(connection, _SIZE + 1)
        if is_sequenced:
            drain(connection)
        assert not value(connection, "SELECT penstock.close_slice('events_1')")


@pytest.mark.parametrize(
    ("is_sequenced", "guard"),
    [
        (False, "closed.last_id >= settled_events()"),
        (True, "EXISTS (\n        SELECT FROM needed_events(closed.first_id, closed.last_id)"),
    ],
)
def test_without_each_look_it_is_closed(
    connection: Connection, is_sequenced: bool, guard: str
) -> None:
    """Mutants: what waits, and what is needed."""
    without_guard(connection, "close_slice", guard, guard.replace("closed.last_id", "-1"))
    with pytest.raises(AssertionError):
        test_a_slice_into_which_an_event_came_is_not_closed(connection, is_sequenced)


def test_what_comes_into_a_slice_that_was_copied_is_kept(
    connection: Connection, database_url: str
) -> None:
    """Guard: close_slice compares what is needed with what was copied."""
    _a_slice_to_drop(connection, 3)
    assert value(connection, "SELECT penstock.keep_events()") == "events_1"
    _set_back(connection, "events_id")
    put(connection, "early")
    _jump(connection, _SIZE + 1)
    drain(connection)
    expected = ["193", "194", "195", "in the next slice", "early"]
    drop_slices(database_url)
    assert _from(connection, _SIZE - 7) == expected
    move_low(connection, _SIZE - 3)
    drop_slices(database_url)
    assert "events_1" not in slices(connection, "events")
