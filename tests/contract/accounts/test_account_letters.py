"""Where dead letters go on to, when an account has said so: its rights count, whoever buries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import accounts, database, log
from penstock.errors import InUse, NotRedriven
from penstock.subscriptions import dead_letters, forwarding, queue
from penstock.topics import names, rights
from tests.contract.accounts.kit import Account, account, as_account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import Tenants, as_login, tenants_of
from tests.kit import queue as kit
from tests.kit.proof import proves

QUEUE, DEAD, OPEN = "shop/orders", "shop/dead", "open/dead"
#: Whoever carries out the burial is asked, instead of who has named the topic.
WHO: Guard = {
    "postgres": (
        "principal_may",
        "account_has_right(substr(who, 9), topic",
        "has_right(topic",
    ),
    "mysql": (
        "principal_may",
        "account_has_right(SUBSTR(who, 9), asked_in",
        "has_right(asked_in",
    ),
}
#: An account is asked like a login.
KIND: Guard = {
    "postgres": ("principal_may", "IF starts_with(who, 'account:') THEN", "IF false THEN"),
    "mysql": ("principal_may", "IF LEFT(who, 8) = 'account:' THEN", "IF FALSE THEN"),
}
DELETED: Guard = {
    "postgres": ("principal_may", "WHERE a.id = substr(who, 9)", "WHERE true"),
    "mysql": ("principal_may", "WHERE a.id = SUBSTR(who, 9)", "WHERE TRUE"),
}


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """The roles, a topic outside of the account's namespace, and another account."""
    with tenants_of(db) as found:
        found.install()
        penstock.create_topic(found.owner, OPEN, create_namespaces=True)
        account(found.owner, "bank")
        yield found


@pytest.fixture
def shop(tenants: Tenants) -> Account:
    """An account; the first rejection of an event in its queue buries it."""
    made = account(tenants.owner, "shop")
    penstock.create_topic(tenants.owner, DEAD)
    queue.configure(tenants.owner, QUEUE, max_failures=1)
    return made


def _named(tenants: Tenants, shop: Account, topic: str = DEAD, of: str = QUEUE) -> None:
    """The account names a topic for its dead letters."""
    with as_account(tenants, gateway(tenants), shop) as own:
        assert forwarding.set_dead_letters_to(own, of, topic)


def _bury(own: Any, of: str = QUEUE) -> None:
    rows = database.call_events(
        own, "receive", subscription=of, max_events=1, visibility_seconds=None
    )
    receipts = kit.receipts(queue._deliveries(rows))
    assert queue.reject(own, of, receipts, reason="no", delay_seconds=0)


def _letter(tenants: Tenants, of: str = QUEUE) -> dead_letters.DeadLetter:
    (letter,) = dead_letters.dead_letters(tenants.owner, of)
    return letter


def test_an_account_forwards_within_its_walls(tenants: Tenants, shop: Account) -> None:
    """By itself alone, from the burial to the way back, and shown as an account's."""
    _named(tenants, shop)
    (shown,) = [each for each in rights.grants_of(tenants.owner) if each.topic]
    assert (shown.kind, shown.login, shown.topic, shown.subscription) == (
        *("account", "shop"),
        *(DEAD, QUEUE),
    )
    login = gateway(tenants)
    with as_account(tenants, login, shop) as own:
        _bury(own)
        queue.subscribe(own, "shop/hospital", [DEAD])
    log.sequence(tenants.owner)
    (copy,) = queue.receive(tenants.owner, "shop/hospital")
    with as_account(tenants, login, shop) as own:
        assert forwarding.move(own, "shop/hospital", [copy.receipt]) == 1
    assert dead_letters.dead_letters(tenants.owner, QUEUE) == []


def _lost(tenants: Tenants, shop: Account, verb: str, namespace: str = "bank") -> str:
    """The account has lost a right in another namespace before the burial: what the letter says."""
    owner = tenants.owner
    accounts.grant_account(owner, "shop", namespace, verb)
    if verb == "consume":
        with as_account(tenants, gateway(tenants), shop) as own:
            queue.subscribe(own, "shop/theirs", [f"{namespace}/orders"])
            queue.configure(own, "shop/theirs", max_failures=1)
        _named(tenants, shop, of="shop/theirs")
    else:
        _named(tenants, shop, OPEN if namespace == "open" else f"{namespace}/orders")
    assert accounts.revoke_account(owner, "shop", namespace, verb, unrestrict=True)
    name = "shop/theirs" if verb == "consume" else QUEUE
    _bury(owner, name)
    return str(_letter(tenants, name).not_forwarded)


@proves("S22 of accounts")
def test_an_account_that_lost_the_right_to_publish(tenants: Tenants, shop: Account) -> None:
    assert "may no longer publish" in _lost(tenants, shop, "publish")


@proves("S22 of accounts")
def test_an_account_that_lost_the_right_to_consume(tenants: Tenants, shop: Account) -> None:
    assert "may not consume" in _lost(tenants, shop, "consume")


@proves("S22 of accounts", guard="whose rights a burial asks")
def test_without_asking_the_account_it_goes_on(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant: the owner, who buries, may do everything."""
    without(db, WHO)
    assert _lost(tenants, shop, "publish") == "None"


def test_an_open_namespace_is_closed_to_an_account(tenants: Tenants, shop: Account) -> None:
    """Its last right in it went, and all logins may publish there again."""
    assert "may no longer publish" in _lost(tenants, shop, "publish", "open")


@proves("S22 of accounts", guard="whose rights a burial asks")
def test_an_account_asked_like_a_login_has_what_is_open(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant: it may publish there; what it is refused then is another right."""
    without(db, KIND)
    assert "may not consume" in _lost(tenants, shop, "publish", "open")


def test_who_uses_a_topic_is_not_named_to_an_account_that_may_not_know(
    tenants: Tenants, shop: Account
) -> None:
    """A foreign reader, and a foreign queue whose dead letters go there.  Guard: reads_hidden."""
    owner = tenants.owner
    queue.subscribe(owner, "bank/secret", ["bank/orders", QUEUE])
    forwarding.set_dead_letters_to(owner, "bank/orders", DEAD)
    own_queue = [QUEUE, "shop/stream"]
    for name in own_queue:
        penstock.subscriptions.stream.unsubscribe(owner, name)
    for topic in (QUEUE, DEAD):
        with (
            as_account(tenants, gateway(tenants), shop) as own,
            pytest.raises(InUse, match="a subscription of somebody else") as caught,
        ):
            names.delete_topic(own, topic)
        assert "bank" not in str(caught.value)
        with pytest.raises(InUse, match="bank/"):
            names.delete_topic(owner, topic)


def test_a_way_back_that_is_refused_waits_for_no_foreign_letter(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Guard: with_hidden of lock_letters_of."""
    owner, login = tenants.owner, gateway(tenants)
    forwarding.set_dead_letters_to(owner, "bank/orders", DEAD)
    queue.configure(owner, "bank/orders", max_failures=1)
    queue.subscribe(owner, "shop/hospital", [DEAD])
    _bury(owner, "bank/orders")
    log.sequence(owner)
    (copy,) = queue.receive(owner, "shop/hospital")
    holder = db.connect(autocommit=False)
    database.execute(holder, "SELECT 1 FROM penstock.dead_letters FOR UPDATE")
    with as_account(tenants, login, shop) as own, pytest.raises(NotRedriven):
        forwarding.move(own, "shop/hospital", [copy.receipt])
    holder.rollback()


@proves("S22 of accounts")
def test_another_logins_worker_buries_for_the_account(tenants: Tenants, shop: Account) -> None:
    """It may only consume; the copy is published by the account's right."""
    _named(tenants, shop)
    worker = tenants.login("consumer")
    rights.grant_namespace(tenants.owner, "shop", worker, "consume")
    with as_login(tenants, worker) as own:
        _bury(own)
    assert _letter(tenants).forwarded_to == DEAD


def test_an_account_buries_for_the_login_that_has_named_the_topic(
    tenants: Tenants, shop: Account
) -> None:
    """The reverse: the account has no right where the login may publish."""
    named_by = tenants.login("consumer publisher")
    rights.grant_namespace(tenants.owner, "shop", named_by, "consume")
    with as_login(tenants, named_by) as own:
        assert forwarding.set_dead_letters_to(own, QUEUE, OPEN)
    with as_account(tenants, gateway(tenants), shop) as own:
        _bury(own)
        (seen,) = dead_letters.dead_letters(own, QUEUE)
        assert (seen.forwarded_to, seen.forwarded_as is None) == (None, False)
    assert _letter(tenants).forwarded_to == OPEN


def _after_its_end(tenants: Tenants, shop: Account) -> str | None:
    _named(tenants, shop)
    accounts.delete_account(tenants.owner, "shop", confirmed=True)
    _bury(tenants.owner)
    return _letter(tenants).not_forwarded


def test_a_deleted_account_forwards_nothing(tenants: Tenants, shop: Account) -> None:
    """Guard: its rights stay, to keep the namespace closed, and give nobody anything."""
    assert "may no longer publish" in str(_after_its_end(tenants, shop))


@proves("S22 of accounts", guard="whose rights a burial asks")
def test_without_that_a_deleted_account_goes_on(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant."""
    without(db, DELETED)
    assert _after_its_end(tenants, shop) is None
