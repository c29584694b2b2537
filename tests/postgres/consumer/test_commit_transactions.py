"""A commit in its caller's transaction on PostgreSQL: time limits, its own lock, savepoints."""

from __future__ import annotations

import psycopg
import pytest

from penstock.errors import StaleLease
from penstock.subscriptions import stream
from tests.kit.log import Connection, open_transaction
from tests.kit.stream import (
    end_lease,
    filled,
    member_with_lease,
    more,
    short_leases,
    stored,
)


def _paused_past_its_lease(connection: Connection, paused: Connection) -> None:
    """A consumer stops between its commit call and COMMIT, and never goes on in time."""
    filled(connection)
    short_leases(connection)
    zombie, lease = member_with_lease(connection, "zombie")
    stream.commit(paused, zombie, [(lease, 5)])


def _limits(connection: Connection) -> tuple[float, float]:
    row = connection.execute(
        "SELECT"
        " extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval),"
        " extract(epoch FROM current_setting('transaction_timeout')::interval)"
    ).fetchone()
    assert row is not None
    return float(row[0]), float(row[1])


@pytest.mark.parametrize(("given", "expected"), [("0", 9.5), ("1h", 9.5), ("5s", 5.0)])
def test_a_limit_is_set_or_tightened_and_never_loosened(
    connection: Connection, database_url: str, given: str, expected: float
) -> None:
    """Guard: limit_transaction, whatever the caller's own limits are."""
    if connection.info.server_version < 170000:
        pytest.skip("the server has no transaction_timeout")
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    with open_transaction(database_url) as app:
        app.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{given}'".encode())
        app.execute(f"SET LOCAL transaction_timeout = '{given}'".encode())
        stream.commit(app, member, [(lease, 5)])
        idle, whole = _limits(app)
        assert expected - 1 < idle <= expected
        assert expected - 1 < whole <= expected
        app.commit()
        assert _limits(app) == (0, 0)


def test_a_statement_cannot_outlive_the_lease_under_a_longer_limit_of_the_caller(
    connection: Connection, database_url: str
) -> None:
    """Guard: a timer that runs already is switched off first, else it keeps its old time."""
    if connection.info.server_version < 170000:
        pytest.skip("the server has no transaction_timeout")
    with open_transaction(database_url) as busy:
        busy.execute("SET LOCAL transaction_timeout = '1h'")
        _paused_past_its_lease(connection, busy)
        with pytest.raises(psycopg.Error, match=r"timeout|closed|terminat"):
            busy.execute("SELECT pg_sleep(30)")
    assert stored(connection) == 0


def test_two_commits_of_one_holder_follow_each_other(
    connection: Connection, database_url: str
) -> None:
    """Guard: the lock excludes itself, so the newest row of the ledger is the last commit."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    with open_transaction(database_url) as first:
        stream.commit(first, member, [(lease, 8)])
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            stream.commit(connection, member, [(lease, 3)])
        first.rollback()
    connection.execute("RESET lock_timeout")
    stream.commit(connection, member, [(lease, 3)])
    assert stored(connection) == 3


def test_rolled_back_to_a_savepoint_the_position_and_the_lock_are_gone(
    connection: Connection, database_url: str
) -> None:
    """Guard: the position is a row of the caller's transaction and nothing else."""
    filled(connection)
    member, lease = member_with_lease(connection, "a")
    with open_transaction(database_url) as app:
        with app.transaction(force_rollback=True):
            stream.commit(app, member, [(lease, 8)])
        end_lease(connection, "a")
        member_with_lease(connection, "b")
        with pytest.raises(StaleLease):
            stream.commit(app, member, [(lease, 8)])
    more(connection, start=11)
    assert stored(connection) == 0
