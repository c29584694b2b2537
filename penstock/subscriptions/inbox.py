"""Exactly-once effect in another database than the log's.

A handler writes to the application's database, and the position is committed to Penstock's: between
the two a consumer can die, and its successor gets the same events again.  The inbox, a table beside
the application's own (:func:`create`, or ``penstock inbox print`` for its migrations), holds how
far each partition was worked off; it moves in the handler's transaction.

    def handle(batch):
        with inbox.transaction(connect_to_app(), batch) as (connection, fresh):
            for event in fresh:
                ...

A consumer that lost its lease changes nothing once its successor was here, and before that what it
did is not done again.  After a restore of the log that lost commits (a new history), and after
:func:`forget`, events can be done again.  A seek back alone does not repeat them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from penstock import database
from penstock.database import catalog
from penstock.database.transactions import transaction_on
from penstock.errors import InvalidArgument, StaleLease
from penstock.records import Event, Lease

#: A transaction that stands still for longer is ended by the server: a successor waits for it.
LIMIT_SECONDS = 10


class Delivered(Protocol):
    """What a consumer's handler is given, as far as the inbox needs it.

    A batch with a ``letter_id`` that is not None is a dead letter that was redriven.
    """

    @property
    def subscription(self) -> str:
        """The name of the subscription."""

    @property
    def lease(self) -> Lease:
        """The lease under which the events were read."""

    @property
    def events(self) -> Sequence[Event]:
        """Events of one partition, in order."""

    @property
    def in_order(self) -> bool:
        """Whether everything before them is done: not so while keys are handled side by side."""


@contextmanager
def transaction(
    connection: Any, batch: Delivered, *, source: str = "", limit_seconds: int = LIMIT_SECONDS
) -> Iterator[tuple[Any, list[Event]]]:
    """A transaction of the application's database around the events that are not done in it.

    It commits with its block.  StaleLease when a later holder of the partition was here.
    """
    with transaction_on(connection), _limited(connection, limit_seconds):
        yield connection, fresh(connection, batch, source=source)


def fresh(connection: Any, batch: Delivered, *, source: str = "") -> list[Event]:
    """In the caller's transaction: the events that are not done, which are done with its end.

    ``source`` tells the logs of several Penstocks apart.
    """
    # Behind the position by nature: such a batch holds the one event of a redriven dead letter.
    letter_id = getattr(batch, "letter_id", None) or 0
    if not letter_id and not batch.in_order:
        raise InvalidArgument(
            "the inbox holds one position for a partition, and its keys are handled side by side",
            hint="handle the partition in order, or keep the ids of events yourself",
        )
    lease = batch.lease
    place = {
        "source": source,
        "subscription": batch.subscription,
        "partition_id": lease.partition_id,
        "letter_id": letter_id,
    }
    database.call(connection, "enter_inbox", **place)
    ((history, sequence, lease_epoch),) = database.call(connection, "lock_inbox", **place)
    _require_current(lease, history, lease_epoch)
    done = sequence if letter_id or history == lease.history else 0
    found = [event for event in batch.events if event.sequence > done]
    database.call(
        connection,
        "move_inbox",
        **place,
        history=lease.history,
        sequence=max([done, *(event.sequence for event in found)]),
        lease_epoch=lease.lease_epoch,
    )
    return found


def create(connection: Any) -> None:
    """Make the table in the application's database, where there is none."""
    database.call(connection, "create_inbox")


def definition(dialect: str) -> str:
    """The statement that makes the table, for the application's own migrations."""
    if dialect not in {"postgres", "mysql"}:
        raise InvalidArgument(f"there is no dialect {dialect!r}", hint="use postgres or mysql")
    return f"{catalog.statement(dialect, 'create_inbox').text};\n"


def forget(connection: Any, subscription: str, *, source: str = "") -> None:
    """Let a subscription do again what it has done, as after a seek back that means it."""
    database.call(connection, "forget_inbox", subscription=subscription, source=source)


def _require_current(lease: Lease, history: int, lease_epoch: int) -> None:
    if history > lease.history or lease_epoch > lease.lease_epoch:
        raise StaleLease(
            f"a later holder of {lease.topic} partition {lease.partition} was here",
            hint="drop what was read and roll back: it does these events",
        )


@contextmanager
def _limited(connection: Any, seconds: int) -> Iterator[None]:
    if database.dialect_of(connection) == "postgres":
        database.call(connection, "limit_inbox", seconds=seconds)
        yield
        return
    ((before,),) = database.call(connection, "inbox_limit")
    if not 0 < before <= seconds:
        database.call(connection, "limit_inbox", seconds=seconds)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the session is gone, and its limit with it
            database.call(connection, "limit_inbox", seconds=before)
