"""What a call costs on PostgreSQL 14 to 17: processor time of the server, by turns with 18.

All of them come from one builder, so that only the version differs.  The server that the other
groups are measured on has a newer compiler: its rows, named ``wheel``, tell what that makes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bench import PARTITIONS, PASS
from benchmarks.bench_database import BenchDatabase, bench_database, bench_server
from benchmarks.consume import TUPLES, join_all, tuples_after
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Gap, Run, Settings
from benchmarks.processor import session_seconds
from benchmarks.publish import publish_one
from penstock import database, log
from penstock.publishing.publish import publish_batch
from penstock.records import Lease, Message
from penstock.subscriptions import queue, stream
from penstock.topics import names
from tools.servers import ServerUnavailable
from tools.servers.postgres_matrix import NEWEST, VERSIONS

EVENTS = 80_000
CALLS = 200
BATCH = 500
#: What a pass finds that follows new events.
FEW = 3
AIM = Aim(cost=1.3)
UNIT = "of a processor, events/s"
WHEEL = "wheel"
WORK, NEW, NONE = "calls/work", "calls/new", "calls/none"


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case | Gap]:
    """Each call on each version, one version after the other."""
    with ExitStack() as stack:
        try:
            newest = Calls(stack.enter_context(_opened(NEWEST)), settings)
        except ServerUnavailable as error:
            yield Gap("versions", str(error))
            return
        for major in sorted(VERSIONS.keys() - {NEWEST}):
            with _opened(major) as older:
                yield from _beside(str(major), Calls(older, settings), newest)
        yield from _beside(WHEEL, Calls(bench, settings), newest)


def _beside(name: str, one: Calls, other: Calls) -> Iterator[Case]:
    for (call, rows, batch, ours), (*_, peer) in zip(one.runs(), other.runs(), strict=True):
        aim = None if name == WHEEL or call == "insert" else AIM
        against = f"PostgreSQL {NEWEST}"
        yield Case(f"version_{name}_{call}", rows, batch, ours, peer, against, aim, UNIT)


@contextmanager
def _opened(major: int) -> Iterator[BenchDatabase]:
    with bench_server(major=major) as server, bench_database(server, "bench_versions") as bench:
        yield bench


class Calls:
    """The calls of one server, each as a run that returns its processor time."""

    def __init__(self, bench: BenchDatabase, settings: Settings) -> None:
        self._bench, self._own = bench, bench.connection
        self._calls, self._all = settings.amount(CALLS), settings.amount(EVENTS)
        names.create_namespace(self._own, "calls")
        for topic in (WORK, NEW, NONE):
            names.create_topic(self._own, topic, PARTITIONS)
        bench.fill([WORK], self._all)
        bench.work_off()
        bench.analyse()
        self._insert = bench.insert(bench.new_bare_table())
        self._numbers = itertools.count(1)
        stream.subscribe(self._own, "calls/read", [WORK])
        queue.subscribe(self._own, NONE, [NONE])

    def runs(self) -> Iterator[tuple[str, int, int, Run]]:
        """Name, events, events of a call, and the run."""
        calls, many = self._calls, max(1, self._calls // 20)
        events, batch = messages(NEW, calls), messages(NEW, BATCH)
        own = self._own
        yield "insert", calls, 1, self._each(events, self._insert_one)
        yield "publish", calls, 1, self._each(events, lambda each: publish_one(own, each))
        yield (
            "publish_500", BATCH * many, BATCH,
            self._each([batch] * many, lambda each: publish_batch(own, each)),
        )  # fmt: skip
        yield "pass_3", FEW * calls, FEW, self._passed
        yield "poll_none", calls, 1, partial(self._polled, calls, 10, at_end=True)
        yield "poll_10", 10 * calls, 10, partial(self._polled, calls, 10)
        yield "poll_500", BATCH * many, BATCH, partial(self._polled, many, BATCH)
        yield "tuples", min(self._all, TUPLES), TUPLES, self._tuples
        yield (
            "receive_none", calls, 1,
            self._each(range(calls), lambda _: queue.hand_out(own, NONE, 10)),
        )  # fmt: skip
        for size, times in ((1, calls), (10, calls), (BATCH, many)):
            taken = partial(self._taken, size, times)
            yield f"receive_{size}", size * times, size, partial(taken, 0)
            yield f"acknowledge_{size}", size * times, size, partial(taken, 1)

    def _insert_one(self, event: Message) -> None:
        for row in self._bench.bare_rows([event]):
            self._bench.execute(self._insert, row)

    def _each(self, given: Sequence[Any], work: Callable[[Any], Any]) -> Run:
        def run() -> float:
            begun = session_seconds(self._own)
            for one in given:
                work(one)
            return session_seconds(self._own) - begun

        return run

    def _passed(self) -> float:
        """Passes over events that another session publishes."""
        events, spent = messages(NEW, FEW), 0.0
        self._bench.work_off()
        with database.connect(self._bench.url) as publisher:
            for _ in range(self._calls):
                publish_batch(publisher, events)
                publisher.commit()
                begun = session_seconds(self._own)
                log.sequence(self._own, PASS)
                spent += session_seconds(self._own) - begun
        return spent

    def _polled(self, times: int, size: int, *, at_end: bool = False) -> float:
        with self._reader() as (member, leases):
            if at_end:
                ends = log.high_watermarks(self._own, WORK)
                leases = [replace(each, position=ends[each.partition]) for each in leases]
            begun = session_seconds(self._own)
            for _ in range(times):
                found = stream.poll(self._own, member, leases, size)
                if bool(found) == at_end:
                    raise RuntimeError("the consumer has lost its leases")
            return session_seconds(self._own) - begun

    def _tuples(self) -> float:
        with self._reader() as (member, leases):
            begun = session_seconds(self._own)
            if not tuples_after(self._own, member, leases):
                raise RuntimeError("the consumer has lost its leases")
            return session_seconds(self._own) - begun

    @contextmanager
    def _reader(self) -> Iterator[tuple[stream.Membership, list[Lease]]]:
        """A consumer that holds all partitions, from the first event on."""
        member, leases = join_all(self._own, "calls/read")
        yield member, list(leases.values())
        stream.leave(self._own, member)

    def _taken(self, size: int, times: int, which: int) -> float:
        """What it took to receive so often from a new queue (0), or then to acknowledge (1)."""
        name = f"calls/queue{next(self._numbers)}"
        queue.subscribe(self._own, name, [WORK])
        begun = session_seconds(self._own)
        taken = [
            [each.receipt for each in queue.hand_out(self._own, name, size)] for _ in range(times)
        ]
        received = session_seconds(self._own)
        for receipts in taken:
            queue.acknowledge(self._own, name, receipts)
        acknowledged = session_seconds(self._own)
        stream.unsubscribe(self._own, name)
        return (received - begun, acknowledged - received)[which]
