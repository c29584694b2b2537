"""Full slices are dropped while twelve publishers overlap, and do not delay them (F13).

Twelve publishers with transactions of a second, slices of 10,000 events, all of them with a
verified copy, and `clean` all the time.  A slice is full when an event of the next one has its
sequence; a stay is counted in the runs of clean that begin while it is full and there.  The long
form takes ten minutes: `make test-long ARGS="-k full_slice_stays"`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import quantiles

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from ops.seal import seal
from penstock import log
from penstock.database import call
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.kit.cleaning import clean_believing
from tests.kit.log import TOPIC, Connection, topic, value
from tests.kit.proof import proves
from tests.kit.storage import cut

PUBLISHERS = 12
EACH = 100
SIZE = 10_000
OPEN_SECONDS = 1.0
MOST_RUNS = 2


@dataclass
class Seen:
    """What the run is judged by."""

    dropped: int = 0
    longest: int = 0
    runs: int = 0
    longest_run: float = 0.0
    stays: dict[str, int] = field(default_factory=dict)
    waits: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})


class Load:
    """The publishers, the sequencer and the operator, each with a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = threading.Event()
        self.cleaning = threading.Event()
        self.seen = Seen()

    def publish(self, number: int) -> None:
        """Transactions of a second: the batch, some waiting, one event more, and COMMIT."""
        messages = [Message(TOPIC, b"x" * 100, partition=number % 4)] * (EACH - 1)
        with psycopg.connect(self.url) as connection:
            while not self.stop.is_set():
                with connection.transaction():
                    self._timed(lambda: publish_batch(connection, messages))
                    connection.execute("SELECT pg_sleep(%s)", (OPEN_SECONDS,))
                    self._timed(lambda: publish_batch(connection, messages[:1]))

    def _timed(self, act: Callable[[], object]) -> None:
        beside_clean = self.cleaning.is_set()
        start = time.monotonic()
        act()
        self.seen.waits[beside_clean].append((time.monotonic() - start) * 1000)

    def sequence(self) -> None:
        """Passes as the daemon makes them."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.stop.is_set():
                if not log.sequence(connection).more:
                    self.stop.wait(0.2)

    def operate(self, every: float) -> None:
        """Seal, record the copies, and clean."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.stop.wait(every):
                self.clean_once(connection)

    def clean_once(self, connection: Connection) -> None:
        """One run of `penstock clean`, and how long each full slice has been there."""
        for epoch in seal(connection, TOPIC, max_events=SIZE, max_age_seconds=0):
            call(
                connection, "record_copy", topic=TOPIC, partition=epoch.partition,
                log_epoch=epoch.log_epoch, target="local", location="nowhere",
                event_count=epoch.event_count, checksum=epoch.checksum,
                layout=1, first_row=0,
            )  # fmt: skip
        full = connection.execute(_FULL).fetchall()
        self.cleaning.set()
        start = time.monotonic()
        clean_believing(self.url, TOPIC)
        found = drop_slices(self.url)
        self.cleaning.clear()
        seen = self.seen
        seen.runs += 1
        seen.longest_run = max(seen.longest_run, time.monotonic() - start)
        gone = {each.slice for each in found if each.state is SliceState.DROPPED}
        seen.dropped += len([name for name in gone if name.startswith("events_")])
        for (name,) in full:
            seen.stays[name] = seen.stays.get(name, 0) + 1
            if name not in gone:
                report(f"run {seen.runs}: {name} is there after {seen.stays[name]} runs")
        seen.longest = max([seen.longest, *seen.stays.values()])


#: Slices all of whose events have their sequence, as far as the next one's show.
_FULL = """
    SELECT s.slice FROM penstock.slices AS s
    WHERE s.parent = 'events' AND s.last_id < (SELECT max(c.last_id) FROM penstock.chunks AS c)
"""


def report(line: str) -> None:
    """Figures, for a run with ARGS=-s."""
    sys.stdout.write(f"{line}\n")


def _percentiles(waits: list[float]) -> str:
    if len(waits) < 100:
        return f"{len(waits)} calls"
    cuts = quantiles(waits, n=100)
    return f"{len(waits)} calls, p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"


@proves("F13", how="twelve publishers")
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_no_full_slice_stays_longer_than_two_runs(
    connection: Connection, database_url: str
) -> None:
    """PENSTOCK_CLEAN_SECONDS makes it shorter, for the other versions of PostgreSQL."""
    seconds = float(os.environ.get("PENSTOCK_CLEAN_SECONDS", "600"))
    every = float(os.environ.get("PENSTOCK_CLEAN_EVERY", "30"))
    topic(connection, 4)
    cut(connection, "events", SIZE, 200)
    connection.execute("SELECT penstock.set_retention(%s, 0, 1, targets => '{local}')", (TOPIC,))
    load = Load(database_url)
    with ThreadPoolExecutor(PUBLISHERS + 2) as pool:
        work = [pool.submit(load.publish, number) for number in range(PUBLISHERS)]
        work += [pool.submit(load.sequence), pool.submit(load.operate, every)]
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(each.done() for each in work):
            time.sleep(1)
        load.stop.set()
        for each in work:
            each.result()
    seen = load.seen
    version = value(connection, "SHOW server_version")
    report(
        f"PostgreSQL {version}, {seconds:.0f} s: "
        f"{value(connection, 'SELECT last_value FROM penstock.events_id')} events, "
        f"{len(seen.stays)} slices full at a run, {seen.dropped} dropped in {seen.runs} runs, "
        f"longest stay {seen.longest} runs, longest run {seen.longest_run:.1f} s; "
        f"while clean ran: {_percentiles(seen.waits[True])}; "
        f"else: {_percentiles(seen.waits[False])}"
    )
    assert seen.runs > 2
    assert len(seen.stays) > seen.runs, "slices fill all the time"
    assert seen.longest <= MOST_RUNS
