"""The same tests on PostgreSQL, MySQL and MariaDB, by the fixture ``db``.

They use Penstock's Python API, and SQL that all engines take.  PENSTOCK_TEST_DATABASES leaves
engines out.  Those that tests.contract.in_memory names run on the log in memory of penstock.testing
as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.publishing import known_topics
from tests import servers
from tests.contract.databases import (
    ContractDatabase,
    MySQLDatabase,
    PostgresDatabase,
    installed,
)
from tests.contract.in_memory import runs_in_memory
from tests.contract.memory_kit import MemoryContractDatabase
from tests.contract.tenants import Tenants, tenants_of, three_topics


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The engines of a test that names none itself."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "db" in metafunc.fixturenames and not any(mark.args[0] == "db" for mark in marks):
        engines = [*servers.DATABASES, *["memory"] * runs_in_memory(metafunc.definition)]
        metafunc.parametrize("db", engines, indirect=True)


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[ContractDatabase]:
    """A fresh, migrated database; ids [postgres], [mysql], [mariadb], [memory]."""
    engine: str = request.param
    if engine == "memory":
        memory = MemoryContractDatabase()
        yield memory
        memory.close()
        return
    if engine == "postgres":
        known_topics.clear()
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


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """Logins of this engine's server.  The roles are installed."""
    with tenants_of(db) as found:
        found.install()
        known_topics.clear()
        yield found


@pytest.fixture
def neighbours(tenants: Tenants) -> None:
    """A topic for us, one for them and an open one; each with an event and a subscription."""
    three_topics(tenants)
