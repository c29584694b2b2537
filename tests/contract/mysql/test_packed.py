"""The short way of a plain batch on MySQL and MariaDB: two packed values, one INSERT.

What it does not take, or would have to refuse, it leaves to publish_batch, and writes nothing.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Message, database, log
from penstock.driver_errors import driver_error, errno_of
from penstock.errors import BackPressure, TopicNotFound
from penstock.publishing import packing
from penstock.publishing.packing import packed
from penstock.publishing.publish import publish_batch
from penstock.publishing.rows import Row
from penstock.publishing.steps import rows_of
from penstock.topics import names
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import count, open_transaction, sql
from tests.contract.tenants import OURS, THEIRS, as_login, tenant, tenants_of
from tests.kit.log import TOPIC, drain, topic
from tests.kit.proof import proves

PLACED = "tests/placed"
TURNING = "tests/turning"
PARTITIONS = 16
GOOD = Row(TOPIC, b"x", None, "", "a/b", None, uuid.UUID(int=7), None, None, None)

_DEEP = '{"a":' * 32 + "[1]" + "}" * 32
_LONG = json.dumps({"a": "b" * 65_530})
_DIGITS = '{"a":' + "1" * 401 + "}"
_LENGTH = ("SUBSTR(e.head, e.place + 82, 8) <= SUBSTR(e.topic, 26, 14) + 0", "TRUE")
_RANGE = ("e.asked + 0 BETWEEN 0 AND SUBSTR(e.topic, 20, 6) - 1", "TRUE")
#: What is wrong, the guard that leaves it out, and the engines where no other guard does.
BAD: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "too large": ({"payload": bytes(1_100_000)}, _LENGTH, "mysql mariadb"),
    "no such partition": ({"partition": PARTITIONS}, _RANGE, "mysql mariadb"),
    "below the first": ({"partition": -1}, _RANGE, "mysql mariadb"),
    "no partition": (
        {"topic": PLACED}, ("SUBSTR(e.topic, 40, 1) <> 'p'", "TRUE"), "mysql mariadb",
    ),
    "no object": ({"headers": "[1]"}, ("SUBSTR(e.headers, 1, 1) = '{'", "TRUE"), "mysql mariadb"),
    "no JSON": (
        {"headers": "{"}, ("JSON_VALID(CONVERT(e.headers USING utf8mb4))", "TRUE"), "mysql mariadb",
    ),
    "too deep": ({"headers": _DEEP}, ("<= 33)", "<= 99)"), "mysql"),
    "too long": ({"headers": _LONG}, ("LENGTH(e.headers) <= 65536", "TRUE"), "mysql mariadb"),
    "too many digits": ({"headers": _DIGITS}, ("[0-9]{401}", "[0-9]{500}"), "mariadb"),
}  # fmt: skip
#: What does not fit its column; without the handler it is the engine's own error.
UNFIT: dict[str, dict[str, Any]] = {
    "long key": {"key": "é" * 256},
    "long type": {"type": "t" * 256},
    "long content type": {"content_type": "c" * 256},
}
_HANDLER = ("insert_packed", "FOR 1264, 1292, 1366, 1406 SET", "FOR 1264 SET")


def _topics(db: MySQLDatabase) -> Any:
    own = db.connect()
    topic(own, PARTITIONS)
    names.create_topic(own, TURNING, 3, strategy="round_robin")
    names.create_topic(own, PLACED, 4, strategy="explicit")
    return own


def _given(*changes: dict[str, Any]) -> dict[str, Any]:
    """The binds of a batch: good events around those that are changed."""
    rows = [GOOD, *(GOOD._replace(**each) for each in changes), GOOD]
    found = packed(rows)
    assert found is not None
    return found


def _taken(own: Any, *changes: dict[str, Any]) -> int | None:
    ((published,),) = database.call(own, "publish_packed", **_given(*changes))
    return published


def _nothing_written(db: MySQLDatabase) -> bool:
    return count(db, "events") == count(db, "pending") == 0


def _messages(number: int) -> list[Message]:
    chance = random.Random(7)
    headers = [None, {}, {"a": "é\"'\\"}, {"deep": [{"n": n} for n in range(40)]}]
    return [
        Message(
            name := chance.choice([TOPIC, TURNING, PLACED]),
            chance.randbytes(chance.choice([0, 1, 200, 3_000])),
            key=chance.choice([None, "", "ключ", f"k{n}", "🔑" * 255]),
            type=chance.choice(["", "type", "тип"]),
            content_type=chance.choice(["a/b", "c/d"]),
            headers=chance.choice(headers),
            partition=chance.choice([0, 2] if name == PLACED else [None, 0, 2]),
        )
        for n in range(number)
    ]


def _read(own: Any, partition: int, name: str) -> list[tuple[Any, ...]]:
    return [
        (e.partition, e.key, e.type, e.content_type, e.headers, e.payload)
        for e in log.fetch(own, name, partition, 1, 10_000)
    ]


def _written(db: MySQLDatabase) -> list[list[tuple[Any, ...]]]:
    """The events of each partition, in order, from the same turn of partitions on."""
    own = db.connect()
    sql(own, "SET @penstock_turn = 5")
    assert len(set(publish_batch(own, _messages(700)))) == 700
    drain(own)
    topics = ((TOPIC, PARTITIONS), (TURNING, 3), (PLACED, 4))
    return [_read(own, number, name) for name, count in topics for number in range(count)]


@proves("S2 of a packed batch")
def test_both_ways_write_the_same(mysql_db: MySQLDatabase) -> None:
    """Guard: what publish_batch adds to each partition is what is there already."""
    _topics(mysql_db)
    by_packed = _written(mysql_db)
    mysql_db.without_guard("publish_packed", "IF facts IS NOT NULL AND", "IF FALSE AND")
    assert sum(map(len, by_packed)) == 700
    assert _written(mysql_db) == [each * 2 for each in by_packed]


def test_a_plain_batch_goes_the_short_way(mysql_db: MySQLDatabase) -> None:
    own = _topics(mysql_db)
    mysql_db.without_guard("publish_batch", "CALL insert_batch(", "CALL refuse('PS006', ''); DO (")
    ids = publish_batch(own, _messages(300))
    assert mysql_db.run("SELECT COUNT(*), COUNT(DISTINCT event_id) FROM penstock.events") == [
        (300, 300)
    ]
    stored = {row for (row,) in mysql_db.run("SELECT HEX(event_id) FROM penstock.events")}
    assert stored == {each.hex.upper() for each in ids}
    blocks = mysql_db.run("SELECT event_count FROM penstock.pending ORDER BY block")
    assert blocks == [(256,), (44,)]


@proves("S2 of a packed batch")
@pytest.mark.parametrize("bad", BAD)
def test_what_is_wrong_is_left_to_publish_batch(mysql_db: MySQLDatabase, bad: str) -> None:
    """Guard: the condition of the INSERT, which counts; each of them is also taken out."""
    change, guard, engines = BAD[bad]
    own = _topics(mysql_db)
    with open_transaction(mysql_db) as app:
        sql(app, "DO LAST_INSERT_ID(77)")
        assert _taken(app, change) is None
        assert database.execute(app, "SELECT LAST_INSERT_ID()") == [(77,)]
        app.commit()
    assert _nothing_written(mysql_db)
    mysql_db.without_guard("insert_packed", *guard)
    assert (_taken(own, change) == 3) is (mysql_db.engine in engines)


@pytest.mark.parametrize("unfit", UNFIT)
def test_what_does_not_fit_is_left_too(mysql_db: MySQLDatabase, unfit: str) -> None:
    """Guard: the handler, without which it is an error of the engine."""
    own = _topics(mysql_db)
    assert _taken(own, UNFIT[unfit]) is None
    assert _nothing_written(mysql_db)
    mysql_db.without_guard(*_HANDLER)
    with pytest.raises(Exception, match="long") as raised:
        _taken(own, UNFIT[unfit])
    assert errno_of(driver_error(raised.value)) == 1406


@pytest.mark.parametrize("name", ["heads", "body"])
def test_garbage_writes_nothing(mysql_db: MySQLDatabase, name: str) -> None:
    """Guards: the same, and the length of the body."""
    own = _topics(mysql_db)
    for garbage in (b"", b"\xff" * 180, b"7" * 180, b"-" * 270):
        given = _given() | {name: garbage}
        ((published,),) = database.call(own, "publish_packed", **given)
        if name == "heads" or len(garbage) < 32:
            assert published is None
            assert _nothing_written(mysql_db)


def test_no_number_between_two_topics_is_taken(mysql_db: MySQLDatabase) -> None:
    """D11. Guard: then a letter stands where a number is read, so no other topic's id is made."""
    own = _topics(mysql_db)
    given = _given()
    for between in [*(f"{shift / 40:5.3f}" for shift in range(1, 40)), "   -1", "-0.05"]:
        heads = between.encode() + given["heads"][5:]
        ((published,),) = database.call(own, "publish_packed", **given | {"heads": heads})
        assert published is None, between
    assert _nothing_written(mysql_db)


@proves("S2 of a packed batch", guard="each condition of the INSERT")
def test_less_than_all_is_nothing(mysql_db: MySQLDatabase) -> None:
    """Mutant: nobody counts."""
    mysql_db.without_guard(
        "publish_packed", "IF NOT COALESCE(published = all_events, FALSE)", "IF FALSE"
    )
    assert _taken(_topics(mysql_db), {"headers": "[1]"}) == 2


def test_a_deleted_topic_is_named_with_its_event(mysql_db: MySQLDatabase) -> None:
    """What a publisher remembers may be gone; publish_batch says which event it is."""
    own = _topics(mysql_db)
    publish_batch(own, [Message(TURNING, b"x")])
    with open_transaction(mysql_db) as other:
        database.call(other, "delete_topic", topic=TURNING, with_subscriptions=True)
        other.commit()
    with pytest.raises(TopicNotFound, match="event 1"):
        publish_batch(own, [Message(TOPIC, b"x"), Message(TURNING, b"x")])
    assert _taken(own, {"topic": TURNING}) is None


def _hidden(db: MySQLDatabase, act: Callable[[Any], object]) -> object:
    with tenants_of(db) as tenants:
        tenants.install()
        for each in (OURS, THEIRS):
            names.create_topic(tenants.owner, each, 4, create_namespaces=True)
        tenant(tenants, "theirs")  # with a right in it, the namespace is theirs alone
        with as_login(tenants, tenant(tenants, "ours")) as own:
            return act(own)


def _to_theirs(own: Any) -> int | None:
    given = packed([GOOD._replace(topic=OURS), GOOD._replace(topic=THEIRS)])
    assert given is not None
    ((published,),) = database.call(own, "publish_packed", **given)
    return published


@proves("S2 of a packed batch")
def test_the_topics_of_others_are_missing(mysql_db: MySQLDatabase) -> None:
    """D11. Guard: look_at_packed asks for the right, topic by topic."""
    assert _hidden(mysql_db, _to_theirs) is None
    assert _nothing_written(mysql_db)


def test_without_the_right_they_would_be_written_to(mysql_db: MySQLDatabase) -> None:
    """Mutant: nobody asks."""
    mysql_db.without_guard(
        "look_at_packed", "IF(has_right(asked_in, 'publish'), known, NULL)", "known"
    )
    assert _hidden(mysql_db, _to_theirs) == 2


def _under_pressure(db: MySQLDatabase) -> int | None:
    own = _topics(db)
    database.call(own, "set_backpressure", topic=TOPIC, max_events=1, max_bytes=None)
    publish_batch(own, [Message(TOPIC, b"waits", partition=0)])
    database.call(own, "measure_pressure")
    return _taken(own)


@proves("S2 of a packed batch")
def test_back_pressure_is_asked_for(mysql_db: MySQLDatabase) -> None:
    """Guard: look_at_packed calls refuse_under_pressure for a topic with a limit."""
    with pytest.raises(BackPressure):
        _under_pressure(mysql_db)


def test_without_asking_it_is_passed(mysql_db: MySQLDatabase) -> None:
    """Mutant: no topic has a limit."""
    mysql_db.without_guard("look_at_packed", "IF is_limited AND", "IF FALSE AND")
    assert _under_pressure(mysql_db) == 2


@pytest.mark.parametrize(
    "rows",
    [
        [GOOD._replace(dedup_key="k")],
        [GOOD, GOOD._replace(not_before=datetime.now(UTC))],
        [GOOD._replace(payload=bytes(5 << 20))],
        [GOOD] * 65_537,
    ],
)
def test_what_is_not_packed(rows: list[Row]) -> None:
    """Guard: keys and delays are publish_batch's, and one statement stays below 16 MiB."""
    assert packed(rows) is None


def test_a_batch_is_packed_in_few_bytes() -> None:
    """Guard: types are there once, and the statement with it is smaller than the JSON was."""
    rows = rows_of([Message(TOPIC, b"x" * 200, key="k", type="t" * 50) for _ in range(100)])
    given = packed(rows)
    assert given is not None
    assert len(given["heads"]) == 100 * 90
    assert len(given["body"]) == 100 * (16 + 1 + 200) + 50 + len("application/octet-stream")
    assert packing.packed([]) is not None
