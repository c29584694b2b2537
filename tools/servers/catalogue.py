"""Every server that can be had, by name."""

from __future__ import annotations

from collections.abc import Sequence

from tools.servers import postgres_matrix
from tools.servers.mariadb import MARIADB, MARIADB_10_11
from tools.servers.mysql import MYSQL

DISTRIBUTIONS = {each.name: each for each in (MYSQL, MARIADB, MARIADB_10_11)}
POSTGRES = {f"postgres-{major}": major for major in postgres_matrix.VERSIONS}
NAMES: Sequence[str] = [*DISTRIBUTIONS, *POSTGRES]

#: `all`: what every run of the tests takes; `matrix`: what `make test-matrix` takes besides.
GROUPS: dict[str, Sequence[str]] = {
    "all": [MYSQL.name, MARIADB.name],
    "matrix": [*POSTGRES, MARIADB_10_11.name],
}


def fetch(name: str) -> str:
    """Make a server ready to start without the network; answers its version."""
    if name in POSTGRES:
        return postgres_matrix.version(POSTGRES[name])
    DISTRIBUTIONS[name].template()
    return DISTRIBUTIONS[name].version()


def fetched(name: str) -> bool:
    """Whether its programs are here already."""
    if name in POSTGRES:
        return postgres_matrix.fetched(POSTGRES[name])
    return DISTRIBUTIONS[name].fetched()
