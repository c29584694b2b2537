"""A program of SQL alone that stops before its COMMIT: the time limit of its session ends it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.database.mysql.opening import is_mariadb
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease


def _set(connection: Any, seconds: int, *, idle: bool) -> None:
    """A limit in seconds: for an idle transaction (see docs/reference/sql.md), or for a lock."""
    if database.dialect_of(connection) == "postgres":
        name = "idle_in_transaction_session_timeout" if idle else "lock_timeout"
        database.execute(connection, f"SET {name} = '{seconds}s'")
    else:
        mine = (
            "idle_transaction_timeout" if is_mariadb(connection.server_version) else "wait_timeout"
        )
        name = mine if idle else "innodb_lock_wait_timeout"
        database.execute(connection, f"SET SESSION {name} = {seconds}")


def _check_in_beside_an_idle_one(db: ContractDatabase, *, limited: bool) -> None:
    own, other = db.connect(), db.connect()
    filled(own)
    paused, _ = member_with_lease(own, "a")
    beside = stream.join(own, SUBSCRIPTION, "b")
    idle = db.connect()
    if limited:
        _set(idle, 1, idle=True)
    database.execute(idle, "BEGIN")
    stream.check_in(idle, paused)  # and no COMMIT comes
    _set(other, 20 if limited else 2, idle=False)
    stream.check_in(other, beside)


@proves("L1, D8 without Penstock's Python")
def test_with_the_limit_others_check_in(db: ContractDatabase) -> None:
    """D8 for programs of SQL alone. Guard: the limit of docs/reference/sql.md."""
    _check_in_beside_an_idle_one(db, limited=True)


@proves("L1, D8 without Penstock's Python", guard="the limit of its session")
@pytest.mark.long_on("mysql")
def test_without_it_nobody_does(db: ContractDatabase) -> None:
    """Mutant: a session without the limit."""
    with pytest.raises(Exception, match=r"(?i)lock") as refused:
        _check_in_beside_an_idle_one(db, limited=False)
    assert database.is_contention(refused.value)
