"""A restore into another cluster: transaction numbers begin anew, sequences do not.

The database pretends that its rows came out of a cluster whose transactions had other numbers:
``_restored`` moves the numbers of all rows and of the sequencer's snapshots, as a dump carries
them. Drills with a real second cluster are in ``test_restore.py``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from penstock import log
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import (
    ANOTHER_CLUSTER,
    Connection,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
)
from tests.kit.proof import proves

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
        connection.execute(
            f"{ANOTHER_CLUSTER},"
            " settled = ((settled::text::bigint + %(by)s)::text)::xid8,"
            f" base = {_MOVED.format('base')}".encode(),
            {"by": by},
        )


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
    without_guard(connection, "sequence", "LEAST(max_events, 1000)", "0")  # it reads no old ids
    without_guard(connection, "straddles", "AND NOT is_placed(partition_id, id, due_at)", "")
    without_guard(connection, "straddles", "NOT pg_visible_in_snapshot(tx, present.base)", "true")
    without_guard(connection, "straddles", "is_own_number(tx, written)", "true")
    for number in range(60):
        put(connection, f"new {number}")
        drain(connection)
    assert len(texts(connection)) > len(expected) + 60


def _next_number(connection: Connection) -> int:
    return int(value(connection, "SELECT pg_current_xact_id()::text")) + 1


#: A tick with an event from before the era is not left to append_chunks.
_NO_BOUNDARY = ("append_few", "COALESCE(min(f.id) > append_few.boundary_id, true)", "true")


@proves("S2, S6, few", guard="the boundary of the era")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_late_one_of_before_the_era_is_not_walked_to(
    connection: Connection, database_url: str, is_guarded: bool
) -> None:
    """Guard: append_few's look at the boundary. Below, numbers are another cluster's."""
    topic(connection)
    put(connection, "before")
    drain(connection)
    with open_transaction(database_url) as straddling:
        put(straddling, "first")
        put(connection, "old")
        drain(connection)
        connection.execute(ANOTHER_CLUSTER)
        for text in ("new", "newer"):  # the first tick repairs
            put(connection, text)
            drain(connection)
        # As if that cluster had given it a number that comes again here.
        number = _next_number(connection) + 3
        connection.execute(
            "UPDATE penstock.events SET tx = (%s::text)::xid8 WHERE payload = 'old'", (number,)
        )
        if not is_guarded:
            without_guard(
                connection,
                "append_few",
                "(e.id > append_few.boundary_id OR is_own_number(e.tx, e.xmin))",
                "true",
            )
            without_guard(connection, *_NO_BOUNDARY)
        while _next_number(connection) <= number:
            pass
        put(connection, "newest")
        straddling.commit()
    drain(connection)
    assert texts(connection).count("old") == (1 if is_guarded else 2)
    assert sorted(set(texts(connection))) == sorted(
        ["before", "old", "new", "newer", "first", "newest"]
    )


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


def test_a_server_is_asked_who_it_is_after_a_start(connection: Connection) -> None:
    """Guard: server_started; a running server has one cluster and one timeline."""
    topic(connection)
    put(connection, "first")
    drain(connection)
    identity = "i.system_identifier <> a.system_identifier"
    without_guard(
        connection,
        "is_other_era",
        identity,
        f"1 / (i.system_identifier - a.system_identifier) = 1 OR {identity}",
    )
    put(connection, "second")
    drain(connection)
    connection.execute("UPDATE penstock.ticks SET server_started = server_started - interval '1 s'")
    with pytest.raises(psycopg.errors.DivisionByZero):
        log.sequence(connection)
    assert texts(connection) == ["first", "second"]


def test_in_the_same_cluster_no_era_opens(connection: Connection) -> None:
    """Guard: is_other_era."""
    topic(connection)
    for number in range(3):
        put(connection, str(number))
        drain(connection)
    assert value(connection, "SELECT count(*) FROM penstock.eras") == 1


# A second restore.


def _again(connection: Connection, url: str, by: int, passes: int, others: int) -> list[str]:
    """A restore, so many passes of its repair, further events, and a restore once more.

    Answers what is in the log before the second one.
    """
    topic(connection)
    _an_old_log(connection, url)
    _restored(connection, by)
    with open_transaction(url) as straddling:
        put(straddling, "straddling")
        for _ in range(passes):
            log.sequence(connection, 2)
        straddling.commit()
    for number in range(others):
        put(connection, f"between {number}")
    before = texts(connection)
    _restored(connection, by)
    return before


def _all(others: int) -> list[str]:
    names = ["late", "unseen", "straddling", *(f"tick {number}" for number in range(5))]
    return sorted([*names, *(f"between {number}" for number in range(others))])


def _worked_off(connection: Connection, others: int) -> list[str]:
    """What is in the log when numbers have come up again."""
    drain(connection, 2)
    for number in range(60):
        put(connection, f"new {number:02}")
        drain(connection)
    assert log.gaps(connection, "tests/log") == []
    return [text for text in texts(connection) if not text.startswith("new ")]


@pytest.mark.parametrize(("by", "passes"), [(1_000_000, 1), (40, 2), (-20, 4), (40, 9)])
def test_a_restore_within_a_repair(
    connection: Connection, database_url: str, by: int, passes: int
) -> None:
    """Guards: open_era goes on with the repair that was cut off, and repair_events with its era.

    1 and 2 passes leave the repair half done, 4 end it, 9 find nothing after it.
    """
    before = _again(connection, database_url, by, passes, 3)
    found = _worked_off(connection, 3)
    assert found[: len(before)] == before, "sequences never change"
    assert sorted(found) == _all(3)


@pytest.mark.parametrize("by", [40])
def test_a_third_restore(connection: Connection, database_url: str, by: int) -> None:
    """The second repair is cut off as well."""
    _again(connection, database_url, by, 1, 3)
    log.sequence(connection, 2)
    put(connection, "between 3")
    before = texts(connection)
    _restored(connection, by)
    found = _worked_off(connection, 4)
    assert found[: len(before)] == before
    assert sorted(found) == _all(4)


@pytest.mark.parametrize("by", [1_000_000, 3])
def test_a_dump_of_a_dump(connection: Connection, database_url: str, by: int) -> None:
    """Guard: begun_id; the events of the first cluster have numbers above those of the second."""
    _again(connection, database_url, by, 9, 0)
    drain(connection)
    put(connection, "between 0")
    drain(connection)
    _restored(connection, -by + 5)
    assert sorted(_worked_off(connection, 1)) == _all(1)


def test_without_what_was_repaired_events_come_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the second repair begins where the first one did."""
    without_guard(
        connection, "open_era", "tick.repaired_id := GREATEST(", "tick.repaired_id := LEAST(0, "
    )
    _again(connection, database_url, 1_000_000, 2, 3)
    assert len(_worked_off(connection, 3)) > len(_all(3))


def _by_numbers_alone(connection: Connection) -> None:
    """Nobody looks for ids above those of the last tick: they would be found all the same."""
    without_guard(connection, "repair_events", "AND d.after_id IS NOT NULL", "AND false")
    without_guard(connection, "repair_events", "e.tx >= o.early_tx", "false")


def test_without_its_era_what_came_meanwhile_is_lost(
    connection: Connection, database_url: str
) -> None:
    """Mutant: what was published between the two restores is left to nobody."""
    _by_numbers_alone(connection)
    without_guard(
        connection, "repair_events", "AND e.id <= (SELECT b.last_id FROM bounds AS b)", "AND false"
    )
    _again(connection, database_url, 1_000_000, 1, 3)
    assert len(_worked_off(connection, 3)) < len(_all(3))


def test_without_the_lower_bound_the_first_cluster_comes_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the numbers of the first cluster are compared with those of the second."""
    without_guard(
        connection, "repair_events", "e.id + 0 > (SELECT b.begun_id FROM bounds AS b)", "true"
    )
    _again(connection, database_url, 1_000_000, 9, 0)
    drain(connection)
    put(connection, "between 0")
    drain(connection)
    _restored(connection, 5)
    assert len(_worked_off(connection, 1)) > len(_all(1))


def test_a_delayed_event_is_put_off_once(connection: Connection, database_url: str) -> None:
    """Guard: is_placed looks among the delayed ones: a repair has put it there, as it came late."""
    topic(connection)
    put(connection, "now")
    drain(connection)
    with open_transaction(database_url) as late:
        put(connection, "first")
        publish(late, "tests/log", b"later", not_before=datetime.now(UTC) + timedelta(hours=1))
        connection.execute(ANOTHER_CLUSTER)
        log.sequence(connection, 1)
        late.commit()
    for number in range(3):
        drain(connection)
        put(connection, str(number))
    drain(connection)
    assert value(connection, "SELECT count(*) FROM penstock.delayed") == 1
    assert texts(connection) == ["now", "first", "0", "1", "2"]


def test_without_the_look_at_delayed_ones_it_comes_twice(
    connection: Connection, database_url: str
) -> None:
    """Mutant: only the index of the log is a place."""
    without_guard(connection, "is_placed", "AND d.id = is_placed.id", "AND false")
    with pytest.raises(psycopg.errors.UniqueViolation):
        test_a_delayed_event_is_put_off_once(connection, database_url)


def test_without_the_straddlers_one_is_lost(connection: Connection, database_url: str) -> None:
    """Mutant: what was open when the first repair began is not looked for by the second."""
    _by_numbers_alone(connection)
    without_guard(
        connection, "repair_events", "AND NOT pg_visible_in_snapshot(e.tx, o.base)", "AND false"
    )
    _again(connection, database_url, 1_000_000, 9, 3)
    assert "straddling" not in _worked_off(connection, 3)
