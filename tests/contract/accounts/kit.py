"""A gateway's login and two accounts, for the tests of accounts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import penstock
from penstock import accounts, database, log
from penstock.accounts import MasterKeys
from penstock.subscriptions import queue, stream
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import Tenants, as_login
from tests.postgres.topics.test_rights import ALLOWED

MASTERS = MasterKeys(["m" * 40])
#: Calls that are no way for an account to do something.
_NOT_TRIED = {"install_rights", "create_account", "delete_account"}
_EVERYTHING = "penstock_test_everything"


@dataclass(frozen=True, slots=True)
class Account:
    """An account and its key."""

    name: str
    account_id: str
    key_id: str


def account(owner: Any, name: str) -> Account:
    """A new account with a key, and a queue `<name>/orders` with one event."""
    made = accounts.create_account(owner, name)
    key = accounts.create_key(owner, name, MASTERS)
    topic = f"{name}/orders"
    penstock.create_topic(owner, topic)
    penstock.publish(owner, topic, topic.encode())
    queue.subscribe(owner, topic, [topic])
    stream.subscribe(owner, f"{name}/stream", [topic])
    log.sequence(owner)
    return Account(name, made, key.key_id)


def gateway(tenants: Tenants) -> str:
    """A login with the role gateway and nothing else, recorded as a gateway's."""
    login = tenants.login("gateway")
    database.call(tenants.owner, "record_gateway", login=login)
    return login


def may_call_everything(db: ContractDatabase, tenants: Tenants, login: str) -> None:
    """All functions, but for any role: then only the account keeps the login from something."""
    names = " ".join(_present(db) & ALLOWED.keys() - _NOT_TRIED)
    if db.engine == "postgres":
        tenants.give(login, names)
        return
    have = db.run(f"SELECT COUNT(*) FROM mysql.procs_priv WHERE User = '{_EVERYTHING}'")
    if have != [(len(names.split()),)]:
        db.run(f"DROP ROLE IF EXISTS `{_EVERYTHING}`")
        db.run(f"CREATE ROLE `{_EVERYTHING}`")
        tenants.give(_EVERYTHING, names)
    tenants.give_role(_EVERYTHING, login)
    word = "FOR" if db.engine == "mariadb" else "TO"
    db.run(f"SET DEFAULT ROLE `{_EVERYTHING}` {word} `{login}`")


def _present(db: ContractDatabase) -> set[str]:
    rows = db.run(
        "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'penstock'::regnamespace"
        if db.engine == "postgres"
        else "SELECT ROUTINE_NAME FROM information_schema.ROUTINES"
        " WHERE ROUTINE_SCHEMA = 'penstock' AND ROUTINE_TYPE = 'PROCEDURE'"
    )
    return {str(name) for (name,) in rows}


def act_as(own: Any, who: Account) -> None:
    """In the caller's transaction."""
    database.call(own, "act_as", account=who.account_id, key_ids=[who.key_id])


@contextmanager
def as_account(tenants: Tenants, login: str, who: Account) -> Iterator[Any]:
    """A connection in a transaction that acts for an account."""
    with as_login(tenants, login) as own, accounts.acting(own, who.account_id, [who.key_id]):
        yield own


@contextmanager
def open_transaction(own: Any) -> Iterator[None]:
    """A transaction that is rolled back."""
    database.execute(own, "BEGIN")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            database.execute(own, "ROLLBACK")
