"""The same tests on every registry, by the fixture ``bench``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.leases.coordination import etcd, redis
from tests.contract.conftest import (
    db,
    installed_mariadb,
    installed_mysql,
    pytest_generate_tests,
)
from tests.contract.databases import PostgresDatabase
from tests.coordination.bench import Bench, InDatabase, InMemory, InStore
from tests.support import missing
from tools.servers import ETCD, StoreServer

__all__ = ["db", "installed_mariadb", "installed_mysql", "pytest_generate_tests"]

REGISTRIES = ("memory", "postgres", "mysql", "mariadb", "etcd", "redis")


@pytest.fixture(params=REGISTRIES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """An empty registry of eight partitions; ids [memory], [postgres], [etcd] and so on."""
    yield from of_kind(request.param, request)


def of_kind(kind: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The registry of one kind, until the generator is closed."""
    made: Bench
    if kind == "memory":
        made = InMemory()
    elif kind in {"etcd", "redis"}:
        module = etcd if kind == "etcd" else redis
        made = InStore(kind, module, request.getfixturevalue(f"{kind}_url"))
    elif kind == "postgres":
        made = InDatabase(PostgresDatabase(kind, request.getfixturevalue("database_url")))
    else:
        shared = request.getfixturevalue(f"installed_{kind}")
        shared.reset()
        made = InDatabase(shared)
    yield made
    made.close()
    if isinstance(made, InDatabase):
        made.db.close()  # type: ignore[attr-defined]


@pytest.fixture(params=["memory", "etcd", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store."""
    kind = request.param
    url = "memory://tests" if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    return f"{url}?prefix={uuid.uuid4().hex}"


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[StoreServer]:
    """An etcd that a test may kill."""
    server = StoreServer(tmp_path / "etcd", ETCD)
    try:
        server.start()
    except PenstockError as error:
        missing(server.title, error)
    yield server
    server.stop()
