"""MySQL and MariaDB: the counter of pending is set back by hand to numbers below the floor (S2).

Nobody looks there all the time.  A session looks once in ten seconds, for passes and for figures.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database, log
from penstock.log import mysql_storage
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction, sql
from tests.contract.tenants import OURS, THEIRS, as_login, tenant, tenants_of
from tests.kit.log import TOPIC, drain, put, texts, topic
from tests.kit.proof import proves

#: Numbers that nobody took: clean forgets them once there are a thousand.
_FREE = 1_500


def _free_numbers(db: MySQLDatabase, own: Any, name: str = TOPIC) -> int:
    """The first of some numbers that are free, below the floor."""
    put(own, "old 1", name=name)
    drain(own)
    ((first,),) = db.run("SELECT settled_block + 1 FROM penstock.sequencer")
    _set_counter(db, first + _FREE)
    put(own, "old 2", name=name)
    drain(own)
    for _ in range(3):
        database.call(own, "settle_blocks")
    assert mysql_storage.forget_numbers(own)
    assert db.run("SELECT floor_block FROM penstock.sequencer") == [(first + _FREE,)]
    return int(first)


def _set_counter(db: MySQLDatabase, number: int) -> None:
    db.run(f"ALTER TABLE penstock.pending AUTO_INCREMENT = {number}")


def _set_back(db: MySQLDatabase) -> Any:
    """A log whose counter was set back, with an event that was published since."""
    own = db.connect()
    topic(own)
    first = _free_numbers(db, own)
    _set_counter(db, first)
    put(own, "early")
    assert db.run("SELECT block FROM penstock.pending") == [(first,)]
    return own


def _unsequenced(db: MySQLDatabase) -> int:
    """What a session says that has not looked yet."""
    return log.status(db.connect()).unsequenced_events


def _is_sequenced(db: MySQLDatabase) -> list[str]:
    _set_back(db)
    drain(db.connect())
    return texts(db.connect())


@proves("S2 below the floor")
def test_an_event_below_the_floor_is_sequenced(mysql_db: MySQLDatabase) -> None:
    """Guard: a pass looks below the floor, for the first time in its session."""
    assert _is_sequenced(mysql_db) == ["old 1", "old 2", "early"]
    assert _unsequenced(mysql_db) == 0


@proves("S2 below the floor", guard="the look of a pass")
def test_without_the_look_it_waits(mysql_db: MySQLDatabase) -> None:
    """Mutant: nobody looks."""
    mysql_db.without_guard("sequence", "IF NOT has_looked_below() THEN", "IF FALSE THEN")
    assert _is_sequenced(mysql_db) == ["old 1", "old 2"]


@proves("S2 below the floor")
def test_it_is_counted_until_then(mysql_db: MySQLDatabase) -> None:
    """Guard: find_unsequenced looks below the floor; while it finds something, at each call."""
    _set_back(mysql_db)
    own = mysql_db.connect()
    for _ in range(2):
        assert log.status(own).unsequenced_events == 1
        assert database.call(own, "unsequenced")[0][0] == 1
    drain(own)
    assert log.status(own).unsequenced_events == 0


@proves("S2 below the floor", guard="the look of find_unsequenced")
def test_without_its_look_nothing_waits(mysql_db: MySQLDatabase) -> None:
    """Mutant: it counts above the floor only."""
    mysql_db.without_guard(
        "find_unsequenced", "IF(has_looked_below(), s.floor_block, 0)", "s.floor_block"
    )
    _set_back(mysql_db)
    assert _unsequenced(mysql_db) == 0


def test_a_late_commit_is_counted_too(mysql_db: MySQLDatabase) -> None:
    """Guard: find_unsequenced counts from the floor, not from the last number that was taken."""
    own = mysql_db.connect()
    topic(own)
    with open_transaction(mysql_db) as late:
        put(late, "late")
        put(own, "on time")
        drain(own)
        assert _unsequenced(mysql_db) == 0
        late.commit()
        assert _unsequenced(mysql_db) == 1


def _looks_again(db: MySQLDatabase, since: str) -> bool:
    """Whether a pass looks below the floor in a session that has looked at this time."""
    own = _set_back(db)
    sql(own, f"SET @penstock_looked = {since}")
    return log.sequence(own).sequenced == 1


@proves("S2 below the floor")
@pytest.mark.parametrize("since", ["NULL", "UNIX_TIMESTAMP() - 10", "UNIX_TIMESTAMP() + 60"])
def test_a_session_looks_again_after_ten_seconds(mysql_db: MySQLDatabase, since: str) -> None:
    """Guard: has_looked_below, also if the clock was set back."""
    assert _looks_again(mysql_db, since)


def test_before_that_it_does_not(mysql_db: MySQLDatabase) -> None:
    assert not _looks_again(mysql_db, "UNIX_TIMESTAMP()")


def _raised(db: MySQLDatabase) -> bool:
    """Whether the publish after the look has a number above the floor."""
    own = _set_back(db)
    drain(db.connect())
    put(own, "next")
    ((above,),) = db.run(
        "SELECT MAX(p.block) > MAX(s.floor_block)"
        " FROM penstock.pending AS p, penstock.sequencer AS s WHERE p.event_count > 0"
    )
    return bool(above)


def test_the_look_raises_the_counter(mysql_db: MySQLDatabase) -> None:
    """Guard: look_below_floor raises it, so that the next event does not wait for a look."""
    assert _raised(mysql_db)


def test_without_that_the_next_one_is_below_too(mysql_db: MySQLDatabase) -> None:
    """Mutant: the counter stays where it was set to."""
    mysql_db.without_guard("look_below_floor", "CALL raise_block_counter();", "DO 0;")
    assert not _raised(mysql_db)


def _settled_block(db: MySQLDatabase) -> tuple[int, int]:
    """Up to where clean may drop, and the block that waits."""
    own = _set_back(db)
    sql(own, "CALL penstock.settled_events(@settled)")
    ((settled,),) = database.execute(own, "SELECT @settled DIV 256")
    ((waits,),) = db.run("SELECT block FROM penstock.pending")
    return settled, waits


@proves("S2 below the floor")
def test_clean_drops_nothing_that_waits(mysql_db: MySQLDatabase) -> None:
    """Guard: settled_events asks pending, before any pass has looked."""
    settled, waits = _settled_block(mysql_db)
    assert settled <= waits


@proves("S2 below the floor", guard="settled_events")
def test_without_that_it_may(mysql_db: MySQLDatabase) -> None:
    """Mutant: all below the floor except the late blocks."""
    asked = "FROM pending AS p WHERE p.event_count > 0"
    mysql_db.without_guard("settled_events", asked, "FROM pending AS p WHERE FALSE")
    settled, waits = _settled_block(mysql_db)
    assert settled > waits


def test_a_tenant_is_told_of_its_own(mysql_db: MySQLDatabase) -> None:
    """Guard: the walls, also below the floor."""
    with tenants_of(mysql_db) as found:
        found.install()
        topic(found.owner, name=THEIRS)
        topic(found.owner, name=OURS)
        tenant(found, "theirs")
        _set_counter(mysql_db, _free_numbers(mysql_db, found.owner, OURS))
        for text, name in (("a", THEIRS), ("b", OURS), ("c", THEIRS)):
            put(found.owner, text, name=name)
        with as_login(found, tenant(found, "ours")) as own:
            assert database.call(own, "unsequenced")[0][0] == 1
