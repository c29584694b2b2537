"""Who may do what: roles for the kinds of logins, and rights in single namespaces.

A role (publisher, consumer, operator, reader, installer, with the schema's name before it) may call
functions and nothing else.  A namespace is open to whoever may call them until somebody is given a
right in it; then it is hidden from all who hold none, on it or above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import config, database, validation
from penstock.errors import InvalidArgument, PermissionDenied, sqlstate_of

KINDS = ("consumer", "installer", "operator", "publisher", "reader")
VERBS = ("publish", "consume", "operate", "read")

_DENIED = "42501"
_ROLES = """
SELECT r.rolname, pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE'), ARRAY(
    SELECT m.rolname::text FROM pg_catalog.pg_auth_members AS a
    JOIN pg_catalog.pg_roles AS m ON m.oid = a.member WHERE a.roleid = r.oid ORDER BY m.rolname)
FROM pg_catalog.pg_roles AS r JOIN pg_catalog.pg_namespace AS n ON n.nspname = %(schema)s
WHERE r.rolname = ANY (%(names)s::text[])
"""


@dataclass(frozen=True, slots=True)
class Role:
    """One of the roles: whether it is there and has its functions, and who is a member of it."""

    name: str
    installed: bool
    members: tuple[str, ...]
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A right of a login, or of a role's members, in a namespace and below it."""

    namespace: str
    login: str
    verb: str
    granted_at: datetime
    granted_by: str


def grant_namespace(connection: Any, namespace: str, login: str, verb: str) -> None:
    """Give a login, or a role for all its members, a right in a namespace and below it.

    ``verb`` is publish, consume (which includes read), operate (which includes all) or read.
    """
    validation.namespace(namespace)
    _verb(verb)
    database.call(connection, "grant_namespace", namespace=namespace, login=login, verb=verb)


def revoke_namespace(
    connection: Any, namespace: str, login: str, verb: str, *, unrestrict: bool = False
) -> bool:
    """Take a right back; answers whether it was there.

    InUse for the last right of a namespace, unless ``unrestrict``: without one it is open to all.
    """
    validation.namespace(namespace)
    _verb(verb)
    binds = {"namespace": namespace, "login": login, "verb": verb, "unrestrict": unrestrict}
    return bool(database.call(connection, "revoke_namespace", **binds)[0][0])


def grants_of(connection: Any, namespace: str = "") -> list[Grant]:
    """The rights that are given at or below a namespace; all of them when it is empty."""
    if namespace:
        validation.namespace(namespace)
    return [Grant(*row) for row in database.call(connection, "grants_of", namespace=namespace)]


def role_name(kind: str) -> str:
    """The name of the role of a kind, which begins with the schema's name."""
    if kind not in KINDS:
        raise InvalidArgument(f"there is no role {kind!r}", hint=f"use one of {', '.join(KINDS)}")
    return f"{config.schema_name()}_{kind}"


def roles(connection: Any) -> list[Role]:
    """The roles, whether they are there or not."""
    names = [role_name(kind) for kind in KINDS]
    binds = {"schema": config.schema_name(), "names": names}
    found = {row[0]: row[1:] for row in database.execute(connection, _ROLES, binds)}
    listed = database.call(connection, "function_roles")
    return [
        Role(
            name,
            bool(found.get(name, (False,))[0]),
            tuple(found[name][1]) if name in found else (),
            tuple(function for function, kinds in listed if kind in kinds),
        )
        for kind, name in zip(KINDS, names, strict=True)
    ]


def install(connection: Any) -> list[str]:
    """Create the roles that are missing and give all of them their functions.

    Answers what was created.  Creating needs the right to create roles; the rest, the schema's
    owner or a member of its installer role.
    """
    names = [role_name(kind) for kind in KINDS]
    binds = {"schema": config.schema_name(), "names": names}
    present = {row[0] for row in database.execute(connection, _ROLES, binds)}
    missing = [name for name in names if name not in present]
    commands = [f"CREATE ROLE {_quoted(name)} NOLOGIN" for name in missing]
    with _denied("create roles", "; ".join(commands), "a superuser, or a login with CREATEROLE"):
        for command in commands:
            database.execute(connection, command)
    call = f"SELECT {_quoted(config.schema_name())}.install_rights()"
    with _denied("give the roles their functions", call, "the login that owns the schema"):
        database.call(connection, "install_rights")
    return missing


def print_sql() -> str:
    """What :func:`install` does, as SQL for whoever may create roles."""
    lines = [f"CREATE ROLE {_quoted(role_name(kind))} NOLOGIN;" for kind in KINDS]
    return "\n".join([*lines, f"SELECT {_quoted(config.schema_name())}.install_rights();", ""])


def add_member(connection: Any, kind: str, login: str) -> None:
    """Make a login a member of a role."""
    _membership(connection, f"GRANT {_quoted(role_name(kind))} TO {_quoted(login)}")


def remove_member(connection: Any, kind: str, login: str) -> None:
    """Take a login out of a role."""
    _membership(connection, f"REVOKE {_quoted(role_name(kind))} FROM {_quoted(login)}")


def _membership(connection: Any, command: str) -> None:
    with _denied("change who is in the role", command, "a superuser, or who created the role"):
        database.execute(connection, command)


def _verb(verb: str) -> None:
    if verb not in VERBS:
        raise InvalidArgument(f"there is no right {verb!r}", hint=f"use one of {', '.join(VERBS)}")


def _quoted(identifier: str) -> str:
    if not identifier or "\0" in identifier:
        raise InvalidArgument(f"{identifier!r} cannot be the name of a role", hint="give a name")
    escaped = identifier.replace('"', '""').replace("%", "%%")
    return f'"{escaped}"'


@contextmanager
def _denied(what: str, commands: str, who: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if sqlstate_of(error) != _DENIED:
            raise
        raise PermissionDenied(
            f"the login may not {what}", hint=f"as {who}, run: {commands}; then run this again"
        ) from error
