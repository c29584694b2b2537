"""An event exists if and only if the caller's transaction commits, whatever library made it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy

import penstock
from penstock import Message, PenstockError, database
from penstock.database import calls
from penstock.errors import (
    InvalidArgument,
    InvalidName,
    InvalidPartition,
    NotMigrated,
    PayloadTooLarge,
    TopicNotFound,
)
from penstock.publishing import bulk, known_topics
from tests.kit.doors import NAMES, Door, open_door

TOPIC = "bank/accounts"
MIB = 1_048_576


@pytest.fixture(autouse=True)
def topics(connection: psycopg.Connection[Any]) -> None:
    known_topics.clear()
    penstock.create_topic(connection, TOPIC, 4, create_namespaces=True)
    connection.execute("CREATE TABLE ledger (id int)")


@pytest.fixture(params=NAMES)
def door(request: pytest.FixtureRequest, database_url: str) -> Iterator[Door]:
    with open_door(request.param, database_url) as opened:
        yield opened


def publish_one(door: Door, **changes: Any) -> None:
    penstock.publish(door.connection, **{"topic": TOPIC, "payload": b"x", **changes})


def publish_in_batch(door: Door, **changes: Any) -> None:
    bad = Message(**{"topic": TOPIC, "payload": b"x", **changes})
    penstock.publish_batch(door.connection, [Message(TOPIC, b"good"), bad])


def publish_in_bulk(door: Door, **changes: Any) -> None:
    bad = Message(**{"topic": TOPIC, "payload": b"x", **changes})
    penstock.publish_bulk(door.connection, iter([Message(TOPIC, b"good"), bad]))


WAYS = (publish_one, publish_in_batch, publish_in_bulk)


@pytest.fixture(params=WAYS, ids=["one", "batch", "bulk"])
def way(request: pytest.FixtureRequest) -> Callable[..., None]:
    found: Callable[..., None] = request.param
    return found


def events(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT event_id, key, type, content_type, headers, payload, partition_id & 65535"
        " FROM penstock.events ORDER BY id"
    ).fetchall()


def ledger(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM ledger").fetchone()
    return int(row[0]) if row else -1


def test_commit_makes_the_event_and_rollback_leaves_nothing(
    door: Door, way: Callable[..., None], connection: psycopg.Connection[Any]
) -> None:
    door.execute("INSERT INTO ledger VALUES (1)")
    way(door)
    assert events(connection) == [], "not before the commit"
    door.rollback()
    assert (events(connection), ledger(connection)) == ([], 0)
    door.execute("INSERT INTO ledger VALUES (1)")
    way(door, payload=b"kept")
    door.commit()
    assert events(connection)[-1][5] == b"kept"
    assert ledger(connection) == 1


def test_rollback_to_a_savepoint_takes_only_what_follows_it(
    door: Door, way: Callable[..., None], connection: psycopg.Connection[Any]
) -> None:
    publish_one(door, payload=b"before")
    with pytest.raises(ZeroDivisionError), door.savepoint():
        way(door, payload=b"inside")
        raise ZeroDivisionError
    with door.savepoint():
        publish_one(door, payload=b"after")
    door.commit()
    assert [row[5] for row in events(connection)] == [b"before", b"after"]


BAD: dict[str, tuple[dict[str, Any], type[PenstockError]]] = {
    "no topic": ({"topic": ""}, InvalidName),
    "topic not text": ({"topic": b"bank/accounts"}, InvalidName),
    "no namespace": ({"topic": "accounts"}, InvalidName),
    "no name": ({"topic": "bank/"}, InvalidName),
    "empty name in the path": ({"topic": "bank//accounts"}, InvalidName),
    "leading slash": ({"topic": "/accounts"}, InvalidName),
    "blank name": ({"topic": "bank/ "}, InvalidName),
    "control character": ({"topic": "bank/a\nb"}, InvalidName),
    "NUL in the topic": ({"topic": "bank/a\0"}, InvalidName),
    "surrogate in the topic": ({"topic": "bank/\ud800"}, InvalidName),
    "name of 501": ({"topic": "bank/" + "ä" * 501}, InvalidName),
    "address of 4001": ({"topic": "/".join(["n" * 499] * 8) + "/xx"}, InvalidName),
    "unknown topic": ({"topic": "bank/nothing"}, TopicNotFound),
    "topic in other case": ({"topic": "bank/Accounts"}, TopicNotFound),
    "name of 500": ({"topic": "bank/" + "ä" * 500}, TopicNotFound),
    "payload over the limit": ({"payload": bytes(MIB + 1)}, PayloadTooLarge),
    "payload is text": ({"payload": "x"}, InvalidArgument),
    "payload is None": ({"payload": None}, InvalidArgument),
    "negative partition": ({"partition": -1}, InvalidPartition),
    "partition out of range": ({"partition": 4}, InvalidPartition),
    "partition beyond any": ({"partition": 65_536}, InvalidPartition),
    "partition is a bool": ({"partition": True}, InvalidPartition),
    "partition is text": ({"partition": "1"}, InvalidPartition),
    "key of 256": ({"key": "k" * 256}, InvalidArgument),
    "key with NUL": ({"key": "a\0b"}, InvalidArgument),
    "key with a surrogate": ({"key": "\udfff"}, InvalidArgument),
    "key is bytes": ({"key": b"k"}, InvalidArgument),
    "type of 256": ({"type": "t" * 256}, InvalidArgument),
    "type is None": ({"type": None}, InvalidArgument),
    "content type of 256": ({"content_type": "t" * 256}, InvalidArgument),
    "headers are a list": ({"headers": [1]}, InvalidArgument),
    "headers with a number as key": ({"headers": {1: 2}}, InvalidArgument),
    "headers with bytes": ({"headers": {"a": b"b"}}, InvalidArgument),
    "headers with NaN": ({"headers": {"a": float("nan")}}, InvalidArgument),
    "headers with NUL": ({"headers": {"a": "b\0"}}, InvalidArgument),
    "headers with a surrogate": ({"headers": {"\ud800": 1}}, InvalidArgument),
    "event id is text": ({"event_id": "1"}, InvalidArgument),
}


def test_bad_input_is_refused_and_the_transaction_lives_on(
    door: Door,
    way: Callable[..., None],
    connection: psycopg.Connection[Any],
    subtests: pytest.Subtests,
) -> None:
    done = 0
    for case, (changes, expected) in BAD.items():
        with subtests.test(case):
            door.execute("INSERT INTO ledger VALUES (1)")
            with pytest.raises(expected) as caught:
                way(door, **changes)
            assert caught.value.hint
            door.execute("INSERT INTO ledger VALUES (2)")
            door.commit()
            done += 2
    assert (events(connection), ledger(connection)) == ([], done)


def test_a_batch_names_the_event_that_is_wrong(
    connection: psycopg.Connection[Any], subtests: pytest.Subtests
) -> None:
    for case, (changes, expected) in BAD.items():
        messages = [Message(TOPIC, b"x"), Message(**{"topic": TOPIC, "payload": b"x", **changes})]
        with subtests.test(case), pytest.raises(expected, match="event 1: "):
            penstock.publish_batch(connection, messages)


def test_what_is_at_the_limit_is_taken(
    way: Callable[..., None], connection: psycopg.Connection[Any], database_url: str
) -> None:
    longest = {"key": "ä" * 255, "type": "ö" * 255, "content_type": "ü" * 255, "partition": 3}
    with open_door("psycopg", database_url) as door:
        way(door, payload=bytes(MIB), headers={}, **longest)
        way(door, payload=b"", key="")
        door.commit()
    rows = events(connection)
    assert (len(rows[-1][5]), rows[-1][1]) == (0, "")
    assert any(len(row[5]) == MIB and row[6] == 3 and row[4] == {} for row in rows)


def test_everything_of_an_event_arrives(
    door: Door, way: Callable[..., None], connection: psycopg.Connection[Any]
) -> None:
    own_id = uuid.uuid4()
    headers = {"trace": "00-abc", "n": 1.5, "deep": {"a": [1, None, True]}, "e": 'ä\\u0000\n"'}
    way(
        door,
        payload=memoryview(bytes(range(256))),
        key="K",
        type="moved",
        content_type="text/plain",
        headers=headers,
        event_id=own_id,
        partition=2,
    )
    door.commit()
    assert events(connection)[-1] == (
        own_id, "K", "moved", "text/plain", headers, bytes(range(256)), 2,
    )  # fmt: skip


def test_without_options_an_event_has_the_defaults(
    door: Door, way: Callable[..., None], connection: psycopg.Connection[Any]
) -> None:
    way(door)
    door.commit()
    event_id, *rest, _ = events(connection)[-1]
    assert rest == [None, "", "application/octet-stream", None, b"x"]
    assert event_id.version == 7


def test_a_batch_keeps_its_order_and_answers_its_ids(
    door: Door, connection: psycopg.Connection[Any]
) -> None:
    own_id = uuid.uuid4()
    messages = [Message(TOPIC, b"%d" % i, key=str(i)) for i in range(1200)]
    messages[7] = Message(TOPIC, b"7", key="7", event_id=own_id)
    ids = penstock.publish_batch(door.connection, messages)
    door.commit()
    rows = events(connection)
    assert [row[5] for row in rows] == [b"%d" % i for i in range(1200)]
    assert [row[0] for row in rows] == ids
    assert ids[7] == own_id
    assert penstock.publish_batch(door.connection, []) == []


def test_the_key_chooses_the_same_partition_in_every_way(
    door: Door, connection: psycopg.Connection[Any]
) -> None:
    for way in WAYS:
        way(door, key="account 7")
    door.commit()
    assert len({row[6] for row in events(connection) if row[1] == "account 7"}) == 1


def test_bulk_twice_in_one_transaction_publishes_each_event_once(
    door: Door, connection: psycopg.Connection[Any]
) -> None:
    for start in (0, 1500):
        count = penstock.publish_bulk(
            door.connection, (Message(TOPIC, b"%d" % i) for i in range(start, start + 1500))
        )
        assert count == 1500
    assert penstock.publish_bulk(door.connection, []) == 0
    door.commit()
    assert [row[5] for row in events(connection)] == [b"%d" % i for i in range(3000)]


def test_bulk_in_chunks_is_one_publication(
    door: Door, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the savepoint round all chunks; what Python refuses late, or the database does."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 2)
    good = [Message(TOPIC, b"%d" % i) for i in range(5)]
    with pytest.raises(InvalidArgument, match=r"event 5: .*key"):
        penstock.publish_bulk(door.connection, [*good, Message(TOPIC, b"x", key="k" * 256)])
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 1")  # behind its back
    with pytest.raises(PayloadTooLarge):
        penstock.publish_bulk(door.connection, [*good, Message(TOPIC, b"xx"), *good])
    assert penstock.publish_bulk(door.connection, good) == 5
    door.commit()
    assert [row[5] for row in events(connection)] == [b"%d" % i for i in range(5)]


def test_bulk_from_a_generator_that_uses_its_connection(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: messages are drawn while nothing is being stored, or its rollback would take that."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 3)
    connection.execute("ALTER TABLE ledger ADD PRIMARY KEY (id)")

    def messages() -> Iterator[Message]:
        for number in [*range(7), *range(5), 7, 3]:
            try:
                with connection.transaction():
                    connection.execute("INSERT INTO ledger VALUES (%s)", (number,))
            except psycopg.errors.UniqueViolation:
                continue
            yield Message(TOPIC, b"%d" % number)

    with connection.transaction():
        assert penstock.publish_bulk(connection, messages()) == 8
    assert connection.execute("SELECT count(*) FROM ledger").fetchall() == [(8,)]
    assert [row[5] for row in events(connection)] == [b"%d" % i for i in range(8)]


def test_bulk_refuses_a_generator_that_leaves_a_savepoint_open(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the savepoint round the drawing; a chunk stored inside theirs would go with it."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 1)

    def messages() -> Iterator[Message]:
        connection.execute("SAVEPOINT theirs")
        yield Message(TOPIC, b"1")
        yield Message(TOPIC, b"2")
        connection.execute("ROLLBACK TO SAVEPOINT theirs")

    with pytest.raises(psycopg.errors.InvalidSavepointSpecification), connection.transaction():
        penstock.publish_bulk(connection, messages())
    assert events(connection) == []


def test_bulk_closes_a_chunk_that_is_large(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: CHUNK_BYTES, or large payloads would all lie in memory."""
    stored: list[int] = []

    def store(chunks: Any, chunk: bulk.Packed) -> int:
        stored.append(len(chunk.chunk))
        return original(chunks, chunk)

    original = bulk.Bulk._store
    monkeypatch.setattr(bulk.Bulk, "_store", store)
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 20)
    with connection.transaction():
        messages = (Message(TOPIC, b"0123456789%d" % number) for number in range(5))
        assert penstock.publish_bulk(connection, messages) == 5
    assert stored == [2, 2, 1]


def test_bulk_outside_a_transaction_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidArgument, match="outside a transaction"):
        penstock.publish_bulk(connection, [Message(TOPIC, b"x")])
    with connection.transaction():
        assert penstock.publish_bulk(connection, [Message(TOPIC, b"x")]) == 1
    assert len(events(connection)) == 1


def test_bulk_as_the_first_statement_does_not_commit(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(database_url) as other:
        penstock.publish_bulk(other, [Message(TOPIC, b"x")])
        other.rollback()
    assert events(connection) == []


def test_plain_sql_publishes(database_url: str, connection: psycopg.Connection[Any]) -> None:
    with psycopg.connect(database_url) as other:
        other.execute(
            "SELECT penstock.publish('bank/accounts', 'plain', key => 'k', headers => '{\"a\": 1}')"
        )
        other.rollback()
        other.execute("SELECT penstock.publish('bank/accounts', 'plain')")
        other.commit()
    assert [row[5] for row in events(connection)] == [b"plain"]


def test_a_topic_that_went_away_is_forgotten(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(database_url) as other:
        penstock.create_topic(other, "bank/late")
        penstock.publish(other, "bank/late", b"x")
        other.rollback()
        with pytest.raises(TopicNotFound):  # the database's own check
            penstock.publish(other, "bank/late", b"x")
        other.rollback()
        other.execute("INSERT INTO ledger VALUES (1)")
        with pytest.raises(TopicNotFound):  # the look-up's
            penstock.publish(other, "bank/late", b"x")
        other.commit()
    assert (events(connection), ledger(connection)) == ([], 1)


def test_a_topic_is_looked_up_once(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    original = calls.call

    def call(given: Any, name: str, /, **binds: Any) -> list[tuple[Any, ...]]:
        called.append(name)
        return original(given, name, **binds)

    for module in (database, calls):  # the face of the folder, and what steps call
        monkeypatch.setattr(module, "call", call)
    for _ in range(3):
        penstock.publish(connection, TOPIC, b"x")
    assert called == ["is_installed", "topic_lookup", "publish", "publish", "publish"]


def test_more_partitions_are_seen_although_the_topic_was_remembered(
    connection: psycopg.Connection[Any],
) -> None:
    penstock.publish(connection, TOPIC, b"x")
    connection.execute("UPDATE penstock.topics SET partitions = 8, max_payload_bytes = 2000000")
    penstock.publish(connection, TOPIC, bytes(MIB + 1), partition=7)
    assert len(events(connection)) == 2


def test_an_unmigrated_database_does_not_abort_the_transaction(
    empty_database_url: str, way: Callable[..., None]
) -> None:
    with open_door("psycopg", empty_database_url) as door:
        door.execute("CREATE TABLE ledger (id int)")
        with pytest.raises(NotMigrated, match="penstock migrate"):
            way(door)
        door.commit()
    with psycopg.connect(empty_database_url) as other:
        assert ledger(other) == 0


@pytest.mark.parametrize("given", [None, "postgresql://localhost/x", object(), 7])
def test_what_is_no_connection_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a database connection"):
        penstock.publish(given, TOPIC, b"x")


def test_an_engine_and_an_asynchronous_connection_are_refused(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    asynchronous = psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)
    for given in (engine, asynchronous):
        with pytest.raises(InvalidArgument):
            penstock.publish(given, TOPIC, b"x")


def test_no_message_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"event 0: a tuple is not a Message"):
        penstock.publish_batch(connection, [(TOPIC, b"x")])  # type: ignore[list-item]
