"""An Arrow table goes by columns; what arrives or is refused is what event by event says."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars
import psycopg
import pyarrow as pa
import pytest
import sqlalchemy

import penstock
from penstock.errors import (
    BackPressure,
    InvalidArgument,
    PenstockError,
    TopicNotFound,
)
from penstock.publishing import bulk, known_topics, tables, tracing
from tests.kit.proof import proves

TOPIC = "bank/accounts"
COUNT = 40
Connection = psycopg.Connection[Any]
TIME = pa.timestamp("us", "UTC")
SOON = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> None:
    known_topics.clear()
    penstock.create_topic(connection, TOPIC, 4, create_namespaces=True)
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 100")


@pytest.fixture
def by_columns_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is looked at by itself."""

    def rows(*_: Any) -> Any:
        pytest.fail("the table did not go by columns")

    monkeypatch.setattr(tables._Rows, "rows", rows)


def _publish(connection: Connection, **columns: Any) -> int:
    with connection.transaction():
        return penstock.publish_table(connection, TOPIC, pa.table(columns))


_EVENTS = (
    "SELECT payload, key, type, content_type, headers, partition_id & 65535 FROM penstock.events"
    " ORDER BY id"
)


def _stored(connection: Connection) -> list[Any]:
    return connection.execute(_EVENTS).fetchall()


def _payloads(connection: Connection) -> list[bytes]:
    return [row[0] for row in _stored(connection)]


@pytest.mark.usefixtures("by_columns_only")
def test_every_column_arrives(connection: Connection) -> None:
    ids = [uuid.UUID(int=number) for number in range(3)]
    count = _publish(
        connection,
        payload=[b"", bytes(range(100)), b"x"],
        key=["größe", None, 'a"b\\c{},NULL'],
        type=["placed", None, "t" * 255],
        content_type=[None, "text/plain", "é" * 255],
        headers=['{"é": [null, "\\\\"]}', None, "{}"],
        event_id=[str(ids[0]), str(ids[1]).upper(), str(ids[2])],
        partition=pa.array([3, 0, 1], pa.int8()),
    )
    assert count == 3
    assert _stored(connection) == [
        (b"", "größe", "placed", "application/octet-stream", {"é": [None, "\\"]}, 3),
        (bytes(range(100)), None, "", "text/plain", None, 0),
        (b"x", 'a"b\\c{},NULL', "t" * 255, "é" * 255, {}, 1),
    ]
    rows = connection.execute("SELECT event_id FROM penstock.events ORDER BY id").fetchall()
    assert [row[0] for row in rows] == ids


@pytest.mark.usefixtures("by_columns_only")
def test_only_payloads_and_what_all_share(connection: Connection) -> None:
    """New ids, the defaults, and texts that are sent once."""
    assert _publish(connection, payload=[b"0", b"1"]) == 2
    assert _publish(connection, payload=[b"2", b"3"], type=["t", "t"], content_type=["c", "c"]) == 2
    assert [row[:1] + row[2:5] for row in _stored(connection)] == [
        (b"0", "", "application/octet-stream", None),
        (b"1", "", "application/octet-stream", None),
        (b"2", "t", "c", None),
        (b"3", "t", "c", None),
    ]
    ids = connection.execute("SELECT DISTINCT event_id FROM penstock.events").fetchall()
    assert {row[0].version for row in ids} == {7}
    assert len(ids) == 4


_TYPES: tuple[dict[str, Any], ...] = (
    {"payload": pa.array([b"a", b"b"], pa.large_binary())},
    {"key": pa.array(["k", "l"], pa.large_string())},
    {"key": pa.array(["k", "l"]).dictionary_encode()},
    {"key": pa.array([None, None])},
    {"key": pa.array([None, "k"])},
    {"event_id": pa.array([bytes(16), bytes(range(16))], pa.binary(16))},
    {"event_id": pa.array([bytes(16), bytes(range(16))], pa.uuid())},
    {"event_id": pa.array([str(uuid.UUID(int=n)) for n in (0, 1)], pa.large_string())},
    {"partition": pa.array([3, None], pa.uint64())},
    {"not_before": pa.array([None, None], TIME)},
)


@pytest.mark.usefixtures("by_columns_only")
def test_each_type_is_taken(connection: Connection, subtests: pytest.Subtests) -> None:
    for columns in _TYPES:
        ((name, column),) = columns.items()
        with subtests.test(f"{name} {column.type}"), connection.transaction(force_rollback=True):
            assert _publish(connection, **{"payload": pa.array([b"a", b"b"]), **columns}) == 2
            stored = _stored(connection)
            ids = connection.execute("SELECT event_id FROM penstock.events ORDER BY id").fetchall()
            assert [row[0] for row in stored] == [b"a", b"b"]
            if name == "key":
                assert [row[1] for row in stored] == column.to_pylist()
            if name == "partition":
                assert stored[0][5] == 3
            if name == "event_id":
                given = [tables._event_id(each) for each in column.to_pylist()]
                assert [row[0] for row in ids] == given


@pytest.mark.usefixtures("by_columns_only")
def test_pieces_of_tables_arrive_as_they_are(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices begin inside of Arrow's memory, and a column may lie in several pieces of it."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 3)
    numbers = [b"%d" % number for number in range(20)]
    keys = [None if number % 3 else f"k{number}" for number in range(20)]
    whole = pa.table({
        "payload": numbers, "key": keys, "partition": [n % 4 for n in range(20)],
        "event_id": [str(uuid.UUID(int=n)) for n in range(20)],
    })  # fmt: skip
    given = pa.concat_tables([whole.slice(2, 4), whole.slice(6, 1), whole.slice(7, 10)])
    with connection.transaction():
        assert penstock.publish_table(connection, TOPIC, given) == 15
    assert [(row[0], row[1], row[5]) for row in _stored(connection)] == [
        (numbers[n], keys[n], n % 4) for n in range(2, 17)
    ]
    rows = connection.execute("SELECT event_id FROM penstock.events ORDER BY id").fetchall()
    assert rows == [(uuid.UUID(int=n),) for n in range(2, 17)]


def test_chunks_are_bounded_by_bytes(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: CHUNK_BYTES, or large payloads would be copied all at once."""
    sizes: list[int] = []
    original = bulk.Bulk._store

    def store(own: Any, packed: bulk.Packed) -> int:
        sizes.append(len(packed.chunk))
        return original(own, packed)

    monkeypatch.setattr(bulk.Bulk, "_store", store)
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 40)
    assert _publish(connection, payload=[b"0123456789"] * 9 + [b"x" * 50, b"y"]) == 11
    assert sum(sizes) == 11
    assert max(sizes) <= 4
    assert len(_payloads(connection)) == 11


_GOOD: dict[str, list[Any]] = {
    "payload": [b"", b"x" * 100, bytes(range(100))],
    "key": [None, "", "größe", 'a"b\\c{},NULL', "k" * 255, "é" * 255],
    "type": [None, "", "placed", "t" * 255],
    "content_type": [None, "text/plain"],
    "headers": [None, "{}", '{"é": [null, "\\\\"]}', '{"n": 1.50}', json.dumps({"l": "x" * 900})],
    "event_id": [None],
    "partition": [None, 0, 3],
}
_ODD: dict[str, list[Any]] = {
    "payload": [b"x" * 101],
    "key": ["k" * 256, "\0"],
    "type": ["t" * 256, "\0"],
    "content_type": ["c" * 256],
    "headers": [
        "", "{", "[1]", '"text"', "7", "null", "NaN", '{"nul": "\\u0000"}', '{"half": "\\ud800"}',
        '{"nan": NaN}', '{"raw": "\0"}', json.dumps({"large": "x" * 70_000}),
        '{"big": ' + "9" * 401 + "}", '{"in": ' * 33 + "1" + "}" * 33, "[" * 60_000,
    ],
    "event_id": ["0190", str(uuid.UUID(int=7)).replace("-", ""), "é"],
    "partition": [4, -1, 1 << 40],
    "not_before": [SOON],
}  # fmt: skip
_FIELDS: dict[str, pa.DataType] = {
    "payload": pa.binary(), "key": pa.string(), "type": pa.string(), "content_type": pa.string(),
    "headers": pa.string(), "event_id": pa.string(), "partition": pa.int64(), "not_before": TIME,
}  # fmt: skip
_SCHEMA = pa.schema(_FIELDS)


def _table(chance: random.Random, odd: int) -> pa.Table:
    """Rows of good values, of which ``odd`` have one value that only the long way looks at."""
    varied = [name for name in _GOOD if chance.random() < 0.6]
    shared = {name: chance.choice(values) for name, values in _GOOD.items()}
    rows = []
    for number in range(COUNT):
        row = shared | {name: chance.choice(_GOOD[name]) for name in varied}
        if "event_id" in varied:
            row["event_id"] = str(uuid.UUID(int=number))
        rows.append({"not_before": None, **row})
    for place in chance.sample(range(COUNT), odd):
        name = chance.choice(list(_ODD))
        rows[place][name] = chance.choice(_ODD[name])
    return pa.Table.from_pylist(rows, _SCHEMA)


def _outcome(publisher: Connection, table: pa.Table) -> Any:
    """What arrived, or how it was refused."""
    try:
        penstock.publish_table(publisher, TOPIC, table)
    except PenstockError as error:
        return type(error), str(error)
    return publisher.execute(
        "SELECT key, type, content_type, headers::text, payload, due_at,"
        " CASE WHEN key IS NOT NULL THEN partition_id & 65535 END,"
        " CASE WHEN uuid_send(event_id) < '\\x01'::bytea THEN event_id END"
        " FROM penstock.events ORDER BY id"
    ).fetchall()


@proves("S2 of a table by columns")
def test_by_columns_is_the_same_as_event_by_event(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: every check of _binds and arrow; without one, what is refused gets in or is odd."""
    chance = random.Random(16)
    original = tables._Rows.by_columns
    ways: list[Callable[..., Any]] = [original, lambda *_, **__: None]
    short_ways = 0
    with psycopg.connect(database_url) as publisher:
        for number in range(60):
            table = _table(chance, odd=number % 2)
            outcomes = []
            for way in ways:
                monkeypatch.setattr(tables._Rows, "by_columns", way)
                outcomes.append(_outcome(publisher, table))
                publisher.rollback()
            assert outcomes[0] == outcomes[1], table.to_pylist()
            known = known_topics.known_topics(publisher)
            rows = tables._Rows(TOPIC, table)
            short_ways += original(rows, known, binary=True) is not None
    assert short_ways >= 30, "tables of good values go by columns"


_REFUSED: tuple[tuple[Any, str], ...] = (
    ([], "a list is not a pyarrow.Table"),
    ({"key": ["k"]}, "the table has no column payload.*add it as binary"),
    ({"payload": ["x"]}, "the column payload as string.*cast it to binary"),
    ({"payload": pa.array([None])}, "the column payload as null.*cast it to binary"),
    ({"payload": [b"x"], "id": [1]}, "a column 'id', which an event does not take.*payload, "),
    ({"payload": [b"x"], "id": pa.array([None])}, "a column 'id'"),
    ({"payload": [b"x"], "key": [1]}, "the column key as integer.*cast it to string"),
    ({"payload": [b"x"], "headers": [{"a": 1}]}, "the column headers as struct"),
    ({"payload": [b"x"], "event_id": [b"x"]}, "event_id as binary.*fixed_size_binary.16."),
    ({"payload": [b"x"], "partition": [1.0]}, "partition as double.*cast it to integer"),
    ({"payload": [b"x"], "not_before": [datetime(2026, 1, 1)]}, "not_before as timestamp.us."),
    ({"payload": [b"x", None, None]}, "event 1: the payload is NULL"),
)


def test_a_table_that_is_none_of_events_is_refused(
    connection: Connection, subtests: pytest.Subtests
) -> None:
    """Before anything is asked of the database: the topic does not even exist."""
    for given, problem in _REFUSED:
        table = pa.table(given) if isinstance(given, dict) else given
        with subtests.test(problem), pytest.raises(InvalidArgument, match=problem):
            penstock.publish_table(connection, "bank/none", table)


def test_two_columns_of_one_name_and_broken_text_are_refused(connection: Connection) -> None:
    """Guard: validate(full=True), or the database would say it, without the column."""
    payload = pa.array([b"x"])
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    refused = {
        "have one name": pa.table([payload, payload], names=["payload", "payload"]),
        "the table is not valid: .*UTF8": pa.table({"payload": payload, "key": text}),
    }
    for problem, table in refused.items():
        with pytest.raises(InvalidArgument, match=problem), connection.transaction():
            penstock.publish_table(connection, TOPIC, table)


def test_the_topic_must_exist(connection: Connection) -> None:
    with connection.transaction():
        with pytest.raises(TopicNotFound, match="'bank/none'"):
            penstock.publish_table(connection, "bank/none", pa.table({"payload": [b"x"]}))
        nothing = pa.table({"payload": pa.array([], pa.binary())})
        assert penstock.publish_table(connection, TOPIC, nothing) == 0


_WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"headers": "{"}, "event 5: the headers of an event are not JSON"),
    ({"headers": "[1]"}, "event 5: the headers are not a dictionary"),
    ({"payload": b"x" * 101}, "event 5: the payload has 101 bytes"),
    ({"partition": 4}, "event 5: .* has no partition 4"),
    ({"key": "k" * 256}, "event 5: key has 256 characters"),
)


@proves("S2 of a table by columns")
def test_what_is_wrong_in_a_later_chunk_leaves_nothing(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Guards: the savepoint round all chunks, and _name_the_wrong_one for what the server finds."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 2)
    for wrong, problem in _WRONG:
        rows: list[dict[str, Any]] = [{"payload": b"%d" % number} for number in range(9)]
        rows[5] |= wrong
        table = pa.Table.from_pylist(rows, _SCHEMA)
        with subtests.test(problem), connection.transaction():
            with pytest.raises(PenstockError, match=problem):
                penstock.publish_table(connection, TOPIC, table)
            assert _publish(connection, payload=[b"after"]) == 1
    with pytest.raises(InvalidArgument, match="event 0: type holds a NUL"):
        _publish(connection, payload=[b"x", b"y"], type=["\0", "\0"])
    assert _payloads(connection) == [b"after"] * len(_WRONG)


@proves("S2 of a table by columns")
def test_events_that_need_the_long_way_take_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: each reason not to go by columns; the events are published all the same."""
    later = datetime.now(UTC) + timedelta(hours=1)
    times = pa.array([later, None], pa.timestamp("ns", "Europe/Berlin"))
    assert _publish(connection, payload=[b"later", b"now"], not_before=times) == 2
    rows = connection.execute("SELECT due_at FROM penstock.events ORDER BY id").fetchall()
    assert rows == [(later,), (None,)]

    with monkeypatch.context() as patch:
        patch.setattr(tracing, "context_headers", lambda: {"traceparent": "00-1"})
        headers = ['{"own": 1}', '{"traceparent": "mine"}']
        assert _publish(connection, payload=[b"a", b"b"], headers=headers) == 2
    assert [row[4] for row in _stored(connection)[2:]] == [
        {"own": 1, "traceparent": "00-1"},
        {"traceparent": "mine"},
    ]

    connection.execute("SELECT penstock.set_backpressure(%s, 5, NULL)", (TOPIC,))
    assert _publish(connection, payload=[b"c"]) == 1
    with pytest.raises(BackPressure):
        _publish(connection, payload=[b"d"] * 3)


def test_ids_of_some_rows_and_ids_that_are_written_otherwise(connection: Connection) -> None:
    """Guards: the look for NULLs, and at how ids are written; all digits are read at once."""
    some = ["00000000000000000000000000000007", None]
    assert _publish(connection, payload=[b"own", b"new"], event_id=some) == 2
    rows = connection.execute("SELECT event_id FROM penstock.events ORDER BY id").fetchall()
    assert rows[0] == (uuid.UUID(int=7),)
    assert rows[1][0].version == 7
    assert _publish(connection, payload=[b"x"] * 2, event_id=[None, str(uuid.UUID(int=8))]) == 2
    for odd in (["0" * 31, "0" * 33], [f"{uuid.UUID(int=7)}x", str(uuid.UUID(int=8))]):
        with pytest.raises(InvalidArgument, match=r"event 0: the event_id .* is no UUID"):
            _publish(connection, payload=[b"a", b"b"], event_id=odd)
    assert len(_payloads(connection)) == 4


def test_on_connections_that_bind_on_the_client(database_url: str, connection: Connection) -> None:
    """Guard: binary; such a connection cannot send packed columns."""
    with psycopg.connect(database_url, cursor_factory=psycopg.ClientCursor) as other:
        table = pa.table({"payload": [b"a", b"b"], "headers": ['{"n": 1.50}', None]})
        assert penstock.publish_table(other, TOPIC, table) == 2
    assert [(row[0], row[4]) for row in _stored(connection)] == [(b"a", {"n": 1.5}), (b"b", None)]


def test_on_sqlalchemy_and_what_is_no_psycopg(database_url: str, connection: Connection) -> None:
    """As publish_bulk: it begins SQLAlchemy's transaction, so that its commit commits."""
    table = pa.table({"payload": [b"a"]})
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as own:
        assert penstock.publish_table(own, TOPIC, table) == 1
        own.commit()
    engine.dispose()
    assert _payloads(connection) == [b"a"]
    with pytest.raises(InvalidArgument, match="publish_table is called outside a transaction"):
        penstock.publish_table(connection, TOPIC, table)


def test_a_data_frame_of_polars_goes_by_columns(
    connection: Connection, by_columns_only: None
) -> None:
    """Its texts and bytes are views, which Arrow's older types are made of."""
    frame = polars.DataFrame(
        {
            "payload": [b"a", b"", b"c"],
            "key": ["k", None, "grün"],
            "type": polars.Series(["t", "u", "t"], dtype=polars.Categorical),
            "headers": [None, '{"n": 1}', None],
        }
    )
    with connection.transaction():
        assert penstock.publish_table(connection, TOPIC, pa.table(frame)) == 3
    found = connection.execute("SELECT payload, key, type FROM penstock.events ORDER BY id")
    assert found.fetchall() == [(b"a", "k", "t"), (b"", None, "u"), (b"c", "grün", "t")]
