"""The same tests on PostgreSQL, MySQL and MariaDB, by the fixture ``db``.

They use Penstock's Python API, and SQL that all engines take.  PENSTOCK_TEST_DATABASES leaves
engines out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import topic_cache
from tests import servers
from tests.contract.databases import (
    ContractDatabase,
    MySQLDatabase,
    PostgresDatabase,
    installed,
)


@pytest.fixture(params=servers.DATABASES)
def db(request: pytest.FixtureRequest) -> Iterator[ContractDatabase]:
    """A fresh, migrated database; ids [postgres], [mysql], [mariadb]."""
    engine: str = request.param
    if engine == "postgres":
        topic_cache.clear()
        postgres = PostgresDatabase(engine, request.getfixturevalue("database_url"))
        yield postgres
        postgres.close()
        return
    shared: MySQLDatabase = request.getfixturevalue(f"installed_{engine}")
    shared.reset()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def installed_mysql(mysql_server: servers.MySQLTestServer) -> MySQLDatabase:
    """Penstock's schema on the MySQL server of this process."""
    return installed("mysql", mysql_server)


@pytest.fixture(scope="session")
def installed_mariadb(mariadb_server: servers.MySQLTestServer) -> MySQLDatabase:
    """Penstock's schema on the MariaDB server of this process."""
    return installed("mariadb", mariadb_server)


@pytest.fixture(params=["mysql", "mariadb"])
def mysql_db(request: pytest.FixtureRequest) -> Iterator[MySQLDatabase]:
    """The same for what only MySQL and MariaDB have."""
    shared: MySQLDatabase = request.getfixturevalue(f"installed_{request.param}")
    shared.reset()
    yield shared
    shared.close()
