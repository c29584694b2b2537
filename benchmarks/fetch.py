"""Reading all columns of a sequenced log; the peer selects by id range from the bare table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from benchmarks.bench_database import BARE_COLUMNS, PARTITIONS, PASS, BenchDatabase
from benchmarks.events import KEYS, PAYLOAD_BYTES, messages
from benchmarks.measure import Aim, Case, Settings
from benchmarks.publish import copy_bare
from penstock import log
from penstock.publish import publish_bulk

ROWS = 100_000
BATCH_SIZE = 1_000
TICK = 20  # events of a tick, when 1,000 come in a second and the sequencer passes every 20 ms
FIRST_ID = "00000000-0000-0000-0000-000000000000"

#: Each turn publishes and sequences as the clients and the daemon of a live system do, commits
#: included: nothing of it depends on a backlog.
_LIVE = f"""
DO $live$
BEGIN
    FOR turn IN 1 .. %s LOOP
        PERFORM penstock.publish(
            topic => %s,
            payload => substr(decode(repeat(md5(n::text), 13), 'hex'), 1, {PAYLOAD_BYTES}),
            key => 'account-' || (turn * {TICK} + n) * 7919 %% {KEYS}, type => 'account.changed',
            headers => jsonb_build_object('source', 'bench', 'number', n))
        FROM generate_series(1, {TICK}) AS n;
        COMMIT;
        PERFORM penstock.sequence({PASS});
        COMMIT;
    END LOOP;
END
$live$
"""


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """fetch, partition after partition, of a log from large ticks and of one from small ones."""
    count = settings.amount(ROWS)
    topic, table = filled(bench, count)
    peer, aim = _select_all(bench, table, count), Aim(value=150_000)
    against = "SELECT of six columns"
    yield Case("fetch", count, BATCH_SIZE, _fetch_all(bench, topic, count), peer, against, aim)
    live = _filled_live(bench, count // TICK)
    yield Case(
        "fetch_live_ticks", count // TICK * TICK, BATCH_SIZE,
        _fetch_all(bench, live, count // TICK * TICK), peer, against, aim,
        peer_rows=count,
    )  # fmt: skip


def _fetch_all(bench: BenchDatabase, topic: str, count: int) -> Callable[[], float]:
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


def _select_all(bench: BenchDatabase, table: str, count: int) -> Callable[[], float]:
    select = (
        f"SELECT {', '.join(BARE_COLUMNS)} FROM {table} "
        f"WHERE id > %s ORDER BY id LIMIT {BATCH_SIZE}"
    ).encode()

    def run() -> float:
        begun = perf_counter()
        read = 0
        last: object = FIRST_ID
        while found := bench.connection.execute(select, (last,)).fetchall():
            read += len(found)
            last = found[-1][0]
        return _checked(begun, read, count)

    return run


def filled(bench: BenchDatabase, count: int) -> tuple[str, str]:
    """A sequenced topic and a bare table with the same events."""
    topic, table = bench.new_topic(), bench.new_bare_table()
    events = messages(topic, count)
    with bench.connection.transaction():
        publish_bulk(bench.connection, events)
        copy_bare(bench.connection, table, events)
    bench.work_off()
    bench.connection.execute("VACUUM ANALYZE")
    return topic, table


def _filled_live(bench: BenchDatabase, ticks: int) -> str:
    topic = bench.new_topic()
    live = _LIVE % (ticks, f"'{topic}'")
    bench.connection.execute(live.encode())
    bench.connection.execute("VACUUM ANALYZE")
    return topic


def _checked(begun: float, read: int, wanted: int) -> float:
    spent = perf_counter() - begun
    if read != wanted:
        raise RuntimeError(f"read {read} of {wanted} events")
    return spent
