"""The SQL of each step of a migration, the same for the runner and for ``--print``.

Scripts name the schema only in the search path, so one set of files serves any schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from penstock.database.catalog import Functions, Migration

#: The row of schema_migrations that holds the checksum of the functions.
FUNCTIONS_VERSION = 0

_COLUMNS = "version, name, checksum, oldest_program, program"


def program() -> str:
    """The version of this program."""
    from penstock import __version__

    return __version__


def lock(schema: str) -> str:
    """The start of every transaction: one runner at a time, which sees what the last one did."""
    key = hashlib.sha256(f"penstock migrate {schema}".encode()).digest()[:8]
    return (
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n"
        "SET LOCAL statement_timeout = '15min';\n"
        "SET LOCAL lock_timeout = '5s';\n"
        f"SELECT pg_advisory_xact_lock({int.from_bytes(key, 'big', signed=True)});\n"
    )


def prepare(schema: str) -> str:
    """The schema and the table that records what was applied."""
    return f"""\
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE IF NOT EXISTS "{schema}".schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    oldest_program integer NOT NULL,
    program text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by text NOT NULL DEFAULT session_user
);
"""


def migrations(text: str, recorded: Sequence[Migration], schema: str) -> str:
    """What makes the schema that these migrations lead to, and their records.

    The primary key of the records refuses a second run.
    """
    rows = ",\n".join(
        f"    ({each.version}, '{each.name}', '{each.checksum}', {each.oldest_program},"
        f" '{program()}')"
        for each in recorded
    )
    return f"""\
{_settings(schema)}
{text.strip()}

INSERT INTO schema_migrations ({_COLUMNS})
VALUES
{rows};
"""


def functions(functions: Functions, schema: str) -> str:
    """All functions and their record, which is replaced.

    Their order does not matter: the bodies are checked once all exist, by `check_functions`.
    """
    texts = "\n\n".join(text.strip() for _, text in functions.files)
    return f"""\
{_settings(schema)}SET LOCAL check_function_bodies = off;

{texts}

INSERT INTO schema_migrations ({_COLUMNS})
VALUES ({FUNCTIONS_VERSION}, 'functions', '{functions.checksum}', 0, '{program()}')
ON CONFLICT (version) DO UPDATE
SET checksum = EXCLUDED.checksum, program = EXCLUDED.program,
    applied_at = clock_timestamp(), applied_by = session_user;
"""


def recorded(schema: str, *, by_function: bool = False) -> str:
    """What was applied, from the table or from the function that needs no right to read it."""
    source = "applied_migrations()" if by_function else "schema_migrations"
    return f'SELECT {_COLUMNS}, applied_at, applied_by FROM "{schema}".{source} ORDER BY version'


def _settings(schema: str) -> str:
    return f"SET LOCAL lock_timeout = '100ms';\nSET LOCAL search_path TO \"{schema}\", pg_temp;\n"
