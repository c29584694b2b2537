"""Reading all columns of a sequenced log.  The peer selects by id range from the bare table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from benchmarks.bench import PARTITIONS, PASS, Bench
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Settings, batches
from penstock import log
from penstock.publishing.publish import publish_batch

ROWS = 100_000
BATCH_SIZE = 1_000
TICK = 20  # events of a tick: 1,000 come in a second, and the sequencer passes every 20 ms
POSTGRES_AIM, AIM = Aim(value=150_000), Aim(value=50_000)


def cases(bench: Bench, settings: Settings) -> Iterator[Case]:
    """Fetching, partition after partition, from a log of large ticks and from one of small ones."""
    count = settings.amount(ROWS)
    topic, table = filled(bench, count)
    peer, against = _select_all(bench, table, count), "SELECT of six columns"
    aim = POSTGRES_AIM if bench.engine == "postgres" else AIM
    yield Case("fetch", count, BATCH_SIZE, _fetch_all(bench, topic, count), peer, against, aim)
    live = _filled_live(bench, count)
    yield Case(
        "fetch_live_ticks", count, BATCH_SIZE, _fetch_all(bench, live, count), peer, against, aim
    )


def _fetch_all(bench: Bench, topic: str, count: int) -> Callable[[], float]:
    def run() -> float:
        begun = perf_counter()
        read = 0
        for partition in range(PARTITIONS):
            following = 1
            while events := log.fetch(bench.connection, topic, partition, following, BATCH_SIZE):
                read += len(events)
                following = events[-1].sequence + 1
        return _checked(begun, read, count)

    return run


def _select_all(bench: Bench, table: str, count: int) -> Callable[[], float]:
    select = (
        f"SELECT {bench.bare_columns} FROM {table} WHERE id > %s ORDER BY id LIMIT {BATCH_SIZE}"
    )

    def run() -> float:
        begun = perf_counter()
        read = 0
        last = bench.first_id
        while found := bench.rows(select, (last,)):
            read += len(found)
            last = found[-1][0]
        return _checked(begun, read, count)

    return run


def filled(bench: Bench, count: int) -> tuple[str, str]:
    """A sequenced topic and a bare table with the same events."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    bench.fill_both(topic, table, messages(topic, count))
    bench.work_off()
    bench.analyse(table)
    return topic, table


def _filled_live(bench: Bench, count: int) -> str:
    """Each turn publishes and sequences as the clients and the daemon of a live system do.

    It commits, too, so that nothing depends on a backlog.
    """
    topic = bench.new_topic()
    events = messages(topic, count)
    for part in batches(count, TICK):
        publish_batch(bench.connection, events[part.start : part.stop])
        log.sequence(bench.connection, PASS)
    bench.analyse()
    return topic


def _checked(begun: float, read: int, wanted: int) -> float:
    spent = perf_counter() - begun
    if read != wanted:
        raise RuntimeError(f"read {read} of {wanted} events")
    return spent
