"""Relays of a subscription to files: killed, paused, refused."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks import open_sink
from ops.sinks.base import (
    Channel,
    EventRefused,
    RelayBlock,
    SinkMisconfigured,
    SinkUnavailable,
)
from ops.sinks.jsonl import JsonlSink
from penstock.errors import ConfigurationError, StaleLease
from penstock.log.restores import Seen
from penstock.publishing.publish import publish
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import dead_letters
from penstock.subscriptions.stream import Membership
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront, relay_once
from tests.relay.chaos import PARTITIONS, SUBSCRIPTION, Chaos, chaos, compare

TOPIC = "bank/accounts"
FAST = Backoff(base_seconds=0.01, max_seconds=0.05)

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def log(connection: Connection, database_url: str, tmp_path: Path) -> Iterator[Chaos]:
    """A log whose relay writes to files."""
    with chaos(connection, database_url, topic=TOPIC, sink=f"jsonl:{tmp_path}/out") as made:
        yield made


def written(log: Chaos, partition: int) -> list[tuple[int, bytes]]:
    """Sequence and payload of every line, in the order of the file."""
    path = JsonlSink(log.sink.removeprefix("jsonl:")).path(f"{TOPIC}//1", partition)
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [(int(one["sequence"]), base64.b64decode(one["data_base64"])) for one in found]


def assert_exact(log: Chaos) -> None:
    """Each file is its partition, once and in order."""
    for partition in range(PARTITIONS):
        assert written(log, partition) == log.expected(partition)


def test_a_micro_batch_relays_what_is_there(log: Chaos, database_url: str) -> None:
    log.publish(1000)
    sink = open_sink(log.sink)
    result = Relay(database_url, SUBSCRIPTION, sink).run_for(60)
    assert (result.events, result.drained, result.failures) == (1000, True, 0)
    assert Relay(database_url, SUBSCRIPTION, sink).run_for(60).events == 0
    log.publish(10)
    assert Relay(database_url, SUBSCRIPTION, sink).run_for(60).events == 10
    assert_exact(log)


@pytest.mark.parametrize(
    ("events", "kills"), [(8_000, 2), pytest.param(20_000, 4, marks=pytest.mark.long)]
)
def test_killed_again_and_again_and_still_exactly_once(log: Chaos, events: int, kills: int) -> None:
    log.publish(events)
    log.run(kills=kills, pauses=1)
    assert (log.kills, log.pauses) == (kills, 1)
    assert_exact(log)


@pytest.mark.parametrize("where", ["before", "after"])
def test_the_successor_sends_the_recorded_block(log: Chaos, where: str) -> None:
    log.publish(4000)
    first = log.start("--crash", where, "--at-once", "1")
    assert first.wait(timeout=60) == -9
    stored = sum(len(written(log, partition)) for partition in range(PARTITIONS))
    assert (stored > log.done()) == (where == "after")
    log.publish(500)
    relay = log.start()
    log.until_done(log.published, relay)
    assert_exact(log)


class Scripted(InFront):
    """A sink that does what the test says, in front of a real one."""

    def __init__(self, sink: JsonlSink) -> None:
        super().__init__(sink)
        self.name = "scripted"
        self.max_block_events = 100
        self.raises: list[Exception] = []
        self.unready: list[BaseException] = []
        self.unseen: list[BaseException] = []
        self.refuses: set[int] = set()
        self.blocks: list[RelayBlock] = []

    def preflight(self, topic: str, partitions: int) -> None:
        """Raise what is next, else as the sink."""
        if self.unready:
            raise self.unready.pop(0)
        self.sink.preflight(topic, partitions)

    def seen(self, channel: Channel) -> Seen | None:
        """Raise what is next, else as the sink."""
        if self.unseen:
            raise self.unseen.pop(0)
        return channel.seen()

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Raise what is next, refuse what is poison, else as the sink."""
        self.blocks.append(block)
        if self.raises:
            raise self.raises.pop(0)
        for event in block.events:
            if event.sequence in self.refuses:
                raise EventRefused(event.sequence, "poison")
        channel.send_block(block)


@pytest.fixture
def scripted(log: Chaos) -> Scripted:
    """A scripted sink in front of the log's files."""
    return Scripted(JsonlSink(log.sink.removeprefix("jsonl:")))


def test_a_failure_is_counted_and_the_block_tried_again(
    log: Chaos, scripted: Scripted, database_url: str
) -> None:
    log.publish(50)
    scripted.raises = [SinkUnavailable("away"), ValueError("a fault of the sink")] * 2
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST)
    result = relay.run_for(30)
    assert (result.events, result.failures, result.drained) == (50, 4, True)
    rows = log.connection.execute("SELECT block_id, attempt, error FROM penstock.relay_failures")
    assert len(rows.fetchall()) == 4
    sent = {(b.partition, b.first_sequence, b.last_sequence) for b in scripted.blocks}
    assert len(sent) == PARTITIONS
    assert [b.reopened for b in scripted.blocks].count(False) == PARTITIONS
    assert_exact(log)


def test_a_block_that_cannot_be_read_is_counted(
    log: Chaos, scripted: Scripted, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish(50)
    read, faults = Event.from_rows, [ValueError("cannot be decoded"), RecursionError("too deep")]

    def from_rows(*given: Any) -> list[Event]:
        if faults:
            raise faults.pop()
        return read(*given)

    monkeypatch.setattr(Event, "from_rows", from_rows)
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST)
    result = relay.run_for(30)
    assert (result.events, result.failures, result.drained) == (50, 2, True)
    rows = log.connection.execute("SELECT error FROM penstock.relay_failures ORDER BY error")
    assert [row[0] for row in rows] == ["RecursionError: too deep", "ValueError: cannot be decoded"]
    assert_exact(log)


FAULTS = (
    SinkUnavailable("away"),
    ValueError("a fault of the sink"),
    psycopg.OperationalError("the sink's own database"),
    asyncio.CancelledError(),
)


def _run(relay: Relay, log: Chaos, events: int) -> None:
    """Run the continuous form until so many events are sent; raises what ends it before."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.run, stop)
        try:
            wait_until(lambda: log.done() >= events or running.done(), "all were sent")
        finally:
            stop.set()
    running.result()


@proves("a sink's fault is an attempt")
def test_whatever_a_sink_raises_when_it_is_asked_is_a_failed_attempt(
    log: Chaos, scripted: Scripted, database_url: str
) -> None:
    log.publish(50)
    scripted.unready, scripted.unseen = list(FAULTS), list(FAULTS)
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST, idle_seconds=0.01)
    _run(relay, log, 50)
    assert (relay.stats.events, relay.stats.failures) == (50, 8)
    assert_exact(log)
    log.publish(50)
    scripted.unready, scripted.unseen = list(FAULTS), list(FAULTS)
    result = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST).run_for(30)
    # The micro-batch asks once before its first turn, which counts what it meets.
    assert (result.events, result.drained, result.failures) == (50, True, 7)
    assert_exact(log)


@proves("a sink's fault is an attempt", guard="_asked")
def test_without_the_guard_a_fault_of_the_sink_ends_the_relay(
    log: Chaos, scripted: Scripted, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the relay counts only what is a Penstock error."""

    def raised(relay: Relay, connection: Any, lane: Any, error: BaseException) -> int:
        raise error

    monkeypatch.setattr(Relay, "_failed", raised)
    log.publish(2)
    scripted.unseen = [ValueError("a fault of the sink")]
    with pytest.raises(ValueError, match="a fault of the sink"):
        _run(Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST), log, 2)
    assert log.done() == 0


@proves("a sink's fault is an attempt")
def test_a_sink_that_is_set_up_wrong_ends_a_relay_that_has_proven_nothing(
    log: Chaos, scripted: Scripted, database_url: str
) -> None:
    """Later it is an attempt, so that the other partitions go on: a resize, for example."""
    log.publish(2)
    scripted.unready = [SinkMisconfigured("no such place")] * PARTITIONS
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST, idle_seconds=0.01)
    with pytest.raises(SinkMisconfigured, match="no such place"):
        _run(relay, log, 2)
    assert (scripted.blocks, log.done()) == ([], 0)
    scripted.unseen = [SinkMisconfigured("a message of another relay")] * 2
    _run(relay, log, 2)
    assert (log.done(), relay.stats.failures) == (2, 2)


POISON = ("9" * 5_000, "[" * 7_000 + "]" * 7_000)


@pytest.mark.parametrize("poison", POISON, ids=["digits", "levels"])
def test_headers_that_python_cannot_decode_are_relayed(
    log: Chaos, scripted: Scripted, database_url: str, poison: str
) -> None:
    """An event of before the limits, as the database may still hold it."""
    log.publish(50)
    headers = f'{{"a": {poison}}}'
    log.connection.execute("UPDATE penstock.events SET headers = %s::jsonb", [headers])
    result = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST).run_for(30)
    assert (result.events, result.failures, result.drained) == (50, 0, True)
    assert_exact(log)


def test_a_refused_event_goes_to_the_dead_letters(
    log: Chaos, scripted: Scripted, database_url: str
) -> None:
    log.publish(500)
    scripted.refuses = {1, 40, 41, 250}
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST)
    result = relay.run_for(30)
    assert (result.events, result.dead_letters, result.failures) == (492, 8, 0)
    assert result.drained
    dead = dead_letters(log.connection, SUBSCRIPTION)
    assert {(each.partition, each.sequence) for each in dead} == {
        (partition, sequence) for partition in (0, 1) for sequence in scripted.refuses
    }
    assert {each.reason for each in dead} == {"poison"}
    for partition in range(PARTITIONS):
        kept = [row for row in log.expected(partition) if row[0] not in scripted.refuses]
        assert written(log, partition) == kept


def test_an_event_is_given_up_after_its_own_number_of_attempts(
    log: Chaos, scripted: Scripted, database_url: str
) -> None:
    """Only that event, after exactly so many attempts of its block; the others go on."""
    for number, limit in enumerate((None, 2, 9, 1)):
        publish(log.connection, TOPIC, b"%d" % number, partition=0, max_attempts=limit)
    log.publish(0)
    scripted.raises = [SinkUnavailable("away")] * 3
    relay = Relay(database_url, SUBSCRIPTION, scripted, backoff=FAST)
    result = relay.run_for(30)
    assert (result.events, result.dead_letters, result.drained) == (2, 2, True)
    tried = [[event.payload for event in block.events] for block in scripted.blocks]
    assert tried == [[b"0", b"1", b"2", b"3"], [b"0", b"1", b"2"], [b"0", b"2"], [b"0", b"2"]]
    reasons = {each.sequence: each.reason for each in dead_letters(log.connection, SUBSCRIPTION)}
    assert reasons == {2: "not delivered in 2 attempts", 4: "not delivered in 1 attempts"}


def test_a_sink_that_refuses_what_is_not_there_does_not_loop(
    log: Chaos, scripted: Scripted
) -> None:
    log.publish(2)
    scripted.raises = [EventRefused(999, "nonsense")]
    member, lease = lease_of(log)
    result = relay_once(log.connection, member, lease, scripted, FAST)
    assert result is not None
    assert result.retry_after is not None
    assert dead_letters(log.connection, SUBSCRIPTION) == []


def test_a_lease_that_was_lost_changes_nothing(log: Chaos, scripted: Scripted) -> None:
    log.publish(10)
    member, lease = lease_of(log)
    stream.seek(log.connection, SUBSCRIPTION, TOPIC, lease.partition, 1)
    with pytest.raises(StaleLease):
        relay_once(log.connection, member, lease, scripted, FAST)
    assert scripted.blocks == []
    assert log.connection.execute("SELECT count(*) FROM penstock.blocks").fetchone() == (0,)


def test_a_sink_that_is_set_up_wrong_stops_a_micro_batch(log: Chaos, tmp_path: Path) -> None:
    log.publish(10)
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkMisconfigured):
        Relay(log.url, SUBSCRIPTION, open_sink(f"jsonl:{tmp_path}/file/out")).run_for(60)
    assert log.done() == 0


@pytest.mark.parametrize(
    "address", ["jsonl:", "ftp://x", "pulsar://x", "pulsar://x?admin=y&batching=perhaps", ""]
)
def test_an_address_that_cannot_be_read(address: str) -> None:
    with pytest.raises(ConfigurationError):
        open_sink(address)


def test_compare_sees_every_fault() -> None:
    log = [(n, b"x") for n in range(1, 6)]
    assert compare(log, log).exact
    for wrong in (log[:-1], [*log, log[-1]], log[::-1], [*log[:-1], (5, b"y")]):
        assert not compare(log, wrong).exact


def lease_of(log: Chaos) -> tuple[Membership, Lease]:
    """A member and its lease on partition 0."""
    member = stream.join(log.connection, SUBSCRIPTION, "by-hand")
    held = stream.check_in(log.connection, member)
    return member, next(lease for lease in held if lease.partition == 0)
