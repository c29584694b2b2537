"""Accounts and keys: age, last use, rights, what was done to them; make, revoke, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consumers.gateway.pages.overview import part_of
from consumers.gateway.pages.showing import link
from consumers.gateway.pages.visits import PageRoute, Problem, Visit, redirect
from penstock import accounts
from penstock.accounts import Account, AuditEntry, Key, MasterKeys
from penstock.errors import AccountNotFound, PermissionDenied
from penstock.topics import rights
from penstock.topics.rights import Grant
from penstock.upkeep.pages import PageAnswer

MOST_KEYS = 100
MOST_AUDITED = 100
_ALL_LEVELS = "rpuagcd"


@dataclass(frozen=True, slots=True)
class AccountFigures:
    """An account with its keys and rights; rights are None for a login that may not see them."""

    account: Account
    keys: list[Key]
    more_keys: int
    grants: list[Grant] | None
    audit: list[AuditEntry]


def index(visit: Visit) -> PageAnswer:
    """All accounts."""
    after = visit.text("after")
    found = visit.read(
        ("accounts", after), lambda c: part_of(accounts.list_accounts(c), after, "account")
    )
    return visit.show("accounts.html", "Accounts", found=found)


def create(visit: Visit) -> PageAnswer:
    """Make an account and its namespace."""
    name = visit.needed("account")
    keep: list[tuple[str, str]] | None = [] if visit.text("keep_nobody") else None
    visit.change(lambda c: accounts.create_account(c, name, keep=keep))
    return redirect(link("/account", account=name))


def account(visit: Visit) -> PageAnswer:
    """One account."""
    name = visit.needed("account")
    found = visit.read(("account", name), lambda c: figures_of(c, name))
    return visit.show("account.html", name, name=name, found=found, levels=_ALL_LEVELS)


def figures_of(connection: Any, name: str) -> AccountFigures:
    """What there is to tell of an account.  AccountNotFound when there is none."""
    keys = accounts.keys_of(connection, name)
    there = [each for each in accounts.list_accounts(connection) if each.account == name]
    if not there:
        raise AccountNotFound(f"there is no account {name!r}")
    return AccountFigures(
        there[0],
        keys[:MOST_KEYS],
        max(0, len(keys) - MOST_KEYS),
        grants_of(connection, name),
        accounts.audit_of(connection, name, most=MOST_AUDITED),
    )


def grants_of(connection: Any, name: str) -> list[Grant] | None:
    """The rights of an account; None for a login that may not see rights."""
    try:
        found = rights.grants_of(connection)
    except PermissionDenied:
        return None
    return [each for each in found if (each.kind, each.login) == ("account", name)]


def masters_of(visit_masters: MasterKeys | None) -> MasterKeys:
    """The master keys, from which the secret of a key comes."""
    if visit_masters is None:
        raise Problem(409, "there is no master key here")
    return visit_masters


def create_key(visit: Visit) -> PageAnswer:
    """Make a key, and show its secret, once."""
    name, masters = visit.needed("account"), masters_of(visit.house.masters)
    made = visit.change(
        lambda c: accounts.create_key(
            c,
            name,
            masters,
            levels=visit.text("levels") or _ALL_LEVELS,
            queue=visit.text("queue") or None,
            ends_at=visit.time("ends"),
        )
    )
    return visit.show("key.html", f"A key of {name}", name=name, made=made)


def revoke_key(visit: Visit) -> PageAnswer:
    """End a key at once."""
    name, key_id = visit.needed("account"), visit.needed("key")
    if not visit.change(lambda c: accounts.revoke_key(c, name, key_id)):
        raise Problem(409, "this key is not there, or was not good any more")
    return redirect(link("/account", account=name))


def grant(visit: Visit) -> PageAnswer:
    """Give a right."""
    name, namespace, verb = (visit.needed(each) for each in ("account", "namespace", "verb"))
    visit.change(lambda c: accounts.grant_account(c, name, namespace, verb))
    return redirect(link("/account", account=name))


def revoke(visit: Visit) -> PageAnswer:
    """Take a right back."""
    name, namespace, verb = (visit.needed(each) for each in ("account", "namespace", "verb"))
    visit.change(lambda c: accounts.revoke_account(c, name, namespace, verb))
    return redirect(link("/account", account=name))


def confirm_delete(visit: Visit) -> PageAnswer:
    """What there is in the account's namespace, before anything is done."""
    name = visit.needed("account")
    found = visit.read(("holdings", name), lambda c: accounts.delete_account(c, name))
    return visit.show("account_delete.html", f"Delete {name}", name=name, found=found)


def delete(visit: Visit) -> PageAnswer:
    """Delete an account, whose name was typed."""
    name = visit.needed("account")
    if visit.text("typed") != name:
        raise Problem(400, "type the name of the account to delete it")
    visit.change(lambda c: accounts.delete_account(c, name, confirmed=True))
    return redirect("/accounts")


ROUTES = (
    PageRoute("/accounts", index),
    PageRoute("/accounts", create, is_write=True),
    PageRoute("/account", account),
    PageRoute("/account/key", create_key, is_write=True),
    PageRoute("/account/key/revoke", revoke_key, is_write=True),
    PageRoute("/account/grant", grant, is_write=True),
    PageRoute("/account/revoke", revoke, is_write=True),
    PageRoute("/account/delete", confirm_delete),
    PageRoute("/account/delete", delete, is_write=True),
)
