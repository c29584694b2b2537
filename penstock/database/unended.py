"""SQL text that would end a transaction which is not the application's to end.

In the transaction of a handler the end of the events comes first.  A COMMIT in SQL text would make
it last, whatever the handler does next.  So it is refused before the server sees it.  Text that
hides it (a procedure, a second statement after a semicolon) is found at the end of the block.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from penstock.errors import UsageError

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*(?!!).*?\*/)"
_ROLLBACK = rf"ROLLBACK\b(?!{_SPACE}+(?:(?:WORK|TRANSACTION){_SPACE}+)?TO\b)"
_POSTGRES = rf"COMMIT|END|ABORT|{_ROLLBACK}|PREPARE{_SPACE}+TRANSACTION"
#: There nearly everything that changes definitions commits too.
_MYSQL = (
    rf"COMMIT|{_ROLLBACK}|BEGIN(?!{_SPACE}+NOT\b)|START{_SPACE}+TRANSACTION|XA"
    rf"|(?:CREATE|DROP)\b(?!{_SPACE}+(?:OR{_SPACE}+REPLACE{_SPACE}+)?TEMPORARY\b)"
    r"|ALTER|RENAME|TRUNCATE|GRANT|REVOKE|OPTIMIZE|REPAIR|FLUSH"
    rf"|(?:UN)?LOCK{_SPACE}+TABLES?|SET{_SPACE}+(?:SESSION{_SPACE}+|@@)?AUTOCOMMIT"
)
_ENDS = {
    dialect: re.compile(rf"{_SPACE}*((?:{words})\b)", re.IGNORECASE | re.DOTALL)
    for dialect, words in {"postgres": _POSTGRES, "mysql": _MYSQL}.items()
}


def require_unended(dialect: str, sql: Any) -> None:
    """UsageError for a statement that ends the transaction, by its first words."""
    if isinstance(sql, (bytes, bytearray)):
        sql = bytes(sql[:1000]).decode("utf-8", "replace")
    if not isinstance(sql, str):  # psycopg's composed text begins with what the program wrote
        sql = sql.as_string(None) if hasattr(sql, "as_string") else str(sql)
    found = _ENDS[dialect].match(sql)
    if found is None:
        return
    raise UsageError(
        f"{' '.join(found[1].upper().split())} in a transaction that finishes events",
        hint="it would commit or lose the end of the event before the handler has ended: the end "
        "of the block commits, an exception rolls back; a part of the work is a block of "
        "connection.transaction(), and tables are changed on a connection of your own",
    )


@cache
def cursor_kind(driver_cursor: Any) -> Any:
    """The class of psycopg's cursor that refuses such statements."""
    if hasattr(driver_cursor, "__aenter__"):

        class AsyncCursor(driver_cursor):  # type: ignore[misc]
            async def execute(self, query: Any, *given: Any, **options: Any) -> Any:
                require_unended("postgres", query)
                return await super().execute(query, *given, **options)

        return AsyncCursor

    class Cursor(driver_cursor):  # type: ignore[misc]
        def execute(self, query: Any, *given: Any, **options: Any) -> Any:
            require_unended("postgres", query)
            return super().execute(query, *given, **options)

    return Cursor
