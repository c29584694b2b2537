"""Accounts, keys and rights: made, shown, used, ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import accounts, database, log
from penstock.accounts import MasterKeys, masters
from penstock.cli import main
from penstock.database import config
from penstock.errors import (
    AccountNotFound,
    AlreadyExists,
    InUse,
    InvalidArgument,
    NamespaceNotFound,
    NotInRole,
    PenstockError,
    TopicNotFound,
)
from penstock.publishing import known_topics
from penstock.topics import rights
from tests.contract.accounts.kit import MASTERS, account, as_account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants, as_login
from tests.kit.proof import proves


def test_two_keys_take_turns(tenants: Tenants) -> None:
    """A third one waits until one is revoked; an id never comes again."""
    owner = tenants.owner
    accounts.create_account(owner, "shop")
    first, second = (accounts.create_key(owner, "shop", MASTERS) for _ in range(2))
    assert first.secret != second.secret
    with pytest.raises(InUse):
        accounts.create_key(owner, "shop", MASTERS)
    assert accounts.revoke_key(owner, "shop", first.key_id)
    assert not accounts.revoke_key(owner, "shop", first.key_id)
    ends = datetime.now(UTC) + timedelta(days=1)
    third = accounts.create_key(
        owner, "shop", MASTERS, levels="pr", queue="shop/orders", ends_at=ends
    )
    assert accounts.keys_of(owner, "shop")[0].key_id == third.key_id
    accounts.revoke_key(owner, "shop", third.key_id)
    with pytest.raises(AlreadyExists):
        database.call(
            owner, "create_key", account="shop", key_id=first.key_id, master=MASTERS.newest,
            levels="p", queue=None, starts_at=None, ends_at=None,
        )  # fmt: skip


@proves("secrets of keys")
def test_what_a_gateway_finds_leads_to_the_secret(tenants: Tenants) -> None:
    owner = tenants.owner
    accounts.create_account(owner, "shop")
    key = accounts.create_key(owner, "shop", MASTERS, levels="rp", queue="shop/orders")
    with as_login(tenants, gateway(tenants)) as own:
        found = accounts.find_key(own, key.key_id)
        assert found is not None
        assert (found.account, found.levels, found.queue) == ("shop", "rp", "shop/orders")
        assert found.is_good
        secret = MASTERS.secret(found.master, found.account_id, key.key_id, found.version)
        assert secret == key.secret
        assert accounts.find_key(own, "x" * 24) is None
        accounts.note_uses(own, {key.key_id: 2, "x" * 24: 1})
        accounts.note_uses(own, {key.key_id: 3})
    (shown,) = accounts.keys_of(owner, "shop")
    assert shown.uses == 5
    assert shown.last_used_at is not None
    (listed,) = accounts.list_accounts(owner)
    assert (listed.account, listed.keys) == ("shop", 1)


@proves("secrets of keys")
def test_no_secret_is_in_the_database(db: ContractDatabase, tenants: Tenants) -> None:
    """Nor in the repr of a key, nor in what was done."""
    accounts.create_account(tenants.owner, "shop")
    key = accounts.create_key(tenants.owner, "shop", MASTERS)
    rows = [
        str(db.run(f"SELECT * FROM penstock.{table}"))
        for table in ("accounts", "account_keys", "account_uses", "account_audit")
    ]
    assert key.key_id in "".join(rows)
    assert key.secret not in "".join(rows) + repr(key)


@pytest.mark.parametrize(
    ("levels", "key_id", "hours"), [("px", "k" * 24, 1), ("p", "k" * 3, 1), ("p", "k" * 24, -1)]
)
def test_a_key_that_is_none_is_refused(
    tenants: Tenants, levels: str, key_id: str, hours: int
) -> None:
    accounts.create_account(tenants.owner, "shop")
    with pytest.raises(InvalidArgument):
        database.call(
            tenants.owner, "create_key", account="shop", key_id=key_id, master=MASTERS.newest,
            levels=levels, queue=None, starts_at=None,
            ends_at=datetime.now(UTC) + timedelta(hours=hours),
        )  # fmt: skip


def test_an_account_over_an_existing_namespace_says_who_keeps_what(tenants: Tenants) -> None:
    """Else the logins that work there would be locked out by the first right."""
    owner = tenants.owner
    penstock.create_topic(owner, "shop/orders", create_namespaces=True)
    kept, other = tenants.login("publisher"), tenants.login("publisher")
    with pytest.raises(InUse):
        accounts.create_account(owner, "shop")
    with as_login(tenants, other) as own:
        penstock.publish(own, "shop/orders", b"x")
    for bad in ([(kept, "nonsense")], [("nobody at all " * 20, "publish")]):
        with pytest.raises(InvalidArgument):
            accounts.create_account(owner, "shop", keep=bad)
    accounts.create_account(owner, "shop", keep=[(kept, "publish")])
    with pytest.raises(AlreadyExists):
        accounts.create_account(owner, "shop", keep=[])
    for login, may in ((kept, True), (other, False)):
        with as_login(tenants, login) as own:
            known_topics.clear()
            if may:
                penstock.publish(own, "shop/orders", b"x")
            else:
                with pytest.raises(TopicNotFound):
                    penstock.publish(own, "shop/orders", b"x")
    assert {(each.login, each.verb, each.kind) for each in rights.grants_of(owner, "shop")} == {
        (kept, "publish", "role"),
        ("shop", "operate", "account"),
    }


def test_a_deleted_account_leaves_a_closed_namespace(tenants: Tenants) -> None:
    """It says first what there is; then the key ends, and nothing else."""
    owner = tenants.owner
    shop = account(owner, "shop")
    carrier = gateway(tenants)
    held = accounts.delete_account(owner, "shop")
    assert (held.keys, held.topics, held.queues, held.streams) == (1, 1, 1, 1)
    with as_account(tenants, carrier, shop) as own:
        assert log.fetch(own, "shop/orders", 0, 1)
    assert accounts.delete_account(owner, "shop", confirmed=True) == held
    with pytest.raises(AccountNotFound), as_account(tenants, carrier, shop):
        pass
    with pytest.raises(AccountNotFound):
        accounts.keys_of(owner, "shop")
    assert log.fetch(owner, "shop/orders", 0, 1), "the events stay"
    with as_login(tenants, tenants.login("consumer")) as own, pytest.raises(TopicNotFound):
        log.fetch(own, "shop/orders", 0, 1)
    again = accounts.create_account(owner, "shop", keep=[])
    assert again != shop.account_id
    assert [each.action for each in accounts.audit_of(owner, "shop")] == [
        *("create account", "delete account", "create key", "create account"),
    ]


def test_the_namespace_of_an_account_stays_its_own(tenants: Tenants) -> None:
    """Renamed it gives the account another name; it is neither moved nor deleted."""
    owner = tenants.owner
    shop = account(owner, "shop")
    penstock.create_namespace(owner, "team")
    with pytest.raises(InUse):
        penstock.move_namespace(owner, "shop", "team")
    with pytest.raises(InUse):
        penstock.delete_namespace(owner, "shop", with_topics=True)
    penstock.rename_namespace(owner, "shop", "store")
    assert [(each.account, each.account_id) for each in accounts.list_accounts(owner)] == [
        ("store", shop.account_id)
    ]


def test_the_role_accounts_makes_accounts_and_reads_nothing(tenants: Tenants) -> None:
    """And the role gateway makes none."""
    with as_login(tenants, tenants.login("accounts")) as own:
        accounts.create_account(own, "shop")
        accounts.create_key(own, "shop", MASTERS)
        penstock.create_topic(tenants.owner, "bank/orders", create_namespaces=True)
        accounts.grant_account(own, "shop", "bank", "read")
        with pytest.raises(InUse):
            accounts.revoke_account(own, "shop", "bank", "read")
        assert accounts.revoke_account(own, "shop", "bank", "read", unrestrict=True)
        assert not accounts.revoke_account(own, "shop", "bank", "read", unrestrict=True)
        with pytest.raises(NamespaceNotFound):
            accounts.grant_account(own, "shop", "nobody", "read")
        calls: list[Any] = [
            lambda: log.fetch(own, "bank/orders", 0, 1),
            lambda: penstock.publish(own, "bank/orders", b"x"),
        ]
        for call in calls:
            known_topics.clear()
            with pytest.raises(NotInRole):
                call()
    with as_login(tenants, gateway(tenants)) as own, pytest.raises(NotInRole):
        accounts.create_account(own, "bank")


def test_rights_grant_records_a_gateway(tenants: Tenants) -> None:
    """And revoke forgets it; a login with other rights is refused before it gets the role."""
    login, other = tenants.login(), tenants.login("consumer")
    rights.add_member(tenants.owner, "gateway", login)
    with as_login(tenants, login) as own:
        accounts.check_gateway(own)
    with pytest.raises(InvalidArgument):
        rights.add_member(tenants.owner, "gateway", other)
    rights.remove_member(tenants.owner, "gateway", login)
    with pytest.raises(PenstockError), as_login(tenants, login) as own:
        accounts.check_gateway(own)


def test_the_command(
    db: ContractDatabase,
    tenants: Tenants,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each sub-command; the secret is written once."""
    monkeypatch.setenv(config.URL_VARIABLE, db.url)
    monkeypatch.setenv(masters.VARIABLE, "m" * 40)
    monkeypatch.delenv(masters.FILE_VARIABLE, raising=False)

    def run(*arguments: str, code: int = 0) -> str:
        assert main.run(["account", *arguments]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    run("create", "shop")
    made = json.loads(run("key", "create", "shop", "--levels", "rp", "--output", "json"))
    key_id, secret = made["key_id"], made["secret"]
    found = accounts.find_key(tenants.owner, key_id)
    assert found is not None
    assert MasterKeys(["m" * 40]).is_secret(secret, found.master, found.account_id, key_id, 1)
    assert secret not in run("show", "shop") + run("show", "shop", "--output", "json")
    assert "shop" in run("list")
    penstock.create_namespace(tenants.owner, "bank")
    assert "--keep LOGIN:VERB" in run("create", "bank", code=2)
    run("create", "bank", "--keep", f"{tenants.somebody}:publish")
    run("grant", "shop", "bank", "read")
    run("revoke", "shop", "bank", "read")
    run("revoke", "shop", "bank", "read", code=1)
    run("key", "revoke", "shop", key_id)
    run("key", "revoke", "shop", key_id, code=1)
    assert re.search("nothing was changed", run("delete", "shop"))
    assert "shop" in run("list")
    run("delete", "shop", "--yes")
    assert "shop" not in run("list")
    run("create", "store", "--keep", "no verb", code=2)
