"""Fetch, start and stop real servers: `python -m tools.servers mysql start --folder F`.

The servers are mysql, mariadb, mariadb-10.11, etcd, redis, kafka, rabbitmq, elasticmq and
postgres-14 to postgres-18; `all` and `matrix` stand for several of them, to be fetched.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import PenstockError
from resources.embedded import EmbeddedPostgres
from tools.servers import DURABLE, FAST, MySQLServer, StoreServer
from tools.servers.catalogue import (
    DISTRIBUTIONS,
    GROUPS,
    NAMES,
    POSTGRES,
    PROGRAMS,
    STORES,
    fetch,
    fetched,
)
from tools.servers.elasticmq import NAME as ELASTICMQ, ElasticServer
from tools.servers.kafka import NAME as KAFKA, KafkaServer
from tools.servers.postgres_matrix import MatrixPostgres
from tools.servers.rabbitmq import NAME as RABBITMQ, RabbitServer

_NOT_RUNNING = 3

_Server = MySQLServer | EmbeddedPostgres | StoreServer | KafkaServer | RabbitServer | ElasticServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.  With exit code 1, a line says what to do."""
    parser = argparse.ArgumentParser(prog="python -m tools.servers", description=__doc__)
    parser.add_argument("server", choices=[*NAMES, *GROUPS], metavar="SERVER")
    parser.add_argument("verb", choices=["fetch", "start", "stop", "status"])
    parser.add_argument("--folder", type=Path, help="where the data lie; needed but for fetch")
    parser.add_argument("--database", default="penstock", help="created when it is missing")
    parser.add_argument(
        "--durable", action="store_true", help="every commit is on disk, as benchmarks need it"
    )
    options = parser.parse_args(arguments)
    if options.verb != "fetch" and (options.folder is None or options.server in GROUPS):
        parser.error(f"{options.verb} needs one server and its --folder")
    if options.verb != "fetch" and options.server in PROGRAMS.keys() - STORES.keys():
        parser.error(f"{options.server} is no server: it can only be fetched")
    try:
        if options.verb == "fetch":
            return _fetch(GROUPS.get(options.server, [options.server]))
        server = _server(options.server, options.folder, durable=options.durable)
        return _perform(options.verb, server, options.database)
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _fetch(names: Sequence[str]) -> int:
    """Fetch every server, even after one that cannot be fetched."""
    failed = 0
    for name in names:
        if not fetched(name):
            print(f"{name}: fetching, once", file=sys.stderr)
        try:
            print(f"{name}: {fetch(name)}", flush=True)
        except PenstockError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = 1
    return failed


def _server(name: str, folder: Path, *, durable: bool) -> _Server:
    if name in STORES:
        return StoreServer(folder, STORES[name], die_with_parent=False)
    if name == KAFKA:
        return KafkaServer(folder, die_with_parent=False)
    if name == RABBITMQ:
        return RabbitServer(folder, die_with_parent=False)
    if name == ELASTICMQ:
        return ElasticServer(folder, die_with_parent=False)
    if name in POSTGRES:
        settings = {} if durable else {"fsync": "off", "full_page_writes": "off"}
        return MatrixPostgres(POSTGRES[name], folder, settings=settings)
    return MySQLServer(
        folder,
        DISTRIBUTIONS[name],
        settings=DURABLE if durable else FAST,
        die_with_parent=False,
    )


def _perform(verb: str, server: _Server, database: str) -> int:
    if verb == "stop":
        print("stopped" if server.stop() else "was not running")
        return 0
    if verb == "start":
        server.start()
    elif server.pid is None:
        print("not running")
        return _NOT_RUNNING
    print(
        server.url()
        if isinstance(server, StoreServer | KafkaServer | RabbitServer | ElasticServer)
        else server.url(database)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
