"""Every server that can be fetched, by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.servers import elasticmq, kafka, postgres_matrix, rabbitmq
from tools.servers.mariadb import MARIADB, MARIADB_10_11
from tools.servers.mysql import MYSQL
from tools.servers.server import MySQLServer
from tools.servers.stores import (
    ETCD,
    PROMTOOL,
    REDIS,
    SYSTEMD_ANALYZE,
    Program,
    StoreServer,
)

DISTRIBUTIONS = {each.name: each for each in (MYSQL, MARIADB, MARIADB_10_11)}
STORES = {each.name: each for each in (ETCD, REDIS)}
#: What comes out of a Debian package and is fetched in one way.
PROGRAMS: dict[str, Program] = {
    **STORES,
    **{each.name: each for each in (PROMTOOL, SYSTEMD_ANALYZE)},
}
POSTGRES = {f"postgres-{major}": major for major in postgres_matrix.VERSIONS}
BROKERS: Sequence[str] = [kafka.NAME, rabbitmq.NAME, elasticmq.NAME]
NAMES: Sequence[str] = [*DISTRIBUTIONS, *PROGRAMS, *BROKERS, *POSTGRES]

#: `all`: what every run of the tests needs. `matrix`: what `make test-matrix` needs besides.
GROUPS: dict[str, Sequence[str]] = {
    "all": [MYSQL.name, MARIADB.name, *PROGRAMS, *BROKERS],
    "matrix": [
        *(name for name, major in POSTGRES.items() if major != postgres_matrix.NEWEST),
        MARIADB_10_11.name,
    ],
}


def fetch(name: str) -> str:
    """Make a server ready to start without the network.  Returns its version."""
    if name in POSTGRES:
        return postgres_matrix.version(POSTGRES[name])
    if name in PROGRAMS:
        return PROGRAMS[name].version()
    if name == kafka.NAME:
        return kafka.JARS.version("kafka_2.13")
    if name == elasticmq.NAME:
        return elasticmq.JARS.version("elasticmq-server_2.13")
    if name == rabbitmq.NAME:
        return rabbitmq.version()
    DISTRIBUTIONS[name].template()
    return DISTRIBUTIONS[name].version()


def fetched(name: str) -> bool:
    """Whether its programs are here already."""
    if name in POSTGRES:
        return postgres_matrix.fetched(POSTGRES[name])
    if name in PROGRAMS:
        return PROGRAMS[name].fetched()
    if name == kafka.NAME:
        return kafka.JARS.fetched()
    if name == elasticmq.NAME:
        return elasticmq.JARS.fetched()
    if name == rabbitmq.NAME:
        return rabbitmq.fetched()
    return DISTRIBUTIONS[name].fetched()


Server = (
    MySQLServer | StoreServer | kafka.KafkaServer | rabbitmq.RabbitServer | elasticmq.ElasticServer
)


def in_folder(state: Path) -> Server:
    """The server whose ``server.json`` this is."""
    name = json.loads(state.read_text())["name"]
    if name in STORES:
        return StoreServer(state.parent, STORES[name])
    if name == kafka.NAME:
        return kafka.KafkaServer(state.parent)
    if name == rabbitmq.NAME:
        return rabbitmq.RabbitServer(state.parent)
    if name == elasticmq.NAME:
        return elasticmq.ElasticServer(state.parent)
    return MySQLServer(state.parent)
