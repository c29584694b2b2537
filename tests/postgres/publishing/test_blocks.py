"""Plain events of one topic go by columns; what arrives or is refused is what the long way says."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Message
from penstock.errors import BackPressure, PayloadTooLarge, PenstockError
from penstock.publishing import bulk, known_topics, steps
from penstock.publishing.blocks import block_of
from penstock.publishing.event_ids import packed_uuid7s, uuid7s
from tests.kit.proof import proves

TOPIC = "bank/accounts"
COUNT = 40
Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def topics(connection: Connection) -> None:
    known_topics.clear()
    penstock.create_topic(connection, TOPIC, 4, create_namespaces=True)
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 100")
    _make_known(connection)


def _make_known(connection: Connection) -> None:
    """Only topics that are known take plain events by columns."""
    with connection.transaction(force_rollback=True):
        penstock.publish(connection, TOPIC, b"x")


def _default(url: str) -> Connection:
    return psycopg.connect(url)


def _binding_on_the_client(url: str) -> Connection:
    return psycopg.connect(url, cursor_factory=psycopg.ClientCursor)


def _itself() -> dict[str, Any]:
    headers: dict[str, Any] = {}
    headers["itself"] = headers
    return headers


def _deep() -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for _ in range(40):
        headers = {"in": headers}
    return headers


_SHARED = {"same": "for all"}

#: Values of each column: those that all events have, then those that only some have.
_GOOD: dict[str, list[Any]] = {
    "payload": [b"", b"x" * 100, bytes(range(100))],
    "key": [None, "", "größe", 'a"b\\c{},NULL', "k" * 255, "é" * 255],
    "type": ["", "placed", "t" * 255],
    "content_type": ["application/octet-stream", "text/plain"],
    "headers": [None, {}, _SHARED, {"é": [None, "\\"]}, {"n": 1.5}, {"long": "x" * 900}],
    "event_id": [None, uuid.UUID(int=7 << 64)],
}

#: Values that only the long way takes or refuses.
_ODD: dict[str, list[Any]] = {
    "topic": [3, None, [], "bank/nothing", "Bank Nothing"],
    "payload": [b"x" * 101, bytearray(b"y"), memoryview(b"z"), "text", None],
    "key": ["k" * 256, "\0", "\ud800", 7, b"k"],
    "type": ["t" * 256, "\0", "\udc00", None],
    "content_type": ["c" * 256, None],
    "headers": [
        {1: "one"}, {"nul": "\0"}, {"half": "\ud800"}, {"set": {1}}, {"nan": float("nan")}, "text",
        _itself(), _deep(),
        {"big": 10**5000}, {"large": "x" * 70_000}, {"back\\u0000slash": 1},
    ],
    "event_id": ["0190", 7],
    "partition": [0, 9, -1, "0"],
    "dedup_key": ["d", "d" * 256, []],
    "max_attempts": [3, 0],
    "exchange": ["e"],
}  # fmt: skip


def _batch(chance: random.Random, odd: int) -> list[Any]:
    """Plain messages; some columns hold one value; ``odd`` of the messages have an odd value."""
    shared = {n: chance.choice(v) for n, v in _GOOD.items() if n != "event_id"}
    varied = [name for name in _GOOD if chance.random() < 0.4]
    given = []
    for number in range(COUNT):
        fields = shared | {name: chance.choice(_GOOD[name]) for name in varied}
        if fields.get("event_id"):
            fields["event_id"] = uuid.UUID(int=number)
        given.append({"topic": TOPIC, **fields})
    for place in chance.sample(range(COUNT), odd):
        name = chance.choice(list(_ODD))
        given[place][name] = chance.choice(_ODD[name])
    return [Message(**fields) for fields in given]


def _outcome(publisher: Connection, messages: list[Any], given: Callable[..., Any]) -> Any:
    """What arrived, or how it was refused; with the ids that the messages brought."""
    try:
        given(publisher, messages)
    except PenstockError as error:
        return type(error), str(error)
    return publisher.execute(
        "SELECT key, type, content_type, headers, payload,"
        " CASE WHEN key IS NOT NULL THEN partition_id & 65535 END,"
        " CASE WHEN uuid_send(event_id) < '\\x01'::bytea THEN event_id END"
        " FROM penstock.events ORDER BY id"
    ).fetchall()


@proves("S2 of a batch by columns")
@pytest.mark.parametrize(
    "publish", [penstock.publish_batch, penstock.publish_bulk], ids=["batch", "bulk"]
)
@pytest.mark.parametrize("open_connection", [_default, _binding_on_the_client])
def test_by_columns_is_the_same_as_event_by_event(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    open_connection: Callable[[str], Connection],
    publish: Callable[..., Any],
) -> None:
    """Guard: every check of block_of; without one, what the long way refuses gets in or is odd."""
    chance = random.Random(16)
    short_ways = 0

    def counted(messages: Any, known: Any) -> Any:
        nonlocal short_ways
        block = block_of(messages, known)
        short_ways += block is not None
        return block

    with open_connection(database_url) as publisher:
        for number in range(36):
            messages = _batch(chance, odd=(number % 3 == 0) + (number % 9 == 0))
            outcomes = []
            for way in (counted, lambda *_: None):
                monkeypatch.setattr(steps, "block_of", way)
                monkeypatch.setattr(bulk, "block_of", way)
                outcomes.append(_outcome(publisher, messages, publish))
                publisher.rollback()
            assert outcomes[0] == outcomes[1], messages
    assert short_ways >= 18, "most batches are plain"


def test_a_column_sent_once_or_for_each_event(connection: Connection) -> None:
    """SQL's own defaults, a type for all, a type for some; in the order of the arrays."""
    row = connection.execute(
        "SELECT penstock.publish_columns(%s, 'all', NULL, ARRAY['0', '1', '2']::bytea[],"
        " types => ARRAY[NULL, 'own'], partitions => ARRAY[3, 2, 1])",
        (TOPIC,),
    ).fetchone()
    assert row == (3,)
    assert connection.execute(
        "SELECT convert_from(payload, 'UTF8'), type, content_type, partition_id & 65535"
        " FROM penstock.events ORDER BY id"
    ).fetchall() == [
        ("0", "all", "application/octet-stream", 3),
        ("1", "own", "application/octet-stream", 2),
        ("2", "all", "application/octet-stream", 1),
    ]


#: Arguments of publish_columns, and how they are refused.
_REFUSED = (
    ("'t', NULL, ARRAY['x', NULL]::bytea[]", "PS006", "event 1 .* payload is NULL"),
    ("'t', NULL, ARRAY['x', repeat('x', 101)]::bytea[]", "PS004", "event 1 .* 101 bytes"),
    ("repeat('t', 256), NULL, ARRAY['x']::bytea[]", "PS006", "event 0 .* type has more"),
    ("'t', repeat('c', 256), ARRAY['x']::bytea[]", "PS006", "event 0 .* content type has"),
    ("'t', NULL, ARRAY['x']::bytea[], keys => ARRAY['k', 'k']", "PS006", "more values"),
    ("'t', NULL, ARRAY['x']::bytea[], keys => ARRAY[repeat('k', 256)]", "PS006", "its key has"),
    ("'t', NULL, ARRAY['x']::bytea[], headers => ARRAY['[]']", "PS006", "event 0"),
    ("'t', NULL, ARRAY['x']::bytea[], partitions => ARRAY[4]", "PS005", "event 0"),
)

#: What makes a topic one that only publish_batch can publish to.
_LONG_WAY = (
    "UPDATE penstock.topics SET strategy = 'explicit'",
    "UPDATE penstock.topics SET max_unsequenced_events = 1",
    "UPDATE penstock.topics SET max_unsequenced_bytes = 1",
    "UPDATE penstock.topics SET address = 'bank/other'",
)


@proves("S2 of a batch by columns")
def test_what_the_database_refuses(connection: Connection) -> None:
    """Guard: event_problem in publish_columns, and the count of what it let through."""
    for arguments, sqlstate, problem in _REFUSED:
        with pytest.raises(psycopg.Error, match=problem) as refused:
            connection.execute(f"SELECT penstock.publish_columns('{TOPIC}', {arguments})")
        assert refused.value.sqlstate == sqlstate
    assert connection.execute("SELECT count(*) FROM penstock.events").fetchone() == (0,)


@proves("S2 of a batch by columns")
def test_a_topic_that_needs_the_long_way(connection: Connection) -> None:
    """Guard: the WHERE of the topic in publish_columns."""
    columns = "SELECT penstock.publish_columns(%s, '', NULL, ARRAY['x']::bytea[])"
    for change in _LONG_WAY:
        with connection.transaction(force_rollback=True):
            connection.execute(change)
            assert connection.execute(columns, (TOPIC,)).fetchone() == (None,), change


@pytest.mark.parametrize("publish", [penstock.publish_batch, penstock.publish_bulk])
def test_a_limit_that_came_later_holds(
    connection: Connection, publish: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: by_columns; and the chunk that was packed by columns is published all the same."""
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 2)
    connection.execute("SELECT penstock.set_backpressure(%s, 5, NULL)", (TOPIC,))
    with connection.transaction():
        publish(connection, [Message(TOPIC, b"%d" % number) for number in range(3)])
    assert not next(iter(known_topics.known_topics(connection)._found.values())).by_columns
    with connection.transaction():
        publish(connection, [Message(TOPIC, b"%d" % number) for number in range(3, 5)])
    with pytest.raises(BackPressure), connection.transaction():
        publish(connection, [Message(TOPIC, b"x")] * 2)
    rows = connection.execute("SELECT payload FROM penstock.events ORDER BY id").fetchall()
    assert rows == [(b"%d" % number,) for number in range(5)]


def test_an_error_of_a_later_chunk_says_which(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_EVENTS", 2)
    connection.execute("UPDATE penstock.topics SET max_payload_bytes = 1")  # behind its back
    messages = [Message(TOPIC, payload) for payload in (b"0", b"1", b"2", b"33")]
    with pytest.raises(PayloadTooLarge, match="of the events from 2 on, event 1"):  # noqa: SIM117
        with connection.transaction():
            penstock.publish_bulk(connection, messages)
    assert connection.execute("SELECT count(*) FROM penstock.events").fetchone() == (0,)


def test_packed_ids_are_ids() -> None:
    """They are of version 7, rise, and rise together with the ids that are made one by one."""
    before, packed, after = uuid7s(3), packed_uuid7s(5_000), uuid7s(3)
    sizes = {packed[place : place + 4] for place in range(0, len(packed), 20)}
    ids = [uuid.UUID(bytes=packed[place + 4 : place + 20]) for place in range(0, len(packed), 20)]
    assert sizes == {b"\0\0\0\x10"}
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert before + ids + after == sorted({*before, *ids, *after})
