"""What definitions are made for: the topics of the database and those of the policy file.

Definitions have to load while the database is down: then they hold what the policy file and
``PENSTOCK_TOPICS`` name, and one message says so.  New topics appear when the code location is
loaded again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from dagster_project.naming import require_distinct
from ops.policy_file import Policies, load
from penstock import database
from penstock.errors import PenstockError
from penstock.topics import names
from resources.database import database_url

logger = logging.getLogger("penstock.dagster")

#: More topics, by comma, for code locations that cannot reach the database.
TOPICS = "PENSTOCK_TOPICS"
CONNECT_SECONDS = 2
STATEMENT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The topics to make assets for, and the policies."""

    policies: Policies
    topics: tuple[str, ...]


def read(environ: Mapping[str, str] | None = None) -> Catalogue:
    """The topics of the database, of the policy file with its relays, and of the environment."""
    environ = os.environ if environ is None else environ
    policies = load()
    given = {each.strip() for each in environ.get(TOPICS, "").split(",") if each.strip()}
    relayed = {relay.topic for relay in policies.relays.values()}
    found = sorted({*policies.topics, *relayed, *given, *_topics_of_database()})
    require_distinct(found)
    require_distinct(policies.relays)
    return Catalogue(policies, tuple(found))


def _topics_of_database() -> list[str]:
    try:
        url = _impatient(database_url())
        with database.connect(
            url, application_name="penstock dagster load", statement_timeout_ms=STATEMENT_MS
        ) as connection:
            return [topic.address for topic in names.list_topics(connection)]
    except PenstockError as error:
        logger.warning(
            "the topics of the database are not known (%s). Dagster shows those of the policy "
            "file; reload the code location when the database can be reached.",
            error,
        )
        return []


def _impatient(url: str) -> str:
    """The same address with a shorter time limit: a code location has seconds to load."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        plain = database.libpq_url(url)
        if "connect_timeout" in conninfo_to_dict(plain):
            return url
        return make_conninfo(plain, connect_timeout=CONNECT_SECONDS)
    except ProgrammingError:
        return url  # connect says what is wrong with it
