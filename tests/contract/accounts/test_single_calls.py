"""A call that is a transaction of its own for an account: PostgreSQL does it in one statement."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import accounts, log
from penstock.accounts import Acting
from penstock.database import catalog
from penstock.errors import (
    AccountNotFound,
    ActsForNobody,
    PermissionDenied,
    SubscriptionNotFound,
)
from penstock.subscriptions import queue
from tests.contract.accounts.kit import Account, account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants, as_login, tenants_of
from tests.kit.proof import proves


@pytest.fixture
def tenants(db: ContractDatabase) -> Any:
    """Roles and logins."""
    with tenants_of(db) as made:
        made.install()
        yield made


def by(who: Account) -> Acting:
    return Acting(who.account_id, [who.key_id])


@proves("an account lasts for one transaction")
def test_a_single_call_acts_for_its_account_alone(tenants: Tenants, shop: Account) -> None:
    """What it does is there for others; the next statement acts for nobody."""
    account(tenants.owner, "bank")
    with as_login(tenants, gateway(tenants)) as own:
        for foreign in ("bank/orders", "none/orders"):
            with pytest.raises((PermissionDenied, SubscriptionNotFound)):
                queue.hand_out(own, foreign, 1, by=by(shop))
        (found,) = queue.hand_out(own, "shop/orders", 1, by=by(shop))
        with pytest.raises(ActsForNobody):
            queue.hand_out(own, "shop/orders", 1)
        assert queue.statistics(tenants.owner, "shop/orders").in_flight == 1
        assert queue.acknowledge(own, "shop/orders", [found.receipt], by=by(shop)) == [True]
        assert queue.statistics(tenants.owner, "shop/orders").size == 0
        stale = queue.acknowledge(own, "shop/orders", [found.receipt], partly=True, by=by(shop))
        assert stale == [False]


@proves("an account lasts for one transaction")
def test_a_single_call_is_refused_without_a_good_key(tenants: Tenants, shop: Account) -> None:
    """Nothing is handed out by it; the guard is act_as, which the statement cannot leave out."""
    accounts.revoke_key(tenants.owner, "shop", shop.key_id)
    with as_login(tenants, gateway(tenants)) as own:
        for keys in ([shop.key_id], ["x" * 24], []):
            with pytest.raises(AccountNotFound):
                queue.hand_out(own, "shop/orders", 1, by=Acting(shop.account_id, keys))
    assert queue.statistics(tenants.owner, "shop/orders").ready == 1


@proves("an account lasts for one transaction")
def test_the_account_is_named_in_the_argument_of_the_call() -> None:
    """Once, before the function begins; a statement without that argument would name nobody."""
    for name in ("receive", "acknowledge"):
        plain = catalog.statement("postgres", name)
        made = catalog.statement("postgres", name + catalog.FOR_ACCOUNT)
        assert made.text.count("act_as(") == 1
        assert made.text.index("act_as(") > made.text.index(f"penstock.{name}(")
        assert made.binds - plain.binds == {"account", "key_ids"}


def test_of_what_was_handed_out_together_each_receipt_has_its_own_answer(
    tenants: Tenants, shop: Account
) -> None:
    """The range is tried first; where a part of it is finished, each is looked at."""
    own = tenants.owner
    for payload in (b"2", b"3", b"4"):
        penstock.publish(own, "shop/orders", payload)
    log.sequence(own)
    held = [each.receipt for each in queue.hand_out(own, "shop/orders", 4)]
    while len(held) < 4:
        held += [each.receipt for each in queue.hand_out(own, "shop/orders", 4)]
    assert queue.acknowledge(own, "shop/orders", [held[1]], partly=True) == [True]
    assert queue.acknowledge(own, "shop/orders", held, partly=True) == [True, False, True, True]
    assert queue.acknowledge(own, "shop/orders", held, partly=True) == [False] * 4
