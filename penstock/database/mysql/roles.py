"""The roles of Penstock on MySQL and MariaDB.

Every GRANT commits there, so each statement can be repeated.  A login is a name: its accounts at
all hosts count as one.  A role has no effect until it is active.  On MySQL an account can have
several default roles, on MariaDB only one.  So on MariaDB a login that is in two roles gets a third
role that holds both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from penstock.database import calls, config
from penstock.database.mysql.connection import in_transaction
from penstock.database.mysql.opening import is_mariadb
from penstock.driver_errors import errno_of
from penstock.errors import InvalidArgument, NotInRole

#: Refusals on a database, a table, a column, a procedure, of a right of the server, and to grant.
DENIED = frozenset({1044, 1142, 1143, 1227, 1370, 1410, 1698})
_IS_THERE = 1396
_NOT_GRANTED = 1962  # MariaDB only; on MySQL such a REVOKE succeeds
_NO_ROLE = frozenset({1959, 3523})
_PROCEDURES = """
SELECT ROUTINE_NAME FROM information_schema.ROUTINES
WHERE ROUTINE_SCHEMA = %(schema)s AND ROUTINE_TYPE = 'PROCEDURE'
"""
_OWNER = """
SELECT DEFINER, DEFINER = CURRENT_USER() FROM information_schema.ROUTINES
WHERE ROUTINE_SCHEMA = %(schema)s AND ROUTINE_NAME = 'has_right'
"""
#: The tables of the server that the procedures read: who is in which role, and all names.
_READ = {
    False: ("SELECT ON mysql.role_edges", "SELECT (User, Host, account_locked) ON mysql.user"),
    True: ("SELECT ON mysql.roles_mapping", "SELECT (User, Host, is_role) ON mysql.user"),
}
_KINDS = "accounts|consumer|gateway|installer|operator|publisher|reader"


class MySQLRoles:
    """The table installed_roles says which roles were installed in a schema."""

    def members(self, connection: Any, names: list[str]) -> dict[str, tuple[bool, list[str]]]:
        """The members of each role that was installed."""
        several = re.compile(rf"{re.escape(config.schema_name())}(_({_KINDS})){{2,}}")
        return {
            name: (True, sorted({each for each in members if not several.fullmatch(each)}))
            for name, members in calls.call(connection, "role_members")
        }

    def missing(self, connection: Any, names: list[str]) -> list[str]:
        """All names: the login may not be able to see in the server's tables which exist."""
        return names

    def create(self, connection: Any, names: list[str]) -> list[str]:
        """Create the roles that do not exist.  Returns their names."""
        _require_no_transaction(connection)
        made = []
        for name, command in zip(names, self.creations(names), strict=True):
            try:
                calls.execute(connection, command)
            except Exception as error:
                if errno_of(error) != _IS_THERE:
                    raise
            else:
                made.append(name)
        return made

    def creations(self, names: list[str]) -> list[str]:
        """The statements that create the roles."""
        return [f"CREATE ROLE {self.quoted(name)}" for name in names]

    def give(self, connection: Any, names: list[str]) -> None:
        """Give the roles their procedures, and take away all other rights."""
        for command in self._of_owner(connection):
            calls.execute(connection, command)
        calls.call(connection, "install_rights")
        wanted = {name: set(self._wanted(connection, name)) for name in names}
        for name in names:
            present = set(self._present(connection, name))
            for what in sorted(present - wanted[name]):
                calls.execute(connection, f"REVOKE {what} FROM {self.quoted(name)}")
            for what in sorted(wanted[name] - present):
                calls.execute(connection, f"GRANT {what} TO {self.quoted(name)}")
        self.refresh(connection)

    def refresh(self, connection: Any) -> None:
        """Make MariaDB's procedures read again who is in which role."""
        calls.call(connection, "refresh_roles")

    def how_to_give(self) -> str:
        """The command that gives the roles their procedures."""
        return "penstock rights install"

    def giving(self, connection: Any, names: list[str]) -> list[str]:
        """The statements that give the roles their procedures."""
        schema = self.quoted(config.schema_name())
        own = self._of_owner(connection, whatever=True)
        grants = [
            f"GRANT {what} TO {self.quoted(name)}"
            for name in names
            for what in self._wanted(connection, name)
        ]
        record, look = (
            ["START TRANSACTION", f"CALL {schema}.{each}()", "COMMIT"]
            for each in ("install_rights", "refresh_roles")
        )
        return [*own, *record, *grants, *look]

    def add(self, connection: Any, role: str, login: str) -> None:
        """Make a login a member of a role, and the role active in its sessions from now on."""
        _require_no_transaction(connection)
        mariadb = _is_mariadb(connection)
        for account, default in self._accounts(connection, login, mariadb):
            if mariadb:
                self._add_mariadb(connection, role, account, default)
                continue
            self._change(connection, f"GRANT {self.quoted(role)} TO {account}")
            self._make_default(connection, account, {*self._defaults(connection, login), role})
        self.refresh(connection)

    def adding(self, role: str, login: str) -> str:
        """The statement that adds a member, without making the role the default."""
        return f"GRANT {self.quoted(role)} TO {self.quoted(login)}"

    def remove(self, connection: Any, role: str, login: str) -> None:
        """Take a login out of a role."""
        _require_no_transaction(connection)
        mariadb = _is_mariadb(connection)
        for account, default in self._accounts(connection, login, mariadb):
            if mariadb:
                self._remove_mariadb(connection, role, account, default)
                continue
            if self._defaults(connection, login):
                rest = {*self._defaults(connection, login)} - {role}
                self._make_default(connection, account, rest)
            self._change(connection, f"REVOKE {self.quoted(role)} FROM {account}")
        self.refresh(connection)

    def is_denied(self, error: BaseException) -> bool:
        """Whether the login may not do what it tried."""
        return isinstance(error, NotInRole) or errno_of(error) in DENIED

    def quoted(self, identifier: str) -> str:
        """A name as it stands in a statement."""
        if not identifier or "\0" in identifier:
            raise InvalidArgument(
                f"{identifier!r} cannot be the name of a role", hint="give a name"
            )
        escaped = identifier.replace("`", "``")
        return f"`{escaped}`"

    def _of_owner(self, connection: Any, *, whatever: bool = False) -> list[str]:
        """The GRANTs with which the procedures' owner can see who is in which role."""
        rights = _READ[_is_mariadb(connection)]
        binds = {"schema": config.schema_name()}
        ((owner, is_own),) = calls.execute(connection, _OWNER, binds)
        if is_own and not whatever and self._may_read(connection, rights):
            return []
        name, _, host = str(owner).rpartition("@")
        return [f"GRANT {each} TO {self._account(name, host)}" for each in rights]

    def _may_read(self, connection: Any, rights: tuple[str, ...]) -> bool:
        tables = [each.rpartition(" ")[2] for each in rights]
        try:
            for table in tables:
                calls.execute(connection, f"SELECT 1 FROM {table} LIMIT 1")
        except Exception as error:
            if not self.is_denied(error):
                raise
            return False
        return True

    def _wanted(self, connection: Any, role: str) -> Iterator[str]:
        schema = config.schema_name()
        kind = role.removeprefix(f"{schema}_")
        rows = calls.execute(connection, _PROCEDURES, {"schema": schema})
        present = {name for (name,) in rows}
        for function, kinds in calls.call(connection, "function_roles"):
            if kind in kinds and function in present:
                yield f"EXECUTE ON PROCEDURE {self.quoted(schema)}.{self.quoted(function)}"

    def _present(self, connection: Any, role: str) -> Iterator[str]:
        """The rights of a role, in the words of SHOW GRANTS."""
        line = re.compile(rf"GRANT (.+) TO `{re.escape(role)}`(?:@`%`)?( WITH GRANT OPTION)?")
        rows = calls.execute(connection, f"SHOW GRANTS FOR {self.quoted(role)}")
        for (text,) in rows:
            found = line.fullmatch(str(text))
            if found and found[1] != "USAGE ON *.*":
                yield found[1]

    def _accounts(
        self, connection: Any, login: str, mariadb: bool
    ) -> Iterator[tuple[str, str | None]]:
        """The accounts of a name, with MariaDB's default role; None when the name is a role."""
        columns = "Host, is_role, default_role" if mariadb else "Host, 'N', NULL"
        rows = calls.execute(
            connection, f"SELECT {columns} FROM mysql.user WHERE User = %(login)s", {"login": login}
        )
        if not rows or not login:
            raise InvalidArgument(
                f"there is no user or role {login!r}", hint="create it first: CREATE USER"
            )
        for host, is_role, default in rows:
            if is_role == "Y":
                yield self.quoted(login), None
            else:
                yield self._account(login, host), default

    def _change(self, connection: Any, statement: str) -> None:
        """GRANT or REVOKE a role.  It is no error to revoke a role that was not granted."""
        try:
            calls.execute(connection, statement)
        except Exception as error:
            if errno_of(error) == _NOT_GRANTED:
                return
            if errno_of(error) not in _NO_ROLE:
                raise
            raise InvalidArgument(
                "the role does not exist", hint="run: penstock rights install"
            ) from error

    def _account(self, name: str, host: str) -> str:
        return f"{self.quoted(name)}@{self.quoted(host)}"

    def _defaults(self, connection: Any, login: str) -> list[str]:
        """The names of MySQL's default roles of a login."""
        rows = calls.execute(
            connection,
            "SELECT DISTINCT DEFAULT_ROLE_USER FROM mysql.default_roles WHERE USER = %(login)s",
            {"login": login},
        )
        return [name for (name,) in rows]

    def _make_default(self, connection: Any, account: str, roles: set[str]) -> None:
        names = ", ".join(self.quoted(each) for each in sorted(roles)) or "NONE"
        calls.execute(connection, f"ALTER USER {account} DEFAULT ROLE {names}")

    def _add_mariadb(self, connection: Any, role: str, account: str, default: str | None) -> None:
        if default is None:
            self._change(connection, f"GRANT {self.quoted(role)} TO {account}")
            return
        kinds = self._kinds(default)
        if kinds is None:
            raise InvalidArgument(
                f"the default role of {account} is {default!r}, and only one is active at a time",
                hint=f"run: GRANT {self.quoted(role)} TO {self.quoted(default)}",
            )
        self._change(connection, f"GRANT {self.quoted(role)} TO {account}")
        self._set_kinds(connection, account, default, {*kinds, self._kind(role)})

    def _remove_mariadb(
        self, connection: Any, role: str, account: str, default: str | None
    ) -> None:
        kinds = self._kinds(default or "")
        if default and kinds:
            self._set_kinds(connection, account, default, {*kinds} - {self._kind(role)})
        self._change(connection, f"REVOKE {self.quoted(role)} FROM {account}")

    def _kind(self, role: str) -> str:
        return role.removeprefix(f"{config.schema_name()}_")

    def _kinds(self, role: str) -> set[str] | None:
        """Which of Penstock's roles a MariaDB default role holds; None for any other role."""
        if not role:
            return set()
        prefix = re.escape(config.schema_name())
        if not re.fullmatch(rf"{prefix}(_({_KINDS}))+", role):
            return None
        return set(self._kind(role).split("_"))

    def _set_kinds(self, connection: Any, account: str, before: str, kinds: set[str]) -> None:
        """Make a role that holds all of these the default, and revoke the one before."""
        schema = config.schema_name()
        name = "_".join([schema, *sorted(kinds)])
        if len(kinds) > 1:
            calls.execute(connection, f"CREATE ROLE IF NOT EXISTS {self.quoted(name)}")
            for kind in sorted(kinds):
                held = self.quoted(f"{schema}_{kind}")
                calls.execute(connection, f"GRANT {held} TO {self.quoted(name)}")
            calls.execute(connection, f"GRANT {self.quoted(name)} TO {account}")
        wanted = self.quoted(name) if kinds else "NONE"
        calls.execute(connection, f"SET DEFAULT ROLE {wanted} FOR {account}")
        if before != name and len(self._kinds(before) or ()) > 1:
            calls.execute(connection, f"REVOKE {self.quoted(before)} FROM {account}")


def _require_no_transaction(connection: Any) -> None:
    driver = calls.driver_connection(connection)
    if hasattr(driver, "ping"):
        # PyMySQL notices a transaction only in replies without rows, such as that to a ping.
        driver.ping(reconnect=False)
    if in_transaction(driver) or not driver.get_autocommit():
        raise InvalidArgument(
            "the connection is inside a transaction, or begins one; but every GRANT commits",
            hint="commit or roll back first, and use a connection in autocommit mode",
        )


def _is_mariadb(connection: Any) -> bool:
    ((version,),) = calls.execute(connection, "SELECT VERSION()")
    return is_mariadb(version)
