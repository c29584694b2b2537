"""Penstock against pgmq, pgqueuer and procrastinate: publish singly and by 500, read and finish.

Each peer is used in the way that its documentation calls fastest. pgmq is SQL, so the same clients
call both sides. Each of the two Python libraries works in its own process. Against them Penstock is
used by its Python functions and penstock.Consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter

from benchmarks.bench_database import BenchDatabase
from benchmarks.consume import WithConsumer, join_all
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Gap, Run, Settings
from benchmarks.peers.install import PeerMissing, python_with_peers
from benchmarks.peers.pgmq import BODY, Pgmq
from benchmarks.peers.protocol import BATCH_SIZE, PeerProcess
from benchmarks.pgbench import run_script
from benchmarks.publish import publishing_events
from benchmarks.single import payload_script, publish_script
from penstock.publishing.publish import publish
from penstock.records import Message
from penstock.subscriptions import stream

SINGLE, BATCH, WORK = 2_000, 20_000, 50_000
CLIENTS_SINGLE = 20_000
#: How many events the slower peers take in a turn: singly, by 500, read and finished.
PYTHON_PEERS = {
    "pgqueuer": (1_000, 20_000, 10_000),
    "procrastinate": (1_000, 10_000, 300),
}
AHEAD = Aim(ratio=1)

_POLL = """
SELECT partition_id, sequence, created_at, payload
FROM penstock.poll(
    subscription => %s, consumer => %s, partition_ids => %s::bigint[],
    lease_epochs => %s::bigint[], after => %s::bigint[], max_events => %s)
"""


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case | Gap]:
    """The cases of every peer that can be fetched.  The others are gaps."""
    try:
        yield from _against_pgmq(bench, settings)
    except PeerMissing as error:
        yield Gap("pgmq", str(error))
    if settings.short:
        return
    try:
        python = python_with_peers()
    except PeerMissing as error:
        yield Gap("pgqueuer and procrastinate", str(error))
        return
    for name, amounts in PYTHON_PEERS.items():
        module = f"benchmarks.peers.{name}_worker"
        with PeerProcess(python, module, bench.server.url(f"{bench.name}_{name}")) as process:
            yield from _against_python(bench, settings, name, process, amounts)


def _against_pgmq(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    peer = Pgmq(bench)
    yield from _single_against_pgmq(bench, settings.amount(CLIENTS_SINGLE), peer)
    yield from _batches_against_pgmq(bench, settings.amount(BATCH), peer)
    work = settings.amount(WORK)
    topic = bench.new_topic()
    bench.fill([topic], work)
    bench.work_off()
    bench.connection.execute("VACUUM ANALYZE")
    yield Case(
        "pgmq_read_finish_500", work, BATCH_SIZE, _poll_three_columns(bench, topic, work),
        peer.work(work), "read + delete, three columns", Aim(ratio=2),
    )  # fmt: skip


def _single_against_pgmq(bench: BenchDatabase, rows: int, peer: Pgmq) -> Iterator[Case]:
    """The same on both sides, payload only and full width.

    Then our full width against its payload.
    """
    bare = _by_clients(bench, payload_script(bench.new_topic()), rows)
    full = _by_clients(bench, publish_script(bench.new_topic()), rows)
    send, send_full = peer.single(rows), peer.single(rows, full=True)
    for name, ours, theirs, against in (
        ("single", bare, send, "send, 8 clients, payload only both"),
        ("single_full", full, send_full, "send with headers, 8 clients"),
        ("single_full_to_payload", full, send, "send, 8 clients, payload only"),
    ):
        yield Case(f"pgmq_publish_{name}", rows, 1, ours, theirs, against, AHEAD)


def _batches_against_pgmq(bench: BenchDatabase, rows: int, peer: Pgmq) -> Iterator[Case]:
    """The same comparisons, by 500."""
    events = _with_body(messages(bench.new_topic(), rows))
    bare = publishing_events(bench, [Message(each.topic, each.payload) for each in events])
    full = publishing_events(bench, events)
    send, send_full = peer.batch(rows), peer.batch(events)
    for name, ours, theirs, against in (
        ("500", bare, send, "send_batch, payload only both"),
        ("500_full", full, send_full, "send_batch with headers"),
        ("500_full_to_payload", full, send, "send_batch, payload only"),
    ):
        yield Case(f"pgmq_publish_{name}", rows, BATCH_SIZE, ours, theirs, against, AHEAD)


def _against_python(
    bench: BenchDatabase,
    settings: Settings,
    name: str,
    process: PeerProcess,
    amounts: tuple[int, int, int],
) -> Iterator[Case]:
    single, batch, work = map(settings.amount, (SINGLE, BATCH, WORK))
    events = _with_body(messages(bench.new_topic(), batch))
    topic = bench.new_topic()
    bench.fill([topic], work)
    bench.work_off()
    bare = [Message(event.topic, event.payload) for event in events]
    their_single, their_batch, their_work = map(settings.amount, amounts)
    runs: tuple[tuple[str, int, int, Run, str, int], ...] = (
        ("publish_single", single, 1, _singly(bench, bare[:single]), "single", their_single),
        ("publish_500", batch, BATCH_SIZE, publishing_events(bench, bare), "batch", their_batch),
        (
            "publish_500_full_to_payload", batch, BATCH_SIZE, publishing_events(bench, events),
            "batch", their_batch,
        ),
        (
            "read_finish_500", work, BATCH_SIZE, WithConsumer(bench, topic, work), "work",
            their_work,
        ),
    )  # fmt: skip
    for figure, rows, size, run, command, peer_rows in runs:
        yield Case(
            f"{name}_{figure}", rows, size, run, _asked(bench, process, command, peer_rows),
            f"{name}, {command}, payload only", AHEAD, peer_rows=peer_rows,
        )  # fmt: skip


def _asked(bench: BenchDatabase, process: PeerProcess, command: str, rows: int) -> Run:
    def run() -> float:
        bench.settle()
        return process.ask(command, rows)

    return run


def _by_clients(bench: BenchDatabase, script: str, rows: int) -> Run:
    def run() -> float:
        bench.settle()
        return run_script(bench, script, rows)

    return run


def _singly(bench: BenchDatabase, events: Sequence[Message]) -> Run:
    def run() -> float:
        bench.settle()
        begun = perf_counter()
        for event in events:
            publish(bench.connection, event.topic, event.payload)
        return perf_counter() - begun

    return run


def _with_body(events: list[Message]) -> list[Message]:
    """Full-width events with pgmq's payload of the same size."""
    return [replace(event, payload=BODY.encode()) for event in events]


def _poll_three_columns(bench: BenchDatabase, topic: str, count: int) -> Run:
    """Poll and commit by 500.  Reads the sequence, time and payload of each event."""
    turn = 0

    def run() -> float:
        nonlocal turn
        turn += 1
        subscription = f"columns-{turn}"
        stream.subscribe(bench.connection, subscription, [topic])
        bench.settle()
        begun = perf_counter()
        handled = _read_and_commit(bench, subscription)
        spent = perf_counter() - begun
        stream.unsubscribe(bench.connection, subscription)
        if handled != count:
            raise RuntimeError(f"handled {handled} of {count} events")
        return spent

    return run


def _read_and_commit(bench: BenchDatabase, subscription: str) -> int:
    member, leases = join_all(bench.connection, subscription)
    ids = list(leases)
    epochs = [lease.lease_epoch for lease in leases.values()]
    handled = 0
    with closing(bench.connection.cursor(binary=True)) as cursor:
        while True:
            after = [lease.position for lease in leases.values()]
            binds = (subscription, member.consumer, ids, epochs, after, BATCH_SIZE)
            found = cursor.execute(_POLL, binds).fetchall()
            if not found:
                return handled
            handled += len(found)
            last = {row[0]: row[1] for row in found}
            done = [(leases[partition_id], position) for partition_id, position in last.items()]
            stream.commit(bench.connection, member, done)
            for lease, position in done:
                leases[lease.partition_id] = replace(lease, position=position)
