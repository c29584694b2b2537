"""Small things that the contract tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock import database
from tests.contract.databases import ContractDatabase
from tests.contract.memory_kit import MemoryContractDatabase

if TYPE_CHECKING:
    from penstock.database import Connection


@contextmanager
def open_transaction(db: ContractDatabase) -> Iterator[Connection]:
    """A connection inside a transaction; rolled back unless the test commits it."""
    connection = db.connect(autocommit=False)
    database.execute(connection, "SELECT 1")
    try:
        yield connection
    finally:
        try:
            # By closing alone, MySQL and MariaDB may let go of its locks only after this has ended.
            connection.rollback()
        except Exception as error:  # the test has ended the session
            if not database.is_unavailable(error):
                raise
        finally:
            connection.close()


def give_up_soon(db: ContractDatabase, connection: Connection) -> None:
    """It does not wait for locks; an error says so."""
    setting = "lock_timeout = '50ms'" if db.engine == "postgres" else "innodb_lock_wait_timeout = 1"
    database.execute(connection, f"SET {setting}")


def count(db: ContractDatabase, table: str) -> int:
    """How many rows a table of Penstock has."""
    if isinstance(db, MemoryContractDatabase):
        return db.count(table)
    ((found,),) = db.run(f"SELECT COUNT(*) FROM penstock.{table}")
    return int(found)


def sql(connection: Any, statement: str) -> None:
    """One statement in the connection's transaction."""
    database.execute(connection, statement)


def kill(db: ContractDatabase, victim: Any) -> None:
    """End the session of another connection."""
    if isinstance(db, MemoryContractDatabase):
        victim.close()
    elif db.engine == "postgres":
        db.run(f"SELECT pg_terminate_backend({victim.info.backend_pid})")
    else:
        db.run(f"KILL {victim.thread_id()}")


def end_sessions(db: ContractDatabase, own: Any, names: str) -> None:
    """Those with such names, or on MySQL all but this one: as an operator or a failover does."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        f" AND application_name LIKE '{names}'"
        if db.engine == "postgres"
        else "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE()"
        " AND ID <> CONNECTION_ID()"
    )
    end = "SELECT pg_terminate_backend({})" if db.engine == "postgres" else "KILL {}"
    for (session,) in database.execute(own, query):
        database.execute(own, end.format(session))
