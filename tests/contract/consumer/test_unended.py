"""A handler whose SQL text would end the transaction that finishes its event."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import penstock
from penstock.consumer.handlers.failures import HandlerRolledBack
from penstock.database import sessions
from penstock.errors import UsageError
from penstock.subscriptions import dead_letters, queue, stream
from tests.contract.databases import ContractDatabase
from tests.kit import queue as queues
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, retry, running

#: Text that ends a transaction, by engine.
ENDS = {
    "postgres": ["COMMIT", "-- so\n end", "/* so */ rollback work", "COMMIT AND CHAIN"],
    "mysql": ["COMMIT", "ROLLBACK", "BEGIN", "create table t (a int)", "SET autocommit = 1"],
}
STAYS = {
    "postgres": ["SAVEPOINT a", "ROLLBACK TO a", "CREATE TABLE t (a int)"],
    "mysql": ["SAVEPOINT a", "ROLLBACK TO a", "CREATE TEMPORARY TABLE t (a int)"],
}


def _dialect(db: ContractDatabase) -> str:
    return "postgres" if db.engine == "postgres" else "mysql"


def _by_stream(db: ContractDatabase, own: Connection, handler: Any) -> list[int]:
    """Where the subscription stands, and how many letters there are, once a consumer is idle."""
    filled(own, events=1)
    retry(own, max_attempts=1)
    consumer = penstock.Consumer(db.url, SUBSCRIPTION, handler=handler, idle_seconds=0.05)
    with running(consumer):
        wait_until(lambda: stream.position(own, SUBSCRIPTION, STREAM) == {0: 1}, "it is done")
    letters = dead_letters.dead_letters(own, SUBSCRIPTION)
    return [*stream.position(own, SUBSCRIPTION, STREAM).values(), len(letters)]


def _by_queue(db: ContractDatabase, own: Connection, handler: Any) -> list[int]:
    queues.filled(own, 1, max_failures=1)
    consumer = penstock.QueueConsumer(db.url, queues.QUEUE, handler=handler)
    with running(consumer):
        wait_until(
            lambda: consumer.stats.events or queue.statistics(own, queues.QUEUE).dead, "it is done"
        )
    return [1, int(queue.statistics(own, queues.QUEUE).dead)]


def _handlers(sql: str) -> list[Callable[[Any], Any]]:
    def plain(event: Any) -> None:
        with event.transaction() as connection:
            connection.execute(sql)
            raise ValueError("after it")

    async def by_await(event: Any) -> None:
        async with event.transaction() as connection:
            await connection.execute(sql)
            raise ValueError("after it")

    return [plain, by_await]


@proves("D6 of a handler that ends its transaction")
@pytest.mark.parametrize("way", [_by_stream, _by_queue])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_handler_that_commits_by_text_and_fails_has_failed(
    db: ContractDatabase, way: Any, kind: int
) -> None:
    """Guard: the text is looked at before the server gets it."""
    own = db.connect()
    assert way(db, own, _handlers("COMMIT")[kind]) == [1, 1]


@proves("D6 of a handler that ends its transaction", guard="the look at the text")
def test_without_the_look_its_event_counts_as_done(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the event is gone without a dead letter, though its handler has failed."""
    monkeypatch.setattr(type(sessions.of_connection(db.connect())), "unended", _let)
    assert _by_stream(db, db.connect(), _handlers("COMMIT")[0]) == [1, 0]


def _let(kind: Any, connection: Any) -> Any:
    return nullcontext()


@proves("D6 of a handler that ends its transaction")
def test_what_ends_a_transaction_is_refused_and_no_more(db: ContractDatabase) -> None:
    connection: Any = db.connect()
    kind = sessions.of_connection(connection)
    with kind.transaction(connection), kind.unended(connection):
        for sql in STAYS[_dialect(db)]:
            connection.execute(sql)
        for sql in ENDS[_dialect(db)]:
            with pytest.raises(UsageError, match="in a transaction that finishes events"):
                connection.execute(sql)
        with connection.transaction():
            connection.execute("SELECT 1")


@proves("D6 of a handler that ends its transaction")
def test_text_that_hides_it_is_found_at_the_end(db: ContractDatabase) -> None:
    """Nothing says afterwards that the block was whole."""
    own, raised = db.connect(), list[BaseException]()
    hidden = "SELECT 1; COMMIT" if db.engine == "postgres" else "/*! COMMIT */"

    def handle(event: Any) -> None:
        try:
            with event.transaction() as connection:
                connection.execute(hidden)
        except HandlerRolledBack as error:
            raised.append(error)
            raise

    _by_stream(db, own, handle)
    assert len(raised) == 1
