"""Events of many accounts in one transaction: each account is checked by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import accounts, database, log
from penstock.database import config
from penstock.errors import ActsForNobody
from penstock.publishing import known_topics
from penstock.publishing.for_accounts import AccountTopic, publish_for_accounts
from penstock.publishing.rows import row
from penstock.records import Message
from tests.contract.accounts.kit import Account, account, as_account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import Tenants, as_login, tenants_of
from tests.kit.proof import proves

Publish = tuple[str, str, str, dict[str, Any]]


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """The roles."""
    with tenants_of(db) as found:
        found.install()
        known_topics.clear()
        yield found


@pytest.fixture
def login(tenants: Tenants) -> str:
    """A gateway's."""
    return gateway(tenants)


def _publish(own: Any, *given: tuple[Account, str, bytes] | Any, **more: Any) -> list[int] | None:
    """Each is an account, a topic and a payload, or also a key's id and options."""
    lines: dict[AccountTopic, int] = {}
    events = []
    for who, topic, payload, *rest in given:
        key_id, options = rest or (who.key_id, {})
        number = lines.setdefault(AccountTopic(who.account_id, key_id, topic), len(lines))
        events.append((number, row(Message(topic, payload, **options))))
    return publish_for_accounts(own, list(lines), events)


def _texts(tenants: Tenants, name: str) -> list[bytes]:
    """What was published since the account was made."""
    log.sequence(tenants.owner)
    found = log.fetch(tenants.owner, f"{name}/orders", 0, 1, max_events=1_000)
    return [bytes(each.payload) for each in found][1:]


def test_accounts_share_a_transaction_and_keep_their_order(
    db: ContractDatabase, tenants: Tenants, shop: Account, bank: Account, login: str
) -> None:
    given = [
        (who, f"{who.name}/orders", b"%d" % number)
        for number in range(6)
        for who in (shop, bank)[: 1 + number % 2]
    ]
    with as_login(tenants, login) as own:
        assert _publish(own, *given) == []
    assert _texts(tenants, "shop") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert _texts(tenants, "bank") == [b"1", b"3", b"5"]
    if db.engine == "postgres":
        assert db.run("SELECT count(DISTINCT tx) FROM penstock.events") == [(3,)]


@proves("S22 of accounts")
def test_what_an_account_may_not_do_is_left_out_and_the_rest_is_published(
    db: ContractDatabase, tenants: Tenants, shop: Account, bank: Account, login: str
) -> None:
    """A topic or key that is foreign or missing, a revoked key, and events that are not good."""
    owner = tenants.owner
    accounts.revoke_key(owner, "bank", bank.key_id)
    penstock.create_topic(owner, "shop/limited")
    penstock.create_topic(owner, "shop/small", 2)
    database.call(owner, "set_backpressure", topic="shop/limited", max_events=9, max_bytes=None)
    refused = [
        (shop, "bank/orders", b"x"),
        (shop, "shop/none", b"x"),
        (bank, "bank/orders", b"x"),
        (shop, "shop/orders", b"x", bank.key_id, {}),
        (shop, "shop/orders", b"x", "0" * 24, {}),
        (Account("shop", "0" * 32, shop.key_id), "shop/orders", b"x"),
        (shop, "shop/limited", b"x"),
        (shop, "shop/small", b"x", shop.key_id, {"partition": 2}),
        (shop, "shop/orders", b"x" * 1_048_577),
    ]
    given: list[Any] = []
    for number, each in enumerate(refused):
        given += [(shop, "shop/orders", b"%d" % number), each]
    with as_login(tenants, login) as own:
        assert _publish(own, *given) == list(range(1, len(given), 2))
    assert _texts(tenants, "shop") == [b"%d" % number for number in range(len(refused))]
    assert db.run("SELECT count(*) FROM penstock.events") == [(2 + len(refused),)]


def test_nothing_at_all_may_be_good(tenants: Tenants, shop: Account, login: str) -> None:
    with as_login(tenants, login) as own:
        assert _publish(own, *[(shop, "bank/orders", b"x")] * 3) == [0, 1, 2]
        assert _publish(own, (shop, "shop/orders", b"x")) == []
    assert _texts(tenants, "shop") == [b"x"]


def test_quotas_count_and_bind(tenants: Tenants, shop: Account, bank: Account, login: str) -> None:
    """What was left out does not count."""
    accounts.set_quota(tenants.owner, "shop", max_events=1)
    mine, theirs = (shop, "shop/orders", b"xy"), (bank, "bank/orders", b"y")
    with as_login(tenants, login) as own:
        assert _publish(own, *[mine] * 9, (shop, "bank/orders", b"x"), theirs) == [9]
        used = accounts.quota_of(tenants.owner, "shop")
        assert used is not None
        assert (used.events, used.bytes) == (9, 18)
        assert _publish(own, mine, theirs) == []
        assert _publish(own, theirs, mine, theirs) == [1]
    assert len(_texts(tenants, "shop")) == 10
    assert len(_texts(tenants, "bank")) == 4


@pytest.mark.mariadb_differs("cursors over JSON_TABLE")
def test_what_was_not_written_is_not_charged(
    tenants: Tenants, shop: Account, bank: Account, login: str
) -> None:
    """An event that is too long, in a good topic.  One account may have several topics."""
    for name in ("shop", "bank"):
        accounts.set_quota(tenants.owner, name, max_events=9)
    penstock.create_topic(tenants.owner, "shop/more")
    long = (shop, "shop/orders", b"x" * 1_048_577)
    given = [
        *(long, (shop, "shop/orders", b"xy"), (bank, "bank/orders", b"z")),
        *((shop, "shop/more", b"abc"), (shop, "shop/orders", b"", shop.key_id, {"partition": 1})),
    ]
    with as_login(tenants, login) as own:
        assert _publish(own, *given) == [0, 4]
        assert _publish(own, long) == [0]
    used = [accounts.quota_of(tenants.owner, name) for name in ("shop", "bank")]
    assert [(each.events, each.bytes) for each in used if each] == [(2, 5), (1, 1)]


@proves("S22 of accounts")
def test_only_a_gateway_does_it(tenants: Tenants, shop: Account, login: str) -> None:
    """Not the owner, and not a gateway's login that has got another role."""
    with pytest.raises(ActsForNobody):
        _publish(tenants.owner, (shop, "shop/orders", b"x"))
    tenants.give_role(f"{config.schema_name()}_publisher", login)
    with as_login(tenants, login) as own, pytest.raises(ActsForNobody):
        _publish(own, (shop, "shop/orders", b"x"))
    assert _texts(tenants, "shop") == []


def test_not_in_a_transaction_that_acts_for_one(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str
) -> None:
    """On PostgreSQL; a procedure of MySQL does not look, and asks by the accounts it was given."""
    if db.engine == "postgres":
        with pytest.raises(ActsForNobody), as_account(tenants, login, shop) as own:
            _publish(own, (shop, "shop/orders", b"x"))


#: Of each check: the function and what is taken out, and who publishes what by which key.
CHECKS: dict[str, Guard] = {
    "the right": {
        "postgres": (
            "account_may_publish", "account_has_right(account, namespace_id, 'publish')", "true",
        ),
        "mysql": (
            "account_may_publish", "account_has_right(account, of_namespace, 'publish')", "TRUE",
        ),
    },
    "that the key is good": {
        "postgres": (
            "account_may_publish", "EXISTS (SELECT FROM good_keys(account, ARRAY[key_id]))", "true",
        ),
        "mysql": ("account_may_publish", "AND k.revoked_at IS NULL", ""),
    },
    "the quota": {
        "postgres": ("account_may_publish", "quota_problem(account) IS NULL", "true"),
        "mysql": ("account_may_publish", "SET may = problem IS NULL", "SET may = TRUE"),
    },
    "the count": {
        "postgres": (
            "publish_for_accounts", "PERFORM charge_lines(accounts, written, payloads);", "",
        ),
        "mysql": ("publish_for_accounts", "CALL charge_lines(`lines`, heads, blocks);", "DO 0;"),
    },
}  # fmt: skip


@proves("S22 of accounts", guard="each check of accounts that share a transaction")
@pytest.mark.parametrize("check", CHECKS)
def test_without_one_of_its_checks_it_publishes_too_much(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str, check: str
) -> None:
    """Mutants."""
    without(db, CHECKS[check])
    bank = account(tenants.owner, "bank")
    one = (shop, "shop/orders", b"x")
    if check == "the right":
        one = (shop, "bank/orders", b"x")
    elif check == "that the key is good":
        accounts.revoke_key(tenants.owner, "bank", bank.key_id)
        one = (bank, "bank/orders", b"x")
    else:
        accounts.set_quota(tenants.owner, "shop", max_events=1)
    with as_login(tenants, login) as own:
        for _ in range(2):
            assert _publish(own, *[one] * 10) == []


@proves("S22 of accounts", guard="each check of accounts that share a transaction")
def test_without_its_gate_any_login_does_it(
    db: ContractDatabase, tenants: Tenants, shop: Account
) -> None:
    """Mutant."""
    gate: Guard = {
        "postgres": ("publish_for_accounts", "PERFORM require_own_gateway();", ""),
        "mysql": ("publish_for_accounts", "IF problem IS NOT NULL THEN", "IF FALSE THEN"),
    }
    without(db, gate)
    assert _publish(tenants.owner, (shop, "shop/orders", b"x")) == []
