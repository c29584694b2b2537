"""Events are published, sequenced and read while nothing can be cleaned up.

Two databases (on MySQL and MariaDB: servers) do the same work in the same minutes. Each beat
publishes, sequences, fetches and commits on one and then on the other. They take turns to begin. In
one of them a session holds a REPEATABLE READ snapshot, or the server has autovacuum off. What
counts is the last minute: the rate of each kind of work against its rate in the other database.
More events can be published first, on both sides and under the snapshot, as fast as possible.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

from benchmarks.bench import PARTITIONS, PASS, Bench
from benchmarks.bench_database import BenchDatabase
from benchmarks.consume import BATCH_SIZE, hold_all, join_all
from benchmarks.events import messages
from benchmarks.measure import Aim, Figure, Settings, batches, figure
from penstock import log
from penstock.publishing.publish import publish_batch
from penstock.records import Lease, Message
from penstock.subscriptions import stream

RATE = 2_000  # events/s in each of the two databases
BEAT_SECONDS = BATCH_SIZE / RATE
MEASURED_SECONDS = 60
DEAD_TUPLES = Aim(at_most=1)  # for each 1,000 events
KINDS = ("publish", "sequence", "fetch", "consume")
ROUND = 2_000  # events of one side's turn, when more are published first


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """The four kinds of work under the snapshot, the rate that was reached, and what piled up."""
    with bench.another() as other:
        held, calm = Side(bench), Side(other)
        before = bench.garbage()
        print(f"  before: {bench.garbage_report()}", flush=True)
        with bench.held_view():
            _let_in(held, calm, settings)
            spent = _live(held, calm, settings.hold_seconds)
            piled = bench.garbage() - before
        print(f"  after, held: {bench.garbage_report()}", flush=True)
        print(f"  after, calm: {other.garbage_report()}", flush=True)
        yield from _compared(held, calm, settings.hold_seconds, "held", "no snapshot")
        yield figure(
            "held_kept_rate", len(held.beats) * BATCH_SIZE / spent, unit="events/s",
            rows=len(held.beats) * BATCH_SIZE, batch=BATCH_SIZE, aim=Aim(value=0.98 * RATE),
        )  # fmt: skip
        yield figure(
            f"held_{bench.garbage_name.replace(' ', '_')}_per_1000_events",
            1_000 * piled / held.events, unit=bench.garbage_name, rows=held.events,
            batch=BATCH_SIZE, aim=DEAD_TUPLES if bench.engine == "postgres" else None,
        )  # fmt: skip


def unvacuumed_cases(bench: BenchDatabase, settings: Settings) -> Iterator[Figure]:
    """The same on a server whose autovacuum is off, against one where it is on."""
    with bench.unvacuumed() as other:
        off, on = Side(other), Side(bench)
        _let_in(off, on, settings)
        _live(off, on, settings.unvacuumed_seconds)
        print(f"  after, off: {other.garbage_report()}", flush=True)
        print(f"  after, on: {bench.garbage_report()}", flush=True)
        yield from _compared(off, on, settings.unvacuumed_seconds, "unvacuumed", "with autovacuum")


@dataclass(slots=True)
class Side:
    """One of the two databases, its consumer, and how long each kind of work took at each beat."""

    bench: Bench
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
        subscription = self.topic.rpartition("/")[2]
        stream.subscribe(self.bench.connection, subscription, [self.topic])
        # On a busy machine, a beat of both sides can take longer than a lease of ten seconds.
        stream.configure_subscription(self.bench.connection, subscription, lease_seconds=120)
        # Only partitions with something to read are leased, so each of them gets something.
        self._publish()
        self._sequence()
        self.member, self.leases = join_all(self.bench.connection, subscription)
        self.heartbeat_due = perf_counter() + self.member.heartbeat_seconds
        self._fetch()
        self._consume()

    def beat(self) -> None:
        """Publish, sequence, fetch and commit 500 events.  Each step is timed separately."""
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
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Do the work beside the events: a heartbeat, and storage made ahead as the daemon does."""
        if perf_counter() >= self.heartbeat_due:
            held = stream.check_in(self.bench.connection, self.member)
            self.leases = {lease.partition_id: lease for lease in held}
            log.ensure_slices(self.bench.connection)
            self.heartbeat_due = perf_counter() + self.member.heartbeat_seconds

    def let_in(self, count: int, size: int) -> None:
        """Publish, sequence, fetch and commit events in batches of a size, as fast as possible."""
        for part in batches(count, BATCH_SIZE):
            with self.bench.transaction():
                for batch in batches(len(part), size):
                    publish_batch(self.bench.connection, self.batch[batch.start : batch.stop])
            self._keep_alive()
        self.bench.work_off()
        # Partitions with nothing to read for a while were given back.
        self.leases = hold_all(self.bench.connection, self.member)
        consumed = 0
        while consumed < count:
            consumed += self._consume()
            self._keep_alive()
        self.events += count
        watermarks = log.high_watermarks(self.bench.connection, self.topic)
        self.next_sequences = {partition: last + 1 for partition, last in watermarks.items()}

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


def _let_in(held: Side, calm: Side, settings: Settings) -> None:
    for part in batches(settings.held_events, ROUND):
        for side in (held, calm):
            side.let_in(len(part), settings.held_batch)


def _live(held: Side, calm: Side, seconds: float) -> float:
    """Run beats at a fixed rate.  It does not wait after a late one.  Returns how long it took."""
    begun = perf_counter()
    due = begun
    while perf_counter() - begun < seconds:
        ours_first = len(held.beats) % 2 == 0
        for side in (held, calm) if ours_first else (calm, held):
            side.beat()
        due += BEAT_SECONDS
        time.sleep(max(0.0, due - perf_counter()))
    return perf_counter() - begun


def _compared(held: Side, calm: Side, seconds: float, name: str, against: str) -> Iterator[Figure]:
    last = max(1, round(min(MEASURED_SECONDS, seconds) / BEAT_SECONDS))
    for kind in KINDS:
        ours = [beat[kind] for beat in held.beats[-last:]]
        peers = [beat[kind] for beat in calm.beats[-last:]]
        yield figure(
            f"{name}_{kind}", BATCH_SIZE * len(ours) / sum(ours), unit="events/s",
            peer=BATCH_SIZE * len(peers) / sum(peers),
            ratio=median(other / own for own, other in zip(ours, peers, strict=True)),
            rows=BATCH_SIZE * len(ours), batch=BATCH_SIZE,
            against=f"{against}, after {held.events:,} events in all", aim=Aim(ratio=0.9),
        )  # fmt: skip
