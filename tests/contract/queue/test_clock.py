"""The database's clock was set back: what a queue has stored lies ahead, and is not waited for."""

from __future__ import annotations

import pytest

from penstock import database
from penstock.subscriptions import queue
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, acknowledge, filled, mutated, position, receive, texts

HOUR = 3600
DAY = 86_400
_TIMES = {"queue_ranges": "deadline", "queue_waiting": "due_at", "queue_turns": "rest_until"}

#: A rest that lies an hour ahead is waited for.
ANY_REST = {
    "postgres": (
        "claim_events", [("AND clock_timestamp() + interval '5 seconds'", "AND 'infinity'")]
    ),
    "mysql": ("claim_events", [("present + INTERVAL 5 SECOND", "present + INTERVAL 5 DAY")]),
}  # fmt: skip


def _ahead(own: Connection, table: str, seconds: int) -> None:
    """What a table has stored lies so far ahead of the clock."""
    column = _TIMES[table]
    now, interval = "clock_timestamp()", f"INTERVAL '{seconds} seconds'"
    if database.dialect_of(own) == "mysql":
        now, interval = "UTC_TIMESTAMP(6)", f"INTERVAL {seconds} SECOND"
    database.execute(
        own,
        f"UPDATE penstock.{table} SET {column} = {now} + {interval} WHERE {column} IS NOT NULL",
    )


def _expired_before_the_rest(own: Connection) -> list[str]:
    """A claim whose time is over, while the rest between two turns lies an hour ahead."""
    filled(own, 1)
    receive(own)
    _ahead(own, "queue_ranges", -1)
    _ahead(own, "queue_turns", HOUR)
    return texts(queue.receive(own, QUEUE, 5))


@proves("D8, and queues, after the clock was set back")
def test_what_expired_comes_back(own: Connection) -> None:
    """Guard: no rest is longer than five seconds."""
    assert _expired_before_the_rest(own) == ["1"]


@proves("D8, and queues, after the clock was set back", guard="the bound of a rest")
def test_without_that_it_waits_for_the_hour(db: ContractDatabase, own: Connection) -> None:
    """Mutant."""
    mutated(db, ANY_REST)
    assert _expired_before_the_rest(own) == []


@proves("D8, and queues, after the clock was set back")
def test_what_is_due_comes(own: Connection) -> None:
    filled(own, 1)
    (held,) = receive(own)
    queue.reject(own, QUEUE, [held.receipt], delay_seconds=0)
    _ahead(own, "queue_turns", HOUR)
    assert texts(queue.receive(own, QUEUE, 5)) == ["1"]


@proves("D8, and queues, after the clock was set back")
@pytest.mark.parametrize("by", ["a receive", "the sweep"])
def test_the_position_moves(own: Connection, by: str) -> None:
    filled(own, 2)
    first, second = receive(own, 2)
    acknowledge(own, [first, second])
    assert position(own) == 0
    _ahead(own, "queue_turns", HOUR)
    if by == "the sweep":
        sweep(own)
    else:
        database.execute(own, "UPDATE penstock.queue_turns SET floor_id = 0")
        queue.receive(own, QUEUE)
    assert position(own) == 2


@proves("D8, and queues, after the clock was set back")
def test_a_claim_that_is_longer_than_any_is_over(own: Connection) -> None:
    """The longest one takes 12 hours; one within them may be as it was asked for."""
    filled(own, 2)
    receive(own, 1)
    _ahead(own, "queue_ranges", 11 * HOUR)
    assert texts(receive(own, 5, visibility_seconds=43_200)) == ["2"]
    _ahead(own, "queue_ranges", 13 * HOUR)
    assert sorted(texts(receive(own, 5))) == ["1", "2"]


@proves("D8, and queues, after the clock was set back")
def test_a_delay_that_is_longer_than_any_is_over(own: Connection) -> None:
    filled(own, 1)
    (held,) = receive(own)
    queue.reject(own, QUEUE, [held.receipt], delay_seconds=10)
    _ahead(own, "queue_waiting", 360 * DAY)
    assert receive(own) == []
    _ahead(own, "queue_waiting", 367 * DAY)
    assert texts(receive(own)) == ["1"]
