"""A session that cuts arrays is shown no letter of others (MySQL, MariaDB)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.err import OperationalError

import penstock
from penstock import database, log
from penstock.errors import (
    StaleLease,
)
from penstock.records import Lease
from penstock.subscriptions import dead_letters, stream
from tests.contract.databases import MySQLDatabase
from tests.contract.tenants import OURS, THEIRS, Tenants, as_login, tenant, tenants_of
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("it cuts arrays in another way")


@pytest.fixture
def tenants(mysql_db: MySQLDatabase) -> Iterator[Tenants]:
    """Two tenants."""
    with tenants_of(mysql_db) as found:
        found.install()
        for topic in (THEIRS, OURS):
            penstock.create_topic(found.owner, topic, create_namespaces=True)
        yield found


def _redrive(tenants: Tenants, own: Any, topic: str, subscription: str, events: int) -> Lease:
    """Redriven letters of a subscription.  Returns the lease of their partition."""
    penstock.create_topic(tenants.owner, topic, 1)
    stream.subscribe(tenants.owner, subscription, [topic])
    for number in range(events):
        penstock.publish(tenants.owner, topic, f"{subscription} {number}".encode())
    log.sequence(tenants.owner)
    member = stream.join(own, subscription, "one")
    (lease,) = stream.check_in(own, member)
    for sequence in range(1, events + 1):
        dead_letters.give_up(own, member, lease, sequence, "bad", attempts=1)
    dead_letters.redrive(own, subscription)
    return lease


def _letters_shown(tenants: Tenants, mysql_db: MySQLDatabase) -> set[str]:
    """Whose letters a consumer is shown, wherever the arrays of their ids are cut."""
    _redrive(tenants, tenants.owner, "theirs/letters", "theirs", 9)
    shown: set[str] = set()
    with as_login(tenants, tenant(tenants, "ours")) as own:
        lease = _redrive(tenants, own, "ours/letters", "ours", 12)
        mysql_db.run("UPDATE penstock.subscriptions SET max_attempts = 1000")
        _renumber(mysql_db)
        for cut in range(4, 50):
            database.execute(own, f"SET SESSION group_concat_max_len = {cut}")
            with contextlib.suppress(StaleLease, OperationalError):  # or the cut is no JSON
                found = _polled(own, lease)
                shown |= {str(row[11].decode()).split()[0] for row in found}
    return shown


def _polled(own: Any, lease: Lease) -> list[tuple[Any, ...]]:
    for statement in (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "START TRANSACTION",
    ):
        database.execute(own, statement)
    try:
        return database.execute(
            own,
            "CALL penstock.poll_redriven('ours', 'one', %(ids)s, %(epochs)s, 100)",
            {"ids": f"[{lease.partition_id}]", "epochs": f"[{lease.lease_epoch}]"},
        )
    finally:
        database.execute(own, "COMMIT")


def _renumber(mysql_db: MySQLDatabase) -> None:
    """Letters of theirs are 1 to 9 and ours 10 to 21, so that a cut id is one of theirs."""
    mysql_db.run("UPDATE penstock.dead_letters SET id = id + 1000000 ORDER BY id DESC")
    mysql_db.run("SET @number = 0")
    mysql_db.run("UPDATE penstock.dead_letters SET id = (@number := @number + 1) ORDER BY id")


#: poll_redriven takes what the array says.
ANY_LETTER = (
    ("    SET SESSION group_concat_max_len = 4294967295;\n", ""),
    ("d.id = h.id AND d.subscription_id = owner_id AND", "d.id = h.id AND"),
    ("WHERE d.subscription_id = owner_id AND d.redriven_at IS NOT NULL;", "WHERE TRUE;"),
)


@proves("S22 by cut arrays")
def test_a_cut_array_shows_no_letter_of_others(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guards: poll_redriven sets the limit, and takes the subscription's own letters only."""
    assert _letters_shown(tenants, mysql_db) == {"ours"}


@proves("S22 by cut arrays", guard="poll_redriven")
def test_without_the_guards_it_does(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Mutant of them: on MariaDB a cut id is that of another tenant's letter."""
    mysql_db.without_guards("poll_redriven", ANY_LETTER)
    expected = {"ours", "theirs"} if mysql_db.engine == "mariadb" else {"ours"}
    assert _letters_shown(tenants, mysql_db) == expected
