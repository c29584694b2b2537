"""What definitions are made for: the topics of the database and of the policy file.

It is read once for each load of the code server.  Dagster hands it on to the processes of runs as
reconstruction metadata, so they ask the database for no catalogue, and see the graph that their run
was made for.  New topics appear when the code location is loaded again.

Definitions have to load while the database is down: then they hold what the policy file and
``PENSTOCK_TOPICS`` name, and one message says so.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypedDict

import dagster as dg

from dagster_project.common import code_of
from dagster_project.naming import HOUSE, RELAY, group_of, slugs
from ops.hours import changed_hours
from ops.policies import file as policy_file
from ops.policies.file import Policies, TopicPolicy
from penstock import database
from penstock.errors import PenstockError
from penstock.topics import names
from resources.database import database_url

logger = logging.getLogger("penstock.dagster")

#: More topics, by comma, for code locations that cannot reach the database.
TOPICS = "PENSTOCK_TOPICS"
CONNECT_SECONDS = 2
STATEMENT_MS = 5_000
_VERSION = 1


class AssetOptions(TypedDict):
    """What all assets of a topic have in common."""

    group_name: str
    owners: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Catalogue:
    """The topics to make assets for, the oldest first, the policies, and the first day."""

    policies: Policies
    topics: tuple[str, ...]
    #: Those that are in the database.
    existing: frozenset[str]
    #: The day (UTC) on which the first log epoch was sealed: before it there are no hours.
    since: dt.date

    @cached_property
    def _slugs(self) -> dict[str, str]:
        return slugs(self.topics, reserved=[RELAY])

    @cached_property
    def _relay_slugs(self) -> dict[str, str]:
        return slugs(self.policies.relays)

    def key(self, topic: str, name: str) -> dg.AssetKey:
        """The key of one of a topic's assets."""
        return dg.AssetKey([HOUSE, self._slugs[topic], name])

    def keys(self, name: str) -> dict[dg.AssetKey, str]:
        """The topic of each key, of the assets of one kind that every topic has."""
        return {self.key(topic, name): topic for topic in self.topics}

    def relay_key(self, relay: str) -> dg.AssetKey:
        """The key of a relay's asset."""
        return dg.AssetKey([HOUSE, RELAY, self._relay_slugs[relay]])

    @cached_property
    def hours(self) -> dg.HourlyPartitionsDefinition:
        """The hours (UTC) in which log epochs are sealed, with the one that is not over."""
        return dg.HourlyPartitionsDefinition(start_date=f"{self.since}-00:00", end_offset=1)

    @cached_property
    def days(self) -> dg.DailyPartitionsDefinition:
        """The closed days (UTC)."""
        return dg.DailyPartitionsDefinition(start_date=f"{self.since}")

    def archived(self) -> list[TopicPolicy]:
        """The policies of the topics that have an archive."""
        return [each for each in self.policies.topics.values() if each.archive]

    def retained(self) -> list[TopicPolicy]:
        """The policies of the topics from which something is removed."""
        return [each for each in self.policies.topics.values() if each.retention]

    def options(self, topic: str, code: Callable[..., Any]) -> AssetOptions:
        """What all assets of a topic have in common: group, owner, true name, place of the code."""
        owner = self.policies.of_topic(topic).owner
        return {
            "group_name": group_of(topic),
            "owners": [owner] if owner else [],
            "metadata": {"penstock/topic": topic, **code_of(code)},
        }

    def about(self, topic: str, text: str) -> str:
        """A description, with what to do while the topic is not in the database."""
        if topic in self.existing:
            return text
        command = f"penstock topic create {topic} --create-namespaces"
        return f"{text}\n\nThe topic is not there yet: `{command}`."


def loaded() -> tuple[Catalogue, str]:
    """The catalogue of this load and the text that hands it on.

    In the process of a run it is the one that the code server has read.
    """
    # Not exported by `dagster`; its own loaders of state use it in the same way.
    from dagster._core.definitions.definitions_load_context import (
        DefinitionsLoadContext,
        DefinitionsLoadType,
    )

    context = DefinitionsLoadContext.get()
    if context.load_type is DefinitionsLoadType.RECONSTRUCTION:
        given = context.reconstruction_metadata.get(HOUSE)
        if given is not None:
            return parse(str(given)), str(given)
    text = _of_this_process()
    return parse(text), text


@cache
def _of_this_process() -> str:
    """Dagster loads definitions more than once in a process.  A reload is a new process."""
    return dump()


def read(environ: Mapping[str, str] | None = None) -> Catalogue:
    """The catalogue as it is now."""
    return parse(dump(environ))


def dump(environ: Mapping[str, str] | None = None) -> str:
    """The catalogue as text: the policy file, and the topics of the database."""
    environ = os.environ if environ is None else environ
    path = policy_file.default_path(environ)
    policy_file.load(path)  # says what is wrong with it
    given = sorted({each.strip() for each in environ.get(TOPICS, "").split(",") if each.strip()})
    existing, since = _of_database()
    found = {
        "version": _VERSION,
        "path": str(path),
        "policies": path.read_text(encoding="utf-8"),
        "existing": existing,
        "given": given,
        "since": since.isoformat(),
    }
    return json.dumps(found)


def parse(text: str) -> Catalogue:
    """The catalogue of a text that :func:`dump` has made."""
    found = json.loads(text)
    policies = policy_file.parse(found["policies"], Path(found["path"]))
    relayed = {relay.topic for relay in policies.relays.values()}
    named = sorted({*policies.topics, *relayed, *found["given"]})
    return Catalogue(
        policies,
        _in_order(found["existing"], named),
        frozenset(found["existing"]),
        dt.date.fromisoformat(found["since"]),
    )


def _in_order(*lists: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for some in lists for each in some))


def _of_database() -> tuple[list[str], dt.date]:
    """The topics, the oldest first, and the day of the first log epoch, else today."""
    today = dt.datetime.now(dt.UTC).date()
    try:
        url = _impatient(database_url())
        with database.connect(
            url, application_name="penstock dagster load", statement_timeout_ms=STATEMENT_MS
        ) as connection:
            topics = names.list_topics(connection)
            first = changed_hours(connection, max_changes=1)
    except PenstockError as error:
        logger.warning(
            "the topics of the database are not known (%s). Dagster shows those of the policy "
            "file; reload the code location when the database can be reached.",
            error,
        )
        return [], today
    topics.sort(key=lambda each: (each.created_at, each.address))
    since = min([today, *(each.hour.date() for each in first)])
    return [each.address for each in topics], since


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
