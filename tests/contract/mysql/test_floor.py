"""The floor of the sequencer on MySQL and MariaDB: no pass reads again what is long finished."""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ops.storage_mysql import drop_slices
from penstock import database, log
from penstock.log import mysql_storage
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import count, open_transaction, sql
from tests.contract.mysql_kit import GATE, WAIT, stopped, wait_for_gate
from tests.kit.log import drain, put, texts, topic

_OTHER = "tests/other"
#: The floor is raised after this many blocks: for tests with few of them.
_EAGER = ("sequence", "settled - bottom >= 1000", "settled - bottom >= 1")


@contextmanager
def _held_view(db: MySQLDatabase) -> Iterator[None]:
    """A transaction that has read a table of Penstock's, and goes on."""
    with open_transaction(db) as viewer:
        viewer.rollback()
        sql(viewer, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        sql(viewer, "SELECT COUNT(*) FROM penstock.pending")
        yield


def _many(db: MySQLDatabase, blocks: int) -> None:
    """As many single publishes to another topic, written and committed together."""
    with db.connect(autocommit=False) as own:
        sql(own, "INSERT INTO penstock.pending (event_count) VALUES (1)")
        sql(
            own,
            "INSERT INTO penstock.pending (block, event_count)"
            f" SELECT LAST_INSERT_ID() + 1 + n, 1 FROM penstock.numbers WHERE n < {blocks - 1}",
        )
        sql(
            own,
            "INSERT INTO penstock.events (id, partition_id, event_id, type, content_type, payload,"
            " created_at) SELECT p.block * 256, (SELECT MAX(id) FROM penstock.partitions),"
            " RANDOM_BYTES(16), '', '', 'x', UTC_TIMESTAMP(6) FROM penstock.pending AS p"
            " WHERE p.block >= LAST_INSERT_ID()",
        )
        own.commit()


def _below(db: MySQLDatabase) -> int:
    """How many blocks a pass looks at that are done."""
    ((found,),) = db.run("SELECT settled_block - floor_block FROM penstock.sequencer")
    return int(found)


def _log(db: MySQLDatabase) -> Any:
    own = db.connect()
    topic(own)
    topic(own, name=_OTHER)
    return own


def _looked_at_under_a_view(db: MySQLDatabase) -> int:
    own = _log(db)
    with _held_view(db):
        for _ in range(4):
            _many(db, 1_500)
            drain(own)
        put(own, "x")
        assert log.sequence(own).sequenced == 1
        return _below(db)


def test_a_pass_does_not_look_at_what_was_done_long_ago(mysql_db: MySQLDatabase) -> None:
    """Guard: the floor is raised, also under a read view that keeps every deleted row."""
    assert _looked_at_under_a_view(mysql_db) <= 1_501


def test_without_a_floor_it_looks_at_all_of_it(mysql_db: MySQLDatabase) -> None:
    """Mutant: the floor stays where it is."""
    mysql_db.without_guard("sequence", "settled - bottom >= 1000", "FALSE")
    assert _looked_at_under_a_view(mysql_db) >= 6_000


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_pages_of_a_pass_do_not_grow_with_the_events(mysql_db: MySQLDatabase) -> None:
    """The same, measured: 10^6 single publishes under one read view."""
    own = _log(mysql_db)
    with _held_view(mysql_db):
        _many(mysql_db, 10_000)
        drain(own)
        before = _pages_of_a_pass(mysql_db, own)
        for _ in range(100):
            _many(mysql_db, 10_000)
            drain(own)
        assert _pages_of_a_pass(mysql_db, own) <= before + 200  # Without the floor: some 3,000.


def _pages_of_a_pass(db: MySQLDatabase, own: Any) -> float:
    """How many pages of InnoDB a pass asks for that finds one event; the median of a few."""
    found = []
    for _ in range(25):
        put(own, "x")
        before = _pages(db)
        assert log.sequence(own).sequenced == 1
        found.append(_pages(db) - before)
    return statistics.median(found)


def _pages(db: MySQLDatabase) -> int:
    ((_, value),) = db.run("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")
    return int(value)


def _pages_of_a_turn(db: MySQLDatabase) -> int:
    """How many pages a look for old dedup keys asks for; 20,000 were forgotten under a view."""
    own = db.connect()
    with _held_view(db):
        sql(
            own,
            "INSERT INTO penstock.dedup_keys (topic_id, dedup_key, event_id, at)"
            " SELECT 1, n, '', '2001-01-01' + INTERVAL n SECOND FROM penstock.numbers"
            " WHERE n < 20000",
        )
        for _ in range(2):
            assert database.call(own, "turn_dedup") == [(True,)]
        assert count(db, "dedup_keys") == 0
        found = []
        for _ in range(9):
            before = _pages(db)
            assert database.call(own, "turn_dedup") == [(False,)]
            found.append(_pages(db) - before)
    return min(found)  # the server is at work beside it


def test_dedup_keys_are_not_stepped_over_again(mysql_db: MySQLDatabase) -> None:
    """R6. Guard: a session looks for old dedup keys from where it has come to."""
    assert _pages_of_a_turn(mysql_db) <= 40


def test_from_the_beginning_they_are(mysql_db: MySQLDatabase) -> None:
    """Mutant: each time from the beginning."""
    mysql_db.without_guard(
        "turn_dedup", "[0-9:.]{8,15}$', @penstock_forgotten,", "[0-9:.]{8,15}$', '2000-01-01',"
    )
    assert _pages_of_a_turn(mysql_db) > 60


def _late_below_the_floor(db: MySQLDatabase) -> list[str]:
    """The log, when a transaction commits that the floor was raised above."""
    db.without_guard(*_EAGER)
    own = _log(db)
    with open_transaction(db) as late:
        put(late, "late")
        for number in range(4):
            put(own, str(number))
            drain(own)
        assert count(db, "late_blocks") == 1
        late.commit()
        put(own, "after")
        drain(own)
    assert count(db, "late_blocks") == 0
    return texts(own)


def test_what_commits_below_the_floor_comes_and_in_order(mysql_db: MySQLDatabase) -> None:
    """S2, S6. Guard: a claim looks for the late blocks first."""
    assert _late_below_the_floor(mysql_db) == ["0", "1", "2", "3", "late", "after"]


def test_without_its_note_it_is_lost(mysql_db: MySQLDatabase) -> None:
    """Mutant: a block that is locked is taken for one that nobody has."""
    mysql_db.without_guard("settle_block", "IF is_open OR found > 0 THEN", "IF found > 0 THEN")
    with pytest.raises(AssertionError):
        _late_below_the_floor(mysql_db)


def test_the_number_of_a_rolled_back_publisher_is_settled(mysql_db: MySQLDatabase) -> None:
    """Guard: raise_floor looks at the late blocks again."""
    mysql_db.without_guard(*_EAGER)
    own = _log(mysql_db)
    with open_transaction(mysql_db) as undone:
        put(undone, "undone")
        for number in range(4):
            put(own, str(number))
            drain(own)
        assert count(mysql_db, "late_blocks") == 1
    for number in range(4, 6):
        put(own, str(number))
        drain(own)
    assert count(mysql_db, "late_blocks") == 0
    assert texts(own) == list("012345")


def _number_without_a_row(
    db: MySQLDatabase, meanwhile: Callable[[], object] = lambda: None
) -> list[str]:
    """The log, when a publisher stops between getting its number and writing its row."""
    db.without_guard(*_EAGER)
    own = _log(db)
    insert = "INSERT INTO pending (event_count) VALUES (1);"
    db.without_guard(
        "publish",
        insert,
        f"IF payload <> 'slow' OR @slow THEN {insert} ELSE"
        " SAVEPOINT before_number; SET @slow = TRUE;"
        f" {insert} SET turn = LAST_INSERT_ID(); ROLLBACK TO SAVEPOINT before_number;"
        f" {WAIT}"
        " INSERT INTO pending (block, event_count) VALUES (turn, 1);"
        " DO LAST_INSERT_ID(turn); END IF;",
    )
    holder, slow = db.connect(), db.connect()
    sql(holder, f"DO GET_LOCK('{GATE}', 1)")
    thread = threading.Thread(target=put, args=(slow, "slow"), kwargs={"key": "k"})
    thread.start()
    wait_for_gate(db, slow)
    for number in range(3):
        put(own, str(number))
        drain(own)
    meanwhile()
    sql(holder, f"DO RELEASE_LOCK('{GATE}')")
    thread.join(20)
    assert not thread.is_alive()
    drain(own)
    return texts(own)


def test_a_publisher_that_has_only_its_number_takes_another(mysql_db: MySQLDatabase) -> None:
    """S2. Guard: the sequencer takes the numbers that nobody has, by the primary key."""
    assert _number_without_a_row(mysql_db) == ["0", "1", "2", "slow"]


def test_without_that_its_event_is_lost(mysql_db: MySQLDatabase) -> None:
    """Mutant: a number that nobody has is taken for one that was rolled back."""
    mysql_db.without_guard(
        "settle_block", "INSERT INTO pending (block, event_count) VALUES (of_block, 0);", "DO 0;"
    )
    assert _number_without_a_row(mysql_db) == ["0", "1", "2"]


def test_a_row_that_comes_while_its_number_is_taken_is_late(mysql_db: MySQLDatabase) -> None:
    """Guard: settle_block takes a duplicate key for a publisher; without it the pass fails."""
    mysql_db.without_guard(*_EAGER)
    own = _log(mysql_db)
    put(own, "0")
    drain(own)
    ((number,),) = mysql_db.run("SELECT MAX(settled_block) + 1 FROM penstock.sequencer")
    with open_transaction(mysql_db) as undone:
        put(undone, "undone")
        undone.rollback()
    put(own, "1")
    drain(own)
    put(own, "2")
    with stopped(mysql_db, "settle_block", "IF NOT is_open AND found IS NULL THEN") as a_pass:
        sql(own, f"INSERT INTO penstock.pending (block, event_count) VALUES ({number}, 1)")
        sql(
            own,
            "INSERT INTO penstock.events (id, partition_id, event_id, type, content_type, payload,"
            f" created_at) SELECT {number} * 256, MIN(id), RANDOM_BYTES(16), '', '', 'late',"
            " UTC_TIMESTAMP(6) FROM penstock.partitions",
        )
    assert a_pass.failures == []
    drain(own)
    assert texts(own) == ["0", "1", "2", "late"]


def test_numbers_that_were_rolled_back_do_not_pile_up(mysql_db: MySQLDatabase) -> None:
    """Guard: clean forgets those below the floor, whether or not slices of events go."""
    own = _log(mysql_db)
    with open_transaction(mysql_db) as undone:
        sql(
            undone,
            "INSERT INTO penstock.pending (event_count)"
            " SELECT 1 FROM penstock.numbers WHERE n < 1100",
        )
    put(own, "1")
    drain(own)
    for _ in range(2):
        database.call(own, "settle_blocks")
    assert count(mysql_db, "pending") >= 1100
    drop_slices(mysql_db.url)
    assert count(mysql_db, "pending") == 0
    put(own, "2")
    drain(own)
    assert texts(own) == ["1", "2"]


def _number_forgotten(db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The log, when numbers are to be forgotten while a publisher has only its number."""
    monkeypatch.setattr(mysql_storage, "FEW_NUMBERS", 1)
    return _number_without_a_row(db, lambda: mysql_storage.forget_numbers(db.connect()))


def test_a_number_is_not_forgotten_before_its_publisher_ends(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2. Guard: the lock that forget_numbers waits for."""
    assert _number_forgotten(mysql_db, monkeypatch) == ["0", "1", "2", "slow"]


def test_forgotten_without_the_lock_its_event_is_lost(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the numbers go while somebody may have one of them."""
    monkeypatch.setattr(mysql_storage, "_has_old_transaction", lambda connection: False)
    monkeypatch.setattr(mysql_storage, "_locked", lambda connection, statement: True)
    assert _number_forgotten(mysql_db, monkeypatch) == ["0", "1", "2"]


class _Model:
    """Publishers that begin, commit and roll back; the log has to be what they committed."""

    def __init__(self, db: MySQLDatabase, seed: int) -> None:
        self.random = random.Random(seed)
        self.db = db
        self.own = _log(db)
        self.free = [db.connect(autocommit=False) for _ in range(5)]
        self.open: list[tuple[Any, list[str]]] = []
        self.clock = 0
        self.began: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def step(self) -> None:
        """One of what can happen."""
        self.clock += 1
        choice = self.random.random()
        if choice < 0.35 and (self.free or self.open):
            self._publish()
        elif choice < 0.6 and self.open:
            self._end()
        else:
            log.sequence(self.own, self.random.choice([1, 3, 100]))

    def _publish(self) -> None:
        if self.free and (not self.open or self.random.random() < 0.7):
            self.open.append((self.free.pop(), []))
        connection, texts_of = self.random.choice(self.open)
        name = str(self.clock)
        put(connection, name)
        texts_of.append(name)
        self.began[name] = self.clock

    def _end(self) -> None:
        connection, texts_of = self.open.pop(self.random.randrange(len(self.open)))
        if self.random.random() < 0.3:
            connection.rollback()
        else:
            connection.commit()
            self.ended |= dict.fromkeys(texts_of, self.clock)
        self.free.append(connection)

    def check(self) -> None:
        """Everything that was committed came once, and nothing before what had ended by then."""
        while self.open:
            self._end()
        drain(self.own)
        found = texts(self.own)
        assert sorted(found) == sorted(self.ended)
        ends = [self.ended[name] for name in found]
        for place, name in enumerate(found):
            later = ends[place + 1 :]
            assert not later or min(later) > self.began[name], f"{name} came too early"


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 12))]
)
def test_any_schedule_of_publishers_and_passes(mysql_db: MySQLDatabase, seed: int) -> None:
    """S2, S6. Guards: all of the above, with the floor raised by every pass."""
    mysql_db.without_guard(*_EAGER)
    model = _Model(mysql_db, seed)
    for _ in range(150):
        model.step()
    model.check()


def test_settle_blocks_raises_the_floor_for_clean(mysql_db: MySQLDatabase) -> None:
    """Guard: it holds the sequencer's row, and leaves it to the one who has it."""
    own = _log(mysql_db)
    for number in range(3):
        put(own, str(number))
        drain(own)
    assert _below(mysql_db) > 0
    with open_transaction(mysql_db) as other:
        sql(other, "SELECT * FROM penstock.sequencer FOR UPDATE")
        assert database.call(own, "settle_blocks") == [(True,)]
        other.rollback()  # a session that is only closed may keep its lock for a moment
    assert database.call(own, "settle_blocks") == [(False,)]
    assert _below(mysql_db) == 0
