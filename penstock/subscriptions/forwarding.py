"""Dead letters that go on to a topic, so that others read them as events.

    forwarding.set_dead_letters_to(connection, "billing", "ops/dead")
    queue.subscribe(connection, "hospital", ["ops/dead"])
    for delivery in queue.receive(connection, "hospital", 10):
        with connection.transaction():
            forwarding.move(connection, "hospital", [delivery.receipt])  # back to billing alone

A burial publishes the copy in its own transaction.  It never fails because of the topic: a letter
that the topic does not take stays in the dead letters, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import database
from penstock.errors import InvalidArgument, NotRedriven, PayloadTooLarge, PenstockError
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from penstock.topics import validation

#: move_all receives so many copies at a time, and hides them for so long.
_AT_ONCE = 100
_HIDDEN_SECONDS = 120.0
#: Why one event stays while others can be moved: it is no copy of a letter, or the topic does not
#: take it.
_OF_ONE_EVENT = (NotRedriven, PayloadTooLarge, InvalidArgument)


@dataclass(frozen=True, slots=True)
class Moved:
    """How many events a run has moved, and how many it has left, with each reason once."""

    moved: int
    left: int
    reasons: tuple[str, ...] = ()


def set_dead_letters_to(
    connection: Any, subscription: str, topic: str | None, *, origin: str = "hand"
) -> bool:
    """Publish each event that the subscription gives up to this topic too; None ends that.

    The copy is published in the transaction that buries the event, and has the reason, the counts
    and where it comes from in its headers (``penstock-letter-...``).  The login needs the right to
    consume what the subscription reads and to publish to the topic.  InvalidArgument when dead
    letters would come back.  Returns whether anything changed.
    """
    validation.name(subscription, "subscription")
    if topic is not None:
        validation.topic(topic)
    binds = {"topic": topic, "origin": origin}
    rows = database.call(connection, "set_dead_letters_to", subscription=subscription, **binds)
    return bool(rows[0][0])


def move(
    connection: Any,
    subscription: str,
    receipts: Iterable[Receipt],
    *,
    to: str | None = None,
    keep_deliveries: bool = False,
    asked_by: str | None = None,
) -> int:
    """Take received copies of dead letters back to where they come from, or to another topic.

    The queue ``subscription`` reads a topic that dead letters are forwarded to.  Each letter goes
    back to the one subscription that has given it up, as ``redrive`` does, and nothing is
    published.  With another topic in ``to`` each event is published there.  The copies are
    acknowledged in the caller's transaction.  NotRedriven, and nothing was moved, when one is no
    copy of a letter that is still there.  ``asked_by`` is whoever has asked the caller for it: a
    letter that is hidden from either does not go back.  Returns how many were moved.
    """
    given = list(receipts)
    if not given:
        return 0
    if to is not None:
        validation.topic(to)
    rows = database.call(
        connection,
        "move_letters",
        subscription=subscription,
        **queue.binds_of(given),
        topic=to,
        keep_deliveries=keep_deliveries,
        asked_by=asked_by,
    )
    return int(rows[0][0])


def move_all(
    connection: Any,
    subscription: str,
    max_events: int = 1_000,
    *,
    to: str | None = None,
    keep_deliveries: bool = False,
) -> Moved:
    """Receive copies of dead letters from a queue and move each, until there is none left.

    For a connection that commits by itself.  What cannot be moved is put back at the end, and its
    delivery does not count: it is no copy of a letter that is still there, or the topic does not
    take it.  ``reasons`` of the result says why.
    """
    options: dict[str, Any] = {"to": to, "keep_deliveries": keep_deliveries}
    moved, left = 0, dict[Receipt, str]()
    try:
        while moved + len(left) < max_events:
            wanted = min(_AT_ONCE, max_events - moved - len(left))
            found = queue.receive(
                connection, subscription, wanted, visibility_seconds=_HIDDEN_SECONDS
            )
            if not found:
                break
            receipts = [each.receipt for each in found]
            try:
                moved += move(connection, subscription, receipts, **options)
            except _OF_ONE_EVENT:
                moved += _move_each(connection, subscription, receipts, options, left)
            except PenstockError:  # put back at once, too
                left |= dict.fromkeys(receipts, "")
                raise
    finally:
        queue.release(connection, subscription, left, partly=True)
    return Moved(moved, len(left), tuple(dict.fromkeys(left.values())))


def _move_each(
    connection: Any,
    subscription: str,
    receipts: Iterable[Receipt],
    options: dict[str, Any],
    left: dict[Receipt, str],
) -> int:
    """Move events one by one, and note why one stays.  Returns how many were moved."""
    moved = 0
    for receipt in receipts:
        try:
            moved += move(connection, subscription, [receipt], **options)
        except _OF_ONE_EVENT as error:
            left[receipt] = error.message
    return moved
