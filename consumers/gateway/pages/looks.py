"""The payload of an event, and the record of who has looked at which and done what."""

from __future__ import annotations

from typing import Any

from consumers.gateway.pages.showing import as_shown
from consumers.gateway.pages.visits import PageRoute, Problem, Visit
from penstock import database, log
from penstock.accounts import audit_of
from penstock.records import Event
from penstock.upkeep.pages import PageAnswer

MOST_SHOWN = 200


def event(visit: Visit) -> PageAnswer:
    """One event with its payload; the look is recorded."""
    topic = visit.needed("topic")
    partition, sequence = visit.number("partition", 0, 65_535), visit.number("sequence", 1)
    if partition is None or sequence is None:
        raise Problem(400, "the partition or the sequence is missing")
    subject = f"event {sequence} of {topic}, partition {partition}"
    found = visit.look(subject, lambda c: _event(c, topic, partition, sequence))
    return visit.show(
        "event.html",
        f"{topic} {partition}/{sequence}",
        event=found,
        payload=as_shown(found.payload),
    )


def _event(connection: Any, topic: str, partition: int, sequence: int) -> Event:
    found = log.fetch(connection, topic, partition, sequence, 1)
    if not found:
        raise Problem(404, f"there is no event {sequence} yet")
    return found[0]


def audit(visit: Visit) -> PageAnswer:
    """Who has looked at payloads, and what was done to accounts."""
    found = visit.read("looks", lambda c: database.call(c, "list_looks", max_rows=MOST_SHOWN))
    done = visit.read("audit", lambda c: audit_of(c, most=MOST_SHOWN))
    return visit.show("audit.html", "Audit", found=found, done=done)


ROUTES = (PageRoute("/event", event, is_write=True), PageRoute("/audit", audit))
