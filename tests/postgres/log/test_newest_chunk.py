"""A reader that keeps up reads out of the newest chunk; what it gets is what any reader gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import log
from penstock.subscriptions import stream
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, put, topic
from tests.kit.proof import proves

_TIMES = """
    UPDATE penstock.chunks SET sequenced_ats = ARRAY(
        SELECT sequenced_at - n * interval '1 s' FROM generate_series(1, event_count) AS n)"""


def _each_poll_is_a_fetch(connection: Connection, *, is_merged: bool) -> None:
    """From each position, by one, by two, and all."""
    topic(connection)
    for count in (3, 1, 5):
        for number in range(count):
            put(connection, f"{count} {number}")
        drain(connection)
    if is_merged:
        connection.execute(_TIMES.encode())
    stream.subscribe(connection, "s", [TOPIC])
    member = stream.join(connection, "s", "c")
    (lease,) = stream.check_in(connection, member)
    for after in range(10):
        for most in (1, 2, 500):
            polled = stream.poll(connection, member, [replace(lease, position=after)], most)
            found = [event for _, events in polled for event in events]
            expected = log.fetch(connection, TOPIC, 0, after + 1, most)
            assert list(map(repr, found)) == list(map(repr, expected))


@proves("S5 of the newest chunk")
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_poll_of_the_newest_chunk_is_a_fetch(connection: Connection, is_merged: bool) -> None:
    """Guards: the places in the arrays, and the time of each event where they differ."""
    _each_poll_is_a_fetch(connection, is_merged=is_merged)


@proves("S5 of the newest chunk", guard="the places in the arrays")
@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        ("poll", "newest.event_ids[nth:nth +", "newest.event_ids[nth:1 +"),
        ("poll", "newest.sequenced_ats[nth:nth +", "newest.sequenced_ats[1:nth +"),
        ("poll", "COALESCE(p.at, newest.sequenced_at)", "newest.sequenced_at"),
    ],
)
def test_with_other_places_it_is_not(
    connection: Connection, function: str, old: str, new: str
) -> None:
    """Mutants: an event, or a time, of the next one."""
    without_guard(connection, function, old, new)
    with pytest.raises(AssertionError):
        _each_poll_is_a_fetch(connection, is_merged=True)
