"""`python -m tools.servers mysql|mariadb|mariadb-10.11 fetch|start|stop|status --folder F`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.servers import (
    DURABLE,
    FAST,
    MARIADB,
    MARIADB_10_11,
    MYSQL,
    MySQLServer,
    ServerUnavailable,
)

_DISTRIBUTIONS = {each.name: each for each in (MYSQL, MARIADB, MARIADB_10_11)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; an exit code of 1 comes with a line that says what to do."""
    parser = argparse.ArgumentParser(prog="python -m tools.servers", description=__doc__)
    parser.add_argument("server", choices=sorted(_DISTRIBUTIONS))
    parser.add_argument("verb", choices=["fetch", "start", "stop", "status"])
    parser.add_argument("--folder", type=Path, help="where the data lie; needed but for fetch")
    parser.add_argument("--database", default="penstock", help="created when it is missing")
    parser.add_argument(
        "--durable", action="store_true", help="every commit is on disk, as benchmarks need it"
    )
    options = parser.parse_args(arguments)
    distribution = _DISTRIBUTIONS[options.server]
    try:
        if options.verb == "fetch":
            distribution.template()
            print(f"{distribution.title} {distribution.version()}")
            return 0
        if options.folder is None:
            parser.error("--folder is needed")
        settings = DURABLE if options.durable else FAST
        server = MySQLServer(options.folder, distribution, settings=settings, die_with_parent=False)
        return _perform(options.verb, server, options.database)
    except ServerUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _perform(verb: str, server: MySQLServer, database: str) -> int:
    if verb == "stop":
        print("stopped" if server.stop() else "was not running")
        return 0
    if verb == "start":
        server.start()
    elif server.pid is None:
        print("not running")
        return 3
    print(server.url(database))
    return 0


if __name__ == "__main__":
    sys.exit(main())
