"""What a session has set for itself, user variables and limits, opens no wall on MySQL and MariaDB.

User variables are the caller's to write, and MariaDB cuts JSON_ARRAYAGG at the session's
group_concat_max_len and closes what is left: ``[3,4,17]`` becomes ``[3,4,1]``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.err import OperationalError

import penstock
from penstock import database, log
from penstock.driver_errors import errno_of
from penstock.errors import (
    BackPressure,
    InvalidArgument,
    InvalidPartition,
    TopicNotFound,
    WrongIsolation,
)
from penstock.log import mysql_storage
from tests.contract.databases import MySQLDatabase
from tests.contract.tenants import OURS, THEIRS, Tenants, as_login, tenant, tenants_of
from tests.contract.text_kit import FUNCTIONS, call
from tests.kit.proof import proves
from tools import sql_lint

pytestmark = pytest.mark.mariadb_differs("settings of sessions are each server's own")

HOSTILE = ("-1", "-65535", "-9223372036854775808", "9223372036854775807", "1e300", "-1.5", "NULL")
WORDS = ("'abc'", "'-7'", "''", "'[1]'", "x'31'", "_latin1'3'", "'2000-01-01'")
#: Of these what is a time limit too, which a session may set for itself.
SECONDS = ("x'31'", "_latin1'3'")
WIDE, BEFORE = "ours/wide", "theirs/before"
#: The two guards of a turn: where it is taken, and where it is used.
TAKEN = (
    "take_turn",
    "IF(CAST(@penstock_turn AS CHAR) REGEXP '^[0-9]{1,15}$', @penstock_turn,",
    "IF(@penstock_turn IS NOT NULL, @penstock_turn,",
)
USED = {
    "publish": ("MOD(GREATEST(turn, 0), topic_partitions)", "MOD(turn, topic_partitions)"),
    "find_partitions": ("MOD(GREATEST(turn, 0) + i.place, ", "MOD(turn + i.place, "),
    "insert_packed": ("MOD(GREATEST(turn, 0) + e.n + 1, ", "MOD(turn + e.n + 1, "),
}


@pytest.fixture
def tenants(mysql_db: MySQLDatabase) -> Iterator[Tenants]:
    """Two tenants with a topic each."""
    with tenants_of(mysql_db) as found:
        found.install()
        penstock.create_topic(found.owner, THEIRS, 4, create_namespaces=True)
        penstock.create_topic(found.owner, OURS, 4, create_namespaces=True)
        tenant(found, "theirs")
        yield found


def _widest(tenants: Tenants) -> None:
    """One of ours that is as wide as can be, and whose id is after that of one of theirs."""
    penstock.create_topic(tenants.owner, BEFORE, 4)
    penstock.create_topic(tenants.owner, WIDE, 65536)


def _seen(mysql_db: MySQLDatabase) -> set[str]:
    """The topics that events lie in."""
    rows = mysql_db.run(
        "SELECT DISTINCT COALESCE(t.address, CONCAT('no topic ', e.partition_id)) FROM"
        " penstock.events AS e LEFT JOIN penstock.topics AS t ON t.id = e.partition_id DIV 65536"
    )
    return {str(address) for (address,) in rows}


def _publish_turned(own: Any, value: str) -> None:
    """One event and a batch, by a session that says which turn it is."""
    for sent in (
        f"CALL penstock.publish('{WIDE}', 'x', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0)",
        f"CALL penstock.publish_text('{WIDE}', 'x'{', NULL' * 8}, 0)",
        f"CALL penstock.publish_json('{WIDE}', '1'{', NULL' * 8}, 0)",
        f"""CALL penstock.publish_batch('[{{"topic": "{WIDE}", "payload": "eA=="}}]', FALSE)""",
    ):
        for statement in (f"SET @penstock_turn = {value}", "START TRANSACTION", sent, "COMMIT"):
            database.execute(own, statement)
    database.execute(own, f"SET @penstock_turn = {value}")
    penstock.publish_batch(own, [penstock.Message(WIDE, b"x")])


@proves("S22 by user variables")
def test_no_turn_leads_into_another_topic(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guards: take_turn takes no other number, and whoever uses it none below 0."""
    _widest(tenants)
    with as_login(tenants, tenant(tenants, "ours")) as own:
        for value in HOSTILE + WORDS:
            _publish_turned(own, value)
        assert _seen(mysql_db) == {WIDE}
        mysql_db.without_guard(*TAKEN)
        _publish_turned(own, "-65535")
        assert _seen(mysql_db) == {WIDE}


@proves("S22 by user variables", guard="the look at numbers")
@pytest.mark.parametrize("function", USED)
@pytest.mark.long_on("mysql")
def test_without_the_guards_a_turn_leads_into_another_topic(
    tenants: Tenants, mysql_db: MySQLDatabase, function: str
) -> None:
    """Mutants of both: the topic with the id before."""
    _widest(tenants)
    mysql_db.without_guard(*TAKEN)
    mysql_db.without_guard(function, *USED[function])
    with as_login(tenants, tenant(tenants, "ours")) as own:
        _publish_turned(own, "-65535")
    assert _seen(mysql_db) == {WIDE, BEFORE}


@proves("S22 by user variables")
def test_the_partition_of_an_event_is_in_its_topic(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """The other number of the caller's that is added to the topic's."""
    with as_login(tenants, tenant(tenants, "ours")) as own:
        for number in (-1, -65536, 65536, 2**31 - 1, -(2**31)):
            for publish in (penstock.publish, _publish_one_of_a_batch):
                with pytest.raises(InvalidPartition):
                    publish(own, OURS, b"x", partition=number)
    assert _seen(mysql_db) == set()


def _publish_one_of_a_batch(own: Any, topic: str, payload: bytes, partition: int) -> None:
    penstock.publish_batch(own, [penstock.Message(topic, payload, partition=partition)])


@proves("S22 by user variables")
def test_no_user_variable_is_trusted(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guards: lift_limit, turn_dedup and enter_era.  A stale or hostile value changes nothing."""
    own = mysql_db.connect()
    database.execute(own, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    limit = "idle_transaction_timeout" if mysql_db.engine == "mariadb" else "wait_timeout"
    before = database.execute(own, f"SELECT @@SESSION.{limit}")
    database.call(own, "set_setting", name="dedup_window_seconds", value=1)
    for number, value in enumerate((*HOSTILE, *WORDS, "'2099-01-01 00:00:00'")):
        for name in sql_lint.USER_VARIABLES.keys() - {"@penstock_acting"}:
            database.execute(own, f"SET {name} = {value}")
        database.execute(own, f"SET @penstock_limit = @@SESSION.{limit}")
        penstock.publish_batch(own, [penstock.Message(OURS, b"x", dedup_key=str(number))])
        mysql_db.run("UPDATE penstock.dedup_keys SET at = '2000-01-01 00:00:01'")
        database.call(own, "turn_dedup")
        assert mysql_db.run("SELECT COUNT(*) FROM penstock.dedup_keys") == [(0,)], value
        assert log.sequence(own).sequenced == 1, value
        database.execute(own, "CALL penstock.lift_limit()")
        if database.execute(own, f"SELECT @@SESSION.{limit}") != before:
            assert value in SECONDS
            database.execute(own, f"SET SESSION {limit} = {before[0][0]}")


@proves("S22 by user variables", guard="turn_dedup")
def test_without_the_guard_a_session_never_forgets_dedup_keys(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """Mutant of turn_dedup: it begins where the session says."""
    mysql_db.without_guard(
        "turn_dedup", "IF(begin_at > expired, '2000-01-01', begin_at)", "begin_at"
    )
    own = mysql_db.connect()
    penstock.publish_batch(own, [penstock.Message(OURS, b"x", dedup_key="one")])
    mysql_db.run("UPDATE penstock.dedup_keys SET at = '2000-01-01 00:00:01'")
    database.execute(own, "SET @penstock_forgotten = '2099-01-01 00:00:00'")
    database.call(own, "turn_dedup")
    assert mysql_db.run("SELECT COUNT(*) FROM penstock.dedup_keys") == [(1,)]


#: As many topics of a batch as the array of their ids is cut at; what is left of the last id.
CUTS = range(4, 30)
#: The query that made the array; MariaDB ends it where the session says so. The second list keeps
#: its whole length: cut at 4, it would lose a digit of an id of four on every engine.
AGGREGATED = (
    "look_at_topics",
    "    SET limited = IF(",
    """    SELECT COALESCE(JSON_ARRAYAGG(t.id), JSON_ARRAY()) INTO hidden_ids
    FROM topics AS t
    WHERE t.restricted AND t.address_hash IN (
        SELECT UNHEX(SHA2(i.topic, 256))
        FROM JSON_TABLE(events, '$[*]' COLUMNS (topic LONGTEXT PATH '$.topic')) AS i);
    SET SESSION group_concat_max_len = 1048576;
    SELECT COALESCE(GROUP_CONCAT(',', t.id SEPARATOR ''), '') INTO hidden_ids
    FROM JSON_TABLE(hidden_ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j
    JOIN topics AS t ON t.id = j.id
    WHERE NOT has_right(t.namespace_id, 'publish');
    SET limited = IF(""",
)


def _publish_beside(own: Any, mine: list[str]) -> set[int]:
    """At which cuts a batch with an event for the others' topic was accepted."""
    batch = json.dumps([{"topic": each, "payload": "eA=="} for each in [*mine, THEIRS, OURS]])
    accepted = set()
    for cut in CUTS:
        for statement in (f"SET SESSION group_concat_max_len = {cut}", "START TRANSACTION"):
            database.execute(own, statement)
        with contextlib.suppress(TopicNotFound, OperationalError):  # or the cut is no JSON
            database.execute(own, "CALL penstock.publish_batch(%(e)s, FALSE)", {"e": batch})
            accepted.add(cut)
        database.execute(own, "ROLLBACK")
    return accepted


def _topics(tenants: Tenants, namespace: str, how_many: int) -> list[str]:
    names = [f"{namespace}/{number}" for number in range(how_many)]
    for name in names:
        penstock.create_topic(tenants.owner, name, 1)
    return names


@proves("S22 by cut arrays")
def test_a_cut_array_hides_no_topic_from_the_look_at_rights(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """Guard: look_at_topics asks topic by topic, not by an array that a session may cut."""
    mine = _topics(tenants, "ours", 3)
    with as_login(tenants, tenant(tenants, "ours")) as own:
        assert _publish_beside(own, mine) == set()
        mysql_db.without_guard(*AGGREGATED)
        ((version,),) = mysql_db.run("SELECT VERSION()")
        # MySQL and older branches of MariaDB do not close what they have cut.
        closes = mysql_db.engine == "mariadb" and not version.startswith("10.")
        assert bool(_publish_beside(own, mine)) is closes


@proves("S22 by cut arrays")
def test_a_cut_array_lifts_no_back_pressure(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: the same; the list of topics that have a limit comes from there too."""
    mine = _topics(tenants, "ours", 12)
    for name in mine:
        database.call(tenants.owner, "set_backpressure", topic=name, max_events=1, max_bytes=None)
    database.call(tenants.owner, "measure_pressure")
    penstock.publish(tenants.owner, mine[-1], b"waits")
    batch = json.dumps([{"topic": each, "payload": "eA=="} for each in mine])
    with as_login(tenants, tenant(tenants, "ours")) as own:
        for cut in CUTS:
            for statement in (f"SET SESSION group_concat_max_len = {cut}", "START TRANSACTION"):
                database.execute(own, statement)
            database.call(tenants.owner, "measure_pressure")
            with pytest.raises(BackPressure):
                database.execute(own, "CALL penstock.publish_batch(%(e)s, FALSE)", {"e": batch})
            database.execute(own, "ROLLBACK")


@proves("S2 of a batch")
def test_every_event_of_a_batch_is_written_or_named(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """Guard: publish_batch counts.  What a server's limit has turned into NULL is no success."""
    events = [penstock.Message(OURS, b"x", dedup_key=str(number)) for number in range(3)]
    lost = ("claim_dedup_keys", "    CLOSE given;", "    CLOSE given; SET events = '[]';")
    mysql_db.without_guard(*lost)
    with (
        as_login(tenants, tenant(tenants, "ours")) as own,
        pytest.raises(Exception, match="not all were written"),
    ):
        penstock.publish_batch(own, events)
    assert _seen(mysql_db) == set()


#: What a session may set that reaches into a procedure, and the setting that the error names.
SETTINGS = {
    "max_join_size = 1": "sql_big_selects",
    "unique_checks = 0": "unique_checks",
    "foreign_key_checks = 0": "foreign_key_checks",
    "sql_auto_is_null = 1": "sql_auto_is_null",
    "max_error_count = 0": "max_error_count",
    "max_sort_length = 64": "max_sort_length",
    "tmp_table_size = 1024": "tmp_table_size",
    "cte_max_recursion_depth = 0": "cte_max_recursion_depth",
    "max_recursive_iterations = 0": "max_recursive_iterations",
    "default_regex_flags = 'MULTILINE'": "default_regex_flags",
    "default_regex_flags = 'EXTENDED_MORE'": "default_regex_flags",
}
#: MySQL 9 has none of these without a right on the server, or another engine's name for it.
NOT_THERE = (1193, 1227)


def _set(own: Any, setting: str) -> bool:
    try:
        database.execute(own, f"SET SESSION {setting}")
    except Exception as error:
        assert errno_of(error) in NOT_THERE, setting
        return False
    return True


@proves("S22 by settings")
@proves("S22", how="nor by what a session may set")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_reaches_into_a_procedure_is_refused(
    tenants: Tenants, mysql_db: MySQLDatabase, setting: str
) -> None:
    """Guard: refuse_serializable; by whatever reads and whatever writes, in the same words."""
    with as_login(tenants, tenant(tenants, "ours")) as own:
        if not _set(own, setting) or (
            mysql_db.engine == "mariadb" and setting.startswith("tmp_table_size")
        ):
            return  # where MariaDB takes so little for 0: no such table in memory
        for topic in (OURS, THEIRS, "ours/none"):
            with pytest.raises(InvalidArgument, match=SETTINGS[setting]):
                penstock.fetch(own, topic, 0, 1)
            with pytest.raises(InvalidArgument, match=SETTINGS[setting]):
                database.call(own, "topic_lookup", topic=topic)
            with pytest.raises(InvalidArgument, match=SETTINGS[setting]):
                penstock.publish_batch(own, [penstock.Message(topic, b"x")])
            for function in FUNCTIONS:
                with pytest.raises(InvalidArgument, match=SETTINGS[setting]):
                    call(own, function, "1", topic)


#: A JSON array whose second line is an object: with MULTILINE, ^ is also in front of that.
NO_OBJECT = "[1,\n" + '{"a":' * 31 + "1" + "}" * 31 + "]"


def _headers_accepted(own: Any, headers: str, flags: str) -> bool:
    """Whether a session with these flags may publish an event with these headers."""
    assert _set(own, f"default_regex_flags = '{flags}'")
    database.execute(own, "START TRANSACTION")
    sent = f"CALL penstock.publish('{OURS}', 'x', NULL, NULL, NULL, %(h)s, NULL, 0, NULL, NULL, 0)"
    try:
        database.execute(own, sent, {"h": headers})
    except InvalidArgument:
        return False
    finally:
        database.execute(own, "ROLLBACK")
    return True


@proves("S22 by settings")
def test_no_session_says_what_a_pattern_means(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: refuse_serializable asks for default_regex_flags; the mutant lets an array in."""
    if mysql_db.engine != "mariadb":
        return  # MySQL has no such setting
    with as_login(tenants, tenant(tenants, "ours")) as own:
        assert not _headers_accepted(own, NO_OBJECT, "")
        assert not _headers_accepted(own, NO_OBJECT, "MULTILINE")
        mysql_db.without_guard(
            "refuse_serializable", "/*M! OR @@SESSION.default_regex_flags <> '' */ THEN", "THEN"
        )
        assert _headers_accepted(own, NO_OBJECT, "MULTILINE")


def _lookup(own: Any, topic: str) -> str:
    try:
        return repr(database.call(own, "topic_lookup", topic=topic))
    except Exception as error:
        return type(error).__name__


@proves("S22 by settings", guard="refuse_serializable")
def test_without_the_guard_a_hidden_topic_is_told_from_a_missing_one(
    tenants: Tenants, mysql_db: MySQLDatabase
) -> None:
    """Mutant: only the look at rights meets the limit."""
    with as_login(tenants, tenant(tenants, "ours")) as own:
        assert _lookup(own, THEIRS) == _lookup(own, "theirs/none")
        _set(own, "max_join_size = 1")
        assert _lookup(own, THEIRS) == _lookup(own, "theirs/none") == "InvalidArgument"
        mysql_db.without_guard(
            "refuse_serializable", "ELSEIF NOT @@SESSION.sql_big_selects OR NOT", "ELSEIF NOT"
        )
        assert _lookup(own, THEIRS) != _lookup(own, "theirs/none")


@proves("S22 by settings", guard="refuse_serializable")
def test_no_publisher_locks_the_table_of_all(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: refuse_serializable.  So MariaDB fills an empty table in bulk, locked for others."""
    other = mysql_db.connect(autocommit=False)
    database.execute(other, "SET SESSION innodb_lock_wait_timeout = 1")
    with as_login(tenants, tenant(tenants, "ours")) as own:
        for setting in ("unique_checks = 0", "foreign_key_checks = 0"):
            _set(own, setting)
        mysql_db.run("DELETE FROM penstock.pending")
        mysql_db.without_guard(
            "refuse_serializable",
            "NOT @@SESSION.unique_checks OR NOT @@SESSION.foreign_key_checks",
            "FALSE",
        )
        database.execute(own, "START TRANSACTION")
        penstock.publish(own, OURS, b"x")
        if mysql_db.engine == "mariadb":
            with pytest.raises(OperationalError, match="Lock wait timeout"):
                penstock.publish(other, OURS, b"y")
        else:
            penstock.publish(other, OURS, b"y")
        other.rollback()


@proves("S22 by settings")
def test_nothing_that_is_not_committed_is_read(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: refuse_serializable.  A reader at READ UNCOMMITTED saw a pass before its commit."""
    penstock.publish(tenants.owner, OURS, b"one", partition=0)
    with as_login(tenants, tenant(tenants, "ours")) as own:
        database.execute(own, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        for call in (penstock.fetch, lambda own, *_: penstock.publish(own, OURS, b"x")):
            with pytest.raises(WrongIsolation, match="READ UNCOMMITTED"):
                call(own, OURS, 0, 1)
        mysql_db.without_guard("refuse_serializable", "= 'READ-UNCOMMITTED'", "= ''")
        sequencer = mysql_db.connect(autocommit=False)
        assert log.sequence(sequencer).sequenced == 1
        assert penstock.fetch(own, OURS, 0, 1)
        sequencer.rollback()
    assert penstock.fetch(tenants.owner, OURS, 0, 1) == []


#: Clean asks by a name that nobody knows; the name that everybody could take.
KNOWN_NAMES = ("penstock clean penstock", "penstock clean known")


@proves("clean always starts")
def test_no_login_keeps_clean_from_beginning(tenants: Tenants, mysql_db: MySQLDatabase) -> None:
    """Guard: the lock's name stands in a row on which no login has a right."""
    cleaner, beside = mysql_db.connect(), mysql_db.connect()
    with as_login(tenants, tenant(tenants, "ours")) as own:
        for name in KNOWN_NAMES:
            assert database.execute(own, f"SELECT GET_LOCK('{name}', 0)") == [(1,)]
        with pytest.raises(Exception, match="denied"):
            database.execute(own, "SELECT lock_name FROM penstock.cleaning")
        with (
            mysql_storage.alone(cleaner) as first,
            mysql_storage.alone(beside) as second,
        ):
            assert (first, second) == (True, False)
        ((lock_name,),) = mysql_db.run("SELECT lock_name FROM penstock.cleaning")
        mysql_db.run("UPDATE penstock.cleaning SET lock_name = 'known'")
        with mysql_storage.alone(cleaner) as first:
            assert not first
    mysql_db.run("DELETE FROM penstock.cleaning")
    with mysql_storage.alone(cleaner) as first:
        assert first
    assert len(lock_name) == 32
