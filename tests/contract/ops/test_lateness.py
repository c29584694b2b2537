"""How late a queue is, on every engine: not by what waits for a retry or is in somebody's hands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ops.lateness import QUEUE as STATE, WORKERS, lateness
from penstock import database, subscriptions
from penstock.subscriptions import Lag, queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, acknowledge, all_older, filled, more, pass_time, receive


@pytest.fixture
def own(db: ContractDatabase) -> Iterator[Connection]:
    """A connection that commits by itself."""
    with closing(db.connect()) as opened:
        yield opened


def late(own: Connection) -> Lag:
    """The one partition of the queue."""
    (found,) = lateness(own)
    assert (found.subscription, found.state) == (QUEUE, STATE)
    return found


@proves("a queue is late by what nobody has taken")
def test_what_waits_for_a_retry_does_not_make_a_queue_late(own: Connection) -> None:
    """Guard: lateness, without which its position counts, where the first of them stands."""
    filled(own, 20)
    held = receive(own, 20)
    acknowledge(own, held[2:])
    queue.reject(own, QUEUE, [each.receipt for each in held[:2]], delay_seconds=3_600)
    all_older(own, 600)
    (by_position,) = subscriptions.lag(own)
    assert by_position.lag_events == 20 and by_position.lag_seconds >= 600
    found = late(own)
    assert (found.lag_events, found.lag_seconds, found.holder) == (0, 0.0, None)


@proves("a queue is late by what nobody has taken")
def test_what_was_never_handed_out_makes_it_late_by_its_own_age(own: Connection) -> None:
    """The oldest event is in somebody's hands for an hour; what came later waits for 100 s."""
    filled(own, 5)
    receive(own, 5)
    all_older(own, 3_500)
    more(own, 3, start=6)
    all_older(own, 100)
    found = late(own)
    assert (found.lag_events, found.holder) == (3, WORKERS)
    assert found.lag_seconds == pytest.approx(100, abs=60)


@proves("a queue is late by what nobody has taken")
def test_what_no_worker_takes_again_makes_it_late(own: Connection) -> None:
    """Guard: `is_left`.  The only worker died: all was handed out once, and its time is over."""
    filled(own, 5, visibility_seconds=30)
    receive(own, 5)
    all_older(own, 600)
    assert late(own).lag_events == 0
    pass_time(own, 31)
    found = late(own)
    assert (found.lag_events, found.holder) == (5, None) and found.lag_seconds >= 600


def test_behind_retention_its_position_counts(own: Connection) -> None:
    """Guard: `BelowLowSequence` in _of_queue, without which health would end with it."""
    filled(own, 5)
    receive(own, 5)
    more(own, 3, start=6)
    database.execute(own, "UPDATE penstock.partitions SET low_sequence = 4")
    assert (late(own).lag_events, late(own).holder) == (8, None)
