"""What each row of the benchmark times, and what stands beside it: the last table of the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools import made


@dataclass(frozen=True, slots=True)
class Row:
    """Rows of one kind: their names (`*` is any part of a name), what is timed, and the peer."""

    names: str
    timed: str
    peer: str = "none"

    def explains(self, name: str) -> bool:
        """Whether it is about the row of that name."""
        return any(fnmatchcase(name, each) for each in self.names.split(", "))


ROWS = (
    Row(
        "publish_single",
        "`publish` from Python, a commit for each event",
        "`INSERT`, a commit for each row",
    ),
    Row(
        "publish_batch_500",
        "`publish_batch` of 500 and a commit",
        "`executemany` of 500 and a commit (PyMySQL makes one INSERT of 500 rows of it)",
    ),
    Row("publish_batch_500_arrays", "the same", "one INSERT over the same binary arrays"),
    Row(
        "publish_copy, publish_table",
        "`publish_bulk`; `publish_table` of an Arrow table; one transaction",
        "binary COPY of the same",
    ),
    Row(
        "pgbench_single",
        "`penstock.publish` by 8 clients of pgbench, prepared",
        "`INSERT` by the same",
    ),
    Row(
        "pgbench_tpcb, pgbench_tpcb_plain",
        "a TPC-B transaction, scale 20, with one `publish` in it",
        "with one `INSERT`; with neither",
    ),
    Row(
        "account_*",
        "for an account: publish, receive ten, acknowledge ten; in a topic that is open to all; "
        "with a quota",
        "the same for a login; without a quota",
    ),
    Row(
        "start_*",
        "milliseconds of a new process: import, `penstock --version`, `penstock publish`, import "
        "of a publisher and of a consumer",
    ),
    Row(
        "sequence",
        "passes of at most 50,000 events, each committed, over events just inserted",
    ),
    Row(
        "sequence_*_partitions, sequence_*_topics",
        "the same in one topic of 1,024 partitions, in 1,000 topics of 16",
        "one topic of 16",
    ),
    Row(
        "fetch, fetch_live_ticks",
        "`log.fetch` by 1,000 into `Event` records, partition after partition; of a log of ticks "
        "of 20 events each",
        "SELECT of six columns by id range, by 1,000, into tuples",
    ),
    Row(
        "consume, consume_tuples",
        "poll by 500, do nothing, commit the position; one consumer holds all 16 partitions; by "
        "SQL, 16,000 tuples of three columns at a time",
        "SELECT of the next 500 by id, UPDATE of the row with the position, commit",
    ),
    Row(
        "consume_class",
        "the same by `penstock.Consumer`, which reads ahead; start, drain and end included",
        "as above",
    ),
    Row(
        "pgmq_publish_single, pgmq_publish_500",
        "topic and payload, by 8 clients and by 500",
        "`send` and `send_batch`, payload only",
    ),
    Row(
        "pgmq_publish_*_full, pgmq_publish_*_full_to_payload",
        "full width",
        "with key, type, content type and headers in its headers; payload only",
    ),
    Row(
        "pgmq_read_finish_500",
        "poll and commit by 500, of id, time and payload",
        "`read` and `delete` by 500, of the same",
    ),
    Row(
        "pgqueuer_*, procrastinate_*",
        "payload only; read_finish is consume_class",
        "their own enqueue or defer, and their own workers in a process of their own",
    ),
    Row(
        "queue_500, queue_100, queue_10",
        "receive and acknowledge by so many, one worker; receipt, time and payload are read",
        "pgmq's `read` and `delete` of as many; on MySQL and MariaDB none",
    ),
    Row(
        "queue_*_workers_*",
        "the same by so many processes that begin together; 64 of them on one partition",
        "the same; 16 processes on one partition",
    ),
    Row(
        "scale_single_by_*, scale_500_by_*",
        "publish one by one and by 500, by so many clients; 64 partitions",
        "pgmq; scale_single_bare_by_N: an INSERT",
    ),
    Row(
        "scale_queue_*_by_*, scale_backlog_*",
        "a queue by so many workers, 10,000 messages left at the end; as many as `--waiting` says",
        "pgmq's `read` and `delete`",
    ),
    Row(
        "scale_queue_*_64_workers, scale_consumer_by_*",
        "64 workers; `penstock.Consumer` by batches in so many processes",
        "16 workers; none",
    ),
    Row(
        "latency_hot_*",
        "milliseconds from the reply to COMMIT until the handler is called, 60 s at 1,000 "
        "events/s in one partition; on MySQL and MariaDB ten events share a commit",
    ),
    Row(
        "latency_queue_*, latency_cold_*, latency_woken_*",
        "the same for a queue; for 60 events in partitions that were idle for a minute; for these "
        "with a waker (PostgreSQL)",
    ),
    Row("latency_fsync", "a write that waits for the disk"),
    Row(
        "held_*",
        "500 events published, sequenced, fetched, polled and committed, four times a second, "
        "while a session holds a REPEATABLE READ snapshot; the last minute counts",
        "the same beats without the snapshot in a second database (MySQL, MariaDB: on a second "
        "server), in turns",
    ),
    Row(
        "spark_read_hot",
        "a data frame of all columns into the `noop` sink, in tasks of 100,000",
        "JDBC over the same `fetch` and tasks, fetch size 10,000",
    ),
    Row("spark_read_cold", "the same from the archive", "Spark's reader of plain Parquet"),
    Row(
        "spark_stream",
        "a stream with availableNow, 100,000 events a micro-batch, the same sink; start and end "
        "included",
    ),
    Row(
        "spark_stream_p50",
        "milliseconds from the publisher's call to the rows in `foreachBatch`, the median of 200 "
        "events, 20 a second, each sequenced at once",
    ),
    Row(
        "spark_write",
        "a data frame of four tasks, staged and published in one transaction",
        "JDBC append to the bare table, rewritten batches",
    ),
    Row(
        "spark_archive",
        "`archive_epochs` of a sealed topic to an empty local target, log epochs of 100,000",
    ),
    Row(
        "cold_start",
        "a new Python process reads 100 events of that archive by `penstock.archive.read`: "
        "milliseconds by the clock",
    ),
)


def table() -> str:
    """The table of the page."""
    return made.table(("name", "what is timed", "the peer"), _cells())


def _cells() -> Iterator[tuple[str, str, str]]:
    for each in ROWS:
        names = ", ".join(f"`{name}`" for name in each.names.split(", "))
        yield names, each.timed, each.peer
