"""Settings of a login's session, made before it calls, open no wall and disturb no other login.

Only MySQL and MariaDB have settings of a session that reach into a procedure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.err import OperationalError

import penstock
from penstock import database, log
from penstock.errors import InvalidArgument, TopicNotFound, WrongIsolation
from tests.contract.databases import MySQLDatabase, routines
from tests.contract.tenants import OURS, THEIRS, Tenants, as_login, tenant, tenants_of, three_topics
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("settings of sessions are each server's own")

DEEP = "theirs/deep/deeper/orders"
#: What would make the counter of ids jump for everybody.
STEPS = ("insert_id = {next}", "auto_increment_increment = 1000")
#: A path may be deeper than what is asked for.
ANY_RECURSION = (
    "refuse_serializable",
    "max_recursive_iterations */ < 1000",
    "max_recursive_iterations */ < 0",
)
#: The query that rights were asked by: on MariaDB it ends where the session says so.
RECURSIVE = """
    SELECT JSON_ARRAYAGG(a.id) INTO found FROM (
        WITH RECURSIVE above AS (
            SELECT n.id, n.parent_id FROM namespaces AS n WHERE n.id = of_namespace
            UNION
            SELECT p.id, p.parent_id FROM above AS a JOIN namespaces AS p ON p.id = a.parent_id
        ) SELECT id FROM above) AS a;
    SET here = 0;
    WHILE here > 0 DO"""


@pytest.fixture
def tenants(mysql_db: MySQLDatabase) -> Iterator[Tenants]:
    """Two tenants' topics and an open one."""
    with tenants_of(mysql_db) as found:
        three_topics(found)
        yield found


def _last_block(mysql_db: MySQLDatabase) -> int:
    ((newest,),) = mysql_db.run("SELECT MAX(id) DIV 256 FROM penstock.events")
    return int(newest)


def _publish_as_told(tenants: Tenants, mysql_db: MySQLDatabase, setting: str) -> int:
    """By how much the ids have risen for the others, when a tenant has set this."""
    before = _last_block(mysql_db)
    with as_login(tenants, tenant(tenants, "ours")) as own:
        database.execute(own, "SET SESSION " + setting.format(next=before + 1000))
        penstock.publish(own, OURS, b"x")
    penstock.publish(tenants.owner, THEIRS, b"y")
    return _last_block(mysql_db) - before


@proves("S22", how="nor by what a session may set")
def test_no_session_says_which_ids_come_next(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: begin_call.  One publisher could bring the counter to its end, and that for good."""
    before = _last_block(mysql_db)
    for setting in STEPS:
        with pytest.raises(InvalidArgument, match="insert_id"):
            _publish_as_told(tenants, mysql_db, setting)
    penstock.publish(tenants.owner, THEIRS, b"y")
    assert _last_block(mysql_db) - before < 1000
    mysql_db.without_guard("begin_call", "IF @@SESSION.insert_id <> 0 OR", "IF FALSE AND")
    for setting in STEPS:
        assert _publish_as_told(tenants, mysql_db, setting) >= 1000


def _recursion(mysql_db: MySQLDatabase) -> str:
    return "max_recursive_iterations" if mysql_db.engine == "mariadb" else "cte_max_recursion_depth"


def _fetch_without_recursion(own: Any, mysql_db: MySQLDatabase) -> object:
    database.execute(own, f"SET SESSION {_recursion(mysql_db)} = 0")
    return [event.payload for event in penstock.fetch(own, DEEP, 0, 1)]


@proves("S22", how="nor by what a session may set")
def test_a_right_counts_however_far_above_it_was_given(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """Guard: namespaces_above goes up step by step, not by a query that a session may shorten."""
    penstock.create_topic(tenants.owner, DEEP, create_namespaces=True)
    tenant(tenants, "theirs")
    with as_login(tenants, tenant(tenants, "ours")) as own:
        with pytest.raises(InvalidArgument, match=_recursion(mysql_db)):
            _fetch_without_recursion(own, mysql_db)
        mysql_db.without_guard(*ANY_RECURSION)
        with pytest.raises(TopicNotFound):
            _fetch_without_recursion(own, mysql_db)
        if mysql_db.engine == "mariadb":
            mysql_db.without_guard("namespaces_above", "\n    WHILE here > 0 DO", RECURSIVE)
            assert _fetch_without_recursion(own, mysql_db) == []


def _publish_in_the_past(tenants: Tenants) -> None:
    with as_login(tenants, tenant(tenants, "ours")) as own:
        database.execute(own, "SET SESSION timestamp = 1000000000")
        penstock.publish(own, OURS, b"x")


@proves("S22", how="nor by what a session may set")
def test_no_session_says_what_time_it_is(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: begin_call.  Repairs after a restore trust the time at which an event was made."""
    made = "SELECT YEAR(MIN(created_at)) FROM penstock.events"
    with pytest.raises(InvalidArgument, match="timestamp"):
        _publish_in_the_past(tenants)
    assert mysql_db.run(made) != [(2001,)]
    mysql_db.without_guard("begin_call", "NOT BETWEEN -10 AND 10", "IS NULL")
    _publish_in_the_past(tenants)
    assert mysql_db.run(made) == [(2001,)]


def _fetched_at_serializable(tenants: Tenants, log_owner: Any) -> int:
    """How many events the sequencer takes beside a tenant's reader at that level."""
    with as_login(tenants, tenant(tenants, "ours")) as own:
        database.execute(own, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        database.execute(own, "START TRANSACTION")
        try:
            penstock.fetch(own, OURS, 0, 1)
        finally:
            penstock.publish(tenants.owner, OURS, b"next")
            sequenced = log.sequence(log_owner).sequenced
        return sequenced


@proves("S22", how="nor by what a session may set")
def test_no_reader_stops_the_log_at_serializable(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: refuse_serializable.  The reader at the head would lock where the next chunk goes."""
    own = mysql_db.connect()
    database.execute(own, "SET SESSION innodb_lock_wait_timeout = 1")
    while log.sequence(own).more:
        pass
    with pytest.raises(WrongIsolation, match="SERIALIZABLE"):
        _fetched_at_serializable(tenants, own)
    mysql_db.without_guard("refuse_serializable", "= 'SERIALIZABLE'", "= ''")
    with pytest.raises(OperationalError, match="Lock wait timeout"):
        _fetched_at_serializable(tenants, own)


def test_no_publisher_is_at_serializable(tenants: Tenants) -> None:
    """Guard: begin_call.  A batch would lock the rows of topics that others subscribe to."""
    with as_login(tenants, tenant(tenants, "ours")) as own:
        database.execute(own, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        with pytest.raises(WrongIsolation, match="SERIALIZABLE"):
            penstock.publish_batch(own, [penstock.Message(OURS, b"x")])


@proves("S22", how="nor by what a session may set")
def test_every_procedure_asks_how_the_session_is_set() -> None:
    """Guard: refuse_serializable or begin_call (lock_names), at whatever a role may call."""
    present = routines()
    granted = {
        name
        for names in re.findall(r"'\w+'(?: AS role)?, '([^']*)'", present["function_roles"])
        for name in names.split()
    }
    for name in sorted(granted & present.keys()):
        body = present[name]
        assert re.search(
            r"CALL (refuse_serializable|begin_call|lock_names|set_policy|list_log_epochs)\(", body
        ) or ("NO SQL" in body or name == "lift_limit"), name
