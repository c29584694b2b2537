"""The named statements of a log in memory: functions of a transaction and their binds.

The names, binds and columns are those of ``sql/postgres/calls/*.sql``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from penstock.database import catalog
from penstock.database.catalog import Statement
from penstock.database.dialect import Row
from penstock.driver_errors import HINTS
from penstock.errors import PenstockError, UsageError

Answer = Callable[..., list[Row]]
F = TypeVar("F", bound=Answer)

_MODULES = (
    *("names", "publish", "log", "subscriptions", "leases", "stream", "dead_letters", "queues"),
)
_found: dict[str, Answer] = {}


class NotInMemory(UsageError):
    """The log in memory does not have this.  Test it on a real database."""


def statement(function: F) -> F:
    """Makes a function the statement with its name."""
    _found[function.__name__] = function
    return function


def answered() -> dict[str, Answer]:
    """Every statement that exists in memory."""
    for module in _MODULES:
        import_module(f"penstock.testing.{module}")
    return _found


@cache
def described(name: str) -> Statement:
    """A statement as in the catalog of a database.  Raises NotInMemory when there is none."""
    function = answered().get(name)
    if function is None:
        about = catalog.statement("postgres", name).about
        raise NotInMemory(
            f"the log in memory has no {name} ({about})", hint="test this on a real database"
        )
    _, *binds = inspect.signature(function).parameters
    return Statement(name, inspect.getdoc(function) or "", text_of(name), frozenset(binds))


def text_of(name: str) -> str:
    """The text that stands for a statement here, where a database has its SQL."""
    return f"-- name: {name}"


def refused(kind: type[PenstockError], message: str) -> PenstockError:
    """The error, with what to do about it, as a database raises it."""
    return kind(message, hint=HINTS[kind.sqlstate or ""])


def one(value: Any) -> list[Row]:
    """One row of one column."""
    return [(value,)]
