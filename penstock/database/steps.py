"""Protocols as steps: what to ask the database, and what the rows that it returns mean.

A generator yields a :class:`Call` and is sent the rows.  So the same code serves synchronous
connections (:func:`run`) and asynchronous ones (``penstock.aio``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.database import calls

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


class Call(NamedTuple):
    """A named statement of ``sql/<dialect>/calls/*.sql`` with its binds."""

    name: str
    binds: dict[str, Any]


Steps = Generator[Call, Rows, T]


def asked(name: str, **binds: Any) -> Steps[Rows]:
    """One step: a call, and its rows."""
    return (yield Call(name, binds))


def run(connection: Any, steps: Steps[T]) -> T:
    """Take the steps on a synchronous connection."""
    return run_by(partial(calls.call, connection), steps)


def run_by(answer: Callable[..., Rows], steps: Steps[T]) -> T:
    """Take the steps by what makes a call: it gets the name of the statement and its binds."""
    try:
        call = next(steps)
        while True:
            try:
                rows = answer(call.name, **call.binds)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
