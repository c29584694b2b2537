"""Calls on MySQL and MariaDB that are killed at each of their statements in turn."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from penstock import database
from penstock.driver_errors import errno_of
from penstock.errors import TornTransaction
from tests.contract.databases import MySQLDatabase, routines
from tests.contract.kit import sql

INTERRUPTED = 1317
#: Counts down to the statement and kills it.  On MySQL no handler runs then; on MariaDB it does,
#: unless a kill from outside comes between two instructions: killed_in_front_of.
_STOP = (
    "SET @test_stop = @test_stop - 1; IF @test_stop = 0 THEN KILL QUERY CONNECTION_ID(); END IF;"
)
_LOOP = "DO GET_LOCK('{lock}', 10); WHILE @test_stop IS NULL DO DO 1; END WHILE; "
_LOCK = "penstock test stop"
#: Of which nothing changes.
_FIXED = frozenset({"numbers", "places", "strict_locks"})
_SKIPPED = re.compile(r"\s+|--[^\n]*\n|/\*(?![!M]).*?\*/", re.DOTALL)
_TEXT = re.compile(r"--[^\n]*|/\*(?![!M]).*?\*/|'(?:[^'\\]|\\.|'')*'|`[^`]*`|(;)", re.DOTALL)


def with_stops(text: str) -> str:
    """A procedure that can be stopped after each of its statements but the one that ends it."""
    made, done = [], 0
    for found in _TEXT.finditer(text):
        end = found.end()
        if found[1] is None or not _may_stop(text[done:end], text[end:]):
            continue
        made += [text[done:end], f" {_STOP} "]
        done = end
    return "".join([*made, text[done:]])


def _may_stop(before: str, rest: str) -> bool:
    while blank := _SKIPPED.match(rest):
        rest = rest[blank.end() :]
    following = rest.partition(";")[0]
    # ROW_COUNT() is of the statement before it; after end_call nothing is left to be undone.
    return not (
        not rest
        or re.match(r"DECLARE\b", rest, re.IGNORECASE)
        or "ROW_COUNT()" in following
        or before.rstrip().endswith("CALL end_call();")
    )


def procedures_of(name: str) -> list[str]:
    """A procedure and all that it calls, but for those that raise errors and the last one."""
    known, found = routines(), [name]
    for each in found:
        for called in re.findall(r"\bCALL `?(\w+)`?\(", known[each]):
            if called not in {*found, "refuse", "end_call"}:
                found.append(called)
    return [each for each in found if "CREATE PROCEDURE" in known[each]]


@contextmanager
def stoppable(db: MySQLDatabase, *names: str) -> Iterator[None]:
    """Procedures with stops."""
    for each in sorted({each for name in names for each in procedures_of(name)}):
        db.mutate(each, with_stops(db.mutants.get(each, routines()[each])))
    yield


def killed_at(connection: Any, stop: int, call: Callable[[], object]) -> bool:
    """The call, killed at its so many-th stop; whether it got there."""
    sql(connection, f"SET @test_stop = {stop}")
    try:
        call()
    except Exception as error:
        if errno_of(error) != INTERRUPTED:
            raise
        return True
    finally:
        sql(connection, "SET @test_stop = 0")
    return False


@contextmanager
def killed_in_front_of(db: MySQLDatabase, function: str, place: str) -> Iterator[None]:
    """Whoever comes to a place of a procedure goes round there until a kill from outside."""
    db.without_guard(function, place, _LOOP.format(lock=_LOCK) + place)
    own, is_over = db.connect(), threading.Event()

    def kill() -> None:
        while not is_over.wait(0.01):
            ((holder,),) = database.execute(own, f"SELECT IS_USED_LOCK('{_LOCK}')")
            if holder is not None:
                database.execute(own, f"KILL QUERY {holder}")
                is_over.wait(0.2)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(30)


class State:
    """What a session sees in the tables that a procedure writes to, as one number for each."""

    def __init__(self, db: MySQLDatabase, name: str) -> None:
        bodies = "".join(routines()[each] for each in procedures_of(name))
        columns = db.run(
            "SELECT c.TABLE_NAME, c.COLUMN_NAME FROM information_schema.COLUMNS AS c"
            " JOIN information_schema.TABLES AS t USING (TABLE_SCHEMA, TABLE_NAME)"
            " WHERE c.TABLE_SCHEMA = 'penstock' AND t.TABLE_TYPE = 'BASE TABLE'"
            " ORDER BY c.TABLE_NAME, c.ORDINAL_POSITION"
        )
        tables: dict[str, list[str]] = {}
        for table, column in columns:
            if re.search(rf"\b(INTO|UPDATE|FROM|JOIN) {table}\b", bodies) and table not in _FIXED:
                tables.setdefault(str(table), []).append(f"COALESCE(HEX(`{column}`), '-')")
        self._query = " UNION ALL ".join(
            f"SELECT '{table}' AS name, COUNT(*),"
            f" COALESCE(SUM(CRC32(CONCAT_WS(' ', {', '.join(hexed)}))), 0)"
            f" FROM penstock.`{table}`"
            for table, hexed in tables.items()
        )

    def of(self, connection: Any) -> list[tuple[Any, ...]]:
        """Inside of the session's transaction."""
        return database.execute(connection, self._query)


def leftovers(db: MySQLDatabase, name: str, call: str) -> Iterator[tuple[int, bool, bool]]:
    """Kill a call of SQL at each of its statements: stop, is the next call refused, is it undone.

    Each time in a transaction of its own, after an event that was published before.
    """
    state, connection = State(db, name), db.connect(autocommit=False)
    for stop in count(1):
        sql(connection, "START TRANSACTION")
        sql(connection, published("before"))
        before = state.of(connection)
        reached = killed_at(connection, stop, lambda: sql(connection, call))
        if not reached:
            connection.rollback()
            return
        is_undone = state.of(connection) == before
        yield stop, is_refused(connection), is_undone
        connection.rollback()


def is_refused(connection: Any) -> bool:
    """Whether Penstock refuses to go on in this transaction, time and again."""
    answers = set()
    for _ in range(2):
        try:
            sql(connection, published("after"))
            answers.add(False)
        except TornTransaction:
            answers.add(True)
    (answer,) = answers
    return answer


def published(text: str, dedup_key: str | None = None, topic: str = "tests/log") -> str:
    """The statement that publishes an event as a client of another language does."""
    key = "NULL" if dedup_key is None else f"'{dedup_key}'"
    return (
        f"CALL penstock.publish('{topic}', '{text}', 'k', NULL, NULL, NULL, NULL, NULL, NULL,"
        f" {key}, FALSE)"
    )
