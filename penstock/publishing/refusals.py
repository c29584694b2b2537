"""What is wrong with events, found before any of them is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.database.steps import run
from penstock.errors import UsageError
from penstock.publishing import rows as outgoing
from penstock.publishing.known_topics import TopicFacts, accepted, known_topics
from penstock.records import Message


def require_possible(message: Message) -> None:
    """UsageError when no database would take the event."""
    outgoing.row(message)


def refusals(connection: Any, messages: Sequence[Message]) -> list[UsageError | None]:
    """Why each event would be refused, as far as that can be known; None where nothing is wrong.

    It costs one look-up for each topic, however many events are wrong.
    """
    known = known_topics(connection)
    looked_up: dict[str, TopicFacts | UsageError] = {}
    found: list[UsageError | None] = []
    for message in messages:
        try:
            row = outgoing.row(message)
            if row.topic not in looked_up:
                try:
                    looked_up[row.topic] = run(connection, known.looked_up(row.topic))
                except UsageError as error:
                    looked_up[row.topic] = error
            facts = looked_up[row.topic]
            if isinstance(facts, UsageError):
                found.append(facts)
                continue
            accepted(facts, row)
        except UsageError as error:
            found.append(error)
        else:
            found.append(None)
    return found
