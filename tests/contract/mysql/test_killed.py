"""A call on MySQL or MariaDB whose statement is killed: by KILL QUERY, as JDBC's time limit does.

No handler of the procedure runs then, so what the call has done stays in the caller's transaction.
"""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import count

import pymysql
import pytest

from penstock.database.mysql import connection as mysql
from penstock.errors import PenstockError, TornTransaction
from penstock.publishing.packing import packed
from penstock.publishing.publish import publish, publish_once
from penstock.publishing.steps import rows_of
from penstock.records import Message
from penstock.subscriptions import queue
from tests.contract.databases import MySQLDatabase
from tests.contract.killed_kit import (
    is_refused,
    killed_at,
    killed_in_front_of,
    leftovers,
    published,
    stoppable,
)
from tests.contract.kit import sql
from tests.kit.log import TOPIC, Connection, drain, put, texts, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, member_with_lease, slow_leases

pytestmark = pytest.mark.mariadb_differs("what a kill undoes")

_BATCH = json.dumps(
    [
        {"topic": TOPIC, "payload": b64encode(b"x").decode(), "dedup_key": key, "key": "k"}
        for key in ("b", "a", "b", None)
    ]
)
_PACKED = packed(rows_of([Message(TOPIC, b"x"), Message(TOPIC, b"y", key="k")]))
assert _PACKED is not None
QUEUE = "mails"
_RECEIPTS = "%(claims)s, %(sequences)s, %(sequences)s, %(tokens)s"
CALLS = {
    "publish": published("x", "key"),
    "publish_packed": "CALL penstock.publish_packed('{topics}', X'{heads}', X'{body}')".format(
        topics=_PACKED["topics"], heads=_PACKED["heads"].hex(), body=_PACKED["body"].hex()
    ),
    "publish_json": published("1", "key").replace("publish(", "publish_json("),
    "publish_batch": f"CALL penstock.publish_batch('{_BATCH}', TRUE)",
    "create_topic": "CALL penstock.create_topic('tests/new', 2, 'crc32')",
    "delete_topic": f"CALL penstock.delete_topic('{STREAM}', TRUE)",
    "subscribe": f"CALL penstock.subscribe('new', '[\"{STREAM}\"]', 'earliest', 'stream')",
    "unsubscribe": f"CALL penstock.unsubscribe('{SUBSCRIPTION}')",
    "commit": f"CALL penstock.`commit`('{SUBSCRIPTION}', 'a', '[%(part)s]', '[1]', '[2]', NULL)",
    "give_up": f"CALL penstock.give_up('{SUBSCRIPTION}', 'a', %(part)s, 1, 1, 'x', 1, TRUE)",
    "sequence": "CALL penstock.sequence(100)",
    "receive": f"CALL penstock.receive('{QUEUE}', 2, NULL)",
    "acknowledge": f"CALL penstock.acknowledge('{QUEUE}', {_RECEIPTS}, FALSE)",
    "reject": f"CALL penstock.reject('{QUEUE}', {_RECEIPTS}, 'why', NULL, FALSE)",
}
#: Without the refusal; then what a killed call has done is taken for done.
_NO_REFUSAL = ("begin_call", "    IF is_torn THEN", "    IF FALSE THEN")


def _call(db: MySQLDatabase, name: str) -> str:
    """A statement, and what it needs."""
    own = db.connect()
    topic(own)
    put(own, "waits")
    filled(own, events=3)
    slow_leases(own)
    _, lease = member_with_lease(own, "a")
    if name in ("receive", "acknowledge", "reject"):
        return CALLS[name] % _queue(own)
    return CALLS[name].replace("%(part)s", str(lease.partition_id))


def _queue(own: Connection) -> dict[str, str]:
    """A queue that keeps the order of keys; two events of it are out, and others wait behind."""
    address = topic(own, 1, "tests/queue")
    queue.subscribe(own, QUEUE, [address])
    queue.configure(own, QUEUE, order="key")
    for key in ("a", "b", "c", "a", "b"):
        put(own, "x", key=key, name=address)
    drain(own)
    held = [each.receipt for each in queue.receive(own, QUEUE, 2)]
    put(own, "x", key="c", name=address)
    drain(own)
    lists = {
        "claims": [each.claim for each in held],
        "sequences": [each.sequence for each in held],
        "tokens": [each.token.hex for each in held],
    }
    return {name: f"'{json.dumps(values)}'" for name, values in lists.items()}


_OFTEN = ("publish", "publish_packed")
_OFTEN_ON_MYSQL = ("publish_batch", "delete_topic")


#: A kill runs no handler on MySQL only, so there the longer ones are of every day too.
_NAMES = [
    *_OFTEN,
    *(pytest.param(name, marks=pytest.mark.long_on("mariadb")) for name in _OFTEN_ON_MYSQL),
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in CALLS
        if name not in {*_OFTEN, *_OFTEN_ON_MYSQL}
    ),
]


@proves("D1 of a killed call")
@pytest.mark.parametrize("name", _NAMES)
def test_what_is_killed_is_undone_or_goes_on_no_further(mysql_db: MySQLDatabase, name: str) -> None:
    """D1. Guard: the savepoint that stands while a call is under way, penstock_open."""
    call = _call(mysql_db, name)
    with stoppable(mysql_db, name):
        found = list(leftovers(mysql_db, name, call))
    torn = [stop for stop, is_refused, is_undone in found if not is_refused and not is_undone]
    assert len(found) > 5
    assert not torn
    if mysql_db.engine == "mysql":
        assert any(not is_undone for _, _, is_undone in found), "it was never in the middle"


@proves("D1 of a killed call", guard="the savepoint that a call leaves")
@pytest.mark.parametrize("db", ["mysql"], indirect=True)
@pytest.mark.parametrize(
    "name", [*_OFTEN, *(pytest.param(n, marks=pytest.mark.long) for n in _OFTEN_ON_MYSQL)]
)
def test_without_the_refusal_it_is_torn(db: MySQLDatabase, name: str) -> None:
    """Mutant: the next call of the transaction is not refused."""
    call = _call(db, name)
    db.without_guard(*_NO_REFUSAL)
    with stoppable(db, name):
        found = list(leftovers(db, name, call))
    assert any(not is_refused and not is_undone for _, is_refused, is_undone in found)


def _between_claim_and_event(db: MySQLDatabase) -> bool:
    """Whether the call is refused that repeats one, which was killed with its key taken."""
    own = db.connect(autocommit=False)
    topic(own)
    own.commit()
    with killed_in_front_of(db, "publish", "        SET block = LAST_INSERT_ID();"):
        with pytest.raises(pymysql.err.OperationalError, match="interrupted"):
            sql(own, published("x", "key"))
        sql(own, "SET @test_stop = 0")
    refused = is_refused(own)
    own.rollback()
    return refused


@proves("D1 of a killed call")
def test_a_kill_from_outside_runs_no_handler(mysql_db: MySQLDatabase) -> None:
    """On MariaDB too, when it comes between two instructions. Guard: the refusal."""
    assert _between_claim_and_event(mysql_db)


@proves("D1 of a killed call", guard="the savepoint that a call leaves")
def test_without_the_refusal_a_dedup_key_stays_without_its_event(mysql_db: MySQLDatabase) -> None:
    """Mutant: what is killed, repeated and committed is called a duplicate and lost."""
    mysql_db.without_guard(*_NO_REFUSAL)
    assert not _between_claim_and_event(mysql_db)


@proves("D1 of a killed call")
@pytest.mark.parametrize("db", ["mysql"], indirect=True)
@pytest.mark.parametrize("back", ["ROLLBACK TO SAVEPOINT mine", "ROLLBACK"])
def test_a_rollback_takes_the_mark_away(db: MySQLDatabase, back: str) -> None:
    """Guard: the mark is a savepoint, so it goes with what it stands for."""
    own = db.connect(autocommit=False)
    topic(own)
    own.commit()
    with stoppable(db, "publish"):
        sql(own, published("before"))
        sql(own, "SAVEPOINT mine")
        assert killed_at(own, 25, lambda: sql(own, published("x", "key")))
        assert is_refused(own)
        sql(own, back)
        sql(own, published("again", "key"))
        own.commit()
    drain(db.connect())
    assert texts(db.connect()) == (["again"] if back == "ROLLBACK" else ["before", "again"])


def _published_until_done(db: MySQLDatabase) -> tuple[int, list[str]]:
    """Killed at each statement in turn, repeated in the same transaction, committed."""
    own, refused = db.connect(autocommit=False), 0
    topic(own)
    own.commit()
    with stoppable(db, "publish"):
        for stop in count(1):
            one = Message(TOPIC, f"{stop}".encode(), dedup_key=f"{stop}", key="k")
            call = lambda one=one: publish_once(own, one)  # noqa: E731
            if not killed_at(own, stop, call):
                own.commit()
                break
            refused += _repeated(own, one)
            own.commit()
    # Between the two savepoints of begin_call: nothing is done, and only the mark stands.
    assert refused <= 1, f"{refused} times refused"
    drain(db.connect())
    return stop, texts(db.connect())


def _repeated(own: Connection, one: Message) -> bool:
    """Publish again; whether the transaction had to be rolled back for it."""
    try:
        assert not publish_once(own, one).duplicate
    except TornTransaction:
        own.rollback()
        assert not publish_once(own, one).duplicate
        return True
    return False


@proves("D1 of a killed call")
def test_the_python_client_takes_a_killed_call_back(mysql_db: MySQLDatabase) -> None:
    """D1. Guard: MySQL.atomic goes back to the savepoint of the call at an error."""
    stops, found = _published_until_done(mysql_db)
    assert stops > 10
    assert found == [str(stop) for stop in range(1, stops + 1)]


@proves("D1 of a killed call", guard="undo_call of the client")
@pytest.mark.parametrize("db", ["mysql"], indirect=True)
def test_without_that_the_client_has_to_roll_back(
    db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nothing is taken back; the transaction refuses what comes."""
    monkeypatch.setattr(mysql, "undo_call", lambda driver: None)
    with pytest.raises(AssertionError, match="refused"):
        _published_until_done(db)


@proves("D1 of a killed call")
def test_a_call_that_commits_by_itself_is_undone_by_a_kill(mysql_db: MySQLDatabase) -> None:
    """Guard: its own transaction."""
    own = mysql_db.connect()
    topic(own)
    with stoppable(mysql_db, "publish"):
        for stop in count(1):
            call = lambda: publish(own, TOPIC, b"x", dedup_key="k")  # noqa: E731
            if not killed_at(own, stop, call):
                break
            assert mysql_db.run("SELECT COUNT(*) FROM penstock.dedup_keys") == [(0,)]
    drain(own)
    assert texts(own) == ["x"]


@proves("D1 beside a refusal")
@pytest.mark.parametrize("how", ["name", "clock"])
def test_a_refused_call_takes_back_nothing_of_an_earlier_one(
    mysql_db: MySQLDatabase, how: str
) -> None:
    """D1. Guard: end_call; the savepoint of a call that is done is gone."""
    assert _behind_a_refusal(mysql_db, how) == ["1"]


@proves("D1 beside a refusal", guard="end_call")
def test_a_savepoint_that_stays_undoes_an_earlier_call(mysql_db: MySQLDatabase) -> None:
    """Mutant: it stays, and the event that was confirmed is not in the log."""
    mysql_db.without_guard("end_call", "RELEASE SAVEPOINT penstock_open;", "DO 1;")
    mysql_db.without_guard("begin_call", "RELEASE SAVEPOINT penstock_open;", "SET is_torn = FALSE;")
    assert _behind_a_refusal(mysql_db, "clock") == []


def _behind_a_refusal(db: MySQLDatabase, how: str) -> list[str]:
    """An event, then in the same transaction a call that fails before it has begun."""
    own = db.connect(autocommit=False)
    topic(own)
    own.commit()
    put(own, "1")
    if how == "name":
        with pytest.raises(PenstockError):
            sql(own, "CALL penstock.create_topic('tests//x', 1, 'crc32')")
    else:
        sql(own, "SET SESSION timestamp = 1")
        with pytest.raises(PenstockError, match="timestamp"):
            put(own, "2")
        sql(own, "SET SESSION timestamp = DEFAULT")
    own.commit()
    drain(db.connect())
    return texts(db.connect())
