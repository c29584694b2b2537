"""``make dev``: becomes ``dagster dev``, with the default handling of the signals that stop it.

A shell without a terminal starts background processes with SIGINT ignored. Dagster inherits that,
and then SIGTERM does nothing either.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys

from penstock.database import config
from resources.embedded import EmbeddedPostgres

EMBEDDED_DIRECTORY = "PENSTOCK_EMBEDDED_DIRECTORY"


def main() -> None:
    """Replace this process by ``dagster dev``."""
    _say_where_the_database_is()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "dagster", "dev", *sys.argv[1:]])


def _say_where_the_database_is() -> None:
    """Print the database's place.  Dagster would start the embedded one and not say where it is."""
    if config.is_configured():
        print(f"database: {config.redact(config.database_url())}", flush=True)
        return
    server = EmbeddedPostgres(os.environ.get(EMBEDDED_DIRECTORY) or None)
    server.start()
    print("database: the embedded one; `penstock` finds it in this folder. For programs of yours:")
    print(f"  export {config.URL_VARIABLE}={shlex.quote(server.url())}", flush=True)


if __name__ == "__main__":
    main()
