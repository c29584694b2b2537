"""Wherever the counter of ids stands at the next pass, every committed event gets a sequence (S2).

Rolled-back publishes leave ids free.  A counter that was set back, by a hand or by a failover that
carries no counters, gives them again, and may have run past the newest sequenced id before any
pass looks.  The numbers of transactions tell what is new then; ids do not.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
import pytest

from penstock import log
from tests.guards import without_guard
from tests.kit.log import (
    ANOTHER_CLUSTER,
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    texts,
    topic,
    value,
    wait_until,
)
from tests.kit.proof import proves
from tests.postgres.log.test_counters import _set_back
from tests.postgres.log.test_eras import _restored

OLD = ["old 0", "old 1", "old 2"]


def _free_ids(connection: Connection, size: int) -> None:
    with pytest.raises(ZeroDivisionError), connection.transaction():
        for _ in range(size):
            put(connection, "rolled back")
        raise ZeroDivisionError


def _gap(connection: Connection, size: int = 5) -> None:
    """Ids 1 to 5 are free, 6 to 8 are taken, and all is sequenced."""
    topic(connection)
    _free_ids(connection, size)
    for text in OLD:
        put(connection, text)
    drain(connection)


def _put_early(connection: Connection, count: int) -> list[str]:
    """Publishes until the counter is past all that there was.  Returns what was committed."""
    done = []
    for number in range(count):
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            put(connection, f"early {number}")
            done.append(f"early {number}")
    return done


def _waiting(connection: Connection) -> int:
    return int(value(connection, "SELECT events FROM penstock.unsequenced()"))


def _jump(connection: Connection, to: int) -> None:
    connection.execute("SELECT setval('penstock.events_id', %s)", (to,))


def _overtaken(connection: Connection, by: int | None, max_events: int = 10_000) -> list[str]:
    _gap(connection)
    if by is not None:
        _restored(connection, by)
    _set_back(connection, "events_id")
    early = _put_early(connection, 12)
    assert len(early) == 9
    assert _waiting(connection) >= 9
    drain(connection, max_events)
    put(connection, "late")
    drain(connection, max_events)
    return [*OLD, *early, "late"]


def _to_the_last_known(connection: Connection, _: str) -> list[str]:
    """No id was handed out, as it looks: and nobody publishes again."""
    _gap(connection)
    for text in "abc":
        put(connection, text)
    _jump(connection, value(connection, "SELECT max(highest_id) FROM penstock.ticks"))
    return [*OLD, *"abc"]


def _between(connection: Connection, _: str) -> list[str]:
    """Above what the last tick knows, and below what is there."""
    _gap(connection)
    for text in "abc":
        put(connection, text)
    _jump(connection, 9)
    return [*OLD, *"abc"]


def _below_a_late_one(connection: Connection, url: str) -> list[str]:
    """A transaction that was open at the last tick has ids above the counter."""
    _gap(connection)
    with open_transaction(url) as late:
        value(late, "SELECT pg_current_xact_id()")
        put(connection, "first")
        drain(connection)
        for text in "abc":
            put(late, text)
        _jump(connection, 10)
        late.commit()
    return [*OLD, "first", *"abc"]


def _below_the_boundary(connection: Connection, _: str) -> list[str]:
    """In the second era, with ids from before it."""
    _gap(connection)
    _restored(connection, 40)
    put(connection, "new")
    drain(connection)
    put(connection, "newer")
    drain(connection)
    _set_back(connection, "events_id")
    return [*OLD, "new", "newer", *_put_early(connection, 14)]


def _of_the_sequencer(connection: Connection, _: str) -> list[str]:
    """Whoever sequences publishes in the same transaction."""
    _gap(connection)
    put(connection, "first")
    with connection.transaction():
        log.sequence(connection)
        _set_back(connection, "events_id")
        put(connection, "own")
        _jump(connection, 20)
    return [*OLD, "first", "own"]


def _while_a_repair_is_under_way(connection: Connection, _: str) -> list[str]:
    """Below what the repair has done, and then the counter is set back once more."""
    _gap(connection)
    for number in range(5):
        put(connection, f"more {number}")
    _set_back(connection, "events_id")
    log.sequence(connection, 2)
    _set_back(connection, "events_id")
    for text in "abc":
        put(connection, text)
    _set_back(connection, "events_id")
    return [*OLD, *(f"more {number}" for number in range(5)), *"abc"]


def _behind_a_trimmed_index(connection: Connection, _: str) -> list[str]:
    """Retention has taken the beginning of the index, and a slice with free ids is there yet."""
    _gap(connection)
    put(connection, "kept")
    drain(connection)
    connection.execute("UPDATE penstock.partitions SET low_sequence = 4")
    connection.execute("DELETE FROM penstock.chunks WHERE first_sequence = 1")
    _restored(connection, 1_000_000)
    _set_back(connection, "events_id")
    return ["kept", *_put_early(connection, 14)]


_OWN = "AND is_own_number(e.tx, e.xmin)"
#: The walk between two ids that every outbox begins with.
_BY_ID = (
    "append_few",
    "e.tx < pg_snapshot_xmax(append_few.target)",
    "e.tx < pg_snapshot_xmax(append_few.target) AND e.id > append_few.after_id",
)
#: A way of the counter, and the guard without which events are lost.
WAYS = {
    "overtaken": (
        lambda connection, _: _overtaken(connection, None),
        _BY_ID,
    ),
    "overtaken, in passes": (
        lambda connection, _: _overtaken(connection, None, 2),
        ("has_lower_ids", _OWN, "AND false"),
    ),
    "overtaken, another cluster": (
        lambda connection, _: _overtaken(connection, 1_000_000),
        ("repair_events", "e.tx >= o.early_tx", "false"),
    ),
    "not counted": (
        lambda connection, _: _overtaken(connection, 1_000_000),
        ("waiting_events", "IF is_other_era(tick)", "IF false"),
    ),
    "to the last known": (
        _to_the_last_known,
        ("is_quiet", f"pg_snapshot_xmax(t.target) {_OWN}", "pg_snapshot_xmax(t.target) AND false"),
    ),
    "between": (
        _between,
        (*_BY_ID[:2], f"{_BY_ID[1]} AND e.id <= (SELECT s.last_value FROM events_id AS s)"),
    ),
    "below a late one": (
        _below_a_late_one,
        ("append_few", "o.tx = ANY (append_few.late)", "false"),
    ),
    "below the boundary": (
        _below_the_boundary,
        ("straddles", "is_own_number(tx, written)", "tx < present.settled"),
    ),
    "of the sequencer": (
        _of_the_sequencer,
        _BY_ID,
    ),
    "while a repair is under way": (
        _while_a_repair_is_under_way,
        ("repair_events", "(o.system_identifier =", "(0 ="),
    ),
    "behind a trimmed index": (
        _behind_a_trimmed_index,
        ("repair_events", "(is_own_number(e.tx, e.xmin) AND NOT (", "(false AND NOT ("),
    ),
}


def _all_are_there(connection: Connection, url: str, way: str) -> None:
    expected = WAYS[way][0](connection, url)
    for _ in range(2):
        drain(connection)
    found = [
        event.payload.decode()
        for event in log.fetch(connection, TOPIC, 0, 4 if "trimmed" in way else 1, 1000)
    ]
    assert found[:1] == expected[:1], "sequences never change"
    assert sorted(found) == sorted(expected)
    assert _waiting(connection) == 0


@proves("S2 over a counter that jumps")
@pytest.mark.parametrize("way", WAYS)
def test_ids_that_were_free_are_given_again(
    connection: Connection, database_url: str, way: str
) -> None:
    """Guards: what is new is told by the numbers of transactions, wherever the counter stands."""
    _all_are_there(connection, database_url, way)


@proves("S2 over a counter that jumps", guard="each look of append_few")
@pytest.mark.parametrize("way", WAYS)
def test_without_it_events_are_lost(connection: Connection, database_url: str, way: str) -> None:
    """Mutants: each guard is taken out of the way that needs it."""
    without_guard(connection, *WAYS[way][1])
    with pytest.raises(AssertionError):
        _all_are_there(connection, database_url, way)


@proves("the log does without what a managed server refuses")
@pytest.mark.parametrize("way", WAYS)
def test_they_are_found_where_the_server_does_not_say_who_it_is(
    connection: Connection, database_url: str, way: str
) -> None:
    """An unknown cluster counts as the same, and what retention has removed does not come again."""
    _forget_identity(connection)
    _all_are_there(connection, database_url, way)


@proves("the log does without what a managed server refuses", guard="the unknown identity")
def test_without_the_unknown_identity_events_are_lost(
    connection: Connection, database_url: str
) -> None:
    """Mutant: an unknown cluster counts as another one."""
    _forget_identity(connection)
    unknown = "current_era() AS a),\n                   NOT is_over(e.partition_id, e.id)"
    without_guard(connection, "repair_events", unknown, "current_era() AS a), false")
    with pytest.raises(AssertionError):
        _all_are_there(connection, database_url, "while a repair is under way")


def _forget_identity(connection: Connection) -> None:
    connection.execute(
        "CREATE OR REPLACE FUNCTION penstock.log_identity(OUT system_identifier bigint,"
        " OUT timeline text) LANGUAGE sql STABLE AS 'SELECT NULL::bigint, NULL::text'"
    )
    connection.execute("UPDATE penstock.eras SET system_identifier = NULL, timeline = NULL")


@proves("S2 after a restore")
@pytest.mark.parametrize("by", [1_000_000, 40, 1, -20])
def test_in_another_cluster_they_are_found_by_who_wrote_them(
    connection: Connection, by: int
) -> None:
    """Guard: early_tx; its numbers are below the old ones, among them, and above."""
    expected = _overtaken(connection, by, 2)
    assert texts(connection) == expected, "old, early, late"
    assert log.gaps(connection, TOPIC) == []


@proves("S2 over a counter that jumps")
def test_a_physical_copy_compares_nothing(connection: Connection) -> None:
    """Guard: open_era; a new identity, the same rows: what is trimmed does not come again."""
    _gap(connection)
    connection.execute(ANOTHER_CLUSTER)
    drain(connection)
    assert value(connection, "SELECT early_tx FROM penstock.eras WHERE era = 2") is None
    assert texts(connection) == OLD


_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

#: Locks at which a pass waits: before it opens an era, before it appends, before it ends.
STOPS = ["histories IN EXCLUSIVE", "chunks IN SHARE ROW EXCLUSIVE", "ticks IN EXCLUSIVE"]


@dataclass
class _Open:
    """A transaction that has not ended: of a connection, or prepared under a name."""

    connection: psycopg.Connection
    given: list[str] = field(default_factory=list)
    name: str = ""


class _Model:
    """Random publishers, passes, counters and restores; knows what was committed."""

    def __init__(self, connection: Connection, url: str, seed: int) -> None:
        self.connection = connection
        self.url = url
        self.random = random.Random(seed)
        self.committed: list[str] = []
        self.open: list[_Open] = []
        self.number = 0
        self.passing = psycopg.connect(url, autocommit=True)
        connection.execute("SET lock_timeout = '5ms'")
        connection.execute("SET search_path = penstock, pg_temp")

    def _put(self, connection: Connection, into: list[str]) -> None:
        self.number += 1
        try:
            with connection.transaction():
                put(connection, str(self.number))
            into.append(str(self.number))
        except (psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable):
            pass  # the id is taken, or an open transaction has it

    def publish(self) -> None:
        given: list[str] = []
        with contextlib.suppress(ZeroDivisionError), self.connection.transaction():
            for _ in range(self.random.choice([1, 1, 3, 12])):
                self._put(self.connection, given)
            if self.random.random() < 0.3:
                raise ZeroDivisionError
            self.committed += given
            given = []

    def begin(self) -> None:
        if len(self.open) < 3:
            opened = psycopg.connect(self.url, options="-c lock_timeout=5ms")
            opened.execute("SELECT pg_current_xact_id()")
            self.open.append(_Open(opened))

    def publish_late(self) -> None:
        if at_work := [each for each in self.open if not each.name]:
            late = self.random.choice(at_work)
            self._put(late.connection, late.given)

    def prepare(self) -> None:
        if at_work := [each for each in self.open if not each.name]:
            late = self.random.choice(at_work)
            late.name = f"model {backend_pid(late.connection)}"
            late.connection.execute(f"PREPARE TRANSACTION '{late.name}'".encode())

    def end(self) -> None:
        if self.open:
            self._end(self.open.pop(self.random.randrange(len(self.open))), 0.7)

    def _end(self, late: _Open, chance: float) -> None:
        is_committed = self.random.random() < chance
        if late.name:
            verb = "COMMIT" if is_committed else "ROLLBACK"
            self.connection.execute(f"{verb} PREPARED '{late.name}'".encode())
        elif is_committed:
            late.connection.commit()
        late.connection.close()
        self.committed += late.given if is_committed else []

    def _end_all(self) -> None:
        while self.open:
            self._end(self.open.pop(), 0)

    def sequence_while_others_work(self) -> None:
        """A pass that is stopped, if it comes to that lock, and goes on after what they do."""
        if self.random.random() < 0.5:
            for prepare in (self.begin, self.publish_late, self.set_counter):
                prepare()
        with psycopg.connect(self.url) as holder, ThreadPoolExecutor(1) as pool:
            holder.execute(f"LOCK TABLE penstock.{self.random.choice(STOPS)} MODE".encode())
            given = self.random.choice([1, 2, 10_000])
            running = pool.submit(log.sequence, self.passing, given)
            pid = backend_pid(self.passing)
            wait_until(
                lambda: running.done() or value(self.connection, _WAITS, pid), "the pass waits"
            )
            for _ in range(self.random.choice([1, 2, 4])):
                self.random.choice(
                    [self.publish, self.publish_late, self.end, self.end, self.set_counter]
                )()
            holder.rollback()
            running.result(60)

    def sequence(self) -> None:
        log.sequence(self.connection, self.random.choice([1, 2, 3, 10_000]))

    def sequence_and_publish(self) -> None:
        given: list[str] = []
        with self.connection.transaction():
            log.sequence(self.connection)
            self._put(self.connection, given)
        self.committed += given

    def set_counter(self) -> None:
        top = value(self.connection, "SELECT last_value FROM penstock.events_id")
        known = value(
            self.connection, "SELECT highest_id FROM penstock.ticks ORDER BY id DESC LIMIT 1"
        )
        to = self.random.choice(
            [1, known, known + 1, max(top - 2, 1), self.random.randint(1, top + 5)]
        )
        self.connection.execute("SELECT setval('penstock.events_id', %s)", (max(to, 1),))

    def restore(self) -> None:
        # What takes free ids before a first pass or its repair has ended is told by this cluster
        # alone.
        is_restored = value(
            self.connection,
            "SELECT t.repair OR penstock.is_other_era(t)"
            " FROM penstock.ticks AS t ORDER BY t.id DESC LIMIT 1",
        )
        if not is_restored and self.random.random() < 0.3:
            self._end_all()
            _restored(self.connection, self.random.choice([1_000_000, 40, 7, 1, -3]))

    def check(self) -> None:
        found = texts(self.connection)
        assert max(Counter(found).values(), default=1) == 1, "sequenced twice"
        left = set(self.committed) - set(found)
        assert set(found) <= set(self.committed)
        assert not left or _waiting(self.connection) > 0, "unsequenced says 0"

    def run(self, steps: int) -> None:
        actions = [self.publish] * 5 + [self.publish_late] * 3 + [self.sequence] * 4
        actions += [self.begin, self.end, self.set_counter, self.sequence_and_publish, self.restore]
        actions += [self.prepare, self.sequence_while_others_work]
        try:
            for _ in range(steps):
                self.random.choice(actions)()
                self.check()
        finally:
            self._end_all()
            self.passing.close()
        for _ in range(3):
            drain(self.connection)
        assert sorted(texts(self.connection)) == sorted(self.committed)
        assert _waiting(self.connection) == 0
        assert log.gaps(self.connection, TOPIC) == []


@proves("S2 over a counter that jumps")
@pytest.mark.parametrize("seed", [*range(4), 1025])
def test_a_counter_that_jumps_loses_nothing(
    connection: Connection, database_url: str, seed: int
) -> None:
    """Guards: all of them, in any order of publishers, passes, counters and restores."""
    topic(connection)
    _Model(connection, database_url, seed).run(60)
