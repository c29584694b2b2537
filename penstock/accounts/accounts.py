"""Accounts and their rights: create, delete, list, grant, revoke, and what was done to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.topics import validation


@dataclass(frozen=True, slots=True)
class Account:
    """An account; ``keys`` is how many of its keys are good now."""

    account: str
    account_id: str
    created_at: datetime
    created_by: str
    keys: int
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What there is in an account's namespace and below it, and its keys that are not over."""

    keys: int
    topics: int
    queues: int
    streams: int
    leases: int
    dead_letters: int
    holds: int
    copies: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to an account, its keys or its rights."""

    at: datetime
    by: str
    account: str
    account_id: str
    action: str
    detail: str


def create_account(
    connection: Any, account: str, *, keep: Iterable[tuple[str, str]] | None = None
) -> str:
    """Make an account and its namespace of the same name.  Returns the account's id.

    The namespace is closed to all logins from then on.  So InUse when it exists already, unless
    ``keep`` says which logins or roles keep which rights there: pairs of name and verb, or none.
    """
    validation.single_name(account, "account")
    pairs = None if keep is None else json.dumps([[login, verb] for login, verb in keep])
    return str(database.call(connection, "create_account", account=account, keep=pairs)[0][0])


def delete_account(connection: Any, account: str, *, confirmed: bool = False) -> Holdings:
    """Delete an account when ``confirmed``; else only return what there is in its namespace.

    Its keys end at once.  Topics, events, queues, streams, holds and archived copies stay.  The
    namespace stays closed: only logins that pass the walls reach it.
    """
    rows = database.call(connection, "delete_account", account=account, confirmed=confirmed)
    return Holdings(*map(int, rows[0]))


def list_accounts(connection: Any) -> list[Account]:
    """All accounts, by name."""
    return [Account(*row) for row in database.call(connection, "list_accounts")]


def grant_account(connection: Any, account: str, namespace: str, verb: str) -> None:
    """Give an account a right in a namespace and below it.  The verbs are those of logins."""
    validation.namespace(namespace)
    database.call(connection, "grant_account", account=account, namespace=namespace, verb=verb)


def revoke_account(
    connection: Any, account: str, namespace: str, verb: str, *, unrestrict: bool = False
) -> bool:
    """Take a right of an account back.  Returns whether it was there.

    InUse for the last right of a namespace, unless ``unrestrict``: without any right the namespace
    is open to all logins.
    """
    validation.namespace(namespace)
    binds = {"account": account, "namespace": namespace, "verb": verb, "unrestrict": unrestrict}
    return bool(database.call(connection, "revoke_account", **binds)[0][0])


def audit_of(connection: Any, account: str = "", *, most: int = 100) -> list[AuditEntry]:
    """What was done to an account, or to all of them, the newest first."""
    rows = database.call(connection, "audit_of", account=account, most=most)
    return [AuditEntry(*row) for row in rows]
