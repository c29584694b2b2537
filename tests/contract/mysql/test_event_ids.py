"""An invalid event id is refused before a number is taken, and LAST_INSERT_ID is kept.

The ids of blocks count everybody's publishes: LAST_INSERT_ID() must not tell one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import database
from penstock.errors import InvalidArgument
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction, sql
from tests.kit.log import TOPIC, drain, texts, topic
from tests.kit.proof import proves

UUID = "0190163d-8694-739b-aea5-966c26f8ad91"
GOOD = (UUID, UUID.upper(), UUID.replace("-", ""))
BAD = ("ab" * 18, "x" * 36, "xxx", "", UUID + "0", UUID[:-1], UUID[:-1] + "g", UUID[:-1] + "\n")
#: Without the look at event ids: the engine's own error comes after the numbers were taken.
UNSEEN = ("require_events", "OR i.event_id IS NOT NULL AND", "OR FALSE AND")
PUT_BACK = "        CALL undo_call();\n        DO LAST_INSERT_ID(id_before);"


def _batch(event_id: str, **more: Any) -> str:
    good = {"topic": TOPIC, "payload": "eA=="}
    return json.dumps([good, good | {"event_id": event_id} | more])


def _publish(own: Any, way: str, event_id: str) -> None:
    if way == "publish":
        call = "'x', NULL, NULL, NULL, NULL, %(e)s, 0, NULL, NULL, FALSE)"
        database.execute(own, f"CALL penstock.publish('{TOPIC}', {call}", {"e": event_id})
        return
    more = {"dedup_key": "k"} if way == "batch with a dedup key" else {}
    call = "CALL penstock.publish_batch(%(e)s, FALSE)"
    database.execute(own, call, {"e": _batch(event_id, **more)})


WAYS = ("publish", "publish_batch", "batch with a dedup key")


@proves("S22 by numbers")
@pytest.mark.parametrize("way", WAYS)
def test_an_event_id_that_is_none_is_refused(mysql_db: MySQLDatabase, way: str) -> None:
    """Guard: event_problem, before the event has a number."""
    topic(mysql_db.connect())
    for event_id in BAD:
        with open_transaction(mysql_db) as own:
            sql(own, "DO LAST_INSERT_ID(77)")
            # publish takes no longer text at all.
            too_long = way == "publish" and len(event_id) > 36
            refusal = Exception if too_long else InvalidArgument
            with pytest.raises(refusal, match="event_id"):
                _publish(own, way, event_id)
            assert database.execute(own, "SELECT LAST_INSERT_ID()") == [(77,)], event_id
            own.commit()
    assert mysql_db.run("SELECT COUNT(*) FROM penstock.events") == [(0,)]


@pytest.mark.parametrize("way", WAYS[:2])
def test_an_event_id_may_be_written_with_and_without_dashes(
    mysql_db: MySQLDatabase, way: str
) -> None:
    """What was a UUID stays one."""
    own = mysql_db.connect(autocommit=False)
    topic(own)
    for event_id in GOOD:
        _publish(own, way, event_id)
    own.commit()
    rows = mysql_db.run(
        "SELECT COUNT(*) FROM penstock.events WHERE event_id = UNHEX(%(id)s)",
        {"id": UUID.replace("-", "")},
    )
    assert rows == [(len(GOOD),)]


def _number_told(db: MySQLDatabase) -> int:
    """LAST_INSERT_ID after a batch that failed with its numbers taken."""
    own = db.connect(autocommit=False)
    topic(own)
    own.commit()
    sql(own, "DO LAST_INSERT_ID(77)")
    with pytest.raises(Exception, match="event_id"):
        _publish(own, "publish_batch", "ab" * 18)
    ((told,),) = database.execute(own, "SELECT LAST_INSERT_ID()")
    return int(told)


@proves("S22 by numbers")
def test_a_failed_call_tells_no_number(mysql_db: MySQLDatabase) -> None:
    """Guard: publish_batch puts LAST_INSERT_ID back in its handler."""
    mysql_db.without_guard(*UNSEEN)
    assert _number_told(mysql_db) == 77


@proves("S22 by numbers", guard="require_events")
def test_without_that_it_counts_the_publishes_of_others(mysql_db: MySQLDatabase) -> None:
    """Mutant of both guards."""
    mysql_db.without_guard(*UNSEEN)
    mysql_db.without_guard("publish_batch", PUT_BACK, "        CALL undo_call();")
    assert _number_told(mysql_db) != 77


@proves("S22 by numbers")
@pytest.mark.parametrize("back", [True, False])
def test_a_failed_publish_tells_no_number(mysql_db: MySQLDatabase, back: bool) -> None:
    """Guard and mutant: publish does the same where the row of the event cannot be written."""
    own = mysql_db.connect(autocommit=False)
    topic(own)
    own.commit()
    broken = ("id, `key`, COALESCE(type, '')", "CONCAT(id, id), `key`, COALESCE(type, '')")
    guard = [] if back else [(PUT_BACK, "        CALL undo_call();")]
    mysql_db.without_guards("publish", [broken, *guard])
    sql(own, "DO LAST_INSERT_ID(77)")
    with pytest.raises(Exception, match="event_id"):
        _publish(own, "publish", UUID)
    ((told,),) = database.execute(own, "SELECT LAST_INSERT_ID()")
    assert (told == 77) is back
    own.rollback()
    drain(mysql_db.connect())
    assert texts(mysql_db.connect()) == []
