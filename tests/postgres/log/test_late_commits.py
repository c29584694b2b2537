"""A late commit is neither skipped nor does it hold others back."""

from __future__ import annotations

import pytest

from penstock import log
from tests.guards import without_guard
from tests.kit.log import (
    Connection,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
)


#: A sequencer as most outboxes have it: everything above the highest id that it has seen.
def test_a_late_commit_inside_a_backlog(connection: Connection, database_url: str) -> None:
    """Guard: a tick in passes does not begin above the late commit (tick_start)."""
    topic(connection)
    assert _late_in_backlog(connection, database_url) == 1


def test_without_the_look_for_late_ones_a_backlog_hides_them(
    connection: Connection, database_url: str
) -> None:
    """Mutant: tick_start trusts the horizon alone."""
    topic(connection)
    without_guard(connection, "tick_start", "first_id_of(late)", "NULL")
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
