"""The lease keeper stops using leases before the database could give them to others."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.errors import DuplicateSession, SubscriptionNotFound
from penstock.leases.database_keeper import LeaseKeeper
from penstock.records import Lease
from penstock.subscriptions import stream
from tests.kit.log import Connection, wait_until
from tests.kit.stream import (
    SUBSCRIPTION,
    Clock,
    check_in,
    end_lease,
    filled,
    holders,
    short_leases,
    slow_leases,
    stored,
)


def _slow_heartbeat(connection: Connection) -> None:
    """Only what the test wakes up checks in."""
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=60, lease_seconds=180, release_seconds=60
    )


def test_by_the_local_clock_leases_end_before_the_databases_do(
    connection: Connection, database_url: str
) -> None:
    """Guard: the monotonic clock, measured from before the check-in was sent."""
    filled(connection)
    _slow_heartbeat(connection)
    clock = Clock()
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a", clock=clock) as keeper:
        assert len(keeper.leases()) == 1
        clock.now += 161
        assert len(keeper.leases()) == 1
        clock.now += 2  # 163 of 180 seconds: nine tenths are over
        assert keeper.leases() == []
        assert holders(connection) == {0: "a"}
        keeper.check_in_soon()
        wait_until(keeper.leases, "the next check-in gives them back")


def test_the_time_a_check_in_takes_counts_against_the_lease(
    connection: Connection, database_url: str
) -> None:
    """Guard: the clock is read before the call; its reply may come late."""
    filled(connection)
    _slow_heartbeat(connection)
    clock = Clock()
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a", clock=clock) as keeper:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("SELECT FROM penstock.subscriptions FOR UPDATE")
            clock.now += 10
            keeper.check_in_soon()
            wait_until(
                lambda: connection.execute(
                    "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ).fetchall(),
                "the check-in waits",
            )
            clock.now += 170  # the check-in began at 1010 and is answered at 1180
            before = keeper.last_success
        wait_until(lambda: keeper.last_success != before, "the check-in ended")
        assert keeper.leases() == []


def test_a_collected_consumer_joins_again_with_another_epoch(
    connection: Connection, database_url: str
) -> None:
    """Guard: UnknownConsumer leads to a join, and the old leases are forgotten."""
    filled(connection)
    short_leases(connection, 3)
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a") as keeper:
        (before,) = keeper.leases()
        end_lease(connection, "a")
        connection.execute("SELECT penstock.sweep()")
        wait_until(lambda: keeper.joins == 2 and keeper.leases(), "it joined again")
        (after,) = keeper.leases()
        assert after.lease_epoch > before.lease_epoch
    assert holders(connection) == {}


def test_one_that_is_collected_before_its_first_check_in_joins_again(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is frozen as soon as it has joined.  Guard: the loop over MOST_JOINS."""
    filled(connection)
    join = stream.join
    frozen = iter([True])

    def join_and_freeze(*given: Any, **more: Any) -> stream.Membership:
        member = join(*given, **more)
        if next(frozen, False):
            end_lease(connection, "a")
            connection.execute("SELECT penstock.sweep()")
        return member

    monkeypatch.setattr(stream, "join", join_and_freeze)
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a") as keeper:
        assert keeper.joins == 2
        assert len(keeper.leases()) == 1


def test_a_lost_connection_is_opened_again(connection: Connection, database_url: str) -> None:
    """Guard: any error closes the connection, and the next check-in opens one."""
    filled(connection)
    short_leases(connection, 3)
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a") as keeper:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'penstock keeper%'"
        )
        before = keeper.last_success
        wait_until(lambda: keeper.last_success > before, "another check-in")
        assert len(keeper.leases()) == 1


def test_an_id_that_runs_already_is_refused_at_once(
    connection: Connection, database_url: str
) -> None:
    """Guard: the first check-in is made before the thread starts; so is an unknown name's."""
    filled(connection)
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a"):
        with (
            pytest.raises(DuplicateSession),
            LeaseKeeper(database_url, SUBSCRIPTION, consumer="a"),
        ):
            pass
        with pytest.raises(SubscriptionNotFound), LeaseKeeper(database_url, "nobody"):
            pass
        assert holders(connection) == {0: "a"}


def test_a_position_that_was_committed_during_a_check_in_is_kept(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the newest of both positions, under one lease_epoch only."""
    filled(connection)
    slow_leases(connection)
    with LeaseKeeper(database_url, SUBSCRIPTION, consumer="a") as keeper:
        (lease,) = keeper.leases()
        real = stream.check_in

        def meanwhile(*given: Any, **named: Any) -> list[Lease]:
            held = real(*given, **named)
            keeper.moved(lease, 7)
            return held

        with monkeypatch.context() as patch:
            patch.setattr(stream, "check_in", meanwhile)
            check_in(keeper)
        assert keeper.leases()[0].position == 7
        assert stored(connection) == 0
        keeper.lost(lease)
        wait_until(keeper.leases, "a check-in gives what is really held")
        assert keeper.leases()[0].position == 0
