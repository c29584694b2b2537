"""Keys of accounts.  A secret is shown once, when its key is made, and is stored nowhere."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock import database
from penstock.accounts.masters import MasterKeys
from penstock.errors import InvalidArgument

#: The kinds of calls for which a key can be good.
LEVELS = {
    "r": "receive",
    "p": "publish",
    "u": "extend",
    "a": "acknowledge",
    "g": "describe",
    "c": "create",
    "d": "delete",
}


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key with its secret."""

    account: str
    account_id: str
    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is recorded; ``queue`` None: all queues of the account."""

    key_id: str
    version: int
    master: str
    levels: str
    queue: str | None
    starts_at: datetime
    ends_at: datetime | None
    created_at: datetime
    created_by: str
    revoked_at: datetime | None
    revoked_by: str | None
    uses: int
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class FoundKey:
    """What a gateway needs to check a caller; ``is_good``: not revoked, and within its time.

    ``max_requests`` is how many the account may have at a time; None: no limit.
    """

    account_id: str
    account: str
    version: int
    master: str
    levels: str
    queue: str | None
    starts_at: datetime
    ends_at: datetime | None
    max_requests: int | None
    is_good: bool


def create_key(
    connection: Any,
    account: str,
    masters: MasterKeys,
    *,
    levels: str = "rpuagcd",
    queue: str | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> NewKey:
    """Make a key.  InUse when the account has two already: revoke one first.

    ``levels`` are letters: r(eceive), p(ublish), u(pdate: extend), a(cknowledge), g(et:
    describe), c(reate), d(elete).
    """
    if not levels or set(levels) - LEVELS.keys():
        known = ", ".join(f"{letter} ({word})" for letter, word in LEVELS.items())
        raise InvalidArgument(f"there are no levels {levels!r}", hint=f"use letters of {known}")
    key_id = secrets.token_hex(12)
    rows = database.call(
        connection,
        "create_key",
        account=account,
        key_id=key_id,
        master=masters.newest,
        levels="".join(each for each in LEVELS if each in levels),
        queue=queue,
        starts_at=starts_at,
        ends_at=ends_at,
    )
    account_id, version = rows[0]
    secret = masters.secret(masters.newest, account_id, key_id, version)
    return NewKey(account, account_id, key_id, secret)


def revoke_key(connection: Any, account: str, key_id: str) -> bool:
    """End a key at once.  Returns whether it was good or would have been."""
    return bool(database.call(connection, "revoke_key", account=account, key_id=key_id)[0][0])


def find_key(connection: Any, key_id: str) -> FoundKey | None:
    """The key of this id; None when there is none."""
    rows = database.call(connection, "find_key", key_id=key_id)
    if not rows:
        return None
    found = list(rows[0])
    found[-1] = bool(found[-1])
    return FoundKey(*found)


def keys_of(connection: Any, account: str) -> list[Key]:
    """The keys of an account, the newest first."""
    return [Key(*row) for row in database.call(connection, "keys_of", account=account)]


def note_uses(connection: Any, uses: Mapping[str, int]) -> None:
    """Add to how often keys were used."""
    database.call(connection, "note_uses", key_ids=list(uses), uses=list(uses.values()))
