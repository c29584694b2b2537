"""A missing right of a login, as a typed error that says which role the login needs.

Only rights in Penstock's own schema count.  Other refusals are left to the application.
"""

from __future__ import annotations

import re
from functools import cache

from penstock.database import catalog
from penstock.driver_errors import driver_error, errno_of, sqlstate_of
from penstock.errors import NotInRole, PenstockError

_POSTGRES_DENIED, _POSTGRES_NO_OBJECT = "42501", "42704"
_MYSQL_DATABASE, _MYSQL_ROUTINE = 1044, 1370
_MARIADB_NO_ROLE, _MYSQL_NO_ROLE = 1959, 3523
#: PostgreSQL's message, for example "permission denied for function publish".
_REFUSED = re.compile(r"permission denied for (schema|function|procedure|table|sequence) \"?(\w+)")
_ACCOUNT = re.compile(r" (?:to|for) user ['`][^'`]*['`](?:@['`][^'`]*['`])?")
_RANK = {"accounts": 1, "operator": 2, "gateway": 3}
_LISTED = re.compile(r"'(\w+)'(?: AS role)?, '([^']*)'")


def translated(error: BaseException, schema: str) -> PenstockError | None:
    """The typed error for a missing right or role of Penstock's; None for every other error."""
    number = errno_of(error)
    state = None if number is not None else sqlstate_of(error)
    said = str(driver_error(error).args[-1] if number else driver_error(error)).strip()
    first = said.splitlines()[0] if said else ""
    if state == _POSTGRES_NO_OBJECT or number in {_MARIADB_NO_ROLE, _MYSQL_NO_ROLE}:
        return _no_role(first, schema)
    if state == _POSTGRES_DENIED:
        found = _REFUSED.search(first)
        kind, name = (found[1], found[2]) if found else ("", "")
        ours = name == schema if kind == "schema" else name in _functions("postgres")
        return _refused(first, schema, "postgres", name) if ours else None
    if number in {_MYSQL_DATABASE, _MYSQL_ROUTINE} and re.search(rf"[`'\"]{schema}[`'\".]", first):
        # The server's own message is not passed on, because it names the user.
        found = re.search(rf"{schema}[`'\"]?\.[`'\"]?(\w+)", first)
        name = found[1] if found and number == _MYSQL_ROUTINE else ""
        what = f"procedure {name}" if name else f"database {schema}"
        return _refused(f"permission denied for {what}", schema, "mysql", name)
    return None


def without_user(said: str) -> str:
    """The message of MySQL or MariaDB, without the account that it names."""
    return _ACCOUNT.sub("", said)


def _no_role(said: str, schema: str) -> NotInRole | None:
    kinds = "accounts|consumer|gateway|installer|operator|publisher|reader"
    role = re.search(rf"[`'\"]({schema}_(?:{kinds}))\b", said)
    if role is None:
        return None
    return NotInRole(
        f"there is no role {role[1]}",
        hint="as a login that may create roles, run: penstock rights install; then do it again",
    )


def _refused(said: str, schema: str, dialect: str, function: str) -> NotInRole:
    roles = _roles(dialect).get(function, ())
    kind = roles[0] if roles else "ROLE"
    named = " or ".join(f"{schema}_{role}" for role in roles)
    needs = f"it needs the role {named}: " if roles else "it needs one of Penstock's roles: "
    return NotInRole(
        said,
        hint=f"{needs}as the owner of the schema, run: penstock rights install; then: "
        f"penstock rights grant LOGIN {kind}",
    )


@cache
def _functions(dialect: str) -> frozenset[str]:
    texts = (text for _, text in catalog.functions(dialect).files)
    return frozenset(name for text in texts for name, _ in catalog.blocks(text))


@cache
def _roles(dialect: str) -> dict[str, tuple[str, ...]]:
    """Which roles may call a function; the strongest last, and last of all that of gateways."""
    listed = next(
        body
        for _, text in catalog.functions(dialect).files
        for name, body in catalog.blocks(text)
        if name == "function_roles"
    )
    found: dict[str, list[str]] = {}
    for role, functions in sorted(_LISTED.findall(listed), key=lambda each: _RANK.get(each[0], 0)):
        for function in functions.split():
            found.setdefault(function, []).append(role)
    return {function: tuple(roles) for function, roles in found.items()}
