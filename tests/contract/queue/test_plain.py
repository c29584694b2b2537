"""The plain receive and acknowledgement, which look at less: they refuse what the others refuse.

On PostgreSQL they are a few queries with all guards in them.  A receive is plain while no turn of
the dealer is due, and the ranges are as long as what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock import database, subscriptions
from penstock.errors import (
    ActsForNobody,
    InvalidArgument,
    MalformedReceipt,
    SubscriptionNotFound,
    WrongIsolation,
)
from penstock.subscriptions import queue
from penstock.topics import rights
from tests.contract.accounts.kit import gateway
from tests.contract.databases import ContractDatabase
from tests.contract.kit import give_up_soon
from tests.contract.queue.test_receive import REPEATABLE, call_receive
from tests.contract.tenants import as_login, tenants_of
from tests.guards import without_guard
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    count,
    filled,
    more,
    mutated,
    pass_time_of,
    receipts,
    receive,
    texts,
)


def dealt(own: Connection) -> list[queue.Delivery]:
    """Two events are in hand, 18 are dealt by two, and no turn of the dealer is due for long."""
    filled(own, 20, visibility_seconds=1000)
    held = queue.receive(own, QUEUE, 2)
    no_turn_is_due(own)
    return held


def no_turn_is_due(own: Connection) -> None:
    """For an hour.  A rest of more than five seconds counts as over, so receive takes this one."""
    pass_time_of(own, "queue_turns", -3000)
    if database.dialect_of(own) == "postgres":
        longest = "AND clock_timestamp() + interval '5 seconds'"
        without_guard(own, "receive", longest, "AND 'infinity'")


@proves("D7, D11 in the plain calls of queues")
def test_it_goes_on_while_no_turn_is_due(db: ContractDatabase, own: Connection) -> None:
    """No turn is taken, each event comes once, and each batch ends by its one row."""
    held = dealt(own)
    turns = count(own, "queue_turns")
    for _ in range(5):
        found = queue.receive(own, QUEUE, 2)
        queue.acknowledge(own, QUEUE, receipts(found))
        held += found
    assert texts(held) == [str(number) for number in range(1, 13)]
    assert count(own, "queue_turns") == turns
    assert queue.statistics(own, QUEUE).in_flight == 2


def pause(db: ContractDatabase, own: Connection) -> None:
    """Nothing comes while the queue is paused."""
    held = dealt(own)
    subscriptions.pause(own, QUEUE)
    assert queue.receive(own, QUEUE, 2) == []
    queue.acknowledge(own, QUEUE, receipts(held))
    subscriptions.resume(own, QUEUE)
    assert texts(queue.receive(own, QUEUE, 2)) == ["3", "4"]


def isolation(db: ContractDatabase, own: Connection) -> None:
    """A snapshot that is older than a lock sees what was claimed before."""
    held = dealt(own)
    with closing(db.connect(autocommit=False)) as other:
        database.execute(other, REPEATABLE[database.dialect_of(own)])
        other.commit()
        for call in (
            lambda: call_receive(other),
            lambda: queue.acknowledge(other, QUEUE, receipts(held)),
        ):
            with pytest.raises(WrongIsolation):
                call()
            other.rollback()


def times(db: ContractDatabase, own: Connection) -> None:
    """A time that cannot be, of a call whose ranges are there."""
    dealt(own)
    for wrong in (-1, 43_201):
        with pytest.raises(InvalidArgument):
            database.call(
                own, "receive", subscription=QUEUE, max_events=2, visibility_seconds=wrong
            )


def right_to(verb: str, other: str) -> Callable[[ContractDatabase, Connection], None]:
    """A login with the other right does not learn that there is a queue."""

    def scenario(db: ContractDatabase, own: Connection) -> None:
        held = dealt(own)
        with tenants_of(db) as tenants:
            tenants.install()
            login = tenants.login("consumer")
            rights.grant_namespace(own, "tests", login, other)
            with as_login(tenants, login) as mine, pytest.raises(SubscriptionNotFound):
                if verb == "receive":
                    queue.receive(mine, QUEUE, 2)
                else:
                    queue.acknowledge(mine, QUEUE, receipts(held))
            rights.grant_namespace(own, "tests", login, verb)
            with as_login(tenants, login) as mine:
                assert len(queue.receive(mine, QUEUE, 2)) == 2 if verb == "receive" else True

    return scenario


def arrays(db: ContractDatabase, own: Connection) -> None:
    """What is named beside the one entry is not passed over."""
    (held, *_) = dealt(own)
    given: dict[str, list[Any]] = {
        "claims": [held.receipt.claim],
        "first_sequences": [1],
        "last_sequences": [2],
        "tokens": [held.receipt.token],
    }
    for name in ("first_sequences", "last_sequences", "tokens"):
        twice = given | {name: given[name] * 2}
        with pytest.raises(MalformedReceipt):
            database.call(own, "acknowledge", subscription=QUEUE, partly=False, **twice)
    assert queue.statistics(own, QUEUE).in_flight == 2


def gateway_for_nobody(db: ContractDatabase, own: Connection) -> None:
    """A gateway's login gets nothing before it has named an account."""
    dealt(own)
    with tenants_of(db) as tenants:
        tenants.install()
        login = gateway(tenants)
        with as_login(tenants, login) as mine, pytest.raises(ActsForNobody):
            queue.receive(mine, QUEUE, 2)


def setting(db: ContractDatabase, own: Connection) -> None:
    """A login that has set what only act_as may set."""
    dealt(own)
    database.execute(own, "SET penstock.acting = 'somebody'")
    with pytest.raises(ActsForNobody):
        queue.receive(own, QUEUE, 2)


SCENARIOS = {
    "arrays": arrays,
    "pause": pause,
    "isolation": isolation,
    "times": times,
    "the right to receive": right_to("receive", "acknowledge"),
    "the right to acknowledge": right_to("acknowledge", "receive"),
    "a gateway for nobody": gateway_for_nobody,
}
ON_POSTGRES = {"a setting": setting}
_ARRAYS = (
    "AND (cardinality(first_sequences), cardinality(last_sequences), cardinality(tokens))"
    " = (1, 1, 1)"
)
_ISOLATION = "AND current_setting('transaction_isolation') = 'read committed'"
_RIGHT = "AND ((SELECT p FROM plain_login() AS p) OR no_walls() OR may_use(s.id, '{}'))"
_TIMES = "AND COALESCE(receive.visibility_seconds, q.visibility_seconds) BETWEEN 0 AND 43200"
#: Guards of the plain calls on PostgreSQL: function and text.
MUTANTS = {
    "arrays": ("acknowledge", _ARRAYS),
    "pause": ("receive", "AND s.paused_at IS NULL"),
    "isolation": ("receive", _ISOLATION),
    "times": ("receive", _TIMES),
    "the right to receive": ("receive", _RIGHT.format("receive")),
    "the right to acknowledge": ("acknowledge", _RIGHT.format("acknowledge")),
    "a gateway for nobody": (
        "plain_login",
        "AND NOT EXISTS (SELECT FROM installed_gateways AS g WHERE g.login = session_user)",
    ),
    "a setting": (
        "plain_login",
        "COALESCE(current_setting('penstock.acting', true), '') = ''\n           AND",
    ),
}


@proves("D7, D11 in the plain calls of queues")
@pytest.mark.parametrize("guard", SCENARIOS)
def test_it_refuses_what_the_others_refuse(
    db: ContractDatabase, own: Connection, guard: str
) -> None:
    SCENARIOS[guard](db, own)


@proves("D7, D11 in the plain calls of queues")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@pytest.mark.parametrize("guard", ON_POSTGRES)
def test_it_refuses_what_postgres_alone_has(
    db: ContractDatabase, own: Connection, guard: str
) -> None:
    ON_POSTGRES[guard](db, own)


@proves("D7, D11 in the plain calls of queues", guard="each condition of the query")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@pytest.mark.parametrize("guard", MUTANTS)
def test_without_a_guard_it_does_not(db: ContractDatabase, own: Connection, guard: str) -> None:
    """Mutants: each guard taken out of the query."""
    function, text = MUTANTS[guard]
    change: dict[str, Any] = {"postgres": (function, [(text, "")])}
    mutated(db, change)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        (SCENARIOS | ON_POSTGRES)[guard](db, own)


def _of_two_sizes(own: Connection) -> list[str]:
    """What comes by ten, when the oldest were dealt by 500 and later ones by ten."""
    filled(own, 1000, visibility_seconds=1000)
    queue.acknowledge(own, QUEUE, receipts(receive(own, 500)))
    more(own, 400, start=1001)
    found = receive(own, 10)
    no_turn_is_due(own)
    for _ in range(3):
        found += queue.receive(own, QUEUE, 10)
    return texts(found)


@proves("a queue keeps nothing back")
def test_a_long_range_is_not_passed_over(own: Connection) -> None:
    """The oldest come first, and do not wait while there are shorter ranges."""
    assert _of_two_sizes(own) == [str(number) for number in range(501, 541)]


@proves("a queue keeps nothing back", guard="no look at the length")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_it_would_wait_behind_shorter_ones(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the plain receive looks for a range that is short enough."""
    short = "AND f.token IS NULL AND f.last_sequence - f.first_sequence < max_events"
    mutated(db, {"postgres": ("receive", [("AND f.token IS NULL", short)])})
    assert "1001" in _of_two_sizes(own)


def _beside_a_locked_range(db: ContractDatabase, own: Connection) -> int:
    """How many events a receive gets while the first range is locked, if its search waited.

    That stands for a row that was updated, and is again, at the moment of SKIP LOCKED.
    """
    filled(own, 2, partitions=5)
    queue.receive(own, QUEUE, 3)
    no_turn_is_due(own)
    db.without_guard("claim_several", "FOR UPDATE SKIP LOCKED", "FOR UPDATE")
    with closing(db.connect(autocommit=False)) as other, closing(db.connect()) as mine:
        lowest = "(SELECT min(id) FROM penstock.queue_ranges WHERE token IS NULL)"
        database.execute(other, f"SELECT FROM penstock.queue_ranges WHERE id = {lowest} FOR UPDATE")
        give_up_soon(db, mine)
        return len(queue.receive(mine, QUEUE, 3))


@proves("no deadlock is the caller's without need")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_rows_are_locked_in_one_order(db: ContractDatabase, own: Connection) -> None:
    """Else two receivers can wait for each other.  InnoDB does not wait for what it skips."""
    assert _beside_a_locked_range(db, own) == 3


@proves("no deadlock is the caller's without need", guard="the order")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_the_order_it_waits(db: ContractDatabase, own: Connection) -> None:
    """Mutant: each look begins at the first free range."""
    db.without_guard("claim_ranges", "GREATEST(last.free_id, highest + 1)", "last.free_id")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        _beside_a_locked_range(db, own)
