"""The roles of Penstock on PostgreSQL."""

from __future__ import annotations

from typing import Any

from penstock.database import calls, config
from penstock.driver_errors import sqlstate_of
from penstock.errors import InvalidArgument, NotInRole

_DENIED = "42501"
_ROLES = """
SELECT r.rolname, pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE'), ARRAY(
    SELECT m.rolname::text FROM pg_catalog.pg_auth_members AS a
    JOIN pg_catalog.pg_roles AS m ON m.oid = a.member WHERE a.roleid = r.oid ORDER BY m.rolname)
FROM pg_catalog.pg_roles AS r JOIN pg_catalog.pg_namespace AS n ON n.nspname = %(schema)s
WHERE r.rolname = ANY (%(names)s::text[])
"""


class PostgresRoles:
    """Roles belong to the whole cluster.  USAGE on the schema says that one is installed in it."""

    def members(self, connection: Any, names: list[str]) -> dict[str, tuple[bool, list[str]]]:
        """For each role that exists: whether it has its functions, and its members."""
        binds = {"schema": config.schema_name(), "names": names}
        rows = calls.execute(connection, _ROLES, binds)
        return {name: (installed, members) for name, installed, members in rows}

    def missing(self, connection: Any, names: list[str]) -> list[str]:
        """The roles that do not exist."""
        present = self.members(connection, names)
        return [name for name in names if name not in present]

    def create(self, connection: Any, names: list[str]) -> list[str]:
        """Create roles.  Returns their names."""
        for command in self.creations(names):
            calls.execute(connection, command)
        return names

    def creations(self, names: list[str]) -> list[str]:
        """The statements that create the roles."""
        return [f"CREATE ROLE {self.quoted(name)} NOLOGIN" for name in names]

    def give(self, connection: Any, names: list[str]) -> None:
        """Give the roles their functions."""
        calls.call(connection, "install_rights")

    def giving(self, connection: Any, names: list[str]) -> list[str]:
        """The statements that give the roles their functions."""
        return [self.how_to_give()]

    def how_to_give(self) -> str:
        """The command that gives the roles their functions."""
        return f"SELECT {self.quoted(config.schema_name())}.install_rights()"

    def add(self, connection: Any, role: str, login: str) -> None:
        """Make a login a member of a role."""
        calls.execute(connection, self.adding(role, login))

    def adding(self, role: str, login: str) -> str:
        """The statement that makes a login a member."""
        return f"GRANT {self.quoted(role)} TO {self.quoted(login)}"

    def remove(self, connection: Any, role: str, login: str) -> None:
        """Take a login out of a role."""
        command = f"REVOKE {self.quoted(role)} FROM {self.quoted(login)}"
        calls.execute(connection, command)

    def refresh(self, connection: Any) -> None:
        """Does nothing: PostgreSQL is asked each time."""

    def is_denied(self, error: BaseException) -> bool:
        """Whether the login may not do what it tried."""
        return isinstance(error, NotInRole) or sqlstate_of(error) == _DENIED

    def quoted(self, identifier: str) -> str:
        """A name as it stands in a statement."""
        if not identifier or "\0" in identifier:
            raise InvalidArgument(
                f"{identifier!r} cannot be the name of a role", hint="give a name"
            )
        escaped = identifier.replace('"', '""').replace("%", "%%")
        return f'"{escaped}"'
