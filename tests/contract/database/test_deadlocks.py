"""A call that ends in a deadlock is made again, where nothing else is lost with it."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from penstock import database
from penstock.database import calls
from penstock.subscriptions import queue
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, filled

#: What the call has locked by then, and waits for.
LOCKED = "SELECT id FROM penstock.subscriptions FOR UPDATE"
#: More is written by the other one, so that MySQL ends the call and not the other transaction.
WANTED = "UPDATE penstock.queues SET jitter = 0.5, max_failures = 7, first_backoff_seconds = 3"


def _meets_a_deadlock(db: ContractDatabase, mine: Connection) -> BaseException | None:
    """What the call raises that locks two rows in another order than somebody else."""
    raised: list[BaseException] = []

    def configure() -> None:
        try:
            queue.configure(mine, QUEUE, visibility_seconds=9)
        except Exception as error:
            raised.append(error)

    with closing(db.connect(autocommit=False)) as other:
        database.execute(other, WANTED)
        call = threading.Thread(target=configure)
        call.start()
        db.wait_until_blocked(mine)
        database.execute(other, LOCKED)
        other.commit()
        call.join()
    return raised[0] if raised else None


@proves("no deadlock is the caller's without need")
def test_a_call_of_its_own_is_made_again(db: ContractDatabase) -> None:
    own = filled(db.connect(), 1)
    assert _meets_a_deadlock(db, db.connect()) is None
    settings = queue.describe(own, QUEUE)
    assert (settings.visibility_seconds, settings.max_failures) == (9, 7)


@proves("no deadlock is the caller's without need")
def test_a_call_in_a_transaction_is_not(db: ContractDatabase) -> None:
    """What the transaction did before is gone with it, so only the caller can begin again."""
    own = filled(db.connect(), 1)
    mine = db.connect(autocommit=False)
    database.execute(mine, "SELECT 1")
    error = _meets_a_deadlock(db, mine)
    assert error is not None
    assert database.is_contention(error)
    mine.rollback()
    assert queue.describe(own, QUEUE).visibility_seconds == 30


@proves("no deadlock is the caller's without need", guard="the second try")
def test_without_that_the_caller_gets_it(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a call is made once."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    filled(db.connect(), 1)
    error = _meets_a_deadlock(db, db.connect())
    assert error is not None
    assert database.is_contention(error)
