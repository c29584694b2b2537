"""A zombie whose commit call lies before the take-over attempt and whose COMMIT lies after it."""

from __future__ import annotations

import psycopg
import pytest

from penstock import stream
from penstock.errors import DuplicateSession, StaleLease
from tests.guards import without_guard
from tests.log.kit import Connection, backend_pid, open_transaction, value, wait_until
from tests.stream.kit import (
    SUBSCRIPTION,
    alive,
    end_lease,
    filled,
    holders,
    member_with_lease,
    more,
    short_leases,
    stored,
)

NO_LOCK = ("hold_leases", "FOR NO KEY UPDATE OF l", "")
NO_LIMIT = ("hold_leases", "PERFORM limit_transaction(left_seconds);", "")
ACCEPTED_LATE = """
    SELECT count(*)
    FROM penstock.positions AS p
    JOIN penstock.lease_history AS taken
        ON taken.partition_id = p.partition_id AND taken.lease_epoch > p.lease_epoch
        AND taken.change = 'acquired'
    WHERE p.reason = 'commit' AND taken.at < %s
"""


def _interleaved(connection: Connection, url: str) -> tuple[dict[int, str], int]:
    """Who holds the lease while the zombie's transaction is open, and what is stored in the end."""
    filled(connection)
    zombie, lease = member_with_lease(connection, "zombie")
    successor = stream.join(connection, SUBSCRIPTION, "successor")
    with open_transaction(url) as paused:
        stream.commit(paused, zombie, [(lease, 5)])
        end_lease(connection, "zombie")
        stream.check_in(connection, successor)
        held = holders(connection)
        paused.commit()
    return held, stored(connection)


def test_while_the_zombies_transaction_is_open_nobody_takes_over(
    connection: Connection, database_url: str
) -> None:
    """Guard: the fence locks the lease row to the end of the caller's transaction."""
    held, position = _interleaved(connection, database_url)
    assert held == {0: "zombie"}
    assert position == 5
    successor = stream.join(connection, SUBSCRIPTION, "another")
    (lease,) = stream.check_in(connection, successor)
    assert lease.position == 5


def test_without_the_lock_the_zombies_commit_is_accepted_after_the_take_over(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the fence only looks. Both consumers do events 1 to 5: the violation."""
    without_guard(connection, *NO_LOCK)
    held, position = _interleaved(connection, database_url)
    assert held == {0: "successor"}
    assert position == 5
    assert value(connection, ACCEPTED_LATE, "infinity") == 1


def _paused_past_its_lease(connection: Connection, paused: Connection) -> None:
    """A consumer stops between its commit call and COMMIT, and never goes on in time."""
    filled(connection)
    short_leases(connection)
    zombie, lease = member_with_lease(connection, "zombie")
    stream.commit(paused, zombie, [(lease, 5)])


def test_the_server_ends_a_transaction_that_outlives_its_lease(
    connection: Connection, database_url: str
) -> None:
    """Guard: the time limit that the fence sets, shorter than what is left of the lease."""
    with open_transaction(database_url) as paused:
        _paused_past_its_lease(connection, paused)
        successor = stream.join(connection, SUBSCRIPTION, "successor")
        wait_until(lambda: stream.check_in(connection, successor), "the successor takes over")
        with pytest.raises(psycopg.Error, match=r"timeout|closed|terminat"):
            paused.commit()
    assert stored(connection) == 0
    assert holders(connection) == {0: "successor"}


def test_without_the_limit_it_blocks_its_successor(
    connection: Connection, database_url: str
) -> None:
    """Mutant: no limit. A whole lease time after the deadline the lease is still held."""
    without_guard(connection, *NO_LIMIT)
    with open_transaction(database_url) as paused:
        _paused_past_its_lease(connection, paused)
        successor = stream.join(connection, SUBSCRIPTION, "successor")
        wait_until(
            lambda: value(
                connection,
                "SELECT bool_and(deadline + interval '600 ms' < clock_timestamp())"
                " FROM penstock.consumers WHERE id = 'zombie'",
            ),
            "twice the lease time",
        )
        assert stream.check_in(connection, successor) == []
        assert alive(connection, backend_pid(paused))


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


def _joined_again(connection: Connection, url: str) -> None:
    """A second run of the same consumer id, while the first is inside its transaction."""
    filled(connection)
    first, lease = member_with_lease(connection, "a")
    with open_transaction(url) as paused:
        stream.commit(paused, first, [(lease, 5)])
        end_lease(connection, "a")
        second = stream.join(connection, SUBSCRIPTION, "a")
        (shared,) = stream.check_in(connection, second)
        assert shared.lease_epoch == lease.lease_epoch
        paused.commit()


def test_a_second_run_of_an_id_waits_for_the_transaction_of_the_first(
    connection: Connection, database_url: str
) -> None:
    """Guard: join refuses while a lease row of the id is locked."""
    with pytest.raises(DuplicateSession):
        _joined_again(connection, database_url)


def test_without_waiting_two_runs_share_a_lease_epoch(
    connection: Connection, database_url: str
) -> None:
    """Mutant: join does not look whether all leases were freed."""
    without_guard(
        connection,
        "join",
        "IF give_up_leases(owner.id, consumer, 'expired', now) > 0 THEN",
        "IF give_up_leases(owner.id, consumer, 'expired', now) < 0 THEN",
    )
    _joined_again(connection, database_url)


def _left_inside_a_transaction(connection: Connection, url: str) -> dict[int, str]:
    """A consumer leaves while a transaction of it holds a lease; then another one checks in."""
    filled(connection)
    leaving, lease = member_with_lease(connection, "a")
    with open_transaction(url) as working:
        stream.commit(working, leaving, [(lease, 5)])
        stream.leave(connection, leaving)
        working.commit()
    other = stream.join(connection, SUBSCRIPTION, "b")
    stream.check_in(connection, other)
    return holders(connection)


def test_a_lease_is_not_orphaned_when_its_holder_leaves(
    connection: Connection, database_url: str
) -> None:
    """Guard: a consumer stays as a dead one until its last lease is free."""
    assert _left_inside_a_transaction(connection, database_url) == {0: "b"}


def test_without_that_nobody_ever_gets_the_partition_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: leave removes the consumer whatever it still holds."""
    without_guard(
        connection,
        "leave",
        "IF give_up_leases(owner.id, consumer, 'released', clock_timestamp()) = 0 THEN",
        "PERFORM give_up_leases(owner.id, consumer, 'released', clock_timestamp()); IF true THEN",
    )
    assert _left_inside_a_transaction(connection, database_url) == {0: "a"}


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
