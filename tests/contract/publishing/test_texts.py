"""publish_text and publish_json: a payload that is a text arrives as it was written.

``'...'::bytea`` reads a backslash as an escape, so JSON in it is changed or refused.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import database
from penstock.driver_errors import errno_of, sqlstate_of
from penstock.errors import (
    BackPressure,
    InvalidArgument,
    InvalidPartition,
    PayloadTooLarge,
    PenstockError,
    TopicNotFound,
)
from penstock.records import Event
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.kit import count, open_transaction
from tests.contract.text_kit import FUNCTIONS, call
from tests.kit.log import TOPIC, drain, read, topic
from tests.kit.proof import proves

TEXTS = (
    "",
    "c:\\temp",
    "\\",
    "\\\\x41",
    "\\x4142",
    "\\101",
    "a\nb\tc\r\n",
    "'quoted' \"twice\" %s %(x)s",
    "äß → 東京 🚰",
    "\u0001\u007f\u0085\ufeff",
)
JSON = (
    '{"path":"c:\\\\temp"}',
    '{"text":"a\\nb\\u00e4"}',
    ' { "b" : 1,\n\t"a" : 2, "a" : 3 } ',
    '["äß → 東京 🚰", 1.50, -0, 1e2, true, null]',
    '"text"',
    "12",
    "null",
    "{}",
    json.dumps({"deep": {"x": [[["y"]]]}, "long": "z" * 5000}),
)
NO_JSON = (
    "", " ", "nothing", "{", "{]", "[1,]", '{"a":1,}', "{'a':1}", '{"a" 1}', '{"a":1}}', "1 2",
    "[1 2]", '"\\x"', '"\\u12"', '"a\nb"', '"open', "01", "+1", ".5", "1.", "- 1", "1e", "NaN",
    "True", "nul", "[1]x",
    '{"a": 1.}', "0.E-2", '["\\\\\\x"]', '"\\B"', "\ufeff{}", "{1:2}", "/* c */ 1",
)  # fmt: skip
SAMPLES = [("publish_text", each) for each in TEXTS] + [("publish_json", each) for each in JSON]


def published(db: ContractDatabase, function: str, payload: str | None, **options: Any) -> Any:
    """What the function returns, in a transaction of its own."""
    with open_transaction(db) as own:
        row = call(own, function, payload, **options)
        own.commit()
    return row


def arrived(db: ContractDatabase) -> list[Event]:
    """All events of the topic."""
    own = db.connect()
    drain(own)
    return read(own)


@pytest.fixture(autouse=True)
def one_topic(request: pytest.FixtureRequest) -> None:
    """Of the database that the test runs on."""
    name = "mysql_db" if "mysql_db" in request.fixturenames else "db"
    found: ContractDatabase = request.getfixturevalue(name)
    topic(found.connect())


@proves("a text is published as it was written")
def test_every_byte_arrives(db: ContractDatabase) -> None:
    """Backslashes, quotes, blanks, the order of keys: nothing is read as an escape."""
    for function, text in SAMPLES:
        published(db, function, text)
    assert [event.payload for event in arrived(db)] == [text.encode() for _, text in SAMPLES]


def test_the_content_type_is_that_of_the_function(db: ContractDatabase) -> None:
    for function in FUNCTIONS:
        published(db, function, "1")
        published(db, function, "1", content_type=None)
        published(db, function, "1", content_type="application/x-own")
    text, given = "text/plain; charset=utf-8", "application/x-own"
    assert [event.content_type for event in arrived(db)] == [
        text, text, given, "application/json", "application/json", given,
    ]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_option_of_publish_is_taken(db: ContractDatabase, function: str) -> None:
    own_id = "0190a5d2-1111-7aaa-8bbb-123456789abc"
    first = published(
        db, function, "1", key="Ä'%s", type="t", headers='{"n": 1}', event_id=own_id, partition=0,
        dedup_key="once", strict=True,
    )  # fmt: skip
    assert (str(first[0]), bool(first[1])) == (own_id, False)
    again = published(db, function, "2", dedup_key="once")
    assert (str(again[0]), bool(again[1])) == (own_id, True)
    later = datetime.now(UTC) + timedelta(hours=1)
    published(db, function, "3", not_before=later if db.engine == "postgres" else _naive(later))
    (event,) = arrived(db)
    assert (event.key, event.type, event.headers) == ("Ä'%s", "t", {"n": 1})
    assert (str(event.event_id), event.payload) == (own_id, b"1")
    assert count(db, "events") == 2


def _naive(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M:%S")


#: What publish refuses, these refuse in the same words.
REFUSED: dict[str, tuple[dict[str, Any], type[PenstockError]]] = {
    "no topic": ({"topic": "no/topic"}, TopicNotFound),
    "no payload": ({"payload": None}, InvalidArgument),
    "too large": ({"payload": '"' + "ä" * 540_000 + '"'}, PayloadTooLarge),
    "long key": ({"key": "k" * 256}, InvalidArgument),
    "no partition": ({"partition": 7}, InvalidPartition),
    "headers": ({"headers": "[1]"}, InvalidArgument),
    "event id": ({"dedup_key": "d" * 256}, InvalidArgument),
}


@pytest.mark.parametrize("bad", REFUSED)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_publish_refuses_is_refused(db: ContractDatabase, function: str, bad: str) -> None:
    """Guard: both call publish; and the caller's own work stays."""
    given, error = REFUSED[bad]
    with open_transaction(db) as own:
        call(own, function, '"before"')
        database.execute(own, "SAVEPOINT mine")
        with pytest.raises(error):
            call(own, function, **({"payload": "1"} | given))
        database.execute(own, "ROLLBACK TO SAVEPOINT mine")
        own.commit()
    assert [event.payload for event in arrived(db)] == [b'"before"']


@pytest.mark.parametrize("function", FUNCTIONS)
def test_back_pressure_holds(db: ContractDatabase, function: str) -> None:
    own = db.connect()
    database.call(own, "set_backpressure", topic=TOPIC, max_events=1, max_bytes=None)
    with pytest.raises(BackPressure):
        for number in range(20):
            published(db, function, str(number))
            database.call(own, "measure_pressure")


@proves("a text is published as it was written")
def test_what_is_no_json_is_refused(db: ContractDatabase) -> None:
    """Guard: the type json, and JSON_VALID."""
    for text in NO_JSON:
        with pytest.raises(ValueError):
            json.loads(text, parse_constant=_no_constant)
        with open_transaction(db) as own, pytest.raises(Exception) as refused:
            call(own, "publish_json", text)
        ours = isinstance(refused.value, InvalidArgument)
        assert ours or sqlstate_of(refused.value) == "22P02", (text, refused.value)
    assert count(db, "events") == 0


def _no_constant(name: str) -> None:
    raise ValueError(name)


#: Character sets of sessions, and a text that each can say.
CHARACTER_SETS = {
    "postgres": {"LATIN1": "äß", "WIN1251": "Вода", "SJIS": "東京表", "UTF8": "🚰"},
    "mysql": {"latin1": "äß", "cp1251": "Вода", "gbk": "東京表", "utf8mb4": "🚰"},
}


@proves("a text is published as it was written")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_bytes_are_utf_8_whatever_the_session_speaks(
    db: ContractDatabase, function: str
) -> None:
    """Guard: convert_to on PostgreSQL, the parameter's own character set elsewhere."""
    texts = CHARACTER_SETS["postgres" if db.engine == "postgres" else "mysql"]
    for name, text in texts.items():
        with open_transaction(db) as own:
            if db.engine == "postgres":
                database.execute(own, f"SET client_encoding = '{name}'")
            else:
                speaks: Any = own
                speaks.set_character_set(name)
            call(own, function, f'"{text}"')
            own.commit()
    assert [event.payload.decode() for event in arrived(db)] == [f'"{t}"' for t in texts.values()]


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT"])
def test_no_sql_mode_changes_a_text(mysql_db: MySQLDatabase, mode: str) -> None:
    """A procedure runs in the mode that it was made in."""
    with open_transaction(mysql_db) as own:
        database.execute(own, f"SET SESSION sql_mode = '{mode}'")
        for function in FUNCTIONS:
            database.execute(
                own,
                f"CALL penstock.{function}('{TOPIC}', CONCAT('\"', CHAR(92), CHAR(92), '\"'),"
                " NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, FALSE)",
            )
        own.commit()
    assert [event.payload for event in arrived(mysql_db)] == [b'"\\\\"'] * 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bytes_that_are_no_text_are_refused(mysql_db: MySQLDatabase, function: str) -> None:
    """In a strict session, as the servers are set; docs/reference/sql.md says so of the others."""
    with open_transaction(mysql_db) as own, pytest.raises(Exception) as refused:
        database.execute(
            own,
            f"CALL penstock.{function}('{TOPIC}', _binary x'22C3FF22',"
            " NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, FALSE)",
        )
    assert errno_of(refused.value) == 1366


def test_long_json_is_looked_at_to_its_end(db: ContractDatabase) -> None:
    """A string of 250 KB, and 20,000 values."""
    for text in ('"' + "ä\\n" * 50_000 + '"', json.dumps([1.5, "x\\"] * 10_000)):
        published(db, "publish_json", text)
        with open_transaction(db) as own, pytest.raises(Exception, match=r"JSON|json"):
            call(own, "publish_json", text + "x")
    assert count(db, "events") == 2


@proves("a text is published as it was written", guard="JSON_VALID and what it leaves")
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("JSON_VALID(payload)", "TRUE", "nothing"),
        ("""NOT REGEXP '\\\\\\\\[^"/bfnrtu]'""", "IS NOT NULL", '"\\x"'),
        ("NOT REGEXP '[.]([^0-9]|$)'", "IS NOT NULL", "1."),
    ],
)
def test_without_a_guard_something_else_gets_in(
    mysql_db: MySQLDatabase, old: str, new: str, text: str
) -> None:
    """Mutants of publish_json; only MariaDB needs the last two."""
    mysql_db.without_guard("publish_json", old, new)
    needed = mysql_db.engine == "mariadb" or text == "nothing"
    with open_transaction(mysql_db) as own:
        if needed:
            call(own, "publish_json", text)
        else:
            with pytest.raises(InvalidArgument):
                call(own, "publish_json", text)
