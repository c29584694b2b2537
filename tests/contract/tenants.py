"""Logins of all kinds on one database of each engine, for tests of who may do what."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg

import penstock
from penstock import database, log
from penstock.subscriptions import stream
from penstock.topics import rights
from tests.contract.databases import ContractDatabase
from tests.kit import tenants as core

OURS, THEIRS, OPEN = "ours/orders", "theirs/orders", "open/orders"

#: What a tenant gets that keeps house in its own namespace: the operator role would pass all walls.
OPERATE = """
create_namespace rename_namespace move_namespace delete_namespace create_topic ensure_topic
rename_topic
move_topic resize_topic delete_topic set_retention grant_namespace revoke_namespace grants_of seal
count_log_epochs begin_clean log_epochs_due record_reading clean
copies_between log_epochs_sealed_on move_copy clear_suspicion
changed_hours log_epochs_between unsealed_logs lost_copies
sequence_gaps copies_of log_epochs_of record_copy forget_copy missing_copies set_backpressure
set_policy clear_policy policy_of policy_history list_policies drop_dead_letters
place_hold release_hold list_holds
find_erasable begin_erasure erase_events erase_letters finish_erasure copies_of_erasure
list_erasures reissued_of erased_of
request_backfill claim_backfill extend_backfill backfill_work
progress_backfill finish_backfill fail_backfill cancel_backfill
begin_rehydration put_rehydrated finish_rehydration rehydrated_of release_rehydrated
"""
_TENANT = "publisher consumer reader"
_ROLE = "penstock_test_tenant"
_numbers = itertools.count(1)


class Tenants(Protocol):
    """Makes users and roles of a server, which are gone after the test."""

    owner: Any
    #: A name that there is, for calls that need one.
    somebody: str

    def role(self) -> str:
        """A new role."""
        ...

    def login(self, kinds: str = "") -> str:
        """A login that is in the roles of these kinds."""
        ...

    def give_role(self, role: str, login: str) -> None:
        """Make a login a member of a role of the server's."""
        ...

    def take_role(self, role: str, login: str) -> None:
        """The reverse."""
        ...

    def give(self, login: str, functions: str) -> None:
        """Let a login call functions, but for any role."""
        ...

    def tenant(self) -> str:
        """A login of all roles but the operator's, that may call what OPERATE names."""
        ...

    def url_of(self, login: str) -> str:
        """The address of the database for a login of this class."""
        ...

    def install(self) -> None:
        """The roles of Penstock, with their functions."""
        ...

    def drop(self) -> None:
        """Everything that was made."""
        ...


class PostgresTenants(core.Tenants):
    """Roles of the cluster; the owner is a superuser."""

    somebody = "postgres"

    def give_role(self, role: str, login: str) -> None:
        self.owner.execute(f'GRANT "{role}" TO "{login}"'.encode())

    def take_role(self, role: str, login: str) -> None:
        self.owner.execute(f'REVOKE "{role}" FROM "{login}"'.encode())

    def give(self, login: str, functions: str) -> None:
        names = ", ".join(f"penstock.{each}" for each in functions.split())
        self.owner.execute(f'GRANT EXECUTE ON FUNCTION {names} TO "{login}"'.encode())

    def tenant(self) -> str:
        login = self.login(_TENANT)
        self.give(login, OPERATE)
        return login


class MySQLTenants:
    """Users of the server.

    The five roles stay after a test, and one that tenants have: to give them their procedures
    takes longer than most tests.
    """

    somebody = "root"
    #: The databases whose servers have the roles; how many rights the tenants' has on procedures.
    made_on: ClassVar[dict[str, int]] = {}

    def __init__(self, db: ContractDatabase) -> None:
        self.owner: Any = db.connect()
        self.made: list[str] = []
        self._url = db.url
        self._engine = db.engine

    def role(self) -> str:
        name = self._new()
        self._run(f"CREATE ROLE `{name}`")
        return name

    def login(self, kinds: str = "") -> str:
        name = self._new()
        self._run(f"CREATE USER `{name}` IDENTIFIED BY 'x'")
        for kind in kinds.split():
            rights.add_member(self.owner, kind, name)
        return name

    def give_role(self, role: str, login: str) -> None:
        self._run(f"GRANT `{role}` TO `{login}`")
        rights.refresh(self.owner)

    def take_role(self, role: str, login: str) -> None:
        self._run(f"REVOKE `{role}` FROM `{login}`")
        rights.refresh(self.owner)

    def give(self, login: str, functions: str) -> None:
        for each in functions.split():
            self._run(f"GRANT EXECUTE ON PROCEDURE penstock.{each} TO `{login}`")

    def tenant(self) -> str:
        login = self._new()
        self._run(f"CREATE USER `{login}` IDENTIFIED BY 'x'")
        self._run(f"GRANT `{_ROLE}` TO `{login}`")
        word = "FOR" if self._engine == "mariadb" else "TO"
        self._run(f"SET DEFAULT ROLE `{_ROLE}` {word} `{login}`")
        rights.refresh(self.owner)
        return login

    def url_of(self, login: str) -> str:
        parts = urlsplit(self._url)
        return urlunsplit(
            parts._replace(netloc=f"{login}:x@{parts.hostname}:{parts.port}", path="/penstock")
        )

    def install(self) -> None:
        # With a procedure that is made anew the rights on it are gone.
        if self.made_on.get(self._url) == self._rights():
            database.call(self.owner, "install_rights")
            return
        rights.install(self.owner)
        self._run(f"DROP ROLE IF EXISTS `{_ROLE}`")
        self._run(f"CREATE ROLE `{_ROLE}`")
        for kind in _TENANT.split():
            self._run(f"GRANT `{rights.role_name(kind)}` TO `{_ROLE}`")
        self.give(_ROLE, OPERATE)
        self.made_on[self._url] = self._rights()

    def _rights(self) -> int:
        """How many procedures all roles may call: one that is made anew is called by none."""
        roles = ", ".join(f"'{each}'" for each in (_ROLE, *map(rights.role_name, rights.KINDS)))
        ((count,),) = database.execute(
            self.owner, f"SELECT COUNT(*) FROM mysql.procs_priv WHERE User IN ({roles})"
        )
        return int(count)

    def drop(self) -> None:
        for name in self.made:
            for kind in ("USER", "ROLE"):
                with contextlib.suppress(Exception):  # it is the other, or gone
                    self._run(f"DROP {kind} `{name}`")

    def _new(self) -> str:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self.made.append(name)
        return name

    def _run(self, statement: str) -> None:
        database.execute(self.owner, statement)


@contextmanager
def tenants_of(db: ContractDatabase) -> Iterator[Tenants]:
    """Tenants that are gone afterwards."""
    found: Tenants
    if db.engine == "postgres":
        owner = psycopg.connect(db.url, autocommit=True)
        found = PostgresTenants(owner, db.url)
    else:
        found = MySQLTenants(db)
    try:
        yield found
    finally:
        found.drop()
        found.owner.close()


@contextmanager
def as_login(tenants: Tenants, login: str) -> Iterator[Any]:
    """A connection in autocommit mode."""
    with contextlib.closing(database.connect(tenants.url_of(login))) as connection:
        yield connection


def three_topics(tenants: Tenants) -> None:
    """A topic for us, one for them and an open one; each with an event and a subscription."""
    tenants.install()
    for topic in (OURS, THEIRS, OPEN):
        penstock.create_topic(tenants.owner, topic, create_namespaces=True)
        penstock.publish(tenants.owner, topic, topic.encode())
        stream.subscribe(tenants.owner, topic.partition("/")[0], [topic])
    log.sequence(tenants.owner)


def tenant(tenants: Tenants, namespace: str) -> str:
    """A login with all roles but the operator's, and all verbs in a namespace."""
    login = tenants.tenant()
    penstock.grant_namespace(tenants.owner, namespace, login, "operate")
    return login
