"""Every engine that a group can be measured on, by name: its server, and fresh databases of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from benchmarks import bench_database, bench_mysql
from benchmarks.bench import Bench
from tools.servers import MARIADB, MYSQL

#: Opens what a group works on; the name is one that no other group uses.
Opens = Callable[[str], AbstractContextManager[Bench]]


@contextmanager
def postgres() -> Iterator[Opens]:
    """The embedded PostgreSQL."""
    with bench_database.bench_server() as server:
        yield partial(bench_database.bench_database, server)


@contextmanager
def mysql() -> Iterator[Opens]:
    """MySQL, fetched when it is not here."""
    with bench_mysql.bench_server(MYSQL) as server:
        yield partial(bench_mysql.bench_schema, server)


@contextmanager
def mariadb() -> Iterator[Opens]:
    """MariaDB, fetched when it is not here."""
    with bench_mysql.bench_server(MARIADB) as server:
        yield partial(bench_mysql.bench_schema, server)


ENGINES: dict[str, Callable[[], AbstractContextManager[Opens]]] = {
    "postgres": postgres,
    "mysql": mysql,
    "mariadb": mariadb,
}
