"""Queue mode: events are received and acknowledged, beside pgmq's `read` and `delete`.

Workers are processes that begin together.  On PostgreSQL both sides call SQL with the same driver
and read the same: the receipt, the time and the payload.  Nothing is handled.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from statistics import median
from time import perf_counter
from typing import Any
from uuid import UUID

from benchmarks.bench import PARTITIONS, PASS, Bench
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Figure, Gap, Run, Settings, batches, figure
from benchmarks.peers.install import PeerMissing
from benchmarks.peers.pgmq import Pgmq
from penstock import database, log
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.publishing.publish import publish_batch
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt, Verdict

BATCH_SIZE = 500
#: Events of a run: by 500, by 10, one by one.  On MySQL and MariaDB a run has fewer.
WORK = {BATCH_SIZE: 50_000, 100: 20_000, 10: 20_000, 1: 5_000}
#: Many workers get so many times as many: each session plans its first calls, and a worker that
#: runs for a day does so once.
MORE_OF_MANY = 4
WORK_OF_MYSQL = 20_000
#: How many handlers a worker has whose handlers do nothing.
HANDLERS = (1, 16)
#: Workers, events of a call, and what the ratio to pgmq has to be.
BESIDE_PGMQ = (
    (1, 500, Aim(ratio=2)),
    (1, 100, None),
    (1, 10, None),
    (16, 500, None),
    (16, 10, Aim(ratio=1.5)),
    (16, 1, Aim(ratio=1)),
)
DELAYED, DEAD = 100_000, 10_000
#: So many events come back after a delay between these.
DELAYED_LOOKED_AT = 300
DELAY_SECONDS = (0.5, 5.0)
NO_SLOWER = Aim(ratio=0.95)
HELD = Aim(ratio=0.9)
#: Beats of the two databases with and without a held snapshot.
BEAT_SECONDS, MEASURED_SECONDS = 0.25, 60
VISIBILITY_SECONDS = 600
#: Between two looks of a worker that found nothing while others still work.
PAUSE_SECONDS = 0.001
READY_SECONDS = 120

#: The statement of `queue.receive` with fewer columns.
_RECEIVE = """
SELECT claim, token, sequence, created_at, payload
FROM penstock.receive(
    CASE set_config('synchronous_commit', 'off', true) WHEN 'off' THEN %s END, %s, %s)
"""

#: As in `queue.receive`: a named tuple's own constructor is written in Python.
_new_receipt = partial(tuple.__new__, Receipt)

#: Works once: takes at most so many and finishes them.  Returns how many.
Turn = Callable[[Any], int]


def cases(bench: Bench, settings: Settings) -> Iterator[Case | Figure | Gap]:
    """Beside pgmq where it can be had; many workers; much that waits; a held snapshot."""
    if bench.engine == "postgres":
        yield from _beside_pgmq(bench, settings)
        if settings.short:
            return
        yield _on_one_partition(bench, settings)
        yield _beside_what_waits(bench, settings)
    else:
        rows = settings.amount(WORK_OF_MYSQL)
        yield Case("queue_500", rows, BATCH_SIZE, Working(bench, filled(bench, rows), rows))
    yield from _handled(bench, settings)
    yield _delayed(bench, settings.amount(DELAYED_LOOKED_AT))
    yield _held(bench, settings)


def _beside_pgmq(bench: Any, settings: Settings) -> Iterator[Case | Gap]:
    peer: Pgmq | None = None
    try:
        peer = Pgmq(bench)
    except PeerMissing as error:
        yield Gap("pgmq", str(error))
    for workers, size, aim in BESIDE_PGMQ:
        rows = settings.amount(WORK[size] * (MORE_OF_MANY if workers > 1 else 1))
        name = f"queue_{size}" if workers == 1 else f"queue_{size}_workers_{workers}"
        ours = Working(bench, filled(bench, rows), rows, size, workers)
        if peer is None:
            yield Case(name, rows, size, ours)
            continue
        theirs = pgmq_working(bench, peer, rows, size, workers)
        yield Case(name, rows, size, ours, theirs, f"read + delete, {workers} workers", aim)


def _on_one_partition(bench: Bench, settings: Settings) -> Case:
    rows = settings.amount(WORK[10] * MORE_OF_MANY)
    topic = filled(bench, rows, partitions=1)
    many, few = (Working(bench, topic, rows, 10, workers) for workers in (64, 16))
    return Case("queue_10_workers_64", rows, 10, many, few, "16 workers, one partition", NO_SLOWER)


def _handled(bench: Bench, settings: Settings) -> Iterator[Case]:
    """`penstock.QueueConsumer`, which acknowledges by itself."""
    rows = settings.amount(WORK_OF_MYSQL)
    for handlers in HANDLERS:
        yield Case(
            f"queue_handlers_{handlers}",
            rows,
            1,
            Handled(bench, filled(bench, rows), rows, handlers),
        )


def _beside_what_waits(bench: Bench, settings: Settings) -> Case:
    """One queue has delayed events and dead letters, the other one has none."""
    rows, delayed, dead = (settings.amount(each) for each in (WORK[BATCH_SIZE], DELAYED, DEAD))
    waiting = Again(bench, rows)
    waiting.fill(dead + delayed)
    waiting.put_aside(dead, max_failures=1)
    waiting.put_aside(delayed, max_failures=20, delay_seconds=86_400)
    against = f"none of {delayed:,} delayed and {dead:,} dead"
    return Case(
        "queue_500_beside", rows, BATCH_SIZE, waiting, Again(bench, rows), against, NO_SLOWER
    )


def filled(bench: Bench, rows: int, partitions: int = PARTITIONS) -> str:
    """A topic with so many events, sequenced."""
    topic = bench.new_topic(partitions)
    bench.fill([topic], rows)
    bench.work_off()
    bench.analyse()
    return topic


@dataclass
class Working:
    """Runs that work off a whole topic, or a part of it, each by a new queue and new workers."""

    bench: Bench
    topic: str
    rows: int
    size: int = BATCH_SIZE
    workers: int = 1
    whole: bool = True

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self) -> float:
        name = f"{self.topic.rpartition('/')[2]}-{self.size}-{self.workers}-{next(self._numbers)}"
        queue.subscribe(self.bench.connection, name, [self.topic])
        queue.configure(self.bench.connection, name, visibility_seconds=VISIBILITY_SECONDS)
        self.bench.settle()
        turn = _turn_of(self.bench.engine, name, self.size)
        spent = work_off(self.bench.url, turn, self.rows, self.workers, exactly=self.whole)
        if self.whole and (size := queue.statistics(self.bench.connection, name).size):
            raise RuntimeError(f"{size} events of {name} are not finished")
        return spent


@dataclass
class Handled:
    """Runs in which a worker in this process works off a whole topic, each by a new queue."""

    bench: Bench
    topic: str
    rows: int
    handlers: int

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self) -> float:
        name = f"{self.topic.rpartition('/')[2]}-handled-{next(self._numbers)}"
        queue.subscribe(self.bench.connection, name, [self.topic])
        self.bench.settle()
        stop, calls = threading.Event(), itertools.count(1)

        def handle(_: QueueDelivery) -> None:
            if next(calls) == self.rows:
                stop.set()

        worker = QueueConsumer(self.bench.url, name, handler=handle, concurrency=self.handlers)
        begun = perf_counter()
        worker.run(stop)
        spent = perf_counter() - begun
        if worker.stats.events != self.rows:
            raise RuntimeError(f"{worker.stats.events} of {self.rows} events were finished")
        return spent


@dataclass
class Again:
    """Runs that publish to one queue and work it off."""

    bench: Bench
    rows: int

    def __post_init__(self) -> None:
        self.topic = self.bench.new_topic()
        self.name = self.topic.rpartition("/")[2]
        queue.subscribe(self.bench.connection, self.name, [self.topic])

    def __call__(self) -> float:
        self.fill(self.rows)
        self.bench.settle()
        return work_off(
            self.bench.url, _turn_of(self.bench.engine, self.name, BATCH_SIZE), self.rows, 1
        )

    def fill(self, rows: int) -> None:
        """Publish and sequence."""
        self.bench.fill([self.topic], rows)
        self.bench.work_off()
        self.bench.analyse()

    def put_aside(
        self, rows: int, *, max_failures: int, delay_seconds: float | None = None
    ) -> None:
        """Reject so many events: delayed, or dead with the first failure."""
        queue.configure(self.bench.connection, self.name, max_failures=max_failures)
        for part in batches(rows, BATCH_SIZE):
            found = queue.receive(self.bench.connection, self.name, len(part))
            receipts = [each.receipt for each in found]
            queue.reject(self.bench.connection, self.name, receipts, delay_seconds=delay_seconds)


def _turn_of(engine: str, name: str, size: int) -> Turn:
    """One call of each, with the columns of the peer; on MySQL the Python functions."""

    def columns(connection: Any) -> int:
        binds = (name, size, VISIBILITY_SECONDS)
        found = connection.execute(_RECEIVE, binds, binary=True).fetchall()
        receipts = [*map(_new_receipt, map(itemgetter(0, 2, 1), found))]
        queue.acknowledge(connection, name, receipts)
        return len(receipts)

    def events(connection: Any) -> int:
        receipts = [each.receipt for each in queue.receive(connection, name, size)]
        queue.acknowledge(connection, name, receipts)
        return len(receipts)

    return columns if engine == "postgres" else events


def pgmq_working(
    bench: Any, peer: Pgmq, rows: int, size: int, workers: int, *, beside: str = ""
) -> Run:
    """The same with a queue of pgmq, which is filled before each run.

    With ``beside``, the name of a filled queue, a run takes a part of that, and puts it back.
    """
    name = beside or peer.new_queue()

    def run() -> float:
        if not beside:
            peer.fill(name, rows)
        bench.settle()
        turn = partial(peer.turn, queue=name, size=size)
        spent = work_off(bench.url, turn, rows, workers, exactly=not beside)
        if beside:
            peer.fill(name, rows)
        return spent

    return run


def together(fork: Any, parties: int) -> tuple[Any, Any]:
    """A barrier for so many processes, and the time at which all of them had come.

    Whoever comes last writes it down: another process may be given a core only when much is done.
    """
    begun = fork.Value("d", 0.0)

    def note() -> None:
        begun.value = perf_counter()

    return fork.Barrier(parties, action=note), begun


def work_off(url: str, turn: Turn, rows: int, workers: int, *, exactly: bool = True) -> float:
    """Let so many processes work until all is done.  Returns the seconds from their start on.

    Each may do a turn too many where the work does not end by itself: then not ``exactly``.
    """
    fork = multiprocessing.get_context("fork")
    begin, begun = together(fork, workers + 1)
    done = fork.Value("q", 0)

    def work() -> None:
        with database.connect(url, statement_timeout_ms=0) as connection:
            begin.wait(READY_SECONDS)
            while done.value < rows:
                count = turn(connection)
                with done.get_lock():
                    done.value += count
                if not count:
                    time.sleep(PAUSE_SECONDS)

    processes = [fork.Process(target=work) for _ in range(workers)]
    for each in processes:
        each.start()
    begin.wait(READY_SECONDS)
    for each in processes:
        each.join()
    spent = perf_counter() - begun.value
    if any(each.exitcode for each in processes) or (exactly and done.value != rows):
        raise RuntimeError(f"{done.value} of {rows} events were finished")
    return spent


def _delayed(bench: Bench, rows: int) -> Figure:
    """How long after its time an event is handled that had to wait for a delay, in the median."""
    again = Again(bench, rows)
    again.fill(rows)
    due: dict[UUID, float] = {}
    late: list[float] = []
    stop = threading.Event()

    def handle(delivery: QueueDelivery) -> Verdict:
        event = delivery.event_id
        if event in due:
            late.append(1_000 * (time.monotonic() - due[event]))
            if len(late) == rows:
                stop.set()
            return queue.DONE
        delay = random.uniform(*DELAY_SECONDS)
        due[event] = time.monotonic() + delay
        return queue.again(delay)

    patience = threading.Timer(READY_SECONDS, stop.set)
    patience.start()
    QueueConsumer(bench.url, again.name, handler=handle).run(stop)
    patience.cancel()
    if len(late) != rows:
        raise RuntimeError(f"{len(late)} of {rows} delayed events came")
    return figure(
        "queue_delayed_p50", median(late), unit="ms", rows=rows, batch=1, aim=Aim(at_most=100)
    )


def _held(bench: Bench, settings: Settings) -> Figure:
    """Two databases in turns, one under a held snapshot: the rate of the last minute."""
    with bench.another() as other:
        held, calm = Side(bench), Side(other)
        with bench.held_view():
            begun = due = perf_counter()
            while perf_counter() - begun < settings.hold_seconds:
                ours_first = len(held.spent) % 2 == 0
                for side in (held, calm) if ours_first else (calm, held):
                    side.beat()
                due += BEAT_SECONDS
                time.sleep(max(0.0, due - perf_counter()))
    last = max(1, round(min(MEASURED_SECONDS, settings.hold_seconds) / BEAT_SECONDS))
    return _compared(held.spent[-last:], calm.spent[-last:], len(held.spent) * BATCH_SIZE)


def _compared(held: Sequence[float], calm: Sequence[float], events: int) -> Figure:
    rows = BATCH_SIZE * len(held)
    return figure(
        "held_queue", rows / sum(held), unit="events/s", peer=rows / sum(calm),
        ratio=median(other / own for own, other in zip(held, calm, strict=True)),
        rows=rows, batch=BATCH_SIZE, against=f"no snapshot, after {events:,} events", aim=HELD,
    )  # fmt: skip


class Side:
    """One of the two databases, its queue, and how long each turn took."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        topic = bench.new_topic()
        self._batch = messages(topic, BATCH_SIZE)
        self._name = topic.rpartition("/")[2]
        self.spent: list[float] = []
        queue.subscribe(bench.connection, self._name, [topic])

    def beat(self) -> None:
        """Publish and sequence 500 events; then, timed, receive and acknowledge them."""
        connection = self._bench.connection
        publish_batch(connection, self._batch)
        log.sequence(connection, PASS)
        turn = _turn_of(self._bench.engine, self._name, BATCH_SIZE)
        begun, done = perf_counter(), 0
        while done < BATCH_SIZE:
            done += turn(connection)
        self.spent.append(perf_counter() - begun)
