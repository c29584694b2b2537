"""A slice of storage is dropped only when every event of it is logically gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock import log
from penstock.subscriptions import stream
from tests.guards import without_guard
from tests.kit.cleaning import clean_unread
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    topic,
    value,
    wait_until_blocked,
)
from tests.kit.storage import droppable, unneeded

FIRST = "events_1"


def _next_slice(connection: Connection) -> None:
    """The next event goes to the second slice."""
    connection.execute("SELECT setval('penstock.events_id', 10001)")


def _retire(connection: Connection) -> list[tuple[int, str]]:
    """Seal all there is, record a verified copy, clean: low sequence and what holds the rest."""
    connection.execute("SELECT penstock.set_retention(%s, 0, 1, targets => '{disk}')", (TOPIC,))
    connection.execute(
        "SELECT penstock.record_copy(%s, 0, e.log_epoch, 'disk', '/', e.event_count, e.checksum)"
        " FROM penstock.seal(%s, 0, 100000, 0) AS e",
        (TOPIC, TOPIC),
    )
    return _clean(connection)


def _clean(connection: Connection) -> list[tuple[int, str]]:
    return [(low, reason) for _, _, low, reason in clean_unread(connection, TOPIC)]


def test_a_slice_whose_events_are_all_gone_is_droppable(connection: Connection) -> None:
    """The way of an ordinary slice; one in which events can still come is never named."""
    topic(connection)
    put(connection, "1")
    drain(connection)
    _retire(connection)
    assert droppable(connection) == []  # the slice still takes events
    _next_slice(connection)
    put(connection, "2")
    drain(connection)
    assert droppable(connection) == [FIRST]
    assert log.fetch(connection, TOPIC, 0, 2)[0].payload == b"2"


def _open_publisher(connection: Connection, url: str) -> list[str]:
    """A publisher with an id in the first slice is open; its number is not below any xmax."""
    topic(connection)
    put(connection, "1")
    drain(connection)
    _retire(connection)
    with open_transaction(url) as other, open_transaction(url) as publisher:
        value(other, "SELECT pg_current_xact_id()")
        put(publisher, "old and open")
        _next_slice(other)
        put(other, "2")
        other.commit()
        drain(connection)
        assert droppable(connection) == []  # the publisher's snapshot is older, too
        return unneeded(connection)


def test_never_under_an_open_publisher(connection: Connection, database_url: str) -> None:
    """Guard: who has an id of the slice is older than the horizon, and all those have ended."""
    assert _open_publisher(connection, database_url) == []


@pytest.mark.parametrize("bound", ["true", "pg_snapshot_xmax(t.target)"])
def test_without_the_horizon_an_open_publisher_loses_its_slice(
    connection: Connection, database_url: str, bound: str
) -> None:
    """Mutants: no bound, and the xmax of a tick: numbers at or above it may own older ids."""
    condition = "t.horizon <= pg_snapshot_xmin(pg_current_snapshot())"
    new = bound if bound == "true" else condition.replace("t.horizon", bound)
    without_guard(connection, "settled_events", condition, new)
    assert _open_publisher(connection, database_url) == [FIRST]


def _unsequenced(connection: Connection, url: str) -> list[str]:
    """An event of the first slice is committed late and has no sequence yet."""
    topic(connection)
    put(connection, "1")
    drain(connection)
    _retire(connection)
    with open_transaction(url) as late:
        put(late, "late")
        _next_slice(connection)
        put(connection, "2")
        drain(connection)
        late.commit()
    return droppable(connection)


def test_never_with_an_event_that_waits_for_its_sequence(
    connection: Connection, database_url: str
) -> None:
    """Guard: the lowest id that no tick has worked off."""
    assert _unsequenced(connection, database_url) == []
    drain(connection)
    assert droppable(connection) == []  # now it lies above the low sequence
    _retire(connection)
    assert droppable(connection) == [FIRST]


def test_without_it_an_unsequenced_event_is_dropped(
    connection: Connection, database_url: str
) -> None:
    """Mutant: nobody looks at what waits."""
    without_guard(connection, "settled_events", ", waiting_id)", ")")
    assert _unsequenced(connection, database_url) == [FIRST]


def _above_low(connection: Connection) -> list[str]:
    topic(connection)
    put(connection, "1")
    drain(connection)
    _retire(connection)
    put(connection, "2, not retired")
    drain(connection)
    _next_slice(connection)
    put(connection, "3")
    drain(connection)
    return droppable(connection)


def test_never_with_an_event_above_the_low_sequence(connection: Connection) -> None:
    """Guard: the index of the log against the low sequences."""
    assert _above_low(connection) == []


def test_without_it_a_readable_event_is_dropped(connection: Connection) -> None:
    """Mutant: the low sequence is not asked."""
    without_guard(
        connection, "needed_events", "c.first_sequence + c.event_count > p.low_sequence", "false"
    )
    assert _above_low(connection) == [FIRST]


def test_asking_does_not_stop_the_sequencer(connection: Connection, database_url: str) -> None:
    """Guard: unneeded_slices takes no lock; it may read through a whole index of the log."""
    topic(connection)
    put(connection, "1")
    with open_transaction(database_url) as cleaner:
        cleaner.execute("SELECT * FROM penstock.unneeded_slices()")
        assert log.sequence(connection).sequenced == 1


def test_in_the_middle_of_a_tick_nothing_is_droppable(connection: Connection) -> None:
    """Guard: an incomplete tick has events without a sequence."""
    topic(connection)
    for text in ("1", "2", "3"):
        put(connection, text)
    assert log.sequence(connection, 2).more
    _next_slice(connection)
    assert droppable(connection) == []


# Subscribe "earliest" against clean: neither may pass the other.


def _two_events_ready_to_go(connection: Connection) -> None:
    topic(connection)
    put(connection, "1")
    put(connection, "2")
    drain(connection)
    stream.subscribe(connection, "first", [TOPIC], "latest")
    connection.execute("SELECT penstock.set_retention(%s, 0, 1, targets => '{disk}')", (TOPIC,))
    connection.execute(
        "SELECT penstock.record_copy(%s, 0, e.log_epoch, 'disk', '/', e.event_count, e.checksum)"
        " FROM penstock.seal(%s, 0, 100000, 0) AS e",
        (TOPIC, TOPIC),
    )


def _subscribe_during_clean(connection: Connection, url: str, *, waits: bool) -> int:
    """Where a subscription from "earliest" stands that came while clean was under way."""
    _two_events_ready_to_go(connection)
    with (
        open_transaction(url) as cleaner,
        psycopg.connect(url, autocommit=True) as newcomer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert _clean(cleaner)[0][0] == 3
        coming = pool.submit(stream.subscribe, newcomer, "second", [TOPIC])
        if waits:
            wait_until_blocked(connection, backend_pid(newcomer))
        else:
            coming.result()
        cleaner.commit()
        coming.result()
    return stream.position(connection, "second", TOPIC)[0]


def test_a_subscription_that_comes_during_a_clean_begins_above_it(
    connection: Connection, database_url: str
) -> None:
    """Guard: subscribe and clean lock the same topic row."""
    assert _subscribe_during_clean(connection, database_url, waits=True) == 2


def test_without_the_lock_it_begins_below_the_low_sequence(
    connection: Connection, database_url: str
) -> None:
    """Mutant: subscribe does not lock the topic."""
    without_guard(connection, "lock_topic", "FOR NO KEY UPDATE;", ";")
    assert _subscribe_during_clean(connection, database_url, waits=False) == 0


def _clean_during_subscribe(connection: Connection, url: str, *, waits: bool) -> int:
    """The low sequence after a clean that came while somebody subscribed from "earliest"."""
    _two_events_ready_to_go(connection)
    with (
        open_transaction(url) as newcomer,
        psycopg.connect(url, autocommit=True) as cleaner,
        ThreadPoolExecutor(1) as pool,
    ):
        stream.subscribe(newcomer, "second", [TOPIC])
        cleaning = pool.submit(_clean, cleaner)
        if waits:
            wait_until_blocked(connection, backend_pid(cleaner))
        else:
            cleaning.result()
        newcomer.commit()
        return cleaning.result()[0][0]


def test_a_clean_that_comes_during_a_subscribe_sees_it(
    connection: Connection, database_url: str
) -> None:
    """Guard: the same lock, the other way round."""
    assert _clean_during_subscribe(connection, database_url, waits=True) == 1


def test_without_the_lock_clean_drops_what_the_newcomer_wants(
    connection: Connection, database_url: str
) -> None:
    """Mutant: clean does not lock the topic."""
    without_guard(
        connection,
        "clean",
        "PERFORM FROM topics AS t WHERE t.id = source_id FOR NO KEY UPDATE;",
        "",
    )
    assert _clean_during_subscribe(connection, database_url, waits=False) == 3


def _subscribe_with_an_old_snapshot(connection: Connection, url: str) -> int:
    _two_events_ready_to_go(connection)
    with open_transaction(url) as old:
        old.rollback()
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        _clean(connection)
        stream.subscribe(old, "second", [TOPIC])
        old.commit()
    return stream.position(connection, "second", TOPIC)[0]


def test_without_read_committed_a_lock_is_no_help(
    connection: Connection, database_url: str
) -> None:
    """Mutant: subscribe under a snapshot from before the clean; the refusal is in test_fence."""
    without_guard(connection, "subscribe", "PERFORM require_read_committed('subscribe()');", "")
    assert _subscribe_with_an_old_snapshot(connection, database_url) == 0
