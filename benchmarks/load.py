"""The load of a thousand consumers that only stay alive and share 1,024 active partitions.

Each consumer makes the calls of a real consumer process, at its own pace: a heartbeat, and a
check-in when the heartbeat says so. Handlers are simulated: unread events stay unread, so every
partition stays active. The clock starts when a survey has found that every consumer holds its
share. Half way through, a twentieth of the consumers die: they stop making calls.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from benchmarks.bench import Bench
from benchmarks.measure import Aim, Figure, Settings, figure
from benchmarks.processor import processor_seconds
from penstock import database
from penstock.errors import UnknownConsumer
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership

CONSUMERS = 1_000
PARTITIONS = 1_024
KILLED_SHARE = 0.05
#: Connections for heartbeats and for check-ins. As in a process, neither waits for the other.
BEATERS, CHECKERS = 4, 4
SUBSCRIPTION = "load"
#: Heartbeats in a run. They decide the interval: it is the default in a run of a minute.
BEATS = 20
SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT = 1.0, 3.0
LEASE_HEARTBEATS = 10 / 3
JOINING_BEATS = 10  # heartbeat intervals in which a thousand of them start

_UNSHARED = "SELECT COUNT(*) FROM penstock.surveys WHERE NOT balanced"
_UNHELD = """
SELECT COUNT(*) FROM penstock.leases AS l
LEFT JOIN penstock.consumers AS c ON c.subscription_id = l.subscription_id AND c.id = l.holder
WHERE l.state <> 'ACTIVE' OR c.id IS NULL
"""


def cases(bench: Bench, settings: Settings) -> Iterator[Figure]:
    """What many consumers cost, and how soon dead ones are replaced."""
    count = settings.amount(CONSUMERS)
    seconds = settings.load_seconds
    heartbeat = min(LONGEST_HEARTBEAT, max(SHORTEST_HEARTBEAT, seconds / BEATS))
    lease = heartbeat * LEASE_HEARTBEATS
    partitions = min(PARTITIONS, 2 * count)
    topic = bench.new_topic(partitions)
    stream.subscribe(bench.connection, SUBSCRIPTION, [topic])
    stream.configure_subscription(
        bench.connection, SUBSCRIPTION, heartbeat_seconds=heartbeat, lease_seconds=lease,
        release_seconds=lease,
    )  # fmt: skip
    publish_batch(bench.connection, [Message(topic, b"x", partition=n) for n in range(partitions)])
    bench.work_off()
    with Crowd(bench, count, heartbeat) as crowd:
        crowd.settle()
        found = crowd.live(seconds)
    print(
        f"  {count} consumers, {partitions} partitions, heartbeat {heartbeat:g} s,"
        f" lease {lease:g} s; {found}",
        flush=True,
    )
    yield from _figures(found, count, lease)


@dataclass(slots=True)
class Found:
    """What was measured."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    replaced_seconds: float = 0.0
    check_ins: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    by_second: Counter[int] = field(default_factory=Counter)
    joined_again: int = 0

    def __str__(self) -> str:
        """The figures in one line."""
        return (
            f"{len(self.heartbeats)} heartbeats, median {_share(self.heartbeats, 50):.2f} ms,"
            f" 99 % {_share(self.heartbeats, 99):.2f} ms; {self.joined_again} were late and joined"
            f" again; at most"
            f" {max(self.by_second.values(), default=0)} check-ins in a second"
        )


@dataclass(order=True, slots=True)
class Call:
    """Which consumer calls next, and when."""

    due: float
    name: str


class Line:
    """Calls in the order of their times.  A thread that takes one sleeps until its time."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._calls: list[Call] = []
        self._changed = threading.Condition()

    def add(self, due: float, name: str) -> None:
        """Add a call."""
        with self._changed:
            heapq.heappush(self._calls, Call(due, name))
            self._changed.notify()

    def next(self) -> Call | None:
        """The next call, once its time has come.  None at the end."""
        with self._changed:
            while not self._stop.is_set():
                wait = self._calls[0].due - time.perf_counter() if self._calls else 1.0
                if wait <= 0:
                    return heapq.heappop(self._calls)
                self._changed.wait(min(wait, 1.0))
        return None


class Crowd:
    """Consumers on a few connections, each with its own time for its next call."""

    def __init__(self, bench: Bench, count: int, heartbeat: float) -> None:
        self._bench = bench
        self._heartbeat = heartbeat
        self._rng = random.Random(7)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dead: set[str] = set()
        self._names = [f"c{number:04}" for number in range(count)]
        self._pool = ThreadPoolExecutor(BEATERS + CHECKERS)
        self._found: Found | None = None
        self._members: dict[str, Membership] = {}
        self._beats = [Line(self._stop) for _ in range(BEATERS)]
        self._check_ins = Line(self._stop)
        self._called: set[str] = set()

    def __enter__(self) -> Crowd:
        begun = time.perf_counter()
        starting = JOINING_BEATS * self._heartbeat * len(self._names) / CONSUMERS
        for number, name in enumerate(self._names):
            self._beats[number % BEATERS].add(begun + starting * number / len(self._names), name)
        self._work = [self._pool.submit(self._serve, line, self._beat) for line in self._beats]
        self._work += [
            self._pool.submit(self._serve, self._check_ins, self._check_in) for _ in range(CHECKERS)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for each in self._work:
            each.result()

    def settle(self) -> None:
        """Wait until all have joined and a survey has found that every consumer holds its share."""
        begun = time.perf_counter()
        while len(self._members) < len(self._names) or self._bench.figure(_UNSHARED):
            self._check()
            time.sleep(self._heartbeat)
        print(f"  all have their share after {time.perf_counter() - begun:.1f} s", flush=True)

    def live(self, seconds: float) -> Found:
        """Measure for this long.  Half way through some die."""
        found = Found()
        server = self._bench.server_pid
        begun, cpu = time.perf_counter(), processor_seconds(server)
        with self._lock:
            self._found = found
        time.sleep(seconds / 2)
        killed = self._rng.sample(self._names, max(1, round(len(self._names) * KILLED_SHARE)))
        killed_at = time.perf_counter()
        self._dead.update(killed)
        held = ", ".join(f"'{name}'" for name in killed)
        gone = f"SELECT COUNT(*) FROM penstock.consumers WHERE id IN ({held})"
        while self._bench.figure(gone) or self._bench.figure(_UNHELD):
            self._check()
            time.sleep(self._heartbeat / 10)
        found.replaced_seconds = time.perf_counter() - killed_at
        time.sleep(max(0.0, begun + seconds - time.perf_counter()))
        with self._lock:
            self._found = None
        found.seconds = time.perf_counter() - begun
        found.cpu_seconds = processor_seconds(server) - cpu
        return found

    def _check(self) -> None:
        for each in self._work:
            if each.done():
                each.result()

    def _serve(self, line: Line, work: Callable[[Any, Call], None]) -> None:
        connection: Any = database.connect(self._bench.url)
        try:
            while (call := line.next()) is not None:
                if call.name not in self._dead:
                    work(connection, call)
        finally:
            connection.close()

    def _beat(self, connection: Any, call: Call) -> None:
        """Send a heartbeat, or join (again).  Returns when to check in."""
        line = self._beats[int(call.name[1:]) % BEATERS]
        member = self._members.get(call.name)
        if member is None:
            self._members[call.name] = stream.join(connection, SUBSCRIPTION, call.name)
            self._call(call.name, 0.0)
            line.add(time.perf_counter() + self._heartbeat, call.name)
            return
        begun = time.perf_counter()
        (beat,) = stream.heartbeats(connection, [member], alone=True)
        now = time.perf_counter()
        with self._lock:
            if self._found is not None:
                self._found.heartbeats.append(1_000 * (now - begun))
                self._found.joined_again += beat.standing == "gone"
        if beat.standing == "gone":
            del self._members[call.name]
            line.add(now, call.name)
            return
        if beat.standing == "member" and beat.check_in_seconds < self._heartbeat:
            self._call(call.name, beat.check_in_seconds)
        line.add(max(call.due, now - self._heartbeat) + self._heartbeat, call.name)

    def _call(self, name: str, seconds: float) -> None:
        """Plan a check-in.  Each consumer has at most one at a time."""
        with self._lock:
            called = name in self._called
            self._called.add(name)
        if not called:
            self._check_ins.add(time.perf_counter() + seconds, name)

    def _check_in(self, connection: Any, call: Call) -> None:
        with self._lock:
            self._called.discard(call.name)
        member = self._members.get(call.name)
        if member is None:
            return
        begun = time.perf_counter()
        try:
            held = stream.check_in(connection, member, fresh=False)
        except UnknownConsumer:  # its next heartbeat notices it
            return
        now = time.perf_counter()
        with self._lock:
            if self._found is not None:
                self._found.check_ins.append(1_000 * (now - begun))
                self._found.by_second[int(now)] += 1
        asked = [lease for lease in held if lease.state == "RELEASING"]
        if asked:
            stream.release(connection, member, asked)


def _figures(found: Found, count: int, lease: float) -> Iterator[Figure]:
    for name, value, unit, aim in (
        ("check_ins", len(found.check_ins) / found.seconds, "check-ins/s", 12),
        ("database_cpu", 100 * found.cpu_seconds / found.seconds, "% of a core", 15),
        ("check_in_median", _share(found.check_ins, 50), "ms", None),
        ("check_in_p99", _share(found.check_ins, 99), "ms", 20),
        ("replaced", found.replaced_seconds, "s", 15 if lease >= LONGEST_HEARTBEAT else None),
    ):
        yield figure(
            f"load_{name}", value, unit=unit, rows=count, batch=1,
            aim=None if aim is None else Aim(at_most=aim),
        )  # fmt: skip


def _share(values: list[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100)[percent - 1] if values else 0.0
