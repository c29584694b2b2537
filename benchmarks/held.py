"""A session that holds a snapshot for ten minutes while events come, are sequenced and are read.

Two databases live through the same minutes.  Each beat publishes, sequences, fetches and commits on
one and then on the other; who begins changes from beat to beat.  In one of them a session holds a
REPEATABLE READ snapshot.  What counts is the last minute: the rate of each kind of work against its
rate in the other database.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

import psycopg

from benchmarks.bench_database import PARTITIONS, PASS, BenchDatabase, bench_database
from benchmarks.consume import BATCH_SIZE, join_all
from benchmarks.events import messages
from benchmarks.measure import Aim, Figure, Settings, figure
from penstock import log, stream
from penstock.publish import publish_batch
from penstock.records import Lease, Message

RATE = 2_000  # events/s in each of the two databases
BEAT_SECONDS = BATCH_SIZE / RATE
MEASURED_SECONDS = 60
SUBSCRIPTION = "held"
KINDS = ("publish", "sequence", "fetch", "consume")

_DEAD = """
SELECT COALESCE(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'penstock'
"""
_DEAD_TABLES = """
SELECT COALESCE(string_agg(relname || ' ' || n_dead_tup, ', ' ORDER BY n_dead_tup DESC), 'none')
FROM pg_stat_user_tables WHERE schemaname = 'penstock' AND n_dead_tup > 0
"""


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Figure]:
    """The four kinds of work under the snapshot, the rate that was kept, and the dead tuples."""
    with bench_database(bench.server, f"{bench.name}_calm") as other:
        held, calm = Side(bench), Side(other)
        dead_before = held.dead_tuples()
        print(f"  dead tuples before: {held.dead_tables()}", flush=True)
        with _snapshot(bench.url):
            spent = _live(held, calm, settings.hold_seconds)
            dead_after = held.dead_tuples()
        print(f"  dead tuples after, held: {held.dead_tables()}", flush=True)
        print(f"  dead tuples after, calm: {calm.dead_tables()}", flush=True)
        yield from _compared(held, calm, settings.hold_seconds)
        yield figure(
            "held_kept_rate", held.events / spent, unit="events/s", rows=held.events,
            batch=BATCH_SIZE, aim=Aim(value=0.98 * RATE),
        )  # fmt: skip
        yield figure(
            "held_dead_tuples_per_1000_events", 1_000 * (dead_after - dead_before) / held.events,
            unit="tuples", rows=held.events, batch=BATCH_SIZE, aim=Aim(at_most=1),
        )  # fmt: skip


@dataclass(slots=True)
class Side:
    """One of the two databases, its consumer, and how long each kind of work took at each beat."""

    bench: BenchDatabase
    topic: str = field(init=False)
    batch: list[Message] = field(init=False)
    member: stream.Membership = field(init=False)
    leases: dict[int, Lease] = field(init=False)
    heartbeat_due: float = field(init=False)
    next_sequences: dict[int, int] = field(default_factory=dict)
    beats: list[dict[str, float]] = field(default_factory=list)
    events: int = 0

    def __post_init__(self) -> None:
        self.topic = self.bench.new_topic()
        self.batch = messages(self.topic, BATCH_SIZE)
        self.next_sequences = dict.fromkeys(range(PARTITIONS), 1)
        stream.subscribe(self.bench.connection, SUBSCRIPTION, [self.topic])
        # Partitions are leased where there is something to read, so each of them gets something.
        self._publish()
        self._sequence()
        self.member, self.leases = join_all(self.bench.connection, SUBSCRIPTION)
        self.heartbeat_due = perf_counter() + self.member.heartbeat_seconds
        self._fetch()
        self._consume()

    def beat(self) -> None:
        """500 events take the whole road, each part of it on its own clock."""
        spent = {}
        for kind, work in zip(
            KINDS, (self._publish, self._sequence, self._fetch, self._consume), strict=True
        ):
            begun = perf_counter()
            done = work()
            spent[kind] = perf_counter() - begun
            if done != BATCH_SIZE:
                raise RuntimeError(f"{kind}: {done} of {BATCH_SIZE} events")
        self.beats.append(spent)
        self.events += BATCH_SIZE
        if perf_counter() >= self.heartbeat_due:
            stream.check_in(self.bench.connection, self.member)
            self.heartbeat_due = perf_counter() + self.member.heartbeat_seconds

    def dead_tuples(self) -> int:
        """In all tables of Penstock, as the statistics have it now."""
        self.bench.connection.execute("SELECT pg_stat_force_next_flush()")
        return int(self.bench.figure(_DEAD))

    def dead_tables(self) -> str:
        """The tables that have dead tuples, and how many."""
        return str(self.bench.figure(_DEAD_TABLES))

    def _publish(self) -> int:
        return len(publish_batch(self.bench.connection, self.batch))

    def _sequence(self) -> int:
        return log.sequence(self.bench.connection, PASS).sequenced

    def _fetch(self) -> int:
        read = 0
        for partition, following in self.next_sequences.items():
            events = log.fetch(self.bench.connection, self.topic, partition, following, BATCH_SIZE)
            read += len(events)
            if events:
                self.next_sequences[partition] = events[-1].sequence + 1
        return read

    def _consume(self) -> int:
        leases = list(self.leases.values())
        polled = stream.poll(self.bench.connection, self.member, leases, BATCH_SIZE)
        done = [(lease, events[-1].sequence) for lease, events in polled]
        stream.commit(self.bench.connection, self.member, done)
        for lease, position in done:
            self.leases[lease.partition_id] = replace(lease, position=position)
        return sum(len(events) for _, events in polled)


def _live(held: Side, calm: Side, seconds: float) -> float:
    """Beats at a fixed rate; a late one is not waited for.  Answers how long it took."""
    begun = perf_counter()
    due = begun
    while perf_counter() - begun < seconds:
        ours_first = len(held.beats) % 2 == 0
        for side in (held, calm) if ours_first else (calm, held):
            side.beat()
        due += BEAT_SECONDS
        time.sleep(max(0.0, due - perf_counter()))
    return perf_counter() - begun


def _compared(held: Side, calm: Side, seconds: float) -> Iterator[Figure]:
    last = max(1, round(min(MEASURED_SECONDS, seconds) / BEAT_SECONDS))
    for kind in KINDS:
        ours = [beat[kind] for beat in held.beats[-last:]]
        peers = [beat[kind] for beat in calm.beats[-last:]]
        yield figure(
            f"held_{kind}", BATCH_SIZE * len(ours) / sum(ours), unit="events/s",
            peer=BATCH_SIZE * len(peers) / sum(peers),
            ratio=median(other / own for own, other in zip(ours, peers, strict=True)),
            rows=BATCH_SIZE * len(ours), batch=BATCH_SIZE,
            against=f"no snapshot, after {seconds:g} s", aim=Aim(ratio=0.9),
        )  # fmt: skip


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """A session that has read one table of Penstock and goes on reading it as of then."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM penstock.topics")
        yield
        connection.execute("SELECT count(*) FROM penstock.topics")
        connection.rollback()
