"""Servers and databases for all tests.

A server is started once per test process, and `make test` has three of them; every test gets a
database of its own, cloned from a migrated template.  :mod:`tests.servers` says which environment
variables choose other servers.
"""

from __future__ import annotations

import gc
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests import compiled, servers
from tests.contract import every_day
from tests.order import in_thirds
from tests.servers import MySQLTestServer
from tests.support import MISSING, PostgresServer, missing
from tools import memory

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.brokers", "tests.kit.proof", "tests.kit.last_run"]

_numbers = itertools.count(1)

# The command, without an address, would take the embedded database of this checkout. The quickstart
# leaves one there.
os.environ["PENSTOCK_EMBEDDED_DIRECTORY"] = "/nowhere"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server for this test process: a given one, else the embedded one."""
    yield from servers.postgres(tmp_path_factory.mktemp("postgres"))


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySQLTestServer]:
    """A MySQL server for this test process: a given one, else one out of Debian packages."""
    yield from servers.mysql(tmp_path_factory.mktemp("mysql"))


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySQLTestServer]:
    """A MariaDB server for this test process: a given one, else one out of Debian packages."""
    yield from servers.mariadb(tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(scope="session")
def etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd for this test process: a given one, else one out of Debian packages."""
    yield from servers.store("etcd", tmp_path_factory.mktemp("etcd"))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis for this test process: a given one, else one out of Debian packages."""
    yield from servers.store("redis", tmp_path_factory.mktemp("redis"))


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a migrated database that nobody is connected to."""
    from penstock.database.migrate import migrate

    name = f"penstock_template_{os.getpid()}"
    migrate(postgres_server.create(name))
    yield name
    postgres_server.drop(name)


@pytest.fixture
def empty_database_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh database without Penstock's schema."""
    yield from _fresh(postgres_server, "template0")


@pytest.fixture
def database_url(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    yield from _fresh(postgres_server, migrated_template)


def _fresh(server: PostgresServer, template: str) -> Iterator[str]:
    name = f"penstock_test_{os.getpid()}_{next(_numbers)}"
    yield server.create(name, template)
    server.drop(name)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A psycopg connection in autocommit mode to a fresh, migrated database."""
    with psycopg.connect(database_url, autocommit=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def java_home() -> Iterator[Path]:
    """The home of a Java 17 or newer, also set as JAVA_HOME for this process."""
    from tools import java

    try:
        home = java.home()
    except java.JavaMissing as error:
        missing("Java 17", error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def spark(java_home: Path) -> Iterator[SparkSession]:
    """A local Spark session for this process, which Dagster's Spark resource finds and uses."""
    from ops.spark import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = local_session("penstock tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_to_other_files() -> Iterator[None]:
    """What a file leaves open is found in it: collected later, it would fail a test of another."""
    yield
    gc.collect(1)  # what is young; all objects are half a million


def pytest_configure(config: pytest.Config) -> None:
    """What tests write lies in memory where there is room; long ones may need more than that."""
    # Of ten thousand tests, the collector of rings would look through all objects again and again:
    # a third of the time that it takes to collect them.
    gc.set_threshold(50_000, 20, 20)
    if "not long" in config.option.markexpr and memory.has_room():
        memory.make()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory.folder()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compiling is shared out."""
    compiled.import_a_share(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a large server is together, so one process has all of it and starts the only one.

    ``long_on("mysql")`` is for what runs every day on an engine with the same code.  A run that
    leaves engines out has everything of those that it is about.  What else MariaDB does not show
    every day: tests.contract.every_day.
    """
    if set(servers.chosen()) == set(servers.DATABASES):
        for item in items:
            engines = [each for mark in item.iter_markers("long_on") for each in mark.args]
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if any(getattr(each, "name", each) in engines for each in parameters.values()):
                item.add_marker(pytest.mark.long)
        every_day.leave_to_long(items)
    items[:] = in_thirds(items)


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto`` is three; one where a server is given, whose schema and roles all would share."""
    return 0 if servers.given_ones() else 3


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The servers that this run works on, and where it writes: on a disk it takes far longer."""
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT", "a disk, as memory is not asked for or short")
    return [*servers.header(), f"files: in {place}"]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The very last line of a run names what could not be tested."""
    reporter: TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    gaps = sorted(_gaps(reporter)) if reporter else []
    if reporter and gaps:
        reporter.write_line(f"NOT TESTED, because missing: {'; '.join(gaps)}", yellow=True)


def _gaps(reporter: TerminalReporter) -> set[str]:
    found = set()
    for report in reporter.stats.get("skipped", []):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        _, marker, gap = reason.partition(MISSING)
        if marker:
            found.add(gap)
    return found
