"""Logins of all kinds on one database, for tests of rights."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

import penstock
from penstock import log
from penstock.subscriptions import stream
from penstock.topics import rights

Connection = psycopg.Connection[tuple[Any, ...]]

_numbers = itertools.count(1)


@dataclass
class Tenants:
    """Creates roles, and drops them again with all that they own and all their rights."""

    owner: Connection
    url: str
    made: list[str] = field(default_factory=list)

    def role(self, options: str = "NOLOGIN", name: str = "", *, member_of: str = "") -> str:
        """Create a role.  ``member_of`` names roles, with a blank between them."""
        name = name or f"test_{os.getpid()}_{next(_numbers)}"
        self.owner.execute(
            sql.SQL("CREATE ROLE {} {}").format(sql.Identifier(name), sql.SQL(options))
        )
        self.made.append(name)
        for each in member_of.split():
            self.owner.execute(
                sql.SQL("GRANT {} TO {}").format(sql.Identifier(each), sql.Identifier(name))
            )
        return name

    def login(self, kinds: str = "") -> str:
        """Create a login with the Penstock roles of these kinds."""
        member_of = " ".join(rights.role_name(kind) for kind in kinds.split())
        return self.role("LOGIN PASSWORD 'x'", member_of=member_of)

    def url_of(self, login: str, url: str = "") -> str:
        """The address of the database for a login of this class."""
        parts = urlsplit(url or self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{login}:x@{host}"))

    @contextmanager
    def as_login(self, login: str) -> Iterator[Connection]:
        """A connection in autocommit mode."""
        with psycopg.connect(self.url_of(login), autocommit=True) as connection:
            yield connection

    def install(self) -> None:
        """Install the roles of Penstock, with their functions."""
        self.made += rights.install(self.owner)

    def drop(self) -> None:
        """Drop everything that was created."""
        for name in reversed(self.made):
            role = sql.Identifier(name)
            self.owner.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            self.owner.execute(sql.SQL("DROP ROLE {}").format(role))


@contextmanager
def tenants_of(owner: Connection, url: str) -> Iterator[Tenants]:
    """Tenants for a test, dropped at its end."""
    found = Tenants(owner, url)
    try:
        yield found
    finally:
        found.drop()


OURS, THEIRS, OPEN = "ours/orders", "theirs/orders", "open/orders"

#: The roles of a tenant that runs its own namespace. The operator role would pass all walls.
OPERATE = """
create_namespace rename_namespace move_namespace delete_namespace create_topic ensure_topic
rename_topic
move_topic resize_topic delete_topic set_retention grant_namespace revoke_namespace grants_of seal
count_log_epochs begin_clean log_epochs_due record_reading clean
copies_between log_epochs_sealed_on move_copy
changed_hours log_epochs_between unsealed_logs lost_copies
sequence_gaps copies_of log_epochs_of record_copy
request_backfill claim_backfill extend_backfill backfill_work
progress_backfill finish_backfill fail_backfill cancel_backfill
begin_rehydration put_rehydrated finish_rehydration rehydrated_of release_rehydrated
"""


@contextmanager
def three_topics(owner: Connection, url: str) -> Iterator[Tenants]:
    """A topic for us, one for them and an open one, each with an event and a subscription."""
    with tenants_of(owner, url) as found:
        found.install()
        for topic in (OURS, THEIRS, OPEN):
            penstock.create_topic(owner, topic, create_namespaces=True)
            penstock.publish(owner, topic, topic.encode())
            stream.subscribe(owner, topic.partition("/")[0], [topic])
        log.sequence(owner)
        yield found


def tenant(tenants: Tenants, namespace: str) -> str:
    """A login with all roles but the operator's, and all verbs in a namespace."""
    login = tenants.login("publisher consumer reader")
    penstock.grant_namespace(tenants.owner, namespace, login, "operate")
    for function in OPERATE.split():
        tenants.owner.execute(
            sql.SQL("GRANT EXECUTE ON FUNCTION penstock.{} TO {}").format(
                sql.Identifier(function), sql.Identifier(login)
            )
        )
    return login


def bulk(connection: Connection, topic: str) -> None:
    """Publish one event by COPY."""
    with connection.transaction():
        penstock.publish_bulk(connection, [penstock.Message(topic, b"x")])
