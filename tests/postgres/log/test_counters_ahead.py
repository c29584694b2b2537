"""What a counter shows while somebody takes a number from it: up to 32 too much, for a moment.

`SELECT last_value` reads the row without its lock.  `nextval` writes the number into the row that
it logs ahead, and then the one that it gives out.  So the next look shows a lower number.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from penstock import log
from penstock.database import catalog
from penstock.errors import LogBehind
from penstock.log.histories import histories
from tests.guards import without_guard
from tests.kit.log import Connection, drain, put, texts, topic, value
from tests.kit.proof import proves
from tests.kit.queue import acknowledge, filled, more, receive

#: Who reads a counter without its lock, and why it may be too high there.
MAY_BE_HIGH = {
    "sequence": "an upper bound; only the pass itself takes numbers of chunks",
    "turn_queue": "queue_turns_id: only the dealer takes one",
    "is_other_era": "a counter that was set back is noticed by the next pass",
    "record_block": "a counter that was set back is noticed by the next block",
    "move_position": "a counter that was set back is noticed by the next move",
    "commit": "a counter that was set back is noticed by the next commit",
    "rejected_commits": "a count for a page",
    "pressure_problem": "it only decides whether to measure",
}


@proves("S21 beside busy counters")
def test_only_these_read_a_counter_without_its_lock() -> None:
    """The others get a number that may be compared with one that is read later: last_given."""
    found = set()
    for _, text in catalog.functions("postgres").files:
        for name, body in catalog.blocks(text):
            code = re.sub(r"--.*", "", body)
            if re.search(r"\w\.last_value", re.sub(r"last_given\([^()]*\)", "", code)):
                found.add(name)
    assert found == set(MAY_BE_HIGH)


@contextmanager
def _taking(url: str, counter: str) -> Iterator[None]:
    """Others take numbers of a counter all the time."""
    stop = threading.Event()

    def take() -> None:
        with psycopg.connect(url, autocommit=True) as own:
            while not stop.is_set():
                own.execute(
                    "SELECT count(nextval(%s::regclass)) FROM generate_series(1, 1000)", (counter,)
                )

    threads = [threading.Thread(target=take) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()


def _went_back(connection: Connection, read: str, times: int) -> int:
    """How often a look showed less than the one before."""
    connection.execute(
        f"""
        CREATE OR REPLACE FUNCTION pg_temp.look(times integer, OUT back integer) LANGUAGE plpgsql
        AS $$
        DECLARE
            now bigint; before bigint := 0;
        BEGIN
            back := 0;
            FOR n IN 1..times LOOP
                SELECT {read} INTO now FROM penstock.events_id AS s;
                back := back + (now < before)::integer;
                before := now;
            END LOOP;
        END $$""".encode()
    )
    return int(value(connection, "SELECT pg_temp.look(%s)", times))


LOCKED = "penstock.last_given('penstock.events_id', s.last_value, s.is_called)"


@proves("S21 beside busy counters")
def test_the_last_number_of_a_counter_does_not_go_back(
    connection: Connection, database_url: str
) -> None:
    assert value(connection, f"SELECT {LOCKED} FROM penstock.events_id AS s") == 0
    with _taking(database_url, "penstock.events_id"):
        assert _went_back(connection, LOCKED, 50_000) == 0


@pytest.mark.long
@proves("S21 beside busy counters", guard="last_given")
def test_a_look_without_the_lock_goes_back(connection: Connection, database_url: str) -> None:
    """Mutant: one such look in some thousands."""
    with _taking(database_url, "penstock.events_id"):
        assert any(_went_back(connection, "s.last_value", 50_000) for _ in range(200))


NUMBER = "last_given('{counter}', {row}.last_value, {row}.is_called)"


@contextmanager
def _showing_more(
    connection: Connection, function: str, counter: str, row: str, after: str = ""
) -> Iterator[None]:
    """Mutant: in the block, this function reads 20 numbers too much."""
    number = NUMBER.format(counter=counter, row=row)
    without_guard(connection, function, number + after, f"{number} + 20{after}")
    yield
    without_guard(connection, function, f"{number} + 20{after}", number + after)


@proves("S21 beside busy counters", guard="last_given")
def test_without_the_lock_a_busy_log_begins_a_history(connection: Connection) -> None:
    """All consumers lost their leases, and relays and archives began anew."""
    topic(connection)
    put(connection, "one")
    with _showing_more(connection, "sequence", "events_id", "s"):
        assert log.sequence(connection).sequenced == 1
    put(connection, "two")
    drain(connection)
    assert texts(connection) == ["one", "two"]
    assert [each.history for each in histories(connection)] == [1, 2]


@proves("S21 beside busy counters", guard="last_given")
def test_without_the_lock_a_queue_loses_events(connection: Connection) -> None:
    """They were dealt below the number where receivers look, and the position passed them."""
    filled(connection, 1, visibility_seconds=3600)
    acknowledge(connection, receive(connection))
    more(connection, 1, start=2)
    with _showing_more(connection, "turn_queue", "queue_ranges_id", "c", " INTO before"):
        assert receive(connection) == []
    more(connection, 50, start=3)
    found = [each.event.sequence for _ in range(50) for each in receive(connection)]
    assert 2 not in found and found
    assert receive(connection) == []


@proves("S21 beside busy counters", guard="last_given")
def test_without_the_lock_a_receiver_gets_an_error(connection: Connection) -> None:
    """As if something had set the counter back."""
    filled(connection, 1)
    with _showing_more(connection, "turn_queue", "queue_ranges_id", "c", ", turn_queue.range_size"):
        receive(connection)
    with pytest.raises(LogBehind, match="something has set it back"):
        receive(connection)
