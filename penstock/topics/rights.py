"""Who may do what: roles for the kinds of logins, and rights in single namespaces.

A role (publisher, consumer, operator, reader, installer, with the schema's name before it) may call
functions and nothing else.  A namespace is open to every login that may call the functions, until a
login is given a right in it.  From then on it is hidden from logins that have no right in it or in
a namespace above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.database import config
from penstock.database.dialects import of_connection
from penstock.database.mysql.roles import MySQLRoles
from penstock.database.postgres.roles import PostgresRoles
from penstock.errors import InvalidArgument, PermissionDenied
from penstock.topics import validation

KINDS = ("accounts", "consumer", "gateway", "installer", "operator", "publisher", "reader")
#: The role of logins that act for accounts, and do nothing of their own.
GATEWAY = "gateway"
VERBS = ("publish", "consume", "operate", "read", "receive", "acknowledge", "peek")

Roles = PostgresRoles | MySQLRoles
_ROLES: dict[str, Roles] = {"postgres": PostgresRoles(), "mysql": MySQLRoles()}


@dataclass(frozen=True, slots=True)
class Role:
    """One of the roles: whether it exists and has its functions, and who is a member of it."""

    name: str
    installed: bool
    members: tuple[str, ...]
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A right of a login, of a role's members or of an account, in a namespace and below it.

    With a ``topic`` it is that of a subscription which publishes its dead letters there; ``login``
    is who has set it.
    """

    namespace: str
    login: str
    verb: str
    granted_at: datetime
    granted_by: str
    #: role, or account: then ``login`` is its name, or its id once the account is deleted.
    kind: str = "role"
    topic: str | None = None
    subscription: str | None = None


def grant_namespace(connection: Any, namespace: str, login: str, verb: str) -> None:
    """Give a login, or a role for all its members, a right in a namespace and below it.

    ``verb`` is publish, consume (which includes the four after it), read, receive, acknowledge or
    peek, or operate (which includes all).  The last three are for queues.
    """
    validation.namespace(namespace)
    _verb(verb)
    database.call(connection, "grant_namespace", namespace=namespace, login=login, verb=verb)


def revoke_namespace(
    connection: Any, namespace: str, login: str, verb: str, *, unrestrict: bool = False
) -> bool:
    """Take a right back.  Returns whether it was there.

    InUse for the last right of a namespace, unless ``unrestrict``: without any right the namespace
    is open to all.
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
    """The roles, whether they exist or not."""
    names = [role_name(kind) for kind in KINDS]
    engine = engine_of(connection)
    with _denied(engine, "see the roles", "", "a member of the operator or installer role"):
        found = engine.members(connection, names)
        listed = database.call(connection, "function_roles")
    return [
        Role(
            name,
            found[name][0] if name in found else False,
            tuple(found[name][1]) if name in found else (),
            tuple(function for function, kinds in listed if kind in kinds),
        )
        for kind, name in zip(KINDS, names, strict=True)
    ]


def install(connection: Any) -> list[str]:
    """Create the roles that are missing and give all of them their functions.

    Returns what was created.  Creating needs the right to create roles.  The rest needs the
    schema's owner or a member of its installer role.  On MySQL and MariaDB each grant commits, and
    all of it needs a login that may create roles and grant rights on the schema.
    """
    names = [role_name(kind) for kind in KINDS]
    engine = engine_of(connection)
    missing = engine.missing(connection, names)
    commands = "; ".join(engine.creations(missing))
    with _denied(engine, "create roles", commands, "a login that may create roles"):
        made = engine.create(connection, missing)
    call = engine.how_to_give()
    with _denied(engine, "give the roles their functions", call, "the login that owns the schema"):
        engine.give(connection, names)
    return made


def print_sql(connection: Any = None) -> str:
    """What :func:`install` does, as SQL for an administrator who may create roles.

    Without a connection it is the SQL for PostgreSQL.  For MySQL and MariaDB the procedures must
    exist already.
    """
    engine = _ROLES["postgres"] if connection is None else engine_of(connection)
    names = [role_name(kind) for kind in KINDS]
    lines = [*engine.creations(names), *engine.giving(connection, names)]
    return "".join(f"{line};\n" for line in lines)


def add_member(connection: Any, kind: str, login: str) -> None:
    """Make a login a member of a role."""
    engine, role = engine_of(connection), role_name(kind)
    if kind == GATEWAY:  # first, because it refuses a login that has other rights
        database.call(connection, "record_gateway", login=login)
    with _denied(engine, *_membership(engine.adding(role, login))):
        engine.add(connection, role, login)


def remove_member(connection: Any, kind: str, login: str) -> None:
    """Take a login out of a role."""
    engine, role = engine_of(connection), role_name(kind)
    command = f"REVOKE {engine.quoted(role)} FROM {engine.quoted(login)}"
    with _denied(engine, *_membership(command)):
        engine.remove(connection, role, login)
    if kind == GATEWAY:  # last: without the role the login can do nothing
        database.call(connection, "forget_gateway", login=login)


def refresh(connection: Any) -> None:
    """Read again who is in which role, after GRANT, REVOKE or DROP USER by hand on MariaDB.

    MariaDB cannot tell this inside a transaction, so Penstock uses what it read last.  On other
    databases this does nothing.
    """
    engine = engine_of(connection)
    with _denied(engine, "look at the roles", "", "a member of the operator or installer role"):
        engine.refresh(connection)


def _membership(command: str) -> tuple[str, str, str]:
    return "change who is in the role", command, "a superuser, or who created the role"


def engine_of(connection: Any) -> Roles:
    """What knows the roles of this engine."""
    return _ROLES[of_connection(connection).name]


def _verb(verb: str) -> None:
    if verb not in VERBS:
        raise InvalidArgument(f"there is no right {verb!r}", hint=f"use one of {', '.join(VERBS)}")


@contextmanager
def _denied(engine: Roles, what: str, commands: str, who: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not engine.is_denied(error):
            raise
        raise PermissionDenied(
            f"the login may not {what}",
            hint=f"as {who}, run: {commands}; then run this again" if commands else f"ask {who}",
        ) from error
