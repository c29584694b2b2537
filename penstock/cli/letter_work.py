"""``penstock dead-letter tasks``: what the sweep does with dead letters, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock import database
from penstock.cli.output import Format, Output, show
from penstock.errors import WrongMode
from penstock.records import as_time
from penstock.subscriptions import letter_moves, letter_tasks


def tasks(subscription: str, output: Output = Format.table) -> None:
    """Show what the sweep was asked to do with letters of a subscription, the newest first.

    Tasks redrive or drop what matches a filter; moves take forwarded letters out of a queue.
    """
    with database.connect() as connection:
        found = [*_tasks(connection, subscription), *_moves(connection, subscription)]
    show(sorted(found, key=lambda each: each["began"], reverse=True), output)


def _tasks(connection: Any, subscription: str) -> Iterator[dict[str, Any]]:
    for each in letter_tasks.tasks(connection, subscription):
        over = "cancelled" if each.problem else "done"
        yield {
            "id": each.id,
            "what": each.action,
            "state": over if each.ended_at else "running",
            "done": each.changed,
            "of": each.looked,
            "began": as_time(each.requested_at),
            "ended": each.ended_at and as_time(each.ended_at),
            "filter": each.filter,
            "problem": each.problem,
        }


def _moves(connection: Any, subscription: str) -> Iterator[dict[str, Any]]:
    with suppress(WrongMode):  # a stream has no moves
        for each in letter_moves.moves(connection, subscription):
            yield {
                "id": each.id,
                "what": f"move to {each.topic}" if each.topic else "move back",
                "state": each.state,
                "done": each.moved,
                "of": each.expected,
                "began": each.started_at,
                "ended": each.ended_at,
                "filter": None,
                "problem": each.problem,
            }
