"""What waits for an account: its own topics only, in bounded turns, beside the sequencer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock
from penstock import accounts, database, log
from penstock.subscriptions import queue, stream
from penstock.upkeep import workers
from tests.contract.accounts.kit import Account, account
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants
from tests.kit.log import wait_until
from tests.kit.proof import proves

#: Guard: of a subscription, only the partitions of the account's topic are counted.
_OF_TOPIC = ("waiting_for", "first_id + 65535", "9223372036854775807")
MODES = {"stream": stream.subscribe, "queue": queue.subscribe}


def _measure(tenants: Tenants, turns: int = 1_000) -> tuple[int, bool]:
    """How many accounts are at their limit, and whether the round goes on."""
    ((pressed, more),) = database.call(tenants.owner, "measure_accounts", max_readers=turns)
    return int(pressed), bool(more)


def _waits(tenants: Tenants, name: str) -> int | None:
    """What is counted, which is no more than its quota."""
    quota = accounts.quota_of(tenants.owner, name)
    assert quota is not None
    return quota.waiting


def _operators(tenants: Tenants, mode: str) -> None:
    """A subscription of another login, which reads topics of two accounts and lags in one."""
    account(tenants.owner, "bank")
    MODES[mode](tenants.owner, "all", ["shop/orders", "bank/orders"])
    for _ in range(5):
        penstock.publish(tenants.owner, "bank/orders", b"x")
    log.sequence(tenants.owner)
    if mode == "queue":
        given = queue.receive(tenants.owner, "all", max_events=3)
        assert len(given) == 3
        queue.reject(tenants.owner, "all", [given[0].receipt], delay_seconds=60)


@proves("quotas of accounts")
@pytest.mark.parametrize("mode", MODES)
def test_what_waits_for_others_is_not_the_accounts(
    tenants: Tenants, shop: Account, mode: str
) -> None:
    """Its own three events are: in its queue, its stream, and the operator's subscription."""
    _operators(tenants, mode)
    accounts.set_quota(tenants.owner, "shop", max_waiting=4)
    assert _measure(tenants)[0] == 0
    accounts.set_quota(tenants.owner, "shop", max_waiting=3)
    assert _measure(tenants)[0] == 1
    assert _waits(tenants, "shop") == 3


@proves("quotas of accounts", guard="the look at the topic")
@pytest.mark.parametrize("mode", MODES)
def test_without_a_look_at_the_topic_others_count(
    db: ContractDatabase, tenants: Tenants, shop: Account, mode: str
) -> None:
    """Mutant: all that the subscription has is counted."""
    _operators(tenants, mode)
    accounts.set_quota(tenants.owner, "shop", max_waiting=4)
    assert _measure(tenants)[0] == 0
    db.without_guard(*_OF_TOPIC)
    assert _measure(tenants)[0] == 1


@proves("quotas of accounts")
def test_a_turn_looks_at_few_and_the_next_goes_on(tenants: Tenants, shop: Account) -> None:
    """The account has a queue and a stream; only both of them reach the limit."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=2)
    for _ in range(2):
        turns = [_measure(tenants, 1), _measure(tenants, 1)]
        assert turns[0][1] is True
        assert turns[1] == (1, False)
    account(tenants.owner, "bank")
    accounts.set_quota(tenants.owner, "bank", max_waiting=3)
    assert [_measure(tenants, 1)[1] for _ in range(4)].count(False) == 1
    accounts.set_quota(tenants.owner, "shop")
    assert _measure(tenants) == (0, False)


@proves("quotas of accounts", guard="the bound of a turn")
def test_without_its_bound_a_turn_looks_at_all(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=2)
    db.without_guard("count_for_account", "readers_left <= 0", "false")
    assert _measure(tenants, 1) == (1, False)


@proves("quotas of accounts")
def test_it_counts_no_further_than_the_limit(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Two events wait.  Mutant: it goes on."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=1)
    assert _measure(tenants) == (1, False)
    assert _waits(tenants, "shop") == 1
    name = "place.events" if db.engine == "postgres" else "found"
    db.without_guard("count_for_account", f"{name} >= most", "false")
    assert _measure(tenants) == (1, False)
    assert _waits(tenants, "shop") == 2


def test_who_counts_leaves_nobody_waiting(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Another session counts: this one does nothing."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=1)
    with db.connect() as other:
        database.execute(other, "BEGIN")
        database.execute(other, "SELECT * FROM penstock.accounts_counted FOR UPDATE")
        assert _measure(tenants) == (0, False)
        database.execute(other, "ROLLBACK")
    assert _measure(tenants) == (1, False)


@contextmanager
def _running(worker: workers.SequencerWorker | workers.AccountsWorker) -> Iterator[None]:
    """In a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


@proves("quotas of accounts")
def test_it_is_counted_beside_the_sequencer(
    db: ContractDatabase,
    tenants: Tenants,
    shop: Account,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a worker with a connection of its own, so no pass waits for it."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=1)
    called: list[str] = []
    call = database.call

    def noted(connection: Any, function: str, /, **binds: Any) -> Any:
        called.append(function)
        return call(connection, function, **binds)

    monkeypatch.setattr(database, "call", noted)
    monkeypatch.setattr(workers, "MEASURE_EVERY_SECONDS", 0.0)
    with _running(workers.SequencerWorker(db.url)):
        wait_until(lambda: called.count("measure_pressure") > 1, "two measurements")
    assert "measure_accounts" not in called
    assert _waits(tenants, "shop") is None
    with _running(workers.AccountsWorker(db.url)):
        wait_until(lambda: _waits(tenants, "shop") == 1, "the count")
