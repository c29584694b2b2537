"""Long lines, and what MySQL 8.0 or MariaDB 10.6 does not know, are found in `sql/mysql`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.proof import proves
from tools import sql_lint

HERE = Path("sql/mysql/log/x.sql")


def faults(code: str, path: Path = HERE) -> list[str]:
    return list(sql_lint.check(path, code))


def test_the_files_are_clean() -> None:
    assert sql_lint.main() == 0


@pytest.mark.parametrize(
    "code",
    [
        "INSERT INTO t VALUES (1) RETURNING id",
        "SELECT headers->>'$.a' FROM t",
        "SELECT * FROM a, LATERAL (SELECT 1) AS b",
        "SELECT 1 INTERSECT SELECT 2",
        "SELECT * FROM t FOR\n    SHARE",
        "CREATE TABLE t (a INT, KEY k ((a + 1)))",
        "INSERT INTO t VALUES (1) AS new ON DUPLICATE KEY UPDATE a = new.a",
        "CREATE OR REPLACE PROCEDURE p() SELECT 1",
        "SELECT UUID_TO_BIN(x)",
        "SELECT NEXTVAL(s)",
    ],
)
def test_what_one_engine_does_not_know_is_found(code: str) -> None:
    assert len(faults(code, Path("sql/mysql/calls/log.sql"))) == 1


@pytest.mark.parametrize(
    "code",
    ["COMMIT;", "ROLLBACK;", "START TRANSACTION;", "TRUNCATE t;", "ALTER TABLE t ADD x INT;"],
)
def test_a_procedure_leaves_the_transaction_alone(code: str) -> None:
    assert len(faults(f"CREATE PROCEDURE p()\nBEGIN\n    {code}\nEND")) == 1


@pytest.mark.parametrize(
    "code",
    [
        "IF EXISTS (SELECT * FROM t) THEN",
        "SET a = 1 + (SELECT MAX(b) FROM t);",
        "DECLARE a INT DEFAULT (SELECT 1 FROM t);",
        "CALL p((SELECT a FROM t));",
    ],
)
def test_a_query_that_locks_without_saying_so_is_found(code: str) -> None:
    assert len(faults(f"CREATE PROCEDURE p()\nBEGIN\n    {code}\nEND")) == 1
    assert faults(code.replace(" FROM t", " FROM t FOR UPDATE")) == []
    assert faults("UPDATE t SET a = (SELECT 1 FROM u); SELECT (SELECT 1) INTO a;") == []


def test_the_query_after_a_marker_is_looked_at() -> None:
    code = "BEGIN\n    {{on error: CALL undo()}}\n    SET a = (SELECT 1 FROM t);\nEND;"
    (fault,) = faults(f"CREATE PROCEDURE p()\n{code}")
    assert fault.startswith(f"{HERE}:4: a query that is not SELECT .. INTO")


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_a_line_has_120_characters_at_most(dialect: str) -> None:
    line, longer = "-- " + "é" * 117, "-- " + "é" * 118
    path = Path(f"sql/{dialect}/log/x.sql")
    assert faults(f"SELECT 1;\n{line}\n", path) == []
    fault = f"{path}:2: the line has 121 characters, more than 120"
    assert faults(f"SELECT 1;\n{longer}\n", path) == [fault]


@pytest.mark.parametrize(
    ("body", "late"),
    [
        ("SELECT a FROM t WHERE b = require_topic(f.topic)", True),
        ("SELECT a FROM t WHERE CASE WHEN b > lower(c) THEN refuse('PS002', 'no') END", True),
        ("SELECT a FROM t JOIN u ON u.id = (lock_topic(f.topic, 'read')).id", True),
        ("SELECT a FROM require_queue(f.name, 'peek') AS q JOIN t ON t.id = q.id", True),
        ("WITH q AS (SELECT FROM require_queue(f.name) AS r)\nSELECT a FROM q JOIN t ON b", True),
        ("SELECT q.a FROM require_queue(f.name, 'peek') AS q", False),
        ("WITH d AS (SELECT b FROM t) SELECT require_topic_for(d.b) FROM d", False),
        ("DECLARE a bigint := require_topic(b); BEGIN SELECT c FROM t WHERE d = a; END", False),
        ("FOR a IN SELECT b FROM t WHERE c LOOP PERFORM require_name(a); END LOOP", False),
        ("IF EXISTS (SELECT FROM t WHERE a) THEN PERFORM refuse('PS002', 'no'); END IF", False),
    ],
)
def test_a_check_does_not_wait_for_rows(body: str, late: bool) -> None:
    code = f"CREATE FUNCTION f() SET search_path FROM CURRENT AS $$\n{body}\n$$;"
    path = Path("sql/postgres/log/x.sql")
    fault = f"{path}:2: a query that finds no row runs no check: check before the query"
    assert faults(code, path) == ([fault] if late else [])


@pytest.mark.parametrize("refusal", ["CALL require_topic(a, b);", "SIGNAL SQLSTATE 'PS002';"])
def test_on_mysql_no_function_refuses(refusal: str) -> None:
    """A query may call it, for no row."""
    body = f"f(a INT) READS SQL DATA\nBEGIN\n    {refusal}\nEND;\n\n"
    (fault,) = faults(f"CREATE PROCEDURE {body}CREATE FUNCTION {body}CREATE PROCEDURE {body}")
    assert fault.startswith(f"{HERE}:8: a query that finds no row runs no check")


UNDONE = "{{on error: CALL undo_call()}}"
BEGUN, ENDED = "CALL begin_call('p()');", "CALL end_call();"


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ([UNDONE, BEGUN, "DELETE FROM t;", ENDED], True),
        ([UNDONE.replace("}}", "; DO LAST_INSERT_ID(id_before)}}"), BEGUN, ENDED], True),
        ([UNDONE, "DELETE FROM t;", BEGUN, ENDED], False),
        ([UNDONE, BEGUN, ENDED, "DELETE FROM t;"], False),
        ([UNDONE, "DELETE FROM t;", ENDED], False),
    ],
)
def test_a_call_begins_first_and_ends_last(lines: list[str], whole: bool) -> None:
    code = "\n".join(["CREATE PROCEDURE p()", "BEGIN", *lines, "END;"])
    fault = f"{HERE}:1: begin_call comes right after undo_call's handler, end_call last"
    assert faults(code) == ([] if whole else [fault])


def test_a_handler_is_written_as_a_marker() -> None:
    code = "CREATE PROCEDURE p()\nBEGIN\n    DECLARE EXIT HANDLER FOR SQLEXCEPTION RESIGNAL;\nEND;"
    assert faults(code) == [f"{HERE}:3: write the handler as {{{{on error: a statement; ...}}}}"]


def test_comments_strings_and_names_are_no_code() -> None:
    code = "-- RETURNING\nSELECT 'COMMIT it''s ->>', `commit` FROM t; ROLLBACK TO SAVEPOINT a;"
    assert faults(code) == []


@proves("S22 by user variables", how="each variable has its reason")
def test_a_user_variable_is_named_with_its_reason() -> None:
    """Local variables and those of the server are no fault; nor is one that is in the list."""
    assert faults("SET x = @@SESSION.sql_mode, @penstock_turn = x;") == []
    (fault,) = faults("/*M! SET @penstock_new = 1; */")
    assert fault.startswith(f"{HERE}:1: @penstock_new: a user variable is the caller's")


@proves("S22 by cut arrays", how="`tools/sql_lint`")
@pytest.mark.parametrize("gathers", ["GROUP_CONCAT", "JSON_ARRAYAGG", "JSON_OBJECTAGG"])
def test_what_a_session_can_cut_needs_its_limit(gathers: str) -> None:
    """Before it, in the same block; a cursor gathers when it is opened."""
    query, limit = f"SELECT {gathers}(a) FROM t;\n", "SET SESSION group_concat_max_len = 9;\n"
    fault = (
        f"{gathers} without its limit set cuts off in silence: join, or set"
        " group_concat_max_len before it"
    )
    assert faults(query) == [f"{HERE}:1: {fault}"]
    assert faults(limit + query) == []
    assert faults(query + limit) == [f"{HERE}:1: {fault}"]
    put_back = "{{on error: SET SESSION group_concat_max_len = limit_before}}\n"
    assert faults(put_back + query) == [f"{HERE}:2: {fault}"]
    assert faults("DECLARE c CURSOR FOR " + query + limit + "OPEN c;") == []
    assert faults(f"-- name: a\n{limit}-- name: b\n{query}") == [f"{HERE}:4: {fault}"]
    assert faults(f"/*M! {query} */") == [f"{HERE}:1: {fault}"]
    assert faults(f"SELECT '{gathers}(a)';") == []
