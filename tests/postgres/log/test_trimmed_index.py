"""What retention has removed from the index of the log does not come again with an era (S2, S21).

The index tells which events have their sequences only for as long as they are in it.  Wherever the
sequencer asks it, something else has to tell what is not there because it was trimmed.
"""

from __future__ import annotations

import pytest

from ops.retention.clean import drop_slices
from penstock import log
from tests.guards import without_guard
from tests.kit.log import (
    ANOTHER_CLUSTER,
    TOPIC,
    Connection,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
)
from tests.kit.proof import proves
from tests.kit.storage import move_low, next_slice
from tests.postgres.log.test_counters import _set_back
from tests.postgres.log.test_early_events import _free_ids, _waiting
from tests.postgres.log.test_eras import _restored


def _from(connection: Connection, sequence: int) -> list[str]:
    return [event.payload.decode() for event in log.fetch(connection, TOPIC, 0, sequence, 1000)]


def _trim(connection: Connection, up_to: int) -> None:
    """Retention has taken the beginning of the index, and the events are there yet."""
    connection.execute("UPDATE penstock.partitions SET low_sequence = %s", (up_to + 1,))
    connection.execute("DELETE FROM penstock.chunks WHERE first_sequence <= %s", (up_to,))


def _trimmed_after_a_caller_with_a_number(connection: Connection, url: str) -> None:
    """Whoever called the sequencer had published before: the tick does not name its number."""
    topic(connection)
    _free_ids(connection, 5)
    with open_transaction(url) as caller:
        value(caller, "SELECT pg_current_xact_id()")
        for text in ("gone", "kept"):
            put(connection, text)
            log.sequence(caller)
        caller.commit()
    _trim(connection, 1)
    _set_back(connection, "chunks_id")
    put(connection, "early")
    waiting = _waiting(connection)
    drain(connection)
    assert _from(connection, 2) == ["kept", "early"]
    assert waiting == 1


@proves("S21 of a trimmed index")
def test_in_the_same_cluster_what_was_trimmed_does_not_come_again(
    connection: Connection, database_url: str
) -> None:
    """Guard: loaded_by; where only the counter was set back, the tick's numbers tell what is new.

    The event that is gone from the index has a number above the caller's.
    """
    _trimmed_after_a_caller_with_a_number(connection, database_url)


@proves("S21 of a trimmed index", guard="loaded_by")
def test_without_it_what_was_trimmed_comes_again(connection: Connection, database_url: str) -> None:
    """Mutant: the row of the tick is taken for one that a restore has loaded."""
    without_guard(
        connection,
        "loaded_by",
        "(COALESCE(i.system_identifier <> a.system_identifier OR i.timeline <> a.timeline, false)",
        "(true",
    )
    with pytest.raises(AssertionError):
        _trimmed_after_a_caller_with_a_number(connection, database_url)


def _trimmed_straddler(connection: Connection, url: str) -> None:
    """It was open when the second era began, and its sequence was removed before the third."""
    topic(connection)
    put(connection, "before")
    drain(connection)
    with open_transaction(url) as straddling:
        put(straddling, "straddling")
        connection.execute(ANOTHER_CLUSTER)
        drain(connection)
        straddling.commit()
    drain(connection)
    put(connection, "kept")
    drain(connection)
    assert texts(connection) == ["before", "straddling", "kept"]
    _trim(connection, 2)
    _set_back(connection, "events_id")
    drain(connection)
    assert value(connection, "SELECT max(era) FROM penstock.eras") == 3
    assert _from(connection, 3) == ["kept"]


@proves("S21 of a trimmed index")
def test_a_straddler_that_was_trimmed_does_not_come_again(
    connection: Connection, database_url: str
) -> None:
    """Guard: repair_events compares it with the last tick, as it does all others of that era."""
    _trimmed_straddler(connection, database_url)


@proves("S21 of a trimmed index", guard="the comparison with the last tick")
def test_without_the_comparison_the_straddler_comes_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: only the index tells whether it has its sequence."""
    without_guard(
        connection, "repair_events", "(o.era >= (repair_events.tick).repair_era AND", "(true OR"
    )
    with pytest.raises(AssertionError):
        _trimmed_straddler(connection, database_url)


def _restored_with_low_numbers(connection: Connection, *waiting: str) -> None:
    """The next numbers of this cluster are those of events that were trimmed in the old one."""
    topic(connection)
    for number in range(20):
        put(connection, f"gone {number}")
    drain(connection)
    put(connection, "kept")
    drain(connection)
    _trim(connection, 20)
    for text in waiting:
        put(connection, text)
    _restored(connection, 1_000_000)
    connection.execute(
        "UPDATE penstock.events SET tx = (pg_current_xact_id()::text::bigint + id)::text::xid8"
        " WHERE id <= 20"
    )


def _trimmed_under_a_number_that_comes_again(connection: Connection, url: str) -> None:
    """A transaction that was open when the era began has a number of events of the old cluster."""
    _restored_with_low_numbers(connection)
    with open_transaction(url) as straddling:
        put(straddling, "new")
        assert (
            value(
                straddling,
                "SELECT count(*) FROM penstock.events WHERE tx = %s::xid8",
                (value(straddling, "SELECT pg_current_xact_id()::text")),
            )
            == 2
        )
        drain(connection)
        straddling.commit()
    drain(connection)
    assert _from(connection, 21) == ["kept", "new"]


@proves("S21 of a trimmed index")
def test_a_number_that_comes_again_brings_nothing_back(
    connection: Connection, database_url: str
) -> None:
    """Guard: straddles; the transaction has written the row itself."""
    _trimmed_under_a_number_that_comes_again(connection, database_url)


@proves("S21 of a trimmed index", guard="who wrote the row")
def test_without_who_wrote_it_what_was_trimmed_comes_again(
    connection: Connection, database_url: str
) -> None:
    """Mutant: the number alone."""
    without_guard(connection, "straddles", "is_own_number(tx, written)", "true")
    with pytest.raises(AssertionError):
        _trimmed_under_a_number_that_comes_again(connection, database_url)


def _restored_once_more(connection: Connection) -> None:
    """The numbers of the first repair are those of events that were trimmed before it."""
    _restored_with_low_numbers(connection, "a", "b")
    log.sequence(connection, 1)
    _restored(connection, 1_000_000)
    drain(connection)
    assert _from(connection, 21) == ["kept", "a", "b"]


@proves("S21 of a trimmed index")
def test_a_second_restore_brings_nothing_back(connection: Connection) -> None:
    """Guard: repair_events asks whether retention has removed that part of the index."""
    _restored_once_more(connection)


@proves("S21 of a trimmed index", guard="is_over")
def test_without_that_question_what_was_trimmed_comes_again(connection: Connection) -> None:
    """Mutant: the numbers of the first repair alone."""
    without_guard(
        connection,
        "repair_events",
        "repair_era AND NOT is_over(e.partition_id, e.id)",
        "repair_era",
    )
    with pytest.raises(AssertionError):
        _restored_once_more(connection)


def _burn(connection: Connection, count: int) -> None:
    for _ in range(count):
        value(connection, "SELECT pg_current_xact_id()")


def _restored_into_a_third_cluster(connection: Connection, burnt: int) -> None:
    """Trimmed in the second cluster; the third one's numbers are above, or below, the first's."""
    topic(connection)
    for number in range(20):
        put(connection, f"gone {number}")
    drain(connection)
    put(connection, "kept")
    drain(connection)
    _restored(connection, 200)
    put(connection, "second")
    drain(connection)
    log.sequence(connection)
    _trim(connection, 20)
    _burn(connection, burnt)
    _restored(connection, 0)
    put(connection, "third")
    waiting = _waiting(connection)
    drain(connection)
    assert value(connection, "SELECT max(era) FROM penstock.eras") == 3
    assert _from(connection, 21) == ["kept", "second", "third"]
    assert waiting == 1


@proves("S21 of a trimmed index")
@pytest.mark.parametrize("burnt", [0, 400])
def test_a_dump_of_a_dump_brings_nothing_back(connection: Connection, burnt: int) -> None:
    """Guard: is_one_cluster; in the third cluster a row may have been written by anything."""
    _restored_into_a_third_cluster(connection, burnt)


@proves("S21 of a trimmed index", guard="is_one_cluster")
@pytest.mark.parametrize(
    ("function", "guard", "burnt"),
    [
        ("repair_events", "(SELECT b.is_one_cluster FROM bounds AS b) OR", 400),
        ("restored_events", "b.is_one_cluster OR", 400),
        ("restored_events", "e.id > b.boundary_id OR", 0),
    ],
)
def test_without_the_clusters_a_dump_of_a_dump_brings_it_back(
    connection: Connection, function: str, guard: str, burnt: int
) -> None:
    """Mutants: who has written the row is asked in any cluster; all higher numbers wait."""
    without_guard(connection, function, guard, "true OR")
    with pytest.raises(AssertionError):
        _restored_into_a_third_cluster(connection, burnt)


def _events_loaded_after_the_ticks(connection: Connection) -> None:
    """The old numbers of trimmed events are those of the transactions that loaded the tables."""
    topic(connection)
    _free_ids(connection, 5)
    for number in range(20):
        put(connection, f"gone {number}")
    drain(connection)
    put(connection, "kept")
    drain(connection)
    _trim(connection, 20)
    _restored(connection, 1_000_000)
    ticks = value(connection, "SELECT max(xmin::text::bigint) FROM penstock.ticks")
    _burn(connection, 40)
    connection.execute(
        "UPDATE penstock.events SET tx = (%s + id)::text::xid8 WHERE id <= 25", (ticks,)
    )
    _set_back(connection, "events_id")
    for number in range(3):
        put(connection, f"early {number}")
    waiting = _waiting(connection)
    drain(connection)
    assert _from(connection, 21) == ["kept", "early 0", "early 1", "early 2"]
    assert waiting == 3


@proves("S21 of a trimmed index")
def test_events_that_are_loaded_after_the_ticks_do_not_come_again(connection: Connection) -> None:
    """Guard: is_loaded; one transaction wrote rows of several.  New events are not lost."""
    _events_loaded_after_the_ticks(connection)


_LOADED = "(is_over(e.partition_id, e.id) AND is_loaded(e.id, e.tx, e.xmin))"


@proves("S21 of a trimmed index", guard="is_loaded")
@pytest.mark.parametrize("function", ["repair_events", "restored_events"])
@pytest.mark.parametrize("mutant", ["false", "is_over(e.partition_id, e.id)"])
def test_without_their_neighbours_they_come_again_or_new_ones_are_lost(
    connection: Connection, function: str, mutant: str
) -> None:
    """Mutants: nobody asks who has written the neighbours; all that may be trimmed is over."""
    without_guard(connection, function, _LOADED, mutant)
    with pytest.raises(AssertionError):
        _events_loaded_after_the_ticks(connection)


def _trimmed_during_a_repair(connection: Connection, url: str) -> None:
    """A repair has given it its sequence, and the tick after the repair sees its transaction."""
    topic(connection)
    put(connection, "first")
    drain(connection)
    with open_transaction(url) as straddling:
        put(connection, "before it")
        put(straddling, "straddling")
        put(connection, "after it")
        connection.execute(ANOTHER_CLUSTER)
        log.sequence(connection, 1)
        straddling.commit()
    log.sequence(connection, 1)
    next_slice(connection, "chunks")
    log.sequence(connection, 1)
    move_low(connection, 3)
    drop_slices(url)
    drain(connection)
    assert _from(connection, 4) == ["after it"]
    assert value(connection, "SELECT count(*) FROM penstock.chunks") == 4
    put(connection, "last")
    drain(connection)
    drop_slices(url)
    assert value(connection, "SELECT count(*) FROM penstock.chunks") == 2


@proves("S21 of a trimmed index")
def test_nothing_is_trimmed_while_a_repair_looks_into_the_index(
    connection: Connection, database_url: str
) -> None:
    """Guard: merge_chunks waits for the end of the repair, and of the tick that follows it."""
    _trimmed_during_a_repair(connection, database_url)


@proves("S21 of a trimmed index", guard="merge_chunks waits")
@pytest.mark.parametrize(
    "mutant",
    [
        ("merge_chunks", "IF repair_is_under_way() THEN", "IF false THEN"),
        ("append_few", "COALESCE(min(f.id) > append_few.boundary_id, true)", "true"),
    ],
)
def test_without_that_what_was_trimmed_comes_again(
    connection: Connection, database_url: str, mutant: tuple[str, str, str]
) -> None:
    """Mutants: the index is cleaned meanwhile; a pass over few takes what a repair has placed."""
    without_guard(connection, *mutant)
    with pytest.raises(AssertionError):
        _trimmed_during_a_repair(connection, database_url)
