"""A queue from which nobody receives any more: the sweep moves its position."""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock import database
from penstock.errors import WrongIsolation
from penstock.subscriptions import queue, stream
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, put
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    filled,
    more,
    mutated,
    pass_time,
    position,
    receive,
    texts,
)


@proves("D9 of queues")
def test_the_sweep_moves_it_when_nobody_receives(own: Connection) -> None:
    """Else retention would wait for what is finished.  It stays before what is not."""
    filled(own, 6)
    held = receive(own, 6)
    acknowledge(own, [held[0], held[1], held[3]])
    assert position(own) == 0
    pass_time(own, 1)
    sweep(own)
    assert position(own) == 2
    acknowledge(own, [held[2], held[4], held[5]])
    sweep(own)
    assert position(own) == 6


def test_without_the_call_it_stays(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the sweep is about consumers only."""
    calls = {
        "postgres": ("PERFORM move_idle_floors(max_rows);", ""),
        "mysql": ("CALL move_idle_floors(max_rows);", ""),
    }
    mutated(db, {dialect: ("sweep", [texts_of]) for dialect, texts_of in calls.items()})
    filled(own, 1)
    acknowledge(own, receive(own))
    pass_time(own, 1)
    sweep(own)
    assert position(own) == 0


def _swept_late(db: ContractDatabase, own: Connection) -> list[str]:
    """What is handed out after a sweep whose snapshot is from before another receive.

    Nothing is left by then, so all of it would be a duplicate.
    """
    filled(own, 3)
    acknowledge(own, receive(own, 3))
    more(own, 3, start=4)
    pass_time(own, 1)
    with closing(db.connect(autocommit=False)) as old:
        session = "" if db.engine == "postgres" else "SESSION "
        database.execute(old, f"SET {session}TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert position(old) == 0, "the snapshot is taken"
        receive(own, 3)
        pass_time(own, 1)
        database.call(old, "sweep", max_rows=1000)
        old.commit()
    return texts(receive(own, 3))


def test_an_old_snapshot_is_refused(db: ContractDatabase, own: Connection) -> None:
    """Guard: require_read_committed in sweep."""
    with pytest.raises(WrongIsolation, match=r"sweep\(\) needs READ COMMITTED"):
        _swept_late(db, own)


@proves("D9 of queues", guard="an old snapshot")
@pytest.mark.parametrize("db", ["postgres", "mysql"], indirect=True)
def test_with_an_old_snapshot_events_come_twice(db: ContractDatabase, own: Connection) -> None:
    """Mutant: any level will do.  MariaDB itself ends a transaction with such a snapshot."""
    levels = {
        "postgres": ("PERFORM require_read_committed('sweep()');", ""),
        "mysql": ("CALL require_read_committed('sweep()');", ""),
    }
    mutated(db, {dialect: ("sweep", [text]) for dialect, text in levels.items()})
    assert _swept_late(db, own) != []


def _swept_behind_others(own: Connection, order: str) -> tuple[int, int]:
    """The positions of a queue whose only event is in hand, and of a later one that is finished.

    A sweep looks at one queue at a time.
    """
    filled(own, 2)
    queue.configure(own, QUEUE, order=order)
    queue.subscribe(own, "later", [TOPIC])
    receive(own)
    (done,) = queue.receive(own, "later")
    queue.acknowledge(own, "later", [done.receipt])
    pass_time(own, 1)
    database.call(own, "sweep", max_rows=1)
    return position(own), stream.position(own, "later", TOPIC)[0]


@proves("D9 of queues")
@pytest.mark.parametrize("order", ["none", "key"])
def test_queues_whose_position_stays_hide_no_other_one(own: Connection, order: str) -> None:
    """However many hold something: a thousand of them were all that a sweep saw."""
    assert _swept_behind_others(own, order) == (0, 1)


@proves("D9 of queues", guard="is_in_hand")
def test_without_the_look_at_what_is_in_hand_they_hide_it(
    db: ContractDatabase, own: Connection
) -> None:
    """Mutant: the first queue by its number is looked at each time."""
    mutated(
        db,
        {
            "postgres": ("is_in_hand", [("RETURN EXISTS (", "RETURN false AND EXISTS (")]),
            "mysql": ("is_in_hand", [("r.subscription_id = owner_id", "FALSE")]),
        },
    )
    assert _swept_behind_others(own, "none") == (0, 0)


@proves("D9 of queues")
def test_what_waits_behind_its_key_holds_the_position(own: Connection) -> None:
    """It is in hand too, though it is in no range: the sweep neither moves it nor stops there."""
    filled(own, 0)
    queue.configure(own, QUEUE, order="key")
    for text in "ab":
        put(own, text, key="k", name=TOPIC)
    drain(own)
    (first,) = receive(own)
    queue.reject(own, QUEUE, [first.receipt], delay_seconds=100)
    pass_time(own, 1)
    for _ in range(2):
        sweep(own)
        assert position(own) == 1
