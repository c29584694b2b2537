"""The SQL of each step of a migration of MySQL and MariaDB, for the runner and for ``--print``.

DDL commits there, so a script cannot be one transaction.  It is a list of statements, each of which
can be repeated, and the record of what was applied comes after them.  Only the first ``USE`` names
the schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from penstock.database import catalog
from penstock.database.postgres.scripts import FUNCTIONS_VERSION, program

#: Procedures keep the mode in which they were made.  In this one no value is cut off to fit.
SQL_MODE = (
    "STRICT_TRANS_TABLES,ONLY_FULL_GROUP_BY,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,"
    "NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION"
)

_ROUTINE = re.compile(r"^CREATE (PROCEDURE|FUNCTION) (`?\w+`?)", re.MULTILINE)
#: What follows the parameters and the type of a result; a comment may stand before each of them.
_AFTER_PARAMETERS = re.compile(
    r"^(?=(NO|READS) SQL\b|DETERMINISTIC\b|RETURN\b|(\w+: )?BEGIN\b)", re.MULTILINE
)
_COLUMNS = "version, name, checksum, oldest_program, program"


def lock(schema: str) -> str:
    """The name of the server's lock that a migration holds: one at a time, and programs ask it."""
    return f"penstock migrate {schema}"


def prepare(schema: str) -> list[str]:
    """The database and the table that records what was applied."""
    return [
        f"CREATE DATABASE IF NOT EXISTS `{schema}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        # A database that exists may compare text otherwise; its tables are not made yet.
        f"ALTER DATABASE `{schema}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        f"""\
CREATE TABLE IF NOT EXISTS `{schema}`.schema_migrations (
    version INT NOT NULL PRIMARY KEY,
    name VARCHAR(200) NOT NULL,
    checksum CHAR(64) NOT NULL,
    oldest_program INT NOT NULL,
    program VARCHAR(50) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    applied_by VARCHAR(300) NOT NULL
) ENGINE = InnoDB""",
    ]


def session(schema: str) -> list[str]:
    """The statements that prepare the session for migrations and functions."""
    return [
        f"USE `{schema}`",
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
        f"SET SESSION sql_mode = '{SQL_MODE}'",
        "SET SESSION lock_wait_timeout = 1",
    ]


def migrations(text: str, recorded: Sequence[catalog.Migration]) -> list[str]:
    """What makes the schema that these migrations lead to, and their records in one statement."""
    rows = ", ".join(
        f"({each.version}, '{each.name}', '{each.checksum}', {each.oldest_program}, "
        f"'{program()}', USER())"
        for each in recorded
    )
    record = f"INSERT INTO schema_migrations ({_COLUMNS}, applied_by) VALUES {rows}"
    return [*statements(text), record]


def functions(
    functions: catalog.Functions,
    *,
    replace: bool,
    installed: Mapping[tuple[str, str], str] | None = None,
    granted: Mapping[str, list[str]] | None = None,
) -> list[str]:
    """The procedures that are not ``installed`` with this text, and the record of all.

    ``replace`` where the server has CREATE OR REPLACE.  MySQL drops a procedure and makes it again,
    and all rights on it are lost.  The roles in ``granted``, by the name of the procedure, get them
    back at once, and get them where a run before this one has died in between.
    """
    found = [
        statement
        for _, text in functions.files
        for each in statements(text)
        for statement in _whole(each, replace, installed or {}, granted or {})
    ]
    record = (
        f"REPLACE INTO schema_migrations ({_COLUMNS}, applied_by) VALUES ({FUNCTIONS_VERSION}, "
        f"'functions', '{functions.checksum}', 0, '{program()}', USER())"
    )
    return [*found, record]


def _whole(
    text: str,
    replace: bool,
    installed: Mapping[tuple[str, str], str],
    granted: Mapping[str, list[str]],
) -> list[str]:
    found = _ROUTINE.search(text)
    if found is None:
        return [text]
    kind, name = found[1], found[2].strip("`")
    roles = granted.get(name, []) if kind == "PROCEDURE" else []
    grants = [grant(found[2], roles)] if roles else []
    if installed.get((kind, name)) == mark(text):
        return grants
    return [*routine(text, replace=replace), *grants]


def grant(procedure: str, roles: list[str]) -> str:
    """The statement that gives roles a procedure of the present database."""
    quoted = ", ".join(f"`{each}`" for each in roles)
    return f"GRANT EXECUTE ON PROCEDURE {procedure} TO {quoted}"


def mark(text: str) -> str:
    """The comment of a procedure in the database: it tells with which text it was made."""
    digest = hashlib.sha256(f"{SQL_MODE}\n{text}".encode()).hexdigest()
    return f"penstock {digest[:32]}"


def routine(text: str, *, replace: bool) -> list[str]:
    """The statements that make one procedure or function, whether or not it exists."""
    found = _ROUTINE.search(text)
    assert found is not None
    marked = _AFTER_PARAMETERS.sub(f"COMMENT '{mark(text)}'\n", text, count=1)
    if replace:
        return [_ROUTINE.sub(r"CREATE OR REPLACE \1 \2", marked, count=1)]
    return [f"DROP {found[1]} IF EXISTS {found[2]}", marked]


def block(functions: catalog.Functions, name: str) -> str:
    """The statement of one block."""
    bodies = (
        body for _, text in functions.files for each, body in catalog.blocks(text) if each == name
    )
    return next(statements(f"-- name: {name}\n{next(bodies)}"))


def statements(text: str) -> Iterator[str]:
    """The statements of a file, one for each block, without the comment in front of them."""
    for _, body in catalog.blocks(text):
        lines = body.splitlines()
        first = next(n for n, line in enumerate(lines) if not line.startswith("--"))
        yield "\n".join(lines[first:]).strip().removesuffix(";").rstrip()


def printed(script: list[str]) -> str:
    """A script for the ``mysql`` client, with a delimiter that no statement contains."""
    return "".join(f"{statement}\n$$\n" for statement in script)


def recorded(schema: str, *, by_procedure: bool = False) -> str:
    """What was applied, from the table or from the procedure that needs no right to read it."""
    if by_procedure:
        return f"CALL `{schema}`.applied_migrations()"
    return (
        f"SELECT {_COLUMNS}, applied_at, applied_by FROM `{schema}`.schema_migrations"
        " ORDER BY version"
    )
