"""Publishing one by one and by 500.  The peer puts the same rows into a bare table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from benchmarks.bench import Bench
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Settings, batches
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message

SINGLE, BATCH = 1_000, 20_000
BATCH_SIZE = 500
AIM = Aim(ratio=0.7)
SINGLE_AIMS = {"postgres": Aim(ratio=0.75), "mysql": Aim(ratio=0.5), "mariadb": Aim(ratio=0.5)}


def cases(bench: Bench, settings: Settings) -> Iterator[Case]:
    """A commit for each event, and a commit for each 500 against the driver's own executemany."""
    yield _single(bench, settings.amount(SINGLE))
    rows = settings.amount(BATCH)
    yield Case(
        "publish_batch_500", rows, BATCH_SIZE, publishing(bench, rows),
        _executemany(bench, rows), "executemany of 500", AIM,
    )  # fmt: skip


def _single(bench: Bench, rows: int) -> Case:
    events = messages(bench.new_topic(), rows)

    def ours() -> float:
        bench.settle()
        begun = perf_counter()
        for event in events:
            publish_one(bench.connection, event)
        return perf_counter() - begun

    peer, aim = inserting(bench, events), SINGLE_AIMS[bench.engine]
    return Case("publish_single", rows, 1, ours, peer, "one INSERT", aim)


def inserting(bench: Bench, events: Sequence[Message]) -> Callable[[], float]:
    """A run that puts the events into a bare table, with a commit for each."""
    insert = bench.insert(bench.new_bare_table())

    def run() -> float:
        bench.settle()
        begun = perf_counter()
        for row in bench.bare_rows(events):
            bench.execute(insert, row)
        return perf_counter() - begun

    return run


def publish_one(connection: Any, event: Message) -> None:
    """One event by `publish`."""
    publish(
        connection,
        event.topic,
        event.payload,
        key=event.key,
        type=event.type,
        content_type=event.content_type,
        headers=event.headers,
    )


def publishing(bench: Bench, rows: int) -> Callable[[], float]:
    """A run that publishes full-width events, 500 at a time."""
    return publishing_events(bench, messages(bench.new_topic(), rows))


def publishing_events(bench: Bench, events: Sequence[Message]) -> Callable[[], float]:
    """A run that publishes these events with a commit for each 500."""

    def run() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(len(events), BATCH_SIZE):
            publish_batch(bench.connection, events[part.start : part.stop])
        return perf_counter() - begun

    return run


def _executemany(bench: Bench, rows: int) -> Callable[[], float]:
    events = messages("", rows)
    insert = bench.insert(bench.new_bare_table())

    def run() -> float:
        bench.settle()
        begun = perf_counter()
        for part in batches(rows, BATCH_SIZE):
            with bench.transaction():
                bench.executemany(insert, bench.bare_rows(events[part.start : part.stop]))
        return perf_counter() - begun

    return run
