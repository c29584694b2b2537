"""What passes on the database: a cancelled statement, a lock, no writes.  Consumers go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import database
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.database import calls
from penstock.leases import database_keeper
from penstock.leases.loop import ConnectionLost, Rounds
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.contract.kit import give_up_soon, open_transaction, sql
from tests.contract.poison_kit import new_consumer
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled as filled_queue
from tests.kit.stream import filled, running, stored

#: More rows than anybody waits for.
_ENDLESS = "FROM information_schema.columns a, information_schema.columns b"
_CANCELLED = {
    "postgres": ("SET statement_timeout = 1", "SELECT pg_sleep(10)"),
    "mysql": (f"SELECT /*+ MAX_EXECUTION_TIME(1) */ COUNT(*) {_ENDLESS}",),
    "mariadb": (f"SET STATEMENT max_statement_time = 0.001 FOR SELECT COUNT(*) {_ENDLESS}",),
}


def _cancel(db: ContractDatabase, connection: Any) -> None:
    """A statement of this connection takes too long."""
    for statement in _CANCELLED[db.engine]:
        database.execute(connection, statement)


def _wait_for_lock(db: ContractDatabase, connection: Any) -> None:
    """A lock that this connection needs is held by somebody else."""
    sql(db.connect(), "CREATE TABLE held (id INT PRIMARY KEY)")
    sql(db.connect(), "INSERT INTO held VALUES (1)")
    with open_transaction(db) as other:
        sql(other, "DELETE FROM held")
        give_up_soon(db, connection)
        sql(connection, "DELETE FROM held")


def _forbid_writes(db: ContractDatabase, connection: Any) -> None:
    """The server takes no writes, as far as this connection can see."""
    on = "default_transaction_read_only = on"
    sql(connection, f"SET {on}" if db.engine == "postgres" else "SET SESSION TRANSACTION READ ONLY")
    sql(connection, "CREATE TABLE denied (id INT)")


TROUBLES = [_cancel, _wait_for_lock, _forbid_writes]


@contextmanager
def _troubled(db: ContractDatabase, loop: Rounds, trouble: Any) -> Iterator[list[Any]]:
    """The loop's first round ends in this trouble.  Collects the connections of its rounds."""
    used: list[Any] = []
    turn = loop.turn

    def turn_in_trouble(connection: Any) -> int:
        used.append(connection)
        if len(used) == 1:
            trouble(db, connection)
        return turn(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "turn", turn_in_trouble)
        yield used


@proves("what passes ends no consumer")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_stream_goes_on_after_what_passes(db: ContractDatabase, trouble: Any) -> None:
    """On another connection.  Guards: goes_on_after, is_passing."""
    own = db.connect()
    filled(own, events=3)
    handled: list[int] = []
    consumer = new_consumer(db, handler=lambda event: handled.append(event.sequence))
    with _troubled(db, consumer, trouble) as used, running(consumer):
        wait_until(lambda: stored(own) == 3, "all are handled")
    assert handled == [1, 2, 3]
    assert used[0] is not used[-1]


@proves("what passes ends no consumer")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_queue_goes_on_after_what_passes(db: ContractDatabase, trouble: Any) -> None:
    """A server without writes ended its worker."""
    own = db.connect()
    filled_queue(own, 3)
    consumer = QueueConsumer(db.url, QUEUE, handler=lambda event: None, idle_seconds=0.05)
    with _troubled(db, consumer, trouble), running(consumer):
        wait_until(lambda: not queue.statistics(own, QUEUE).size, "all are finished")
    assert consumer.stats.failures == 1


@proves("what passes ends no consumer")
def test_a_consumer_that_begins_without_writes_waits_for_them(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins as soon as the server takes writes.  Guard: Rounds._entered."""
    own = db.connect()
    filled(own, events=3)
    check_in, tried = database_keeper.LeaseKeeper._check_in, list[int]()

    def refused(keeper: Any, connection: Any, **options: Any) -> Any:
        tried.append(1)
        if len(tried) < 3:
            _forbid_writes(db, connection)
        return check_in(keeper, connection, **options)

    monkeypatch.setattr(database_keeper.LeaseKeeper, "_check_in", refused)
    consumer = new_consumer(db, handler=lambda event: None)
    with running(consumer):
        wait_until(lambda: stored(own) == 3, "all are handled")
    assert consumer.stats.failures == 2


@proves("what passes ends no consumer", guard="Rounds.goes_on_after")
def test_without_the_guard_what_passes_ends_the_consumer(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: only a connection that is gone is left behind, as before."""
    filled(db.connect(), events=1)

    def as_before(loop: Rounds, error: Exception) -> bool:
        return isinstance(error, ConnectionLost) or calls.is_unavailable(error)

    monkeypatch.setattr(Rounds, "goes_on_after", as_before)
    consumer = new_consumer(db, handler=lambda event: None)
    with _troubled(db, consumer, _forbid_writes), pytest.raises(Exception) as caught:
        consumer.run(threading.Event())
    assert database.is_passing(caught.value)
