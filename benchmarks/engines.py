"""Every engine that a group can be measured on, by name, with its server and fresh databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from benchmarks import bench_database, bench_mysql
from benchmarks.bench import Bench
from tools.servers import MARIADB, MYSQL
from tools.servers.catalogue import POSTGRES

#: Opens what a group works on. No other group uses the name.
Opens = Callable[[str], AbstractContextManager[Bench]]


@contextmanager
def postgres(major: int | None = None) -> Iterator[Opens]:
    """The embedded PostgreSQL, or an older one, fetched if it is missing."""
    with bench_database.bench_server(major=major) as server:
        yield partial(bench_database.bench_database, server)


@contextmanager
def mysql() -> Iterator[Opens]:
    """MySQL, fetched if it is missing."""
    with bench_mysql.bench_server(MYSQL) as server:
        yield partial(bench_mysql.bench_schema, server)


@contextmanager
def mariadb() -> Iterator[Opens]:
    """MariaDB, fetched if it is missing."""
    with bench_mysql.bench_server(MARIADB) as server:
        yield partial(bench_mysql.bench_schema, server)


ENGINES: dict[str, Callable[[], AbstractContextManager[Opens]]] = {
    "postgres": postgres,
    "mysql": mysql,
    "mariadb": mariadb,
}
#: Older versions, by name. They are measured only when they are named.
OLDER: dict[str, Callable[[], AbstractContextManager[Opens]]] = {
    name: partial(postgres, major) for name, major in POSTGRES.items()
}
