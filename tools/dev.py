"""``make dev``: becomes ``dagster dev``, with the default handling of the signals that stop it.

A shell without a terminal starts background processes with SIGINT ignored. Dagster inherits that,
and then SIGTERM does nothing either.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

from ops.policies.file import VARIABLE, load
from penstock import database
from penstock.database import config, migrate
from penstock.topics import names
from resources.database import EMBEDDED, JOINED
from resources.embedded import EmbeddedPostgres

#: What Dagster's daemon is told: how often it looks at the freshness of assets.  At its own 30 s
#: that is 5 s of a processor a minute for 1,000 topics.  docs/reference/deploy.md
#: names it for the daemon that is deployed.
DAEMON = {"FRESHNESS_DAEMON_INTERVAL_SECONDS": "300"}
#: A database of one's own follows the policy file that its owner names.
NO_POLICIES = Path(__file__).with_name("no_policies.yaml")
BEGIN = """\
It is empty. What to do next, in another terminal in this folder:
  .penstock/venv/bin/penstock topic create shop/orders --partitions 4 --create-namespaces
  .penstock/venv/bin/penstock publish shop/orders '{"hello": "world"}'
Then press "Reload" under Deployment in Dagster: the topic gets its assets. Or stop this, and see a
whole bank: make demo, then make dev DEMO=1\
"""


def main() -> None:
    """Replace this process by ``dagster dev``."""
    _say_where_the_database_is()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name, value in DAEMON.items():
        os.environ.setdefault(name, value)
    os.execv(sys.executable, [sys.executable, "-m", "dagster", "dev", *sys.argv[1:]])


def _say_where_the_database_is() -> None:
    """Print the database's place.  Dagster would start the embedded one and not say where it is."""
    if config.is_configured():
        print(f"database: {config.redact(config.database_url())}", flush=True)
        if not os.environ.get(VARIABLE):
            os.environ[VARIABLE] = str(NO_POLICIES)
            print(f"policy file: none; name yours by {VARIABLE}", flush=True)
        return
    server = EmbeddedPostgres()
    server.start()
    # A code server may outlive Ctrl-C for a moment, and somebody may stop the database then.
    os.environ[EMBEDDED] = JOINED
    print("database: the embedded one; `penstock` finds it in this folder. For programs of yours:")
    print(f"  export {config.URL_VARIABLE}={shlex.quote(server.url())}", flush=True)
    if policies := os.environ.get(VARIABLE):
        print(f"  export {VARIABLE}={shlex.quote(policies)}", flush=True)
    _say_how_to_begin(server.url())


def _say_how_to_begin(url: str) -> None:
    """Migrate, and say what to do next where nothing is there."""
    migrate.migrate(url)
    with database.connect(url) as connection:
        canary = load().canary  # Dagster creates it by itself
        if all(each.address == canary for each in names.list_topics(connection)):
            print(BEGIN, flush=True)


if __name__ == "__main__":
    main()
