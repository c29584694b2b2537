"""What a connection of :func:`penstock.connect` adds to PyMySQL's, so that one code runs on all.

psycopg's connection has `execute`, `transaction` and a `with` block that commits.  PyMySQL's has
none of them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Any

from penstock.database.mysql import limits
from penstock.database.unended import require_unended
from penstock.driver_errors import errno_of
from penstock.errors import TransactionRolledBack, UsageError

_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS
_NO_SAVEPOINT = 1305


class Blocks:
    """`execute`, `transaction` and `with`, as psycopg's connection has them."""

    #: How many blocks are open: it names the next savepoint.
    _depth = 0

    #: When the present wait for the server began, by the monotonic clock.
    waiting_since: float | None = None

    #: Whether SQL text must not end the transaction.
    is_kept = False

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        """One statement, and its result."""
        if self.is_kept:
            require_unended("mysql", sql)
        self.waiting_since = time.monotonic()
        try:
            return super().query(sql, unbuffered)  # type: ignore[misc]
        finally:
            self.waiting_since = None

    def next_result(self: Any, unbuffered: bool = False) -> Any:
        """The next result of a statement that has several."""
        self.waiting_since = time.monotonic()
        try:
            return super().next_result(unbuffered)  # type: ignore[misc]
        finally:
            self.waiting_since = None

    def _read_ok_packet(self: Any) -> Any:
        """The answer to BEGIN, COMMIT, ROLLBACK and ping, which the driver does not send by query.

        It waits for each command in one of these three methods.
        """
        self.waiting_since = time.monotonic()
        try:
            return super()._read_ok_packet()  # type: ignore[misc]
        finally:
            self.waiting_since = None

    def _create_ssl_ctx(self: Any, options: Any) -> Any:
        """PyMySQL would read all certificates of the system for each connection: 20 ms."""
        return super()._create_ssl_ctx(options) if options else _unverified()  # type: ignore[misc]

    def begin(self: Any) -> None:
        """As the driver's; UsageError inside of a block, because it would commit."""
        _require_no_block(self, "begin()")
        super().begin()  # type: ignore[misc]

    def execute(
        self: Any, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Any:
        """Run one statement, with ``%s`` or ``%(name)s`` for its parameters; returns its cursor."""
        cursor = self.cursor()
        cursor.execute(query, params)
        return cursor

    @contextmanager
    def transaction(self: Any) -> Iterator[Any]:
        """A transaction that commits at the end, or rolls back when its block raises.

        Inside of a transaction it is a savepoint.
        """
        begun = bool(self.server_status & _IN_TRANSACTION)
        with _savepoint(self) if begun else _whole(self):
            yield self

    def commit(self) -> None:
        """Commit.  The session gets its own time limit back, if a call has set one."""
        _require_no_block(self, "commit()")
        super().commit()  # type: ignore[misc]
        with suppress(Exception):  # it is committed; a connection that is gone says so next time
            limits.lift_noted(self)

    def rollback(self) -> None:
        """Roll back.  The session gets its own time limit back, if a call has set one."""
        _require_no_block(self, "rollback()")
        super().rollback()  # type: ignore[misc]
        with suppress(Exception):
            limits.lift_noted(self)

    def __exit__(
        self: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back when the block raised; then close."""
        try:
            if self.open and kind is None:
                self.commit()
        finally:
            with suppress(Exception):  # closing rolls back what is open
                self.close()


@cache
def _unverified() -> ssl.SSLContext:
    """Of all connections with no option for TLS: encrypted where the server can, by any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _whole(connection: Any) -> Iterator[None]:
    """A deadlock ends the transaction.  What a block writes after it has passed that error over
    must not stay, so the session does not commit by itself here.
    """
    by_itself = connection.get_autocommit()
    connection.autocommit(False)
    try:
        connection.begin()
        with _savepoint(connection):
            yield
        connection.commit()
    except BaseException:
        with suppress(Exception):  # the connection is gone: the server rolls back itself
            connection.rollback()
        raise
    finally:
        with suppress(Exception):  # it is gone, and the next statement will say so
            connection.autocommit(by_itself)


@contextmanager
def _savepoint(connection: Any) -> Iterator[None]:
    name = f"penstock_block_{connection._depth}"
    connection.query(f"SAVEPOINT {name}")
    try:
        with block_of(connection):
            yield
    except BaseException:
        with suppress(Exception):  # gone with the whole transaction, or with the connection
            connection.query(f"ROLLBACK TO SAVEPOINT {name}")
        raise
    _release(connection, name)


@contextmanager
def block_of(connection: Any) -> Iterator[None]:
    """In this block the transaction is not the application's to begin or to end."""
    connection._depth = depth = getattr(connection, "_depth", 0) + 1
    try:
        yield
    finally:
        connection._depth = depth - 1


def _require_no_block(connection: Any, what: str) -> None:
    if connection._depth:
        raise UsageError(
            f"{what} inside `with ... transaction()`",
            hint="the end of the block commits, an exception rolls back; for a part of the work "
            "use `with connection.transaction()`, which is a savepoint there",
        )


def _release(connection: Any, name: str) -> None:
    try:
        connection.query(f"RELEASE SAVEPOINT {name}")
    except Exception as error:
        if errno_of(error) != _NO_SAVEPOINT:
            raise
        raise TransactionRolledBack(
            "the transaction ended inside its block, so nothing of the block may count",
            hint="after a deadlock begin again; inside the block neither commit nor roll back",
        ) from error


@cache
def with_blocks(driver_connection: Any) -> Any:
    """The class of a driver's connection, with these additions."""
    return type("MySQLConnection", (Blocks, driver_connection), {})
