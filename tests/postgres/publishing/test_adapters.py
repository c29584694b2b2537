"""Every adapter joins the caller's transaction.  It never begins, ends or leaves one.

Guard of all of them: penstock issues no BEGIN, COMMIT, ROLLBACK or SAVEPOINT of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import penstock
from penstock import database
from penstock.errors import BackPressure, TopicNotFound
from penstock.publishing import known_topics
from tests.kit.adapters import ADAPTERS, TOPIC, Adapter, django_connection, run

Connection = psycopg.Connection[Any]
Steps = Callable[[Adapter], Awaitable[None]]


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> Iterator[None]:
    known_topics.clear()
    penstock.create_topic(connection, TOPIC, 1, create_namespaces=True)
    connection.execute("CREATE TABLE ledger (id int)")
    yield
    known_topics.clear()


@pytest.fixture(params=ADAPTERS)
def take(request: pytest.FixtureRequest, database_url: str) -> Callable[[Steps], None]:
    """Takes steps on a fresh connection of the adapter."""

    async def opened(steps: Steps) -> None:
        async with ADAPTERS[request.param](database_url) as adapter:
            await adapter.begin()
            await steps(adapter)

    return lambda steps: run(request.param, opened(steps))


Take = Callable[[Steps], None]


def found(connection: Connection) -> tuple[list[bytes], int]:
    """The payloads of the log and the rows of the ledger, as others see them."""
    rows = connection.execute("SELECT payload FROM penstock.events ORDER BY id").fetchall()
    ledger = connection.execute("SELECT count(*) FROM ledger").fetchone()
    assert ledger is not None
    return [row[0] for row in rows], ledger[0]


def test_commit_keeps_both_and_nothing_is_seen_before(connection: Connection, take: Take) -> None:
    async def steps(adapter: Adapter) -> None:
        await adapter.publish(b"1")
        await adapter.run("INSERT INTO ledger VALUES (1)")
        await adapter.publish_batch([b"2", b"3"])
        assert found(connection) == ([], 0)
        await adapter.commit()
        assert found(connection) == ([b"1", b"2", b"3"], 1)

    take(steps)


def test_rollback_leaves_neither(connection: Connection, take: Take) -> None:
    async def steps(adapter: Adapter) -> None:
        await adapter.publish(b"1")
        await adapter.run("INSERT INTO ledger VALUES (1)")
        await adapter.publish_batch([b"2"])
        await adapter.rollback()

    take(steps)
    assert found(connection) == ([], 0)


def test_what_is_not_committed_is_gone_with_the_connection(
    connection: Connection, database_url: str
) -> None:
    with psycopg.connect(database_url) as adapter:
        penstock.publish(adapter, TOPIC, b"1")
        adapter.rollback()
    assert found(connection) == ([], 0)


def test_savepoints_are_the_callers(connection: Connection, take: Take) -> None:
    async def steps(adapter: Adapter) -> None:
        await adapter.publish(b"1")
        await adapter.run("SAVEPOINT undone")
        await adapter.publish(b"undone")
        await adapter.publish_batch([b"undone"])
        await adapter.run("INSERT INTO ledger VALUES (1)")
        await adapter.run("ROLLBACK TO SAVEPOINT undone")
        await adapter.run("SAVEPOINT kept")
        await adapter.publish(b"2")
        await adapter.publish_batch([b"3"])
        await adapter.run("INSERT INTO ledger VALUES (2)")
        await adapter.run("RELEASE SAVEPOINT kept")
        await adapter.publish(b"4")
        await adapter.commit()

    take(steps)
    assert found(connection) == ([b"1", b"2", b"3", b"4"], 1)


def test_a_refusal_without_the_database_leaves_the_transaction_alive(
    connection: Connection, take: Take
) -> None:
    async def steps(adapter: Adapter) -> None:
        await adapter.run("INSERT INTO ledger VALUES (1)")
        with pytest.raises(TopicNotFound):
            await adapter.publish_unknown()
        await adapter.run("INSERT INTO ledger VALUES (2)")
        await adapter.commit()

    take(steps)
    assert found(connection) == ([], 2)


def test_errors_of_the_database_are_typed(connection: Connection, take: Take) -> None:
    database.call(connection, "set_backpressure", topic=TOPIC, max_events=1, max_bytes=None)
    penstock.publish(connection, TOPIC, b"1")

    async def steps(adapter: Adapter) -> None:
        with pytest.raises(BackPressure) as caught:
            await adapter.publish(b"2")
        assert caught.value.message.startswith('topic "bank/accounts"')
        assert caught.value.hint
        await adapter.rollback()

    take(steps)


def test_every_field_arrives(connection: Connection, take: Take) -> None:
    own_id = uuid.uuid4()
    later = datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {
        "key": "ä%s", "type": "t", "content_type": "text/plain", "headers": {"a": [1, None, "%"]},
        "event_id": own_id, "partition": 0, "not_before": later, "dedup_key": "d",
        "max_attempts": 7, "strict": True,
    }  # fmt: skip

    async def steps(adapter: Adapter) -> None:
        await adapter.publish(bytes(range(256)), **options)
        await adapter.commit()

    take(steps)
    row = connection.execute(
        "SELECT event_id, key, type, content_type, headers, payload, due_at FROM penstock.events"
    ).fetchone()
    headers = {"a": [1, None, "%"], "penstock-max-attempts": 7}
    assert row == (own_id, "ä%s", "t", "text/plain", headers, bytes(range(256)), later)


def test_a_connection_that_commits_by_itself_is_left_as_it_was(
    connection: Connection, database_url: str
) -> None:
    penstock.publish(connection, TOPIC, b"1")
    penstock.publish_batch(connection, [penstock.Message(TOPIC, b"2")])
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    own = django_connection(database_url)
    penstock.publish(own, TOPIC, b"3")
    own.close()
    assert found(connection)[0] == [b"1", b"2", b"3"]
