"""The database as Dagster sees it: found through the environment, pooled by SQLAlchemy.

The address never becomes configuration of Dagster, because Dagster stores and shows its
configuration. Only the process that uses the address reads it, from ``PENSTOCK_DATABASE_URL`` or
the ``DB_*`` variables. The embedded database is started, or joined, and migrated only where
``PENSTOCK_EMBEDDED=1`` asks for it by name: a production host must never start one by mistake.
With ``PENSTOCK_EMBEDDED=joined`` it is only joined: whoever runs this has started it, and a process
that outlives them must not bring it up again.
The other databases of a fleet stand in the policy file, each with a name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import dagster as dg
import sqlalchemy

from ops.policies.checks import require_own
from ops.policies.file import Policies, load
from penstock import database
from penstock.database import config, migrate
from penstock.errors import ConfigurationError
from resources.embedded import EmbeddedPostgres

#: 1: use the embedded database where no address is given, and start it; joined: only if it runs.
EMBEDDED, STARTED, JOINED = "PENSTOCK_EMBEDDED", "1", "joined"

HOW_TO_CONFIGURE = (
    f"set {config.URL_VARIABLE} to the address of a database that `penstock migrate` has prepared, "
    f"or {EMBEDDED}=1 for the embedded one, as `make dev` does"
)

_DRIVERS = {"postgres": "postgresql+psycopg://", "mysql": "mysql+pymysql://"}
_migrated: set[str] = set()
_starting = threading.Lock()


class DatabaseResource(dg.ConfigurableResource[None]):
    """The database that the environment names; with ``PENSTOCK_EMBEDDED=1`` the embedded one.

    With a name it is a database of the policy file.
    """

    name: str = ""

    def of(self, name: str) -> DatabaseResource:
        """The database of another name."""
        return DatabaseResource(name=name)

    def url(self) -> str:
        """Its address, with the password: for connections, never for logs or metadata."""
        return self.policies().database_url() if self.name else database_url()

    def policies(self) -> Policies:
        """What the policy file says for it, as the file is now.

        ConfigurationError when another database of the file is the same: whose word would hold?
        """
        found = load().of_database(self.name)
        if found.urls and not self.name:
            require_own(database_url(), found.entry, found.urls, None)
        return found

    @contextmanager
    def connect(self) -> Iterator[sqlalchemy.Connection]:
        """A pooled connection in autocommit, so every call of a function is its own transaction."""
        with engine(self.url()).connect() as connection:
            yield connection


def is_configured(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a database, or asks for the embedded one."""
    environ = os.environ if environ is None else environ
    return config.is_configured() or environ.get(EMBEDDED, "").strip() in {STARTED, JOINED}


def database_url() -> str:
    """The address that the environment gives, else that of the embedded database, started.

    ConfigurationError when neither is asked for; DatabaseUnavailable when it is only to be joined
    and does not run.
    """
    if config.is_configured():
        return config.database_url()
    if not is_configured():
        raise ConfigurationError("no database is configured", hint=HOW_TO_CONFIGURE)
    with _starting:
        server = EmbeddedPostgres()
        if os.environ[EMBEDDED].strip() == STARTED:
            server.start()
        url = server.url()
        if url not in _migrated:
            migrate.migrate(url)
            _migrated.add(url)
    return url


@lru_cache(maxsize=256)
def engine(url: str) -> sqlalchemy.Engine:
    """One small pool for each database, shared by the whole process."""
    return sqlalchemy.create_engine(
        _DRIVERS[config.dialect_of_url(url)],
        # Our own connect: it knows keyword addresses too, and its errors are typed and redacted.
        creator=lambda: database.connect(url, application_name="penstock dagster"),
        isolation_level="AUTOCOMMIT",
        pool_size=2,
        max_overflow=4,
        pool_pre_ping=True,
        pool_recycle=600,
        hide_parameters=True,
    )
