"""A transaction that acts for an account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from penstock import database
from penstock.database import sessions
from penstock.database.catalog import FOR_ACCOUNT
from penstock.errors import PenstockError


class Acting(NamedTuple):
    """For whom a call is made: an account, by keys that callers have shown."""

    account_id: str
    key_ids: Sequence[str]


def check_gateway(connection: Any) -> None:
    """ActsForNobody when the login of this connection may not be a gateway's."""
    database.call(connection, "check_gateway")


@contextmanager
def acting(connection: Any, account_id: str, key_ids: Sequence[str]) -> Iterator[None]:
    """In this block, a transaction of its own, the connection acts for the account.

    ``key_ids`` are those that the callers have shown.  AccountNotFound when one is not good now.
    After a driver's error on MySQL or MariaDB the connection is closed.  The account would not
    outlive its transaction there either, but what a killed session has kept is known to nobody.
    """
    try:
        with sessions.of_connection(connection).transaction(connection):
            database.call(connection, "act_as", account=account_id, key_ids=list(key_ids))
            yield
    except PenstockError:
        raise
    except BaseException:
        if database.dialect_of(connection) == "mysql":
            with suppress(Exception):  # it is closed already
                connection.close()
        raise


def call_for(
    connection: Any, by: Acting | None, name: str, *, is_events: bool = False, **binds: Any
) -> list[tuple[Any, ...]]:
    """Run a named statement of a queue, in a transaction of its own that acts for the account.

    On PostgreSQL that is one statement: BEGIN, the account and COMMIT would cost as much as a call.
    Without an account it is a plain call, in the caller's transaction.
    """
    run = database.call_events if is_events else database.call
    if by is None:
        return run(connection, name, **binds)
    if database.dialect_of(connection) == "postgres":
        account = {"account": by.account_id, "key_ids": list(by.key_ids)}
        return run(connection, name + FOR_ACCOUNT, **account, **binds)
    with acting(connection, *by):
        return run(connection, name, **binds)
