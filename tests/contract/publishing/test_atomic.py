"""S1, S3: an event exists if and only if its transaction commits, savepoints included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
import sqlalchemy.orm

from penstock import database
from penstock.errors import InvalidArgument, PayloadTooLarge, PenstockError, TopicNotFound
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count, open_transaction, sql
from tests.kit.log import TOPIC, drain, put, texts, topic
from tests.kit.proof import proves

Steps = Callable[[ContractDatabase], None]


def _with_the_driver(db: ContractDatabase) -> None:
    with db.connect(autocommit=False) as connection:
        publish(connection, TOPIC, b"kept")
        sql(connection, "SAVEPOINT a")
        publish_batch(connection, [Message(TOPIC, b"undone"), Message(TOPIC, b"undone")])
        sql(connection, "ROLLBACK TO SAVEPOINT a")
        publish_batch(connection, [Message(TOPIC, b"batch")])
        connection.commit()
        publish(connection, TOPIC, b"rolled back")
        connection.rollback()


def _engine(db: ContractDatabase) -> sqlalchemy.Engine:
    driver = "postgresql+psycopg" if db.engine == "postgres" else "mysql+pymysql"
    return sqlalchemy.create_engine(f"{driver}://{db.url.partition('://')[2]}")


def _with_sqlalchemy(db: ContractDatabase) -> None:
    engine = _engine(db)
    with engine.begin() as connection:
        publish(connection, TOPIC, b"kept")
        savepoint = connection.begin_nested()
        publish(connection, TOPIC, b"undone")
        savepoint.rollback()
        publish_batch(connection, [Message(TOPIC, b"batch")])
    with engine.connect() as connection:
        publish(connection, TOPIC, b"rolled back")
        connection.rollback()
    engine.dispose()


def _with_a_session(db: ContractDatabase) -> None:
    engine = _engine(db)
    with sqlalchemy.orm.Session(engine) as session:
        publish(session, TOPIC, b"kept")
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            publish(session, TOPIC, b"undone")
            raise ZeroDivisionError
        publish(session, TOPIC, b"batch")
        session.commit()
        publish(session, TOPIC, b"rolled back")
    engine.dispose()


@proves("S1")
@pytest.mark.parametrize("steps", [_with_the_driver, _with_sqlalchemy, _with_a_session])
def test_what_was_rolled_back_leaves_nothing(db: ContractDatabase, steps: Steps) -> None:
    """Guard: publish writes in the caller's transaction and nowhere else."""
    own = db.connect()
    topic(own)
    steps(db)
    assert drain(own) == 2
    assert texts(own) == ["kept", "batch"]
    assert count(db, "events") == 2


@proves("S1", guard="publishing in the caller's transaction")
def test_a_publish_that_does_not_join_the_transaction_is_seen(db: ContractDatabase) -> None:
    """Mutant: events go to the log on a connection of their own."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as app:
        put(own, "phantom")
        app.rollback()
    drain(own)
    assert texts(own) == ["phantom"]


def test_without_a_transaction_a_call_is_one(db: ContractDatabase) -> None:
    """Guard: on MySQL each statement of a procedure would commit; the call gets a transaction."""
    own = db.connect(autocommit=True)
    topic(own)
    put(own, "1")
    publish_batch(own, [Message(TOPIC, b"2"), Message(TOPIC, b"3")])
    with pytest.raises(PenstockError):
        publish_batch(own, [Message(TOPIC, b"4"), Message(TOPIC, b"5", partition=60_000)])
    drain(own)
    assert texts(own) == ["1", "2", "3"]


@proves("S3")
def test_events_of_one_transaction_come_all_or_none(db: ContractDatabase) -> None:
    """Guard: one visibility for a whole transaction, whatever ends in between."""
    own = db.connect()
    topic(own, 4)
    with open_transaction(db) as app:
        for number in range(20):
            publish(app, TOPIC, b"x", key=str(number))
        assert drain(own) == 0
        app.commit()
    assert drain(own) == 20


@proves("S3", guard="one connection")
def test_a_transaction_of_two_connections_is_torn(db: ContractDatabase) -> None:
    """Mutant: some events of a transaction are published on a connection of their own."""
    own = db.connect()
    topic(own, 4)
    with open_transaction(db) as app:
        for number in range(20):
            publish(app if number % 2 else own, TOPIC, b"x", key=str(number))
        assert drain(own) == 10
        app.rollback()
    assert drain(own) == 0


#: Each refused by the database: Python's own checks are taken out of the way.
BAD: dict[str, tuple[dict[str, Any], type[PenstockError]]] = {
    "no topic": ({"topic": "no/topic"}, TopicNotFound),
    "too large": ({"payload": bytes(1_100_000)}, PayloadTooLarge),
    "long key": ({"key": "k" * 256}, InvalidArgument),
    "headers": ({"headers": "[1]"}, InvalidArgument),
    "no JSON": ({"headers": "{"}, InvalidArgument),
}


def _call(db: ContractDatabase, connection: Any, given: dict[str, Any]) -> None:
    binds = {
        "topic": TOPIC, "payload": b"x", "key": None, "type": "", "content_type": "a",
        "headers": None, "event_id": None, "partition": None, "not_before": None,
        "dedup_key": None, "strict": False,
    } | given  # fmt: skip
    database.call(connection, "publish", **binds)


@pytest.mark.parametrize("bad", [name for name in BAD if name != "no JSON"])
def test_the_database_refuses_what_python_would(db: ContractDatabase, bad: str) -> None:
    """Guard: event_problem; plain SQL from any language meets the same rule."""
    own = db.connect()
    topic(own)
    given, error = BAD[bad]
    with pytest.raises(error):
        _call(db, own, given)
    assert count(db, "events") == 0


def test_a_refusal_leaves_the_callers_work(db: ContractDatabase) -> None:
    """Guard: a failed publish takes back its own writes, and none of the caller's."""
    own = db.connect()
    topic(own)
    with open_transaction(db) as app:
        put(app, "before")
        sql(app, "SAVEPOINT mine")
        with pytest.raises(TopicNotFound):
            _call(db, app, {"topic": "no/topic"})
        sql(app, "ROLLBACK TO SAVEPOINT mine")
        put(app, "after")
        app.commit()
    drain(own)
    assert texts(own) == ["before", "after"]


def test_a_refused_batch_publishes_nothing_and_names_the_event(db: ContractDatabase) -> None:
    """Guard: every event is judged before the first is written."""
    own = db.connect()
    topic(own)
    with pytest.raises(TopicNotFound, match="event 1"):
        publish_batch(own, [Message(TOPIC, b"a"), Message("tests/nothing", b"b")])
    assert drain(own) == 0


def test_names_roll_back_too(db: ContractDatabase) -> None:
    """Guard: names are rows in the caller's transaction."""
    with open_transaction(db) as app:
        names.create_topic(app, "shop/orders", 3, create_namespaces=True)
        app.rollback()
    assert names.list_topics(db.connect()) == []
