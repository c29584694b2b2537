"""One code for every engine: what a connection of `penstock.connect` has beyond DB-API."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.database.mysql import asynchronous, blocks, session
from penstock.errors import TransactionRolledBack
from penstock.topics import names
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.kit.log import drain, read
from tests.kit.proof import proves

if TYPE_CHECKING:
    from penstock.database import Connection

TABLE = "CREATE TABLE notes (id int PRIMARY KEY, text varchar(20))"


class Stop(Exception):
    """The application's own error."""


def noted(connection: Connection) -> list[tuple[Any, ...]]:
    return list(connection.execute("SELECT id, text FROM notes ORDER BY id").fetchall())


def note(connection: Connection, number: int) -> None:
    connection.execute("INSERT INTO notes VALUES (%s, 'a')", (number,))


def test_execute_takes_parameters_and_returns_rows(db: ContractDatabase) -> None:
    with penstock.connect(db.url) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO notes VALUES (%s, %s)", (1, "50 %"))
        connection.execute("INSERT INTO notes VALUES (%(id)s, %(text)s)", {"id": 2, "text": "b"})
        found = connection.execute("SELECT text FROM notes WHERE id = %s", (1,))
        assert found.fetchone() == ("50 %",)
        assert noted(connection) == [(1, "50 %"), (2, "b")]
        assert connection.execute("DELETE FROM notes").rowcount == 2


@proves("pages run")
def test_a_block_commits_or_rolls_back_and_a_block_inside_is_a_savepoint(
    db: ContractDatabase,
) -> None:
    with penstock.connect(db.url) as connection, penstock.connect(db.url) as other:
        connection.execute(TABLE)
        with connection.transaction():
            note(connection, 1)
            with contextlib.suppress(Stop), connection.transaction():
                note(connection, 2)
                raise Stop
            with connection.transaction():
                note(connection, 3)
                with connection.transaction():
                    note(connection, 4)
            assert noted(other) == []
        assert noted(other) == [(1, "a"), (3, "a"), (4, "a")]
        with contextlib.suppress(Stop), connection.transaction():
            note(connection, 5)
            raise Stop
        note(connection, 6)  # commits by itself, as before
        assert [number for number, _ in noted(other)] == [1, 3, 4, 6]


def test_an_event_is_published_by_the_block_or_not_at_all(db: ContractDatabase) -> None:
    with penstock.connect(db.url) as connection:
        names.create_topic(connection, "tests/log", create_namespaces=True)
        for number in range(3):
            with contextlib.suppress(Stop), connection.transaction():
                penstock.publish(connection, "tests/log", b"%d" % number)
                with contextlib.suppress(Stop), connection.transaction():
                    penstock.publish(connection, "tests/log", b"inside")
                    raise Stop
                if number == 1:
                    raise Stop
        drain(connection)
        assert [event.payload for event in read(connection)] == [b"0", b"2"]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_with_block_commits_unless_it_raised(db: ContractDatabase, autocommit: bool) -> None:
    with penstock.connect(db.url) as own:
        own.execute(TABLE)
        with penstock.connect(db.url, autocommit=autocommit) as connection:
            note(connection, 1)
        with (
            contextlib.suppress(Stop),
            penstock.connect(db.url, autocommit=autocommit) as connection,
        ):
            note(connection, 2)
            raise Stop
        assert [number for number, _ in noted(own)] == ([1, 2] if autocommit else [1])


def ended_within(url: str) -> None:
    """As a deadlock does it; the application passes the error over and writes on."""
    with penstock.connect(url) as connection, connection.transaction():
        note(connection, 1)
        connection.execute("ROLLBACK")
        note(connection, 2)


@proves("pages run")
def test_what_follows_a_lost_transaction_does_not_stay(mysql_db: MySQLDatabase) -> None:
    with penstock.connect(mysql_db.url) as own:
        own.execute(TABLE)
        with pytest.raises(TransactionRolledBack, match="begin again"):
            ended_within(mysql_db.url)
        assert noted(own) == []


@proves("pages run", guard="the look at the savepoint")
def test_without_the_look_at_the_savepoint_half_of_the_block_stays(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard of the test before: the savepoint is looked for before COMMIT."""
    monkeypatch.setattr(blocks, "_release", lambda *_: None)
    with penstock.connect(mysql_db.url) as own:
        own.execute(TABLE)
        ended_within(mysql_db.url)
        assert noted(own) == [(2, "a")]


@proves("pages run")
def test_a_block_inside_of_an_async_handlers_transaction_is_a_savepoint(
    db: ContractDatabase,
) -> None:
    """It neither commits the position nor what the handler wrote before."""
    own = db.connect()
    own.execute(TABLE)
    names.create_topic(own, "tests/log", create_namespaces=True)
    penstock.subscribe(own, "billing", ["tests/log"])
    penstock.publish(own, "tests/log", b"1")
    drain(own)
    fails = True

    async def bill(event: Any) -> None:
        async with event.transaction() as connection:
            await connection.execute("INSERT INTO notes VALUES (1, 'a')")
            with contextlib.suppress(Stop):
                async with connection.transaction():
                    await connection.execute("INSERT INTO notes VALUES (2, 'a')")
                    raise Stop
            async with connection.transaction():
                await connection.execute("INSERT INTO notes VALUES (3, 'a')")
            if fails:
                raise Stop

    with pytest.raises(penstock.PenstockError):
        asyncio.run(penstock.AsyncConsumer(db.url, "billing", handler=bill).run_until_idle())
    assert noted(own) == []
    assert penstock.stream.position(own, "billing", "tests/log") == {0: 0}
    fails = False
    asyncio.run(penstock.AsyncConsumer(db.url, "billing", handler=bill).run_until_idle())
    assert noted(own) == [(1, "a"), (3, "a")]
    assert penstock.stream.position(own, "billing", "tests/log") == {0: 1}


@proves("pages run", guard="the look for a transaction")
def test_without_the_look_for_a_transaction_the_position_is_committed_half_way(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard of the test before; the refusal of a second BEGIN behind it is out too."""
    monkeypatch.setattr(asynchronous, "in_transaction", lambda _: False)
    monkeypatch.setattr(session, "block_of", lambda _: contextlib.nullcontext())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_block_inside_of_an_async_handlers_transaction_is_a_savepoint(mysql_db)


@pytest.mark.parametrize("ends", ["begin", "commit", "rollback"])
def test_a_handler_does_not_end_its_transaction(mysql_db: MySQLDatabase, ends: str) -> None:
    """psycopg refuses it too.  Guard: `block_of`; else the position stays with half of the work."""
    own = mysql_db.connect()
    own.execute(TABLE)
    names.create_topic(own, "tests/log", create_namespaces=True)
    penstock.subscribe(own, "billing", ["tests/log"])
    penstock.publish(own, "tests/log", b"1")
    drain(own)
    told: list[str] = []

    def bill(event: Any) -> None:
        with event.transaction() as connection:
            note(connection, 1)
            try:
                getattr(connection, ends)()
            except penstock.UsageError as error:
                told.append(str(error))
            raise Stop

    with pytest.raises(penstock.PenstockError):
        penstock.Consumer(mysql_db.url, "billing", handler=bill).run_until_idle()
    assert told
    assert f"{ends}() inside" in told[0]
    assert noted(own) == []
    assert penstock.stream.position(own, "billing", "tests/log") == {0: 0}


def test_without_the_block_it_commits_half_way(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard of the test before."""
    monkeypatch.setattr(session, "block_of", lambda _: contextlib.nullcontext())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_handler_does_not_end_its_transaction(mysql_db, "commit")
