"""One heartbeat for all consumers of a process: a failure of one does not disturb the others."""

from __future__ import annotations

import contextlib
import uuid
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from penstock import database
from penstock.errors import DuplicateSession, PenstockError
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.heartbeat import HeartbeatThreads
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Beat
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.stream_kit import end_lease
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    SUBSCRIPTION,
    filled,
    holders,
    short_leases,
)


@pytest.mark.long_on("mariadb")
def test_consumers_of_a_process_share_two_connections(db: ContractDatabase) -> None:
    """Guard: one heartbeat threads for a database; the last one to leave ends it."""
    own = db.connect()
    filled(own, partitions=4)
    short_leases(own, 1.5)
    connect, opened = HeartbeatThreads.open, []

    def counted(heartbeat_threads: HeartbeatThreads) -> Any:
        opened.append(connect(heartbeat_threads))
        return opened[-1]

    with patch.object(HeartbeatThreads, "open", counted), ExitStack() as stack:
        keepers = [
            stack.enter_context(LeaseKeeper(db.url, SUBSCRIPTION, consumer=f"c{n}"))
            for n in range(4)
        ]
        wait_until(lambda: all(keeper.leases() for keeper in keepers), "each has its share")
        before = [keeper.last_success for keeper in keepers]
        wait_until(
            lambda: all(k.last_success > b for k, b in zip(keepers, before, strict=True)),
            "another heartbeat of each",
        )
        assert len(opened) == 2
    assert holders(own) == {}
    assert db.run("SELECT id FROM penstock.consumers") == []


def _joined_in_its_place(db: ContractDatabase, own: Any, consumer: str) -> stream.Membership:
    """A second session of a consumer that lives: its heartbeat may come between the two calls."""
    for _ in range(100):
        end_lease(db, consumer)
        with contextlib.suppress(DuplicateSession):
            return stream.join(own, SUBSCRIPTION, consumer)
    raise AssertionError(f"{consumer} was alive each time")


@proves("leases side by side")
@pytest.mark.long_on("mysql", "mariadb")
def test_a_duplicate_session_disturbs_no_other(db: ContractDatabase) -> None:
    """Guard: a heartbeat answers for each, and a failed check-in counts for its own consumer."""
    own = db.connect()
    filled(own, partitions=2)
    short_leases(own, 1.5)
    with (
        LeaseKeeper(db.url, SUBSCRIPTION, consumer="a") as lost,
        LeaseKeeper(db.url, SUBSCRIPTION, consumer="b") as kept,
    ):
        wait_until(lambda: lost.leases() and kept.leases(), "each has its share")
        usurper = _joined_in_its_place(db, own, "a")
        wait_until(lambda: not lost.leases(), "the first run of a has lost all")
        before = kept.last_success
        wait_until(lambda: kept.last_success > before, "another heartbeat of b")
        assert "b" in holders(own).values()
        stream.leave(own, usurper)
        wait_until(lambda: lost.joins == 2 and lost.leases(), "a is back")


@proves("leases side by side")
def test_a_check_in_that_waits_delays_no_heartbeat(db: ContractDatabase) -> None:
    """Guard: connections of their own. Else all leases of the process would end meanwhile."""
    own = db.connect()
    filled(own)
    short_leases(own, 1.5)
    with LeaseKeeper(db.url, SUBSCRIPTION, consumer="a") as keeper, open_transaction(db) as blocker:
        database.execute(blocker, "SELECT id FROM penstock.subscriptions FOR UPDATE")
        keeper.check_in_soon()
        before = keeper.last_success
        wait_until(lambda: keeper.last_success > before + 1.5, "heartbeats over a whole lease")
        assert keeper.leases()
        assert database.call(own, "sweep", max_rows=10)[0][0] == 0
        blocker.rollback()


@pytest.mark.long_on("mysql", "mariadb")
def test_who_cannot_check_in_is_not_kept_alive(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: may_beat. Others would be waiting for the share of somebody who never takes it."""
    own = db.connect()
    filled(own)
    short_leases(own, 0.9)
    with LeaseKeeper(db.url, SUBSCRIPTION, consumer="a"):

        def broken(*_: object, **__: object) -> None:
            raise PenstockError("a check-in that always fails")

        monkeypatch.setattr("penstock.stream.check_in", broken)
        wait_until(lambda: database.call(own, "sweep", max_rows=10)[0][0] == 1, "it is dead")
        assert holders(own) == {}


def _asked(pace: float, asked: int = 200) -> list[float]:
    """After how long a consumer that heard of something checks in, by the pace of its cluster."""
    keeper = LeaseKeeper("postgresql://nowhere/none", SUBSCRIPTION, consumer="a")
    keeper._member = stream.Membership(SUBSCRIPTION, "a", uuid.uuid4(), 3, 10)
    keeper.beaten(keeper.member, 0.0, Beat("member", 3.0, pace))
    return [keeper._soon(0.0) for _ in range(asked)]


def test_few_consumers_come_when_they_hear_and_many_do_not() -> None:
    """Ten come at once; of a thousand so few that target_qps is exceeded by a fifth at most."""
    assert max(_asked(pace=1.0)) <= 0
    spread = _asked(pace=100.0)
    assert max(spread) <= 500
    assert sum(spread) / len(spread) == pytest.approx(250, rel=0.2)
