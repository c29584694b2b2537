"""Assertions about what was published and handled, on any connection, also to a database.

They see what is committed.  Each first sequences the events that wait.  An assertion that fails
says what it found instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock import log
from penstock.errors import PenstockError
from penstock.records import Event
from penstock.subscriptions import dead_letters, stream
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.topics import names

_AT_ONCE = 1_000
_MOST_SHOWN = 10
_PAYLOAD_SHOWN = 60
#: Stands for a field that may have any value.
ANYTHING: Any = object()


def published(connection: Any, topic: str) -> list[Event]:
    """Every event of a topic in the log, partition by partition, in the order of each."""
    _sequence(connection)
    return [
        event
        for each in names.describe_topic(connection, topic).partitions
        for event in _of_partition(connection, topic, each.partition, each.low_sequence)
    ]


def assert_published(
    connection: Any,
    topic: str,
    *,
    key: str | None = ANYTHING,
    type: str = ANYTHING,
    payload: bytes = ANYTHING,
    headers: Mapping[str, Any] = ANYTHING,
    times: int | None = None,
) -> list[Event]:
    """Assert that matching events were published, exactly ``times`` if given.  Returns them.

    A field that is not given may have any value.  Of ``headers``, only the given ones count.
    """
    wanted = _wanted(key=key, type=type, payload=payload, headers=headers)
    events = published(connection, topic)
    found = [event for event in events if _is_as(event, wanted)]
    if not found if times is None else len(found) != times:
        many = "no event" if not found else f"{len(found)} and not {times} events"
        raise AssertionError(f"{many} of {topic} with {_said(wanted)}; {_shown(topic, events)}")
    return found


def assert_nothing_published(connection: Any, topic: str | None = None) -> None:
    """Assert that no event was published, to the topic or at all."""
    topics = [topic] if topic else [each.address for each in names.list_topics(connection)]
    found = {each: events for each in topics if (events := published(connection, each))}
    if found:
        raise AssertionError("; ".join(_shown(each, events) for each, events in found.items()))


def assert_handled(
    connection: Any,
    subscription: str,
    topic: str,
    *,
    key: str | None = ANYTHING,
    type: str = ANYTHING,
    payload: bytes = ANYTHING,
    headers: Mapping[str, Any] = ANYTHING,
) -> list[Event]:
    """Assert that matching events were published and all are handled.  Returns them."""
    wanted = _wanted(key=key, type=type, payload=payload, headers=headers)
    events = published(connection, topic)
    found = [event for event in events if _is_as(event, wanted)]
    if not found:
        raise AssertionError(f"no event of {topic} with {_said(wanted)}; {_shown(topic, events)}")
    done = stream.position(connection, subscription, topic)
    left = [event for event in found if event.sequence > done[event.partition]]
    if left:
        raise AssertionError(
            f"{subscription} stands at {_places(done)} and has not handled:{_listed(left)}"
        )
    return found


def assert_dead_lettered(
    connection: Any,
    subscription: str,
    topic: str,
    *,
    key: str | None = ANYTHING,
    type: str = ANYTHING,
    reason: str = "",
) -> list[DeadLetter]:
    """Assert that the subscription gave up matching events.  ``reason`` is a part of the reason."""
    wanted = _wanted(key=key, type=type)
    letters = dead_letters.dead_letters(connection, subscription, _AT_ONCE, topic=topic)
    found = [each for each in letters if _is_as(each, wanted) and reason in each.reason]
    if not found:
        held = "".join(
            f"\n  {each.partition}/{each.sequence} key={each.key!r} type={each.type!r}"
            f" {each.state} after {each.attempts}: {each.reason}"
            for each in letters[:_MOST_SHOWN]
        )
        raise AssertionError(
            f"no dead letter of {topic} with {_said(wanted)}, reason {reason!r}; "
            f"{subscription} has given up:{held or ' nothing'}"
        )
    return found


def _sequence(connection: Any) -> None:
    while (result := log.sequence(connection)).more or result.busy:
        if result.busy:
            raise PenstockError(
                "another transaction has the sequencer", hint="commit or roll it back first"
            )


def _of_partition(connection: Any, topic: str, partition: int, first: int) -> Iterable[Event]:
    while events := log.fetch(connection, topic, partition, first, _AT_ONCE):
        yield from events
        first = events[-1].sequence + 1


def _wanted(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ANYTHING}


def _is_as(event: Event | DeadLetter, wanted: Mapping[str, Any]) -> bool:
    for name, value in wanted.items():
        present = getattr(event, name)
        same = value.items() <= present.items() if name == "headers" else value == present
        if not same:
            return False
    return True


def _said(wanted: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in wanted.items()) or "anything"


def _shown(topic: str, events: list[Event]) -> str:
    if not events:
        return f"{topic} holds no event (one shows when its transaction has committed)"
    return f"{topic} holds:{_listed(events)}"


def _listed(events: list[Event]) -> str:
    lines = [
        f"\n  {event.partition}/{event.sequence} key={event.key!r} type={event.type!r}"
        f" headers={event.headers} payload={event.payload[:_PAYLOAD_SHOWN]!r}"
        for event in events[:_MOST_SHOWN]
    ]
    if len(events) > _MOST_SHOWN:
        lines.append(f"\n  and {len(events) - _MOST_SHOWN} more")
    return "".join(lines)


def _places(done: Mapping[int, int]) -> str:
    return ", ".join(f"{partition}/{position}" for partition, position in sorted(done.items()))
