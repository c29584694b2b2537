"""MySQL and MariaDB cannot notify: a row tells which partitions the last passes filled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import log
from penstock.database import dialect as work, sessions
from penstock.database.wake import Wake
from penstock.publishing.publish import publish
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction
from tests.kit.log import drain, part, put, topic


def _listening(db: MySQLDatabase) -> tuple[Any, work.Listener, list[str]]:
    """A log of two topics, who hears of it, and the partitions."""
    own = db.connect()
    topics = [topic(own), topic(own, name="tests/other")]
    own.commit()
    listener = sessions.of_connection(own).listen(db.connect())
    return own, listener, [str(part(own, name=name)) for name in topics]


def test_each_pass_tells_what_grew(mysql_db: MySQLDatabase) -> None:
    """Guard: note_pass, in the transaction of the pass; a pass that finds nothing tells nothing."""
    own, listener, parts = _listening(mysql_db)
    assert listener.is_told and listener.heard() == []
    drain(own)
    assert listener.heard() == []
    put(own, "a")
    drain(own)
    put(own, "b")
    put(own, "c", name="tests/other")
    own.begin()
    log.sequence(own)
    assert listener.heard() == [parts[0]]
    own.commit()
    (said,) = listener.heard()
    assert sorted(said.split(",")) == sorted(parts)
    assert listener.heard() == []


def test_what_is_further_back_than_the_row_goes_is_all(mysql_db: MySQLDatabase) -> None:
    """Guards: the number of the pass, in the row and here; twenty passes are kept."""
    own, listener, parts = _listening(mysql_db)
    for count, expected in ((20, [parts[0]] * 20), (21, ["all"])):
        for _ in range(count):
            put(own, "x")
            drain(own)
        assert listener.heard() == expected
    mysql_db.run("UPDATE penstock.sequencer SET pass_number = pass_number - 5, recent_passes = ''")
    assert listener.heard() == ["all"], "a restore took passes back"


def test_a_long_list_is_all(mysql_db: MySQLDatabase) -> None:
    """Guard: the row goes into the binary log with each pass."""
    own, listener, _ = _listening(mysql_db)
    topic(own, 100, name="tests/wide")
    for number in range(100):
        put(own, "x", key=str(number), name="tests/wide")
    drain(own)
    assert listener.heard() == ["all"]


def test_a_wait_ends_with_a_pass_or_when_it_is_woken(mysql_db: MySQLDatabase) -> None:
    """Guards: a look after each pause; the wake."""
    own, listener, parts = _listening(mysql_db)
    wake = Wake()
    put(own, "x")
    drain(own)
    assert listener.wait(60, wake) == [parts[0]]
    wake.set()
    assert listener.wait(60, wake) == []
    wake.clear()
    assert listener.wait(0.01, wake) == []
    wake.close()


def test_a_look_tells_whether_a_pass_would_find_something(mysql_db: MySQLDatabase) -> None:
    """Guards of nothing_waits: blocks above the floor, and what is delayed and due."""
    own = mysql_db.connect()
    topic(own)
    drain(own)
    assert log.nothing_waits(own)
    with open_transaction(mysql_db) as other:
        put(other, "x")
        assert log.nothing_waits(own)
        other.commit()
    assert not log.nothing_waits(own)
    drain(own)
    assert log.nothing_waits(own)
    later = datetime.now(UTC) + timedelta(hours=1)
    publish(own, "tests/log", b"later", not_before=later)
    drain(own)
    assert log.nothing_waits(own)
    mysql_db.run("UPDATE penstock.delayed_events SET due = UTC_TIMESTAMP(6)")
    assert not log.nothing_waits(own)
