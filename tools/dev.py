"""``make dev``: becomes ``dagster dev``, with the signals that stop it as they are by default.

A shell without a terminal starts what it puts in the background with SIGINT ignored; Dagster takes
that over, and then SIGTERM does nothing either.
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
    """Replace this process."""
    _say_where_the_database_is()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "dagster", "dev", *sys.argv[1:]])


def _say_where_the_database_is() -> None:
    """Dagster would start the embedded one itself, and tell nobody where it is."""
    if config.is_configured():
        print(f"database: {config.redact(config.database_url())}", flush=True)
        return
    server = EmbeddedPostgres(os.environ.get(EMBEDDED_DIRECTORY) or None)
    server.start()
    print("database: the embedded one; `penstock` finds it in this folder. For programs of yours:")
    print(f"  export {config.URL_VARIABLE}={shlex.quote(server.url())}", flush=True)


if __name__ == "__main__":
    main()
