"""One database for each test, on each engine: what the fixture ``db`` hands out."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from penstock import database
from penstock.database import catalog, config, migrate
from penstock.database.mysql import scripts as mysql_scripts
from penstock.database.mysql.opening import is_mariadb
from penstock.publishing import known_topics
from tests import guards
from tests.kit.log import wait_until
from tests.servers import MySQLTestServer

if TYPE_CHECKING:
    from penstock.database import Connection

#: Tables of the MySQL side that a migration fills, and that no test changes.
_FIXED = frozenset(
    {
        "schema_migrations",
        "numbers",
        "places",
        "strict_locks",
        "name_tree",
        "policy_settings",
        "installation",
        "cleaning",
        "slice_being_kept",
    }
)
#: Those of one row, or of a first one: how a test finds them.
_SEEDED = {
    "histories": "DELETE FROM histories WHERE history > 1",
    "sequencer": "UPDATE sequencer SET floor_block = LAST_INSERT_ID(),"
    " settled_block = LAST_INSERT_ID(), delayed_due = '2000-01-01', delayed_id = 0",
    "forgotten_sends": "UPDATE forgotten_sends SET up_to = '2000-01-01',"
    " begun_at = UTC_TIMESTAMP(6)",
    "accounts_counted": "UPDATE accounts_counted SET account_id = '', topic_id = 0,"
    " subscription_id = 0, events = 0",
    "pressure_measured": "UPDATE pressure_measured SET measured_at = '2000-01-01'",
}
#: More rows are faster gone by TRUNCATE, which takes a while even for none.
_FEW = 2_000
_LARGE = {"events", "chunks", "positions"}
_APP = "penstock_test_app"


class ContractDatabase(Protocol):
    """A fresh, migrated database of one engine; what it opened is closed after the test."""

    engine: str
    url: str

    def connect(self, autocommit: bool = True) -> Connection:
        """A connection of the engine's own driver."""
        ...

    def run(self, sql: str, binds: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """One statement, committed at once, on a connection that everyone may use."""
        ...

    def without_guard(self, function: str, old_text: str, new_text: str) -> None:
        """Re-create a function with ``new_text`` where ``old_text`` stands, for this test."""
        ...

    def wait_until_blocked(self, connection: Any) -> None:
        """Until the statement that a connection runs waits for a lock."""
        ...


class _Connections:
    """What both kinds share."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine = engine
        self.url = url
        self._opened: list[Any] = []
        self._own: Any = None

    def connect(self, autocommit: bool = True) -> Connection:
        connection = database.connect(self.url, autocommit=autocommit)
        self._opened.append(connection)
        return connection

    def run(self, sql: str, binds: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        self._own = self._own or self.connect()
        return database.execute(self._own, sql, binds)

    def close(self) -> None:
        """End every connection, whatever a test has left open in it."""
        for connection in self._opened:
            with contextlib.suppress(Exception):  # closed already, or killed by the test
                connection.close()


class PostgresDatabase(_Connections):
    """A clone of a migrated template."""

    def without_guard(self, function: str, old_text: str, new_text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            guards.without_guard(connection, function, old_text, new_text)

    def wait_until_blocked(self, connection: Any) -> None:
        pid = connection.info.backend_pid
        wait_until(
            lambda: self.run(
                "SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s AND wait_event_type = 'Lock'",
                {"pid": pid},
            ),
            f"process {pid} waits for a lock",
        )


class MySQLDatabase(_Connections):
    """The one schema of a server, emptied.

    MySQL has no templates and makes a table in 10 ms: an installation for each test would be most
    of its time.
    """

    def __init__(self, engine: str, server: MySQLTestServer) -> None:
        super().__init__(engine, server.url(_APP))
        self.app = _APP
        #: What stands in the place of functions until close().
        self.mutants: dict[str, str] = {}

    def without_guard(self, function: str, old_text: str, new_text: str) -> None:
        self.without_guards(function, [(old_text, new_text)])

    def without_guards(self, function: str, guards: Iterable[tuple[str, str]]) -> None:
        """The same for several places of one function."""
        present = routines()[function]
        for old_text, new_text in guards:
            assert present.count(old_text) == 1, f"{function} holds {old_text!r} not exactly once"
            present = present.replace(old_text, new_text)
        self.mutate(function, present)

    def mutate(self, function: str, text: str) -> None:
        """Another text for a function, for this test."""
        self.mutants[function] = text
        self._create(function, text)

    def wait_until_blocked(self, connection: Any) -> None:
        thread = connection.thread_id()

        def is_blocked() -> object:
            # The table is made anew only when nobody has read it for a tenth of a second.
            time.sleep(0.12)
            return self.run(
                "SELECT 1 FROM information_schema.INNODB_TRX"
                " WHERE trx_mysql_thread_id = %(thread)s AND trx_state = 'LOCK WAIT'",
                {"thread": thread},
            )

        wait_until(is_blocked, f"thread {thread} waits for a lock")

    def reset(self) -> None:
        """Rows as the installation left them; close() has seen to the procedures."""
        schema = config.schema_name()
        self.run(f"USE `{schema}`")
        # A log that begins where the last test has come to: an id is given out only once.
        self.run("INSERT INTO pending (event_count) VALUES (1)")
        for table in self._used_tables(schema):
            self.run(_SEEDED.get(table) or self._emptied(table))
        self.run(f"DROP DATABASE IF EXISTS `{_APP}`")
        self.run(f"CREATE DATABASE `{_APP}`")
        known_topics.clear()

    def close(self) -> None:
        self._end_connections()
        # At once: tests of other folders work on the same schema, by an object of their own.
        for function in sorted(self.mutants):
            self._create(function, routines()[function])
        self.mutants.clear()
        self._end_connections()

    def _end_connections(self) -> None:
        super().close()
        self._opened.clear()
        self._own = None

    def _used_tables(self, schema: str) -> list[str]:
        names = self.run(
            "SELECT TABLE_NAME FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = %(schema)s AND TABLE_TYPE = 'BASE TABLE'",
            {"schema": schema},
        )
        looked_at = [name for (name,) in names if name not in _FIXED]
        queries = [f"SELECT '{name}' WHERE EXISTS (SELECT * FROM `{name}`)" for name in looked_at]
        return [str(name) for (name,) in self.run(" UNION ALL ".join(queries))]

    def _emptied(self, table: str) -> str:
        # TRUNCATE would set the counter of ids back, and an id comes only once in a log.
        if table not in _LARGE:
            return f"DELETE FROM `{table}`"
        ((rows,),) = self.run(
            f"SELECT COUNT(*) FROM (SELECT 1 FROM `{table}` LIMIT {_FEW}) AS some"
        )
        return f"{'TRUNCATE TABLE' if rows == _FEW else 'DELETE FROM'} `{table}`"

    def _create(self, function: str, text: str) -> None:
        ((version,),) = self.run("SELECT VERSION()")
        schema = config.schema_name()
        # MySQL takes them with the procedure.
        allowed = self.run(
            "SELECT User, Host FROM mysql.procs_priv WHERE Db = %(schema)s AND Routine_name ="
            " %(function)s AND Routine_type = 'PROCEDURE' AND FIND_IN_SET('Execute', Proc_priv)",
            {"schema": schema, "function": function},
        )
        with contextlib.closing(database.connect(self.url)) as connection:
            for statement in [
                *mysql_scripts.session(schema),
                *mysql_scripts.routine(text, replace=is_mariadb(version)),
                *(
                    f"GRANT EXECUTE ON PROCEDURE `{function}` TO `{user}`"
                    + f"@`{host}`" * bool(host)
                    for user, host in allowed
                ),
            ]:
                database.execute(connection, statement)


def installed(engine: str, server: MySQLTestServer) -> MySQLDatabase:
    """The schema of a server, made once for all tests of this process."""
    server.drop(_APP)
    url = server.create(_APP)
    migrate.migrate(url)
    return MySQLDatabase(engine, server)


@functools.cache
def routines() -> Mapping[str, str]:
    """The statement of each procedure, by name.  It takes 12 ms, and hundreds of mutants ask."""
    return MappingProxyType(
        {
            name: next(mysql_scripts.statements(f"-- name: {name}\n{body}"))
            for _, text in catalog.functions("mysql").files
            for name, body in catalog.blocks(text)
        }
    )
