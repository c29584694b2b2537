"""A healthy server for the tests to break.  The commands that the doctor names are run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import penstock
from penstock.database import migrate
from penstock.doctor import doctor
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import ROOT, TOPIC, Connection, Run


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server as it should be: the tests' own one has fsync off."""
    settings = {"max_prepared_transactions": "5", "wal_level": "logical"}
    with EmbeddedPostgres(tmp_path_factory.mktemp("doctor") / "pg", settings=settings) as running:
        yield running


@pytest.fixture(scope="session")
def url(server: EmbeddedPostgres) -> str:
    """A migrated database with a topic."""
    address = server.url("shop")
    migrate.migrate(address)
    with psycopg.connect(address, autocommit=True) as connection:
        penstock.create_topic(connection, TOPIC, create_namespaces=True)
    return address


@pytest.fixture
def admin(url: str) -> Iterator[Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is wrong before a test, and nothing after it."""
    if "url" not in request.fixturenames:
        yield
        return
    url = request.getfixturevalue("url")
    assert doctor(url) == []
    yield
    assert doctor(url) == []


@pytest.fixture
def run(server: EmbeddedPostgres) -> Run:
    """Runs a command that mends something, as the person at the terminal does."""

    def run(command: str, url: str) -> str:
        bin_dirs = f"{server.bin_dir}:{Path(sys.executable).parent}"
        done = subprocess.run(
            ["bash", "-ec", command], capture_output=True, text=True, timeout=120, check=False,
            env={
                **os.environ, "PATH": f"{bin_dirs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                "PGPASSWORD": urlsplit(url).password or "", "PENSTOCK_DATABASE_URL": url,
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
