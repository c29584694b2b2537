"""Two schemas on one server: what another checkout installs, and what this one does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from penstock import database
from resources.embedded import EmbeddedPostgres
from tools.schema.facts import read
from tools.servers import MySQLServer, catalogue
from tools.servers.postgres_matrix import MatrixPostgres

ROOT = Path(__file__).resolve().parents[2]
#: The newest PostgreSQL comes with the environment.
NEWEST_POSTGRES = "postgres-18"
SERVERS = [NEWEST_POSTGRES, *catalogue.POSTGRES, *catalogue.DISTRIBUTIONS]

_INSTALL = "from penstock.database.migrate import migrate; migrate()"


@contextmanager
def server(name: str) -> Iterator[str]:
    """A superuser's URL of a server that runs for the moment."""
    with tempfile.TemporaryDirectory() as folder:
        own: EmbeddedPostgres | MySQLServer
        if name == NEWEST_POSTGRES:
            own = EmbeddedPostgres(folder)
        elif name in catalogue.POSTGRES:
            own = MatrixPostgres(catalogue.POSTGRES[name], folder)
        else:
            own = MySQLServer(folder, catalogue.DISTRIBUTIONS[name])
        try:
            own.start()
            yield own.url("postgres" if "postgres" in name else "mysql")
        finally:
            own.stop()


def facts_of(checkouts: list[Path], url: str) -> list[dict[str, str]]:
    """What each checkout's program installs on the server, its rows included."""
    found = []
    for number, folder in enumerate(checkouts):
        with _place(url, number) as (own, schema):
            environment = {**os.environ, "PENSTOCK_DATABASE_URL": own, "PENSTOCK_SCHEMA": schema}
            subprocess.run(
                [sys.executable, "-c", _INSTALL], cwd=folder, env=environment, check=True
            )
            with database.connect(own) as connection:
                found.append(read(connection, schema, rows=True))
    return found


@contextmanager
def _place(url: str, number: int) -> Iterator[tuple[str, str]]:
    """A database and the name of its schema, for the moment."""
    name = f"compared_{os.getpid()}_{number}"
    is_postgres = urlsplit(url).scheme.startswith("postgres")
    with database.connect(url) as connection:
        if is_postgres:
            database.execute(connection, f"CREATE DATABASE {name}")
        try:
            # A schema of MySQL is a database.
            own = urlunsplit(urlsplit(url)._replace(path=f"/{name}")) if is_postgres else url
            yield own, "penstock" if is_postgres else name
        finally:
            database.execute(connection, f"DROP DATABASE IF EXISTS {name}")
