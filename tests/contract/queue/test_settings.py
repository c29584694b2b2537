"""What sets a queue while others work on it: the count of what is in hand is a true one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

from penstock import database
from penstock.errors import InvalidArgument, WrongIsolation
from penstock.publishing.publish import publish
from penstock.subscriptions import queue
from penstock.topics.names import create_topic
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, mutated, receive, texts

#: How a transaction begins whose snapshot stays.
REPEATABLE = {
    "postgres": ("BEGIN ISOLATION LEVEL REPEATABLE READ",),
    "mysql": ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION"),
}
ORDERED = partial(queue.configure, subscription=QUEUE, order="key")


def _set_with_an_old_snapshot(db: ContractDatabase, own: Connection) -> str:
    """The order afterwards, when it is set by who does not see that an event is in hand."""
    filled(own, 2)
    with closing(db.connect()) as old:
        for statement in REPEATABLE[database.dialect_of(old)]:
            database.execute(old, statement)
        database.execute(old, "SELECT count(*) FROM penstock.queue_ranges")
        assert len(receive(own)) == 1
        ORDERED(old)
        database.execute(old, "COMMIT")
    return queue.describe(own, QUEUE).order


@proves("the order of a queue is set by a true count")
def test_an_old_snapshot_sets_nothing(db: ContractDatabase, own: Connection) -> None:
    """The order is kept for ever, and of what is in hand nobody knows the keys."""
    with pytest.raises(WrongIsolation, match=r"configure_queue\(\) needs READ COMMITTED"):
        _set_with_an_old_snapshot(db, own)
    assert queue.describe(own, QUEUE).order == "none"


@proves("the order of a queue is set by a true count", guard="READ COMMITTED")
@pytest.mark.parametrize("db", ["postgres", "mysql"], indirect=True)
def test_without_the_guard_it_sets_the_order(db: ContractDatabase, own: Connection) -> None:
    """Mutant: any level will do.  MariaDB itself ends a transaction with such a snapshot."""
    needed = "require_read_committed('configure_queue()');"
    mutated(db, {
        "postgres": ("configure_queue", [(f"PERFORM {needed}", "")]),
        "mysql": ("configure_queue", [(f"CALL {needed}", "")]),
    })  # fmt: skip
    assert _set_with_an_old_snapshot(db, own) == "key"


def _beside(
    db: ContractDatabase,
    first: Callable[[Connection], object],
    second: Callable[..., object],
    waits: bool = True,
) -> None:
    """The second call is made while the first one is not committed, and waits for that, or not."""
    with closing(db.connect(autocommit=False)) as one, closing(db.connect()) as two:
        first(one)
        beside = threading.Thread(target=second, args=(two,))
        beside.start()
        try:
            if waits:
                db.wait_until_blocked(two)
            else:
                beside.join()
        finally:
            one.commit()
            beside.join()


@proves("the order of a queue is set by a true count")
def test_what_two_set_at_once_is_kept(db: ContractDatabase, own: Connection) -> None:
    """Each sets one, and the others stay as they are by then."""
    filled(own, 0)
    sets = partial(partial, queue.configure, subscription=QUEUE)
    _beside(db, sets(visibility_seconds=7), sets(max_failures=2))
    settings = queue.describe(own, QUEUE)
    assert (settings.visibility_seconds, settings.max_failures) == (7, 2)


@proves("the order of a queue is set by a true count", guard="another look")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_another_look_one_of_them_is_lost(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the settings are those from before the lock.  MySQL's UPDATE reads them itself."""
    look = "meanwhile.\n    present := require_queue(subscription, 'consume');"
    db.without_guard("configure_queue", look, "meanwhile.")
    with pytest.raises(AssertionError):
        test_what_two_set_at_once_is_kept(db, own)


def _with_a_letter(own: Connection) -> None:
    """A queue with a dead letter of a key, and nothing in hand."""
    create_topic(own, TOPIC, partitions=1, create_namespaces=True)
    queue.subscribe(own, QUEUE, [TOPIC])
    queue.configure(own, QUEUE, max_deliveries=1)
    _published(own, "1")
    (letter,) = receive(own)
    queue.reject(own, QUEUE, [letter.receipt])
    queue.configure(own, QUEUE, max_deliveries=5)


def _published(own: Connection, text: str) -> None:
    publish(own, TOPIC, text.encode(), key="a")
    drain(own)


def _redriven_while_it_is_set(
    db: ContractDatabase, own: Connection, waits: bool = True
) -> list[str]:
    """What is handed out at once of a key: a letter that comes back, and a new event."""
    _with_a_letter(own)
    _beside(db, ORDERED, partial(queue.redrive, subscription=QUEUE), waits)
    _published(own, "2")
    return texts(receive(own, 5))


@proves("the order of a queue is set by a true count")
def test_a_redrive_sees_the_order_that_is_set(db: ContractDatabase, own: Connection) -> None:
    assert len(_redriven_while_it_is_set(db, own)) == 1


@proves("the order of a queue is set by a true count")
def test_who_sets_the_order_sees_a_redrive(db: ContractDatabase, own: Connection) -> None:
    """What came back by it has no place in the order of its key."""
    _with_a_letter(own)
    refused: list[str] = []

    def set_order(connection: Connection) -> None:
        with pytest.raises(InvalidArgument, match="in hand") as error:
            ORDERED(connection)
        refused.append(str(error.value))

    _beside(db, partial(queue.redrive, subscription=QUEUE), set_order)
    assert refused
    assert queue.describe(own, QUEUE).order == "none"


@proves("the order of a queue is set by a true count", guard="the lock of a redrive")
@pytest.mark.long_on("mariadb")
def test_without_the_lock_they_do_not_see_each_other(db: ContractDatabase, own: Connection) -> None:
    """Mutant: a redrive waits for nobody."""
    mutated(db, {
        "postgres": ("lock_letters", [("s.id = owner_id FOR SHARE", "s.id = owner_id")]),
        "mysql": ("lock_letters", [("s.id = owner_id LOCK IN SHARE MODE", "s.id = owner_id")]),
    })  # fmt: skip
    assert sorted(_redriven_while_it_is_set(db, own, waits=False)) == ["1", "2"]
