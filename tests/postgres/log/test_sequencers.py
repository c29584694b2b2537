"""Many publishers and several sequencers: no loss, no duplicate, no gap, and key order."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from penstock import log
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    put,
    read,
    texts,
    topic,
    value,
    wait_until,
    wait_until_blocked,
)
from tests.kit.proof import proves

PUBLISHERS = 8
SEQUENCERS = 3
TRANSACTIONS = 25
PARTITIONS = 3
GATE = 4711
WAIT_AT_GATE = (
    "PERFORM pg_advisory_xact_lock_shared(current_setting('penstock_test.gate', true)::bigint);"
)
NO_LOCK = ("sequence", "PERFORM FROM sequencer FOR UPDATE SKIP LOCKED;", "PERFORM 1;")
NO_TICK_FENCE = (
    "sequence",
    "VALUES (tick.id + 1,",
    "VALUES ((SELECT max(t.id) + 1 FROM ticks AS t),",
)


@dataclass
class Committed:
    """A transaction that was committed: what it published, and when, by one clock."""

    events: list[tuple[str, str]]
    began: float
    acknowledged: float = 0.0


@dataclass
class Published:
    """What all publishers have committed."""

    transactions: list[Committed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _publisher(url: str, number: int, seed: int, published: Published) -> None:
    rng = random.Random(seed * 100 + number)
    with psycopg.connect(url) as connection:
        for turn in range(TRANSACTIONS):
            done = Committed([], time.monotonic())
            for place in range(rng.randint(1, 4)):
                text = f"{number}.{turn}.{place}"
                key = f"k{rng.randrange(5)}"
                if rng.random() < 0.2:
                    with connection.transaction(force_rollback=True):
                        publish(connection, TOPIC, f"undone {text}".encode(), key=key)
                publish(connection, TOPIC, text.encode(), key=key)
                done.events.append((key, text))
                if rng.random() < 0.3:
                    connection.execute("SELECT pg_sleep(%s)", (rng.random() * 0.02,))
            if rng.random() < 0.15:
                connection.rollback()
                continue
            connection.commit()
            done.acknowledged = time.monotonic()
            with published.lock:
                published.transactions.append(done)


def _sequencer(url: str, stop: threading.Event) -> int:
    done = 0
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.wait(0.002):
            done += log.sequence(connection, 7).sequenced
    return done


def _run(url: str, seed: int) -> Published:
    published, stop = Published(), threading.Event()
    with ThreadPoolExecutor(PUBLISHERS + SEQUENCERS) as pool:
        sequencers = [pool.submit(_sequencer, url, stop) for _ in range(SEQUENCERS)]
        try:
            work = [
                pool.submit(_publisher, url, number, seed, published)
                for number in range(PUBLISHERS)
            ]
            for each in work:
                each.result()
        finally:
            stop.set()
        for sequencer in sequencers:
            sequencer.result()
    return published


def _key_order_violations(
    published: Published, place: dict[str, tuple[int, int]]
) -> list[tuple[str, str]]:
    """Pairs of one key in the wrong order: the first was committed before the second began."""
    spans: dict[str, list[tuple[float, float, list[str]]]] = defaultdict(list)
    for done in published.transactions:
        for key in {key for key, _ in done.events}:
            own = [text for each, text in done.events if each == key]
            spans[key].append((done.began, done.acknowledged, own))
    return [
        (earlier[-1], later[0])
        for key in spans
        for _, acknowledged, earlier in spans[key]
        for began, _, later in spans[key]
        if acknowledged < began and place[earlier[-1]] >= place[later[0]]
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_publishers_and_sequencers_at_once(
    connection: Connection, database_url: str, seed: int
) -> None:
    """Guards: the row lock, the tick's key, the snapshots, the order by id: all together."""
    topic(connection, PARTITIONS)
    published = _run(database_url, seed)
    drain(connection, 7)
    expected = {text for done in published.transactions for _, text in done.events}
    found: list[str] = []
    place: dict[str, tuple[int, int]] = {}
    for partition in range(PARTITIONS):
        events = read(connection, partition)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        found += [event.payload.decode() for event in events]
        place |= {event.payload.decode(): (partition, event.sequence) for event in events}
    assert len(found) == len(set(found)), "duplicates"
    assert set(found) == expected
    assert log.gaps(connection, TOPIC) == []
    assert _key_order_violations(published, place) == []


def _seen_by_a_pass_that_began_before(connection: Connection, url: str) -> list[str]:
    """The pass has a lower number than a transaction that it sees."""
    topic(connection)
    with open_transaction(url) as own:
        value(own, "SELECT pg_current_xact_id()")
        put(connection, "seen")
        assert log.sequence(own).sequenced == 1
        own.commit()
    put(connection, "next")
    drain(connection)
    return texts(connection)


@proves("S2, S6, few", how="by a pass in a transaction that has begun before")
def test_what_a_pass_has_seen_comes_once(connection: Connection, database_url: str) -> None:
    """Guard: append_few leaves out what the base sees."""
    assert _seen_by_a_pass_that_began_before(connection, database_url) == ["seen", "next"]


@proves("S2, S6, few", guard="the base of append_few")
def test_without_the_base_it_comes_again(connection: Connection, database_url: str) -> None:
    """Mutant: no look at the base."""
    without_guard(
        connection, "append_few", "AND NOT pg_visible_in_snapshot(e.tx, append_few.base)", ""
    )
    assert _seen_by_a_pass_that_began_before(connection, database_url) != ["seen", "next"]


#: A pass sorts all of its rows where a partition has few of them, else partition by partition.
FEW, MANY = 20, 40


def _one_tick_of_transactions(connection: Connection, events: int) -> list[str]:
    for number in range(events):
        put(connection, f"{number:02}", key="k")
    drain(connection)
    return texts(connection)


@pytest.mark.parametrize("events", [FEW, MANY])
@pytest.mark.parametrize("is_few", [True, False])
def test_one_tick_keeps_the_order_of_commits(
    connection: Connection, events: int, is_few: bool
) -> None:
    """Guard: events are numbered in id order, by append_few and by append_chunks."""
    topic(connection)
    if not is_few:
        without_guard(connection, "sequence", "LEAST(max_events, 1000)", "0")
    found = _one_tick_of_transactions(connection, events)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("events", "order"), [(FEW, "ORDER BY b.due, b.id"), (MANY, "AS id ORDER BY id")]
)
def test_numbered_backwards_the_key_order_breaks(
    connection: Connection, events: int, order: str
) -> None:
    """Mutants: ORDER BY id DESC, of either kind of grouping."""
    topic(connection)
    without_guard(connection, "sequence", "LEAST(max_events, 1000)", "0")
    without_guard(connection, "append_chunks", order, f"{order} DESC")
    found = _one_tick_of_transactions(connection, events)
    assert found != sorted(found)


@contextmanager
def _closed_gate(connection: Connection) -> Iterator[None]:
    """While it is closed, a session with penstock_test.gate set waits behind what it has read."""
    without_guard(
        connection,
        "sequence",
        "    begun := tick.complete;\n",
        f"    {WAIT_AT_GATE}\n    begun := tick.complete;\n",
    )
    connection.execute("SELECT pg_advisory_lock(%s)", (GATE,))
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (GATE,))


def _overtaken(connection: Connection, url: str) -> BaseException | None:
    """A sequencer is stopped after reading the tick, another one passes, the first goes on."""
    for number in range(5):
        put(connection, str(number))
    with (
        psycopg.connect(url, autocommit=True) as slow,
        psycopg.connect(url, autocommit=True) as fast,
        ThreadPoolExecutor(1) as pool,
    ):
        slow.execute(f"SET penstock_test.gate = {GATE}".encode())
        with _closed_gate(connection):
            waiting = pool.submit(log.sequence, slow)
            wait_until_blocked(connection, backend_pid(slow))
            assert log.sequence(fast).sequenced == 5
        return waiting.exception()


@proves("F5")
def test_a_sequencer_that_only_believes_to_be_alone_collides(
    connection: Connection, database_url: str
) -> None:
    """Guard: the key of ticks, the fence beneath the row lock (which is taken out here)."""
    topic(connection)
    without_guard(connection, *NO_LOCK)
    assert isinstance(_overtaken(connection, database_url), psycopg.errors.UniqueViolation)
    assert texts(connection) == ["0", "1", "2", "3", "4"]


def test_without_lock_and_fence_events_are_doubled(
    connection: Connection, database_url: str
) -> None:
    """Mutant: neither the row lock nor the key of ticks."""
    topic(connection)
    without_guard(connection, *NO_LOCK)
    without_guard(connection, *NO_TICK_FENCE)
    assert _overtaken(connection, database_url) is None
    assert len(texts(connection)) == 10


def _passes(connection: Connection, url: str, kill_after: int) -> None:
    """Passes of 5 events on connections that are killed after some of them."""
    victim = psycopg.connect(url, autocommit=True)
    for _ in range(kill_after):
        log.sequence(victim, 5)
    connection.execute("SELECT pg_terminate_backend(%s)", (backend_pid(victim),))
    with pytest.raises(psycopg.OperationalError):
        victim.execute("SELECT 1")
    victim.close()
    drain(connection, 5)


@proves("F5")
@pytest.mark.parametrize("kill_after", range(6))
def test_killed_between_the_passes_of_a_tick(
    connection: Connection, database_url: str, kill_after: int
) -> None:
    """Guard: each pass records how far the tick is."""
    topic(connection)
    expected = [str(number) for number in range(23)]
    for text in expected:
        put(connection, text)
    _passes(connection, database_url, kill_after)
    assert texts(connection) == expected


def test_a_tick_that_does_not_record_that_it_goes_on_loses_the_rest(
    connection: Connection, database_url: str
) -> None:
    """Mutant: every pass says that its tick is complete."""
    topic(connection)
    without_guard(connection, "sequence", "pass.seen < max_events, tick", "true, tick")
    for number in range(23):
        put(connection, str(number))
    _passes(connection, database_url, 2)
    assert len(texts(connection)) < 23


def test_killed_in_the_middle_of_a_pass(connection: Connection, database_url: str) -> None:
    """Guard: index and tick are one transaction; the lock dies with its session."""
    topic(connection)
    put(connection, "1")
    slow = psycopg.connect(database_url, autocommit=True)
    slow.execute(f"SET penstock_test.gate = {GATE}".encode())
    without_guard(
        connection,
        "sequence",
        "    sequenced := pass.sequenced;",
        f"    {WAIT_AT_GATE}\n    sequenced := pass.sequenced;",
    )
    connection.execute("SELECT pg_advisory_lock(%s)", (GATE,))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.sequence, slow)
        wait_until_blocked(connection, backend_pid(slow))
        assert log.sequence(connection).busy
        connection.execute("SELECT pg_terminate_backend(%s)", (backend_pid(slow),))
        assert isinstance(waiting.exception(), psycopg.OperationalError)
    slow.close()
    assert texts(connection) == []
    wait_until(lambda: not log.sequence(connection).busy, "the lock died with its session")
    assert texts(connection) == ["1"]


def test_a_quiet_log_is_not_locked(connection: Connection, database_url: str) -> None:
    """Guard: is_quiet; an idle sequencer takes no transaction number and waits for nobody."""
    topic(connection)
    put(connection, "one")
    drain(connection)
    before = value(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    with open_transaction(database_url) as holder:
        holder.execute("SELECT FROM penstock.sequencer FOR UPDATE")
        result = log.sequence(connection)
        assert (result.sequenced, result.more, result.busy) == (0, False, False)
    for _ in range(5):
        log.sequence(connection)
    # The holder's row lock took one.
    after = value(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    assert int(after) <= int(before) + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.tx <> tick.horizon", "false"),
        ("xmax(tick.target) >= tick.horizon", "xmax('1:1:') = '1'"),
        ("t.highest_id = is_quiet.issued", "true"),
        ("d.due <= is_quiet.now_due", "false"),
    ],
)
def test_what_is_quiet_is_told_exactly(
    connection: Connection, database_url: str, old: str, new: str
) -> None:
    """Mutants: blind for open transactions, for new ids, and for what is due."""
    topic(connection)

    def run(name: str) -> list[int]:
        counts = []
        with open_transaction(database_url) as only:
            put(only, f"only {name}")
            counts.append(drain(connection))
            only.commit()
        counts.append(drain(connection))
        with open_transaction(database_url) as late:
            put(late, f"late {name}")
            put(connection, f"first {name}")
            counts.append(drain(connection))
            late.commit()
        counts.append(drain(connection))
        put(connection, f"second {name}")
        counts.append(drain(connection))
        connection.execute(
            "INSERT INTO penstock.events"
            " (partition_id, event_id, type, content_type, payload, due_at)"
            " SELECT p.id, gen_random_uuid(), '', '', %s, clock_timestamp() + interval '0.1 s'"
            " FROM penstock.partitions AS p",
            (b"due",),
        )
        drain(connection)
        connection.execute("SELECT pg_sleep(0.15)")
        return [*counts, drain(connection)]

    assert run("with the guard") == [0, 1, 1, 1, 1, 1]
    without_guard(connection, "nothing_open" if "tick.horizon" in old else "is_quiet", old, new)
    # An event that came although no id was handed out would tell some of it too.
    without_guard(
        connection,
        "is_quiet",
        "(t.target) AND is_own_number",
        "(t.target) AND false AND is_own_number",
    )
    assert run("without it") != [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_log_whose_last_tick_saw_others_at_work_becomes_quiet(
    connection: Connection, database_url: str, is_guarded: bool
) -> None:
    """Guard: one row more, once nobody is open. Else each look is a pass that finds nothing."""
    topic(connection)
    if not is_guarded:
        without_guard(connection, "sequence", "issued IS NULL OR NOT nothing_open(tick)", "true")
    with open_transaction(database_url) as other:
        value(other, "SELECT pg_current_xact_id()")
        put(connection, "x")
        drain(connection)
    before = int(value(connection, "SELECT count(*) FROM penstock.ticks"))
    for _ in range(3):
        log.sequence(connection)
    more = int(value(connection, "SELECT count(*) FROM penstock.ticks")) - before
    assert more == (1 if is_guarded else 0)
