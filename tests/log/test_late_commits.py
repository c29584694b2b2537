"""A late commit is neither skipped nor does it hold others back."""

from __future__ import annotations

import psycopg
import pytest

from penstock import log
from tests.guards import without_guard
from tests.log.kit import (
    TOPIC,
    Connection,
    drain,
    open_transaction,
    put,
    read,
    texts,
    topic,
    value,
    wait_until,
)

#: A sequencer as most outboxes have it: everything above the highest id that it has seen.
BY_HIGHEST_ID = (
    "fresh_events",
    "e.tx >= pg_snapshot_xmax(fresh_events.base)",
    "e.id > (SELECT COALESCE(max(c.last_id), 0) FROM chunks AS c)",
)
NOT_THE_LATE_ONES = (
    "fresh_events",
    "WHERE pg_visible_in_snapshot(x.tx, fresh_events.target)",
    "WHERE false",
)


def _late_commit(connection: Connection, url: str) -> tuple[list[str], list[str]]:
    """What can be read before and after a transaction commits that published first."""
    with open_transaction(url) as late:
        put(late, "late")
        put(connection, "quick 1")
        drain(connection)
        put(connection, "quick 2")
        drain(connection)
        before = texts(connection)
        late.commit()
        drain(connection)
        return before, texts(connection)


def test_a_late_commit_comes_with_the_next_tick(connection: Connection, database_url: str) -> None:
    """Guard: the set of a tick is the difference of two snapshots, not an id range."""
    topic(connection)
    before, after = _late_commit(connection, database_url)
    assert before == ["quick 1", "quick 2"]  # held back by nobody
    assert after == ["quick 1", "quick 2", "late"]


def test_without_the_snapshots_the_late_commit_is_lost(
    connection: Connection, database_url: str
) -> None:
    """Mutant: visibility replaced by `id > highest id seen`."""
    topic(connection)
    without_guard(connection, *BY_HIGHEST_ID)
    without_guard(connection, *NOT_THE_LATE_ONES)
    _, after = _late_commit(connection, database_url)
    assert after == ["quick 1", "quick 2"]


def test_a_late_commit_inside_a_backlog(connection: Connection, database_url: str) -> None:
    """Guard: a tick in passes does not begin above the late commit (tick_start)."""
    topic(connection)
    assert _late_in_backlog(connection, database_url) == 1


def test_without_the_look_for_late_ones_a_backlog_hides_them(
    connection: Connection, database_url: str
) -> None:
    """Mutant: tick_start trusts the horizon alone."""
    topic(connection)
    without_guard(connection, "tick_start", "SELECT min(e.id + 0) - 1", "SELECT max(NULL::bigint)")
    assert _late_in_backlog(connection, database_url) == 0


def _late_in_backlog(connection: Connection, url: str) -> int:
    """How often the late event is in the log; passes of 2 events over a tick of 60."""
    with open_transaction(url) as late:
        put(late, "late")
        for number in range(5):
            put(connection, f"before {number}")
            drain(connection)
        for number in range(60):
            put(connection, str(number))
        late.commit()
    drain(connection, 2)
    found = texts(connection)
    assert len([text for text in found if text.isdigit()]) == 60
    return found.count("late")


def test_a_rolled_back_transaction_leaves_no_hole(
    connection: Connection, database_url: str
) -> None:
    """Guard: sequences are given to what is visible, not to ids."""
    topic(connection)
    with open_transaction(database_url) as undone:
        put(undone, "undone")
        put(connection, "1")
        drain(connection)
        undone.rollback()
    put(connection, "2")
    drain(connection)
    assert [(event.sequence, event.payload) for event in read(connection)] == [(1, b"1"), (2, b"2")]


def test_a_transaction_that_has_its_number_before_a_tick_and_publishes_after_it(
    connection: Connection, database_url: str
) -> None:
    """Guard: the in-progress list of the base snapshot."""
    topic(connection)
    with open_transaction(database_url) as early:
        value(early, "SELECT pg_current_xact_id()")
        put(connection, "other")
        drain(connection)
        put(early, "mine")
        early.commit()
    drain(connection)
    assert texts(connection) == ["other", "mine"]


def test_a_subtransaction_comes_with_its_transaction(
    connection: Connection, database_url: str
) -> None:
    """Guard: tx is the number of the whole transaction, not of the savepoint."""
    topic(connection)
    with open_transaction(database_url) as outer:
        outer.execute("SAVEPOINT a")
        put(outer, "in savepoint")
        outer.execute("RELEASE a")
        put(connection, "other")
        assert drain(connection) == 1
        outer.execute("SAVEPOINT b")
        put(outer, "in another")
        outer.commit()
    assert drain(connection) == 2
    assert texts(connection) == ["other", "in savepoint", "in another"]


def test_a_prepared_transaction_comes_when_it_is_committed(
    connection: Connection, database_url: str
) -> None:
    """Guard: a prepared transaction is in progress in every snapshot."""
    if value(connection, "SHOW max_prepared_transactions") == "0":
        pytest.skip("the server allows no prepared transactions")
    topic(connection)
    with open_transaction(database_url) as two_phase:
        put(two_phase, "prepared")
        two_phase.execute("PREPARE TRANSACTION 'penstock test'")
        two_phase.rollback()
    put(connection, "other")
    drain(connection)
    put(connection, "another")
    drain(connection)
    connection.execute("COMMIT PREPARED 'penstock test'")
    drain(connection)
    assert texts(connection) == ["other", "another", "prepared"]


def _publish_after_sequencing(connection: Connection, url: str) -> list[str]:
    """sequence() and publish() in one transaction, while another one ends in between."""
    with open_transaction(url) as mixed:
        mixed.execute("SELECT pg_current_xact_id()")  # a number below the other's
        put(connection, "other")
        log.sequence(mixed)
        put(mixed, "mine")
        mixed.commit()
    drain(connection)
    return texts(connection)


def test_the_sequencers_own_transaction_may_publish_after_it(
    connection: Connection, database_url: str
) -> None:
    """Guard: committed_snapshot counts the caller as open, pg_current_snapshot() does not."""
    topic(connection)
    assert _publish_after_sequencing(connection, database_url) == ["other", "mine"]


def test_without_counting_itself_as_open_the_sequencer_loses_its_own_event(
    connection: Connection, database_url: str
) -> None:
    """Mutant: pg_current_snapshot() as the target."""
    topic(connection)
    without_guard(
        connection,
        "next_tick",
        "tick.target := committed_snapshot()",
        "tick.target := pg_current_snapshot()",
    )
    assert _publish_after_sequencing(connection, database_url) == ["other"]


def test_a_hundred_open_transactions_and_each_comes_once(
    connection: Connection, database_url: str
) -> None:
    """Guard: the in-progress list, when it is long; commits in an order of their own."""
    topic(connection)
    count = min(60, int(value(connection, "SHOW max_connections")) - 30)
    opened = [psycopg.connect(database_url) for _ in range(count)]
    try:
        for number, each in enumerate(opened):
            put(each, str(number))
        put(connection, "between")
        drain(connection)
        for number, each in enumerate(opened[::-1]):
            if number % 3:
                each.commit()
            else:
                each.rollback()
            if number % 7 == 0:
                drain(connection)
    finally:
        for each in opened:
            each.close()
    drain(connection)
    found = texts(connection)
    kept = {str(count - 1 - number) for number in range(count) if number % 3}
    assert len(found) == len(set(found))
    assert set(found) == kept | {"between"}


def test_only_one_sequencer_at_a_time(connection: Connection, database_url: str) -> None:
    """Guard: the lock on the sequencer's row."""
    topic(connection)
    put(connection, "1")
    with open_transaction(database_url) as other:
        assert log.sequence(other).sequenced == 1
        assert log.sequence(connection).busy
        other.rollback()
    wait_until(lambda: not log.sequence(connection).busy, "the lock is free")
    assert texts(connection) == ["1"]
    assert log.high_watermarks(connection, TOPIC) == {0: 1}
