"""A restore into another cluster: numbers of transactions begin anew, sequences do not.

The database pretends that its rows came out of a cluster whose transactions had other numbers:
``_restored`` moves the numbers of all rows and of the sequencer's snapshots, as a dump carries
them. Drills with a real second cluster are in ``test_restore.py``.
"""

from __future__ import annotations

import psycopg
import pytest

from penstock import log
from tests.guards import without_guard
from tests.log.kit import Connection, drain, open_transaction, put, texts, topic, value

_MOVED = (
    "format('%%s:%%s:%%s', pg_snapshot_xmin({0})::text::bigint + %(by)s,"
    " pg_snapshot_xmax({0})::text::bigint + %(by)s,"
    " (SELECT string_agg((x.tx::text::bigint + %(by)s)::text, ',')"
    " FROM pg_snapshot_xip({0}) AS x (tx)))::pg_snapshot"
)


def _restored(connection: Connection, by: int) -> None:
    """The log as a dump of another cluster, whose numbers were higher by so many, carries it."""
    with connection.transaction():
        connection.execute(
            "UPDATE penstock.events SET tx = ((tx::text::bigint + %(by)s)::text)::xid8", {"by": by}
        )
        connection.execute(
            "UPDATE penstock.ticks SET horizon = ((horizon::text::bigint + %(by)s)::text)::xid8,"
            f" base = {_MOVED.format('base')}, target = {_MOVED.format('target')}".encode(),
            {"by": by},
        )
        connection.execute("UPDATE penstock.eras SET system_identifier = 1")


def _an_old_log(connection: Connection, url: str) -> list[str]:
    """Sequenced events, a tick that was cut off, a late commit, and what nobody has looked at."""
    with open_transaction(url) as late:
        put(late, "late")
        for number in range(5):
            put(connection, f"tick {number}")
        log.sequence(connection, 2)
        put(connection, "unseen")
        late.commit()
    return sorted(["late", "unseen", *(f"tick {number}" for number in range(5))])


@pytest.mark.parametrize("by", [1_000_000, 40, 3, -20])
def test_what_the_old_cluster_left_is_worked_off_once(
    connection: Connection, database_url: str, by: int
) -> None:
    """Guards: open_era, repair_events. 40 and 3: the same numbers come up again soon."""
    topic(connection)
    expected = _an_old_log(connection, database_url)
    before = texts(connection)
    _restored(connection, by)
    with open_transaction(database_url) as straddling:
        put(straddling, "open at the opening")
        assert drain(connection, 2) == len(expected) - len(before)
        straddling.commit()
    for number in range(60):
        put(connection, f"new {number:02}")
        drain(connection)
    found = texts(connection)
    assert found[: len(before)] == before, "sequences never change"
    assert sorted(found[: len(expected)]) == expected
    assert sorted(found[len(expected) :]) == sorted(
        ["open at the opening", *(f"new {number:02}" for number in range(60))]
    )
    assert value(connection, "SELECT max(era) FROM penstock.eras") == 2
    assert value(connection, "SELECT count(*) FROM penstock.sequence_gaps('tests/log')") == 0


def test_without_the_boundary_old_events_come_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: numbers of before the era are compared with those of today."""
    topic(connection)
    expected = _an_old_log(connection, database_url)
    drain(connection)
    _restored(connection, 40)
    without_guard(connection, "straddles", "AND NOT is_indexed(partition_id, id)", "")
    without_guard(
        connection,
        "straddles",
        "tx < present.settled AND NOT pg_visible_in_snapshot(tx, present.base)",
        "true",
    )
    for number in range(60):
        put(connection, f"new {number}")
        drain(connection)
    assert len(texts(connection)) > len(expected) + 60


def test_without_an_era_the_events_are_lost(connection: Connection, database_url: str) -> None:
    """Mutant: nobody notices that the cluster is another one."""
    topic(connection)
    _an_old_log(connection, database_url)
    _restored(connection, 1_000_000)
    without_guard(connection, "sequence", "IF is_other_era(tick) THEN", "IF false THEN")
    put(connection, "new")
    with pytest.raises((AssertionError, psycopg.Error)):
        drain(connection)
        assert "new" in texts(connection)


def test_in_the_same_cluster_no_era_opens(connection: Connection) -> None:
    """Guard: is_other_era."""
    topic(connection)
    for number in range(3):
        put(connection, str(number))
        drain(connection)
    assert value(connection, "SELECT count(*) FROM penstock.eras") == 1
