"""What definitions are made for: the topics of each database and of the policy file.

It is read once for each load of the code server.  Dagster hands it on to the processes of runs as
reconstruction metadata, so they ask the database for no catalogue, and see the graph that their run
was made for.  New topics appear when the code location is loaded again.

The databases are the one that the environment names, and those of the policy file: a catalogue for
each.  They are asked at the same time, so many that are down cost as long as one.  One that has
not answered in time is left to its thread: what it does stops neither the others nor the load.

Definitions have to load while a database is down: then they hold what the policy file and
``PENSTOCK_TOPICS`` name of it, and one message says so.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypedDict

import dagster as dg

from dagster_project.common import code_of
from dagster_project.naming import (
    HOUSE_DATABASE,
    RELAY,
    RELAY_DATABASE,
    groups,
    house_key,
    slugs,
)
from ops.hours import changed_hours
from ops.policies import file as policy_file
from ops.policies.file import Policies
from ops.policies.policy import is_subscribed
from ops.policies.settings import RelayPolicy, TopicPolicy
from ops.policies.values import require_name
from penstock import database
from penstock.dagster.keys import HOUSE, node_name, relay_slug, topic_slug
from penstock.database import address, config
from penstock.errors import PenstockError
from penstock.topics import names
from resources.database import database_url, is_configured

logger = logging.getLogger("penstock.dagster")

#: More topics, by comma, for code locations that cannot reach the database.
TOPICS = "PENSTOCK_TOPICS"
CONNECT_SECONDS = 2
STATEMENT_MS = 5_000
#: All that is asked of a database ends after so long: a connection and two statements.
LONGEST_SECONDS = 15.0
#: Before this day there was no log epoch anywhere.
EARLIEST = dt.date(2026, 1, 1)
NOT_ANSWERED = (
    "The database did not answer when Dagster loaded this, so only the topics of the policy file "
    "are here. Reload the code location once it is back."
)
_VERSION = 4


class AssetOptions(TypedDict):
    """What all assets of a topic have in common."""

    group_name: str
    owners: list[str]
    metadata: dict[str, Any]


class Answer(TypedDict):
    """What a database says of itself."""

    existing: list[str]
    reading: list[str]
    since: str
    kind: str
    answered: bool


@dataclass(frozen=True)
class Catalogue:
    """The topics to make assets for, the oldest first, the policies, and the first day."""

    policies: Policies
    topics: tuple[str, ...]
    #: Those that are in the database.
    existing: frozenset[str]
    #: The day (UTC) on which the first log epoch was sealed: before it there are no hours.
    since: dt.date
    #: What Dagster shows of each of its assets: postgres or mysql.
    kind: str = "postgres"
    #: Whether the database has answered, and has no topic but that of the canary.
    is_empty: bool = False
    #: Whether it has answered: else only the topics of the policy file are known, until a reload.
    has_answered: bool = True
    #: The relays whose topic is not there under the name in the file, but whose subscription is.
    reading: frozenset[str] = frozenset()

    @property
    def database(self) -> str:
        """The name of the database in the policy file; '' for the one of the environment."""
        return self.policies.database

    @cached_property
    def _prefix(self) -> list[str]:
        """How the keys of its assets begin."""
        if self.database == RELAY:
            return [RELAY_DATABASE]
        return [self.database] if self.database else []

    @cached_property
    def _slugs(self) -> dict[str, str]:
        return slugs(self.topics, topic_slug)

    @cached_property
    def _groups(self) -> dict[str, str]:
        return groups([*self.topics, *(each.topic for each in self.relays())])

    @cached_property
    def _relay_slugs(self) -> dict[str, str]:
        return slugs(self.policies.relays, relay_slug)

    def key(self, topic: str, name: str) -> dg.AssetKey:
        """The key of one of a topic's assets."""
        return dg.AssetKey([HOUSE, *self._prefix, self._slugs[topic], node_name(topic, name)])

    def keys(self, name: str) -> dict[dg.AssetKey, str]:
        """The topic of each key, of the assets of one kind that every topic has."""
        return {self.key(topic, name): topic for topic in self.topics}

    def relay_key(self, relay: str) -> dg.AssetKey:
        """The key of a relay's asset."""
        return dg.AssetKey([HOUSE, *self._prefix, RELAY, self._relay_slugs[relay]])

    def house(self, name: str) -> dg.AssetKey:
        """The key of an asset that belongs to the database, and to no topic."""
        return house_key(name, *self._prefix)

    def named(self, name: str) -> str:
        """The name of a job, sensor, schedule or op: each database of a fleet has its own."""
        # Ops of the environment's database begin with the name of the house.
        own = HOUSE_DATABASE if self.database == HOUSE else self.database
        return f"{own}__{name}" if own else name

    def group(self, name: str) -> str:
        """A group of assets: those of a database of a fleet are together."""
        return f"{self.database}/{name}" if self.database else name

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
        return [each for each in self._known() if each.archive]

    def retained(self) -> list[TopicPolicy]:
        """The policies of the topics from which something is removed."""
        return [each for each in self._known() if each.retention]

    def relays(self) -> list[RelayPolicy]:
        """The relays of topics that are there, or that read one which has another name now."""
        return [
            each
            for name, each in self.policies.relays.items()
            if each.topic in self.topics or name in self.reading
        ]

    def _known(self) -> list[TopicPolicy]:
        return [each for each in self.policies.topics.values() if each.topic in self.topics]

    def options(self, topic: str, code: Callable[..., Any]) -> AssetOptions:
        """What all assets of a topic have in common: group, owner, true name, place of the code."""
        owner = self.policies.of_topic(topic).owner
        return {
            "group_name": self.group(self._groups[topic]),
            "owners": [owner] if owner else [],
            "metadata": {"penstock/topic": topic, **code_of(code)},
        }

    def about(self, text: str) -> str:
        """A description, which says so while the database has not answered."""
        return text if self.has_answered else f"{text}\n\n{NOT_ANSWERED}"


Fleet = tuple[Catalogue, ...]
#: The name of a database, what it says, and why it says nothing.
Told = SimpleQueue[tuple[str, Answer, str]]


def loaded() -> tuple[Fleet, str]:
    """The catalogues of this load and the text that hands them on.

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


def read(environ: Mapping[str, str] | None = None) -> Fleet:
    """The catalogues as they are now."""
    return parse(dump(environ))


def dump(environ: Mapping[str, str] | None = None) -> str:
    """The catalogues as text: the policy file, and the topics of each database."""
    environ = os.environ if environ is None else environ
    path = policy_file.default_path(environ)
    policies = policy_file.load(path)  # says what is wrong with it
    given = sorted({each.strip() for each in environ.get(TOPICS, "").split(",") if each.strip()})
    for each in given:
        require_name(each, "topic", TOPICS)
    names_of_all = [*([""] if is_configured(environ) else []), *policies.databases]
    found = {
        "version": _VERSION,
        "path": str(path),
        "policies": path.read_text(encoding="utf-8"),
        "given": given,
        "databases": _answers([policies.of_database(name) for name in names_of_all]),
    }
    return json.dumps(found)


def parse(text: str) -> Fleet:
    """The catalogues of a text that :func:`dump` has made."""
    found = json.loads(text)
    policies = policy_file.parse(found["policies"], Path(found["path"]))
    return tuple(
        # The topics of the variable are those of the environment's database.
        _catalogue(policies.of_database(name), answer, [] if name else found["given"])
        for name, answer in found["databases"].items()
    )


def _catalogue(policies: Policies, answer: Answer, given: list[str]) -> Catalogue:
    relayed = {relay.topic for relay in policies.relays.values()}
    named = sorted({*policies.topics, *relayed, *given})
    return Catalogue(
        policies,
        # What a database that has answered does not have is not shown: it comes with a reload.
        _in_order(answer["existing"], [] if answer["answered"] else named),
        frozenset(answer["existing"]),
        dt.date.fromisoformat(answer["since"]),
        answer["kind"],
        is_empty=answer["answered"] and not {*answer["existing"]} - {policies.canary},
        has_answered=answer["answered"],
        reading=frozenset(answer["reading"]),
    )


def _in_order(*lists: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for some in lists for each in some))


def _answers(asked: Iterable[Policies]) -> dict[str, Answer]:
    """What each database says, by its name.  One that says nothing in time is not waited for."""
    found: dict[str, Answer] = {}
    told: Told = SimpleQueue()
    silent: set[str] = set()
    for each in asked:
        url = _url(each)
        found[each.database] = _unknown(url)
        if url:
            silent.add(each.database)
            # A daemon: a process that ends does not wait for a server that is frozen.
            Thread(target=_tell, args=(told, each, url), daemon=True).start()
    until = time.monotonic() + LONGEST_SECONDS
    with suppress(Empty):
        while silent:
            name, answer, why = told.get(timeout=max(0.0, until - time.monotonic()))
            found[name] = answer
            silent.discard(name)
            if why:
                _warn(name, why)
    for name in sorted(silent):
        _warn(name, f"no answer within {LONGEST_SECONDS:g} seconds: look whether it is frozen")
    return found


def _tell(told: Told, asked: Policies, url: str) -> None:
    """Put what a database says, or why it says nothing: whatever goes wrong is its own."""
    answer, why = _unknown(url), ""
    try:
        answer = _asked(url, asked.relays.values())
    except PenstockError as error:
        why = str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {address.without_secrets(url, str(error))}"
    told.put((asked.database, answer, why))


def _asked(url: str, relays: Iterable[RelayPolicy]) -> Answer:
    """The topics, the oldest first, the day of the first log epoch, else today, and the dialect."""
    with database.connect(
        impatient(url),
        application_name="penstock dagster load",
        statement_timeout_ms=STATEMENT_MS,
    ) as connection:
        topics = names.list_topics(connection)
        first = changed_hours(connection, max_changes=1)
        existing = {each.address for each in topics}
        lost = [each for each in relays if each.topic not in existing]
        reading = [each.name for each in lost if is_subscribed(connection, each)]
    topics.sort(key=lambda each: (each.created_at, each.address))
    today = dt.datetime.now(dt.UTC).date()
    since = min([today, *(each.hour.date() for each in first)]).isoformat()
    found = [each.address for each in topics]
    told: Answer = {**_unknown(url), "existing": found, "reading": reading}
    return {**told, "since": since, "answered": True}


def _unknown(url: str) -> Answer:
    """What is known of a database that does not answer: its hours may begin on any day."""
    kind = config.dialect_of_url(url) if url else "postgres"
    since = EARLIEST.isoformat()
    return {"existing": [], "reading": [], "since": since, "kind": kind, "answered": False}


def _url(policies: Policies) -> str:
    """The address; nothing when there is none.  To start the embedded database takes its time."""
    try:
        return policies.database_url() if policies.database else database_url()
    except Exception as error:
        _warn(policies.database, str(error))
        return ""


def _warn(name: str, why: str) -> None:
    logger.warning(
        "the topics of the database%s are not known (%s). Dagster shows those of the policy "
        "file; reload the code location when the database can be reached.",
        f" {name}" if name else "",
        why,
    )


def impatient(url: str) -> str:
    """The same address with a shorter time limit: a code location has seconds to load."""
    if "connect_timeout" in url:
        return url
    if config.dialect_of_url(url) == "mysql":
        return f"{url}{'&' if '?' in url else '?'}connect_timeout={CONNECT_SECONDS}"
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    try:
        return make_conninfo(database.libpq_url(url), connect_timeout=CONNECT_SECONDS)
    except ProgrammingError:
        return url  # connect says what is wrong with it
