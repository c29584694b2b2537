"""The calls of the admin port for programs: accounts, keys, rights, and what was done to them.

They need `Authorization: Bearer KEY`, with the key of the page, and no cookie: so no form of
another page can make them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from consumers.gateway.pages.accounts import grants_of, masters_of
from consumers.gateway.pages.readings import CannotRead
from consumers.gateway.pages.visits import House, Problem, values_of
from penstock import accounts
from penstock.errors import (
    AccountNotFound,
    AlreadyExists,
    InUse,
    NamespaceNotFound,
    PermissionDenied,
    UsageError,
)
from penstock.records import as_time
from penstock.upkeep.pages import PageAnswer, PageRequest

PREFIX = "/api/v1/"
_JSON = "application/json"
_READS = "GET"


@dataclass(frozen=True, slots=True)
class AdminCall:
    """One call: names of the path, the query or the JSON of the body."""

    house: House
    names: Mapping[str, str]
    given: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> Any:
        """A text that was given; a default of None means that it has to be."""
        found = self.given.get(name, default)
        if not isinstance(found, str):
            raise Problem(400, f"{name} is missing, or no text")
        return found

    def optional(self, name: str) -> str | None:
        """A text or null."""
        return None if self.given.get(name) is None else str(self.text(name))

    def time(self, name: str) -> datetime | None:
        """A time as text, or null; without a zone it is in UTC."""
        found = self.optional(name)
        try:
            return None if found is None else as_time(datetime.fromisoformat(found))
        except ValueError:
            raise Problem(400, f"{name} is no time: write 2026-01-31T12:00:00Z") from None

    def keep(self) -> list[tuple[str, str]] | None:
        """Which rights stay in a namespace that exists: a list of [login, verb], or null."""
        found = self.given.get("keep")
        if found is None:
            return None
        if not isinstance(found, list) or not all(_is_pair(each) for each in found):
            raise Problem(400, "keep is a list of [login, verb]")
        return [(login, verb) for login, verb in found]


def _is_pair(given: object) -> bool:
    return isinstance(given, list) and [type(each) for each in given] == [str, str]


Work = Callable[[AdminCall, Any], tuple[int, Any]]


def _list(_: AdminCall, connection: Any) -> tuple[int, Any]:
    return 200, {"accounts": accounts.list_accounts(connection)}


def _create(call: AdminCall, connection: Any) -> tuple[int, Any]:
    name = call.text("account")
    made = accounts.create_account(connection, name, keep=call.keep())
    return 201, {"account": name, "account_id": made}


def _holdings(call: AdminCall, connection: Any) -> tuple[int, Any]:
    return 200, accounts.delete_account(connection, call.names["account"])


def _delete(call: AdminCall, connection: Any) -> tuple[int, Any]:
    return 200, accounts.delete_account(connection, call.names["account"], confirmed=True)


def _keys(call: AdminCall, connection: Any) -> tuple[int, Any]:
    return 200, {"keys": accounts.keys_of(connection, call.names["account"])}


def _create_key(call: AdminCall, connection: Any) -> tuple[int, Any]:
    made = accounts.create_key(
        connection,
        call.names["account"],
        masters_of(call.house.masters),
        levels=call.text("levels", "rpuagcd"),
        queue=call.optional("queue"),
        starts_at=call.time("starts_at"),
        ends_at=call.time("ends_at"),
    )
    return 201, {"key_id": made.key_id, "secret": made.secret}


def _revoke_key(call: AdminCall, connection: Any) -> tuple[int, Any]:
    was_good = accounts.revoke_key(connection, call.names["account"], call.names["key"])
    return 200, {"revoked": was_good}


def _grants(call: AdminCall, connection: Any) -> tuple[int, Any]:
    accounts.keys_of(connection, call.names["account"])  # or there is no such account
    found = grants_of(connection, call.names["account"])
    if found is None:
        raise Problem(403, "the login of this page may not see rights")
    return 200, {"grants": [(each.namespace, each.verb) for each in found]}


def _grant(call: AdminCall, connection: Any) -> tuple[int, Any]:
    namespace, verb = call.text("namespace"), call.text("verb")
    accounts.grant_account(connection, call.names["account"], namespace, verb)
    return 200, {"namespace": namespace, "verb": verb}


def _revoke(call: AdminCall, connection: Any) -> tuple[int, Any]:
    was_there = accounts.revoke_account(
        connection,
        call.names["account"],
        call.text("namespace"),
        call.text("verb"),
        unrestrict=call.given.get("unrestrict") == "true",
    )
    return 200, {"revoked": was_there}


def _audit(call: AdminCall, connection: Any) -> tuple[int, Any]:
    return 200, {"audit": accounts.audit_of(connection, call.text("account", ""))}


#: Method and path of each call.
CALLS: dict[tuple[str, str], Work] = {
    ("GET", "accounts"): _list,
    ("POST", "accounts"): _create,
    ("GET", "accounts/{account}"): _holdings,
    ("DELETE", "accounts/{account}"): _delete,
    ("GET", "accounts/{account}/keys"): _keys,
    ("POST", "accounts/{account}/keys"): _create_key,
    ("DELETE", "accounts/{account}/keys/{key}"): _revoke_key,
    ("GET", "accounts/{account}/grants"): _grants,
    ("POST", "accounts/{account}/grants"): _grant,
    ("DELETE", "accounts/{account}/grants"): _revoke,
    ("GET", "audit"): _audit,
}


def answer(house: House, request: PageRequest) -> PageAnswer:
    """The answer to a call by somebody who has shown the key."""
    try:
        work, names = _found(request)
        if request.method != _READS and not house.settings.writes:
            raise Problem(403, "this page only reads: start the gateway with --page write")
        call = AdminCall(house, names, _given(request))
        status, value = house.readings.change(lambda connection: work(call, connection))
        return _as_json(status, value)
    except CannotRead as error:
        return refused(Problem(_status(error.__cause__), str(error)))
    except Problem as problem:
        return refused(problem)


def refused(problem: Problem) -> PageAnswer:
    """The answer to a call that was refused."""
    told = _as_json(problem.status, {"message": problem.message})
    return PageAnswer(told.status, told.body, told.content_type, problem.headers)


def _found(request: PageRequest) -> tuple[Work, dict[str, str]]:
    given = [unquote(each) for each in request.path.removeprefix(PREFIX).split("/")]
    for (method, path), work in CALLS.items():
        wanted = path.split("/")
        pairs = list(zip(wanted, given, strict=False))
        if (
            method == request.method
            and len(wanted) == len(given)
            and all(name.startswith("{") or name == value for name, value in pairs)
        ):
            return work, {name.strip("{}"): value for name, value in pairs if name[0] == "{"}
    raise Problem(404, "there is no such call")


def _given(request: PageRequest) -> Mapping[str, Any]:
    if request.method != "POST":
        return values_of(request.query)
    try:
        found = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        raise Problem(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise Problem(400, "the body is no object")
    return found


def _status(error: BaseException | None) -> int:
    if isinstance(error, AccountNotFound | NamespaceNotFound):
        return 404
    if isinstance(error, AlreadyExists | InUse):
        return 409
    if isinstance(error, PermissionDenied):
        return 403
    return 400 if isinstance(error, UsageError) else 503


def _as_json(status: int, value: Any) -> PageAnswer:
    return PageAnswer(status, json.dumps(value, default=_plain).encode(), _JSON)


def _plain(value: Any) -> Any:
    return as_time(value).isoformat() if isinstance(value, datetime) else asdict(value)
