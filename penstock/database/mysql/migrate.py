"""How a migration is run on MySQL and MariaDB.

DDL commits, so a step is a list of statements that can each be repeated.  The step is recorded
after the last one.  When a runner dies in between, the next runner repeats the statements.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.database import catalog
from penstock.database.dialect import Row
from penstock.database.mysql import scripts as mysql_scripts
from penstock.database.mysql.connection import in_transaction
from penstock.database.mysql.opening import is_mariadb, require_server
from penstock.database.postgres.migrate import blocked
from penstock.driver_errors import errno_of
from penstock.errors import ConfigurationError, InvalidArgument

_OF_THE_SERVER = frozenset({"mysql", "sys", "performance_schema", "information_schema"})
_LOCK_WAIT_TIMEOUT = 1205
_NO_TABLE = frozenset({1049, 1146})
_NO_PROCEDURE = 1305
#: A script has no way to stop when another migration runs for so long.
_PRINTED_LOCK_SECONDS = 600
_NO_ROLE = frozenset({1133, 1410, 1959})
_MAY_NOT_READ = frozenset({1044, 1142})
_SETTINGS = "sql_mode", "lock_wait_timeout", "character_set_client", "collation_connection"


class MySQLSteps:
    """The steps on one connection of PyMySQL."""

    dialect = "mysql"

    def __init__(self, connection: Any, schema: str, lock_wait_seconds: float) -> None:
        if schema in _OF_THE_SERVER:
            raise ConfigurationError(
                f"{schema!r} is a database of the server's own", hint="use a database of its own"
            )
        self._connection = connection
        self.schema = schema
        self._lock_wait_seconds = lock_wait_seconds

    def require_server(self) -> None:
        """DatabaseTooOld when the server is too old."""
        require_server(self._version())

    @contextmanager
    def session(self) -> Iterator[None]:
        """One runner at a time; restores the session's settings at the end."""
        name = mysql_scripts.lock(self.schema)
        seconds = max(1, int(self._lock_wait_seconds))
        got = self._run("SELECT GET_LOCK(%(name)s, %(seconds)s)", name=name, seconds=seconds)
        if got != [(1,)]:
            raise blocked(self._lock_wait_seconds)
        columns = ", ".join(f"@@SESSION.{each}" for each in _SETTINGS)
        (before,) = self._run(f"SELECT DATABASE(), {columns}")
        try:
            yield
        finally:
            self._restore(before)
            self._run("SELECT RELEASE_LOCK(%(name)s)", name=name)

    def prepare(self) -> None:
        """Create the schema and the bookkeeping table, unless they exist: then fewer rights do."""
        if not self._has_bookkeeping():
            for statement in mysql_scripts.prepare(self.schema):
                self._run(statement)
        for statement in mysql_scripts.session(self.schema):
            self._run(statement)

    def migrations(
        self, text: str, recorded: Sequence[catalog.Migration], is_needed: Callable[[], bool]
    ) -> bool:
        """What makes the schema that these migrations lead to, and their records."""
        self._apply(mysql_scripts.migrations(text, recorded))
        return True

    def functions(self, functions: catalog.Functions, is_needed: Callable[[], bool]) -> bool:
        """The procedures that differ, and the record of all: calls of the others do not notice."""
        replace, installed = is_mariadb(self._version()), self._installed()
        granted = self._granted(functions, replace)
        self._apply(
            mysql_scripts.functions(
                functions, replace=replace, installed=installed, granted=granted
            )
        )
        return True

    def recorded(self) -> list[Row]:
        """What was applied; nothing when there is no schema."""
        for by_procedure in (False, True):
            statement = mysql_scripts.recorded(self.schema, by_procedure=by_procedure)
            try:
                return self._run(statement)
            except Exception as error:
                number = errno_of(error)
                if number in _NO_TABLE or (by_procedure and number == _NO_PROCEDURE):
                    return []
                if by_procedure or number not in _MAY_NOT_READ:
                    raise
        return []

    @staticmethod
    def printed(
        schema: str,
        steps: Sequence[catalog.Step],
        functions: catalog.Functions,
        *,
        whole: bool,
    ) -> str:
        """The same statements for the ``mysql`` client."""
        script = mysql_scripts.prepare(schema) if whole else []
        script += mysql_scripts.session(schema)
        script.append(f"DO GET_LOCK('{mysql_scripts.lock(schema)}', {_PRINTED_LOCK_SECONDS})")
        for each in steps:
            script += mysql_scripts.migrations(*each)
        script += mysql_scripts.functions(functions, replace=False)
        script.append(f"DO RELEASE_LOCK('{mysql_scripts.lock(schema)}')")
        title = f"-- Penstock, database {schema}: apply with the mysql client.\nDELIMITER $$\n"
        return f"{title}{mysql_scripts.printed(script)}DELIMITER ;\n"

    @staticmethod
    @contextmanager
    def outside_a_transaction(connection: Any) -> Iterator[Any]:
        """The caller's connection, which must be idle: every statement commits."""
        # PyMySQL notices a transaction only in replies without rows, such as that to a ping.
        connection.ping(reconnect=False)
        if in_transaction(connection) is not False:
            raise InvalidArgument(
                "the connection is inside a transaction, but every step of a migration commits",
                hint="commit or roll back first, or give the URL of the database",
            )
        autocommit = connection.get_autocommit()
        connection.autocommit(True)
        try:
            yield connection
        finally:
            if connection.open:
                connection.autocommit(autocommit)

    def _installed(self) -> dict[tuple[str, str], str]:
        """The comments of the procedures that this login has made, by their kind and name."""
        rows = self._run(
            "SELECT ROUTINE_TYPE, ROUTINE_NAME, ROUTINE_COMMENT FROM information_schema.ROUTINES"
            " WHERE ROUTINE_SCHEMA = %(schema)s AND DEFINER = CURRENT_USER()",
            schema=self.schema,
        )
        return {(kind, name): comment for kind, name, comment in rows}

    def _granted(self, functions: catalog.Functions, replace: bool) -> dict[str, list[str]]:
        """Which installed roles get which procedure, checked before any procedure is dropped."""
        installed: dict[str, str] = dict(self._run("SELECT kind, name FROM installed_roles"))
        present = {kind: name for kind, name in installed.items() if self._may_grant(name)}
        if not present:
            return {}
        of_roles = mysql_scripts.block(functions, "function_roles")
        self._apply(mysql_scripts.routine(of_roles, replace=replace))
        listed = self._run("CALL function_roles()")
        return {
            procedure: [present[kind] for kind in json.loads(kinds) if kind in present]
            for procedure, kinds in listed
        }

    def _may_grant(self, role: str) -> bool:
        """False when the role is gone; raises the server's error when the login may not grant."""
        mode = mysql_scripts.SQL_MODE
        if is_mariadb(self._version()):
            # Without this mode MariaDB makes a user of that name, without a password.
            self._run(f"SET SESSION sql_mode = '{mode},NO_AUTO_CREATE_USER'")
        try:
            self._run(mysql_scripts.grant("applied_migrations", [role]))
        except Exception as error:
            if errno_of(error) not in _NO_ROLE:
                raise
            return False
        finally:
            self._run(f"SET SESSION sql_mode = '{mode}'")
        return True

    def _apply(self, statements: Sequence[str]) -> None:
        # Each statement waits for a table only a second at a time, the shortest possible wait:
        # while it waits, every publisher has to wait too.
        deadline = time.monotonic() + self._lock_wait_seconds
        for statement in statements:
            self._patiently(statement, deadline)

    def _patiently(self, statement: str, deadline: float) -> None:
        while True:
            try:
                self._run(statement)
                return
            except Exception as error:
                if errno_of(error) != _LOCK_WAIT_TIMEOUT:
                    raise
                if time.monotonic() > deadline:
                    raise blocked(self._lock_wait_seconds) from error
            time.sleep(1.0)

    def _restore(self, before: Row) -> None:
        name, *values = before
        if name is not None and name != self.schema:
            self._run(f"USE `{str(name).replace('`', '``')}`")
        for setting, value in zip(_SETTINGS, values, strict=True):
            self._run(f"SET SESSION {setting} = %(value)s", value=value)

    def _has_bookkeeping(self) -> bool:
        return bool(
            self._run(
                "SELECT 1 FROM information_schema.TABLES"
                " WHERE TABLE_SCHEMA = %(schema)s AND TABLE_NAME = 'schema_migrations'",
                schema=self.schema,
            )
        )

    def _version(self) -> str:
        return str(self._run("SELECT VERSION()")[0][0])

    def _run(self, sql: str, **binds: Any) -> list[Row]:
        from penstock.database.dialects import MYSQL

        return MYSQL.execute(self._connection, sql, binds or None)
