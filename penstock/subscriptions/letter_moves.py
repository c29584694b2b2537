"""Moves of all that a queue of dead letters has: the sweep does them, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.database import sessions
from penstock.errors import NotRedriven, PenstockError
from penstock.records import as_time
from penstock.subscriptions import forwarding, queue

#: So many events are moved in one transaction.
_AT_ONCE = 100
#: While they are moved they are hidden; the transaction ends long before.
_HIDDEN_SECONDS = 120.0
#: The problem of an event that was never a letter of another queue.
NO_SOURCE = "CouldNotDetermineMessageSource"


@dataclass(frozen=True, slots=True)
class LetterMove:
    """A move: to ``topic``, or (None) of each letter to the subscription that has given it up.

    ``state``: running, done, cancelled or failed.
    """

    id: int
    topic: str | None
    most_per_second: int | None
    expected: int
    moved: int
    started_at: datetime
    ended_at: datetime | None
    state: str
    problem: str | None


def start(
    connection: Any, subscription: str, *, to: str | None = None, most_per_second: int | None = None
) -> int:
    """Ask the sweep to move all that the queue has.  Returns the move's id.

    The queue reads a topic that dead letters are forwarded to; ``to`` is none that it reads.  As
    many are moved as there are now.  AlreadyExists while a move runs.
    """
    expected = queue.statistics(connection, subscription).size
    rows = database.call(
        connection,
        "start_letter_move",
        subscription=subscription,
        topic=to,
        most_per_second=most_per_second,
        expected=expected,
    )
    return int(rows[0][0])


def moves(connection: Any, subscription: str) -> list[LetterMove]:
    """The moves of a queue, the newest first: those that run, and some that are over."""
    rows = database.call(connection, "letter_moves_of", subscription=subscription)
    return [LetterMove(*map(_timed, row)) for row in rows]


def cancel(connection: Any, subscription: str, move_id: int) -> int | None:
    """End a move where it stands.  Returns how many were moved; None when it does not run."""
    rows = database.call(
        connection, "cancel_letter_move", subscription=subscription, move_id=move_id
    )
    return None if rows[0][0] is None else int(rows[0][0])


def work(connection: Any, most_batches: int = 100) -> int:
    """Do a bit of each move that runs, in turn.  Returns how many events were moved.

    While any of them gets on, each has another turn, so one of many events holds up no other.
    Events are handed out, moved and counted in one transaction.  So a sweep that dies leaves
    everything as it was, and the next one goes on.
    """
    driver = database.driver_connection(connection)
    if not sessions.of_connection(driver).commits_by_itself(driver):
        return 0  # each bit is a transaction of its own
    total, after, moved_before = 0, 0, 0
    for _ in range(most_batches):
        size = _AT_ONCE
        while (done := _step(connection, after, size)) is not None and done[1] is None:
            size = size // 2  # one of them cannot be moved: those before it are
        if done is None:  # all had a turn
            if total == moved_before:
                break
            after, moved_before = 0, total
            continue
        after, moved = done
        total += moved or 0
    return total


def _step(connection: Any, after: int, size: int) -> tuple[int, int | None] | None:
    """A bit of the next move: its id, and how many were moved; None for them: try with fewer."""
    driver = database.driver_connection(connection)
    move_id = after
    try:
        with sessions.of_connection(driver).transaction(driver):
            rows = database.call(driver, "next_letter_move", after_id=after)
            if not rows:
                return None
            ((move_id, name, topic, room, problem, asked_by),) = rows
            moved, is_over = 0, False
            if problem is None:
                most = min(int(room), size)
                moved, is_over = _move(driver, name, topic, most, asked_by)
            _note(driver, move_id, moved, is_over, problem)
    except PenstockError as error:
        if database.is_passing(error):
            raise
        if size > 1:
            return after, None
        _note(connection, move_id, 0, True, _told(error))
        moved = 0
    return move_id, moved


def _move(
    connection: Any, name: str, topic: str | None, most: int, asked_by: str
) -> tuple[int, bool]:
    if most < 1:
        return 0, False  # its rate allows none now
    found = queue.hand_out(connection, name, most, visibility_seconds=_HIDDEN_SECONDS)
    receipts = [each.receipt for each in found]
    options: dict[str, Any] = {"keep_deliveries": True, "asked_by": asked_by}
    forwarding.move(connection, name, receipts, to=topic, **options)
    return len(found), not found


def _timed(value: Any) -> Any:
    return as_time(value) if isinstance(value, datetime) else value


def _note(connection: Any, move_id: int, moved: int, is_over: bool, problem: str | None) -> None:
    binds = {"moved": moved, "is_over": is_over, "problem": problem}
    database.call(connection, "note_letter_move", move_id=move_id, **binds)


def _told(error: PenstockError) -> str:
    return NO_SOURCE if isinstance(error, NotRedriven) else error.message
