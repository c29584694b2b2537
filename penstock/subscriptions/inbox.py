"""Exactly-once effect in a database that is not the log's.

A handler writes to the application's database, and the position is committed to Penstock's.
Between the two a consumer can die, and its successor gets the same events again.  The inbox is a
table beside the application's own (:func:`create`, or ``penstock inbox print`` for its migrations).
It holds how far each partition is done, and moves forward in the handler's transaction.

    def handle(batch):
        with inbox.transaction(connect_to_app(), batch) as (connection, fresh):
            for event in fresh:
                ...

A consumer that lost its lease can still commit its work until its successor uses the inbox.  The
successor then skips the events of that work.  After that the old consumer can change nothing.
Events can be done again after a restore of the log that lost commits (a new history), and after
:func:`forget`.  A seek back alone does not repeat them.
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

#: The server ends a transaction that is idle for longer, because a successor waits for it.
LIMIT_SECONDS = 10


class Delivered(Protocol):
    """What a consumer's handler gets, as far as the inbox needs it.

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
        """Whether all events before these are done; False while keys are handled in parallel."""


@contextmanager
def transaction(
    connection: Any, batch: Delivered, *, source: str = "", limit_seconds: int = LIMIT_SECONDS
) -> Iterator[tuple[Any, list[Event]]]:
    """A transaction of the application's database, and the events that are not done in it yet.

    It commits when its block ends.  StaleLease when a later holder of the partition has already
    used the inbox.
    """
    with transaction_on(connection), _limited(connection, limit_seconds):
        yield connection, fresh(connection, batch, source=source)


def fresh(connection: Any, batch: Delivered, *, source: str = "") -> list[Event]:
    """The events that are not done yet; they are done when the caller's transaction commits.

    ``source`` tells the logs of several Penstocks apart.
    """
    # A batch with a letter_id holds one redriven dead letter, which the position has passed.
    letter_id = getattr(batch, "letter_id", None) or 0
    if not letter_id and not batch.in_order:
        raise InvalidArgument(
            "the inbox holds one position of a partition, but its keys are handled in parallel",
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
    """Make the table in the application's database, unless it exists."""
    database.call(connection, "create_inbox")


def definition(dialect: str) -> str:
    """The statement that makes the table, for the application's own migrations."""
    if dialect not in {"postgres", "mysql"}:
        raise InvalidArgument(f"there is no dialect {dialect!r}", hint="use postgres or mysql")
    return f"{catalog.statement(dialect, 'create_inbox').text};\n"


def forget(connection: Any, subscription: str, *, source: str = "") -> None:
    """Let a subscription do its events again, for example after a seek back to repeat them."""
    database.call(connection, "forget_inbox", subscription=subscription, source=source)


def _require_current(lease: Lease, history: int, lease_epoch: int) -> None:
    if history > lease.history or lease_epoch > lease.lease_epoch:
        raise StaleLease(
            f"a later holder of {lease.topic} partition {lease.partition} was here",
            hint="drop what was read and roll back: that holder handles these events",
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
