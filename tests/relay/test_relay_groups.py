"""Three real sinks, of which a quorum of two moves the relay: one fast, one slow, one dead."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.relay.block import Backoff
from ops.relay.relay import Relay
from ops.sinks.address import open_sink
from ops.sinks.base import Channel, RelayBlock
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import lag
from penstock.subscriptions.relay_groups import relay_group_lag, set_relay_group
from penstock.topics import names
from penstock.upkeep.workers import SequencerWorker
from tests.kit.log import wait_until
from tests.kit.sinks import InFront
from tests.relay.receivers import Receiver, Says
from tests.relay.stores import Streams, StreamsServer

TOPIC, RELAY = "bank/accounts", "everywhere"
EVENTS, SECONDS, SLOW = 2_000, 20.0, 0.05


class Slow(InFront):
    """A sink that takes 50 ms for each block."""

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        time.sleep(SLOW)
        super().send_block(channel, block)


def _sinks(folder: Path, streams: Streams, hook: Receiver) -> dict[str, Any]:
    return {
        "files": open_sink(f"jsonl:{folder}"),
        "redis": Slow(open_sink(streams.address + "?volatile=true")),
        "hook": open_sink(f"{hook.address}#batch=100&envelope=batch", environ=hook.environ()),
    }


@contextmanager
def _relaying(url: str, sinks: dict[str, Any]) -> Iterator[None]:
    """The sequencer and a relay of each sink, each in its thread."""
    stop = threading.Event()
    runs = [SequencerWorker(url, 10_000).run] + [
        Relay(url, f"{RELAY}.{name}", sink, backoff=Backoff(0.2, 1.0), idle_seconds=0.05).run
        for name, sink in sinks.items()
    ]
    with ThreadPoolExecutor(len(runs)) as pool:
        running = [pool.submit(run, stop) for run in runs]
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.result(60)


def _p99(published: list[float], seen: list[tuple[float, int]]) -> float:
    """How long 99 of 100 events waited until a position was seen at or after them."""
    waits, at = [], 0
    for sequence, begun in enumerate(published, 1):
        while seen[at][1] < sequence:
            at += 1
        waits.append(seen[at][0] - begun)
    return sorted(waits)[int(len(waits) * 0.99)]


def _published(url: str, published: list[float]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        begun = time.monotonic()
        for number in range(EVENTS):
            message = Message(TOPIC, json.dumps(number).encode(), content_type="application/json")
            publish_batch(connection, [message])
            published.append(time.monotonic())
            time.sleep(max(0.0, begun + (number + 1) * SECONDS / EVENTS - time.monotonic()))


def _watched(connection: Any, seen: dict[str, list[tuple[float, int]]]) -> bool:
    """Look where each sink stands, and then where the relay does."""
    stands = {each.subscription: each.position for each in lag(connection)}
    now = time.monotonic()
    (group,) = relay_group_lag(connection, RELAY)
    after = time.monotonic()
    for name, position in stands.items():
        seen.setdefault(name, []).append((now, position))
    before = seen.setdefault(RELAY, [(0.0, 0)])[-1]
    assert before[1] <= group.position  # it never moves back
    seen[RELAY].append((after, group.position))
    return group.position >= EVENTS


@pytest.mark.long
def test_the_relay_follows_the_second_fastest_and_the_dead_one_gets_everything_later(
    connection: psycopg.Connection[Any],
    database_url: str,
    streams_server: StreamsServer,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    """The webhook answers 503 until all else was sent: then once, in order."""
    taken: list[int] = []
    is_dead = True

    def answer(call: Any) -> Says:
        if is_dead:
            return Says(503)
        taken.extend(int(each["sequence"]) for each in json.loads(call.body))
        return Says()

    receiver.answer = answer
    names.create_topic(connection, TOPIC, 1, create_namespaces=True)
    streams = Streams(streams_server, "groups")
    sinks = _sinks(tmp_path / "out", streams, receiver)
    set_relay_group(connection, RELAY, sinks, 2, topics=[TOPIC])
    published: list[float] = []
    seen: dict[str, list[tuple[float, int]]] = {}
    with _relaying(database_url, sinks):
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(_published, database_url, published)
            wait_until(lambda: _watched(connection, seen), "the relay is there", 120)
            publishing.result()
        assert (receiver.calls != [], taken) == (True, [])
        is_dead = False
        wait_until(lambda: not any(each.lag_events for each in lag(connection)), "all is sent", 120)
    waits = {name: _p99(published, each) for name, each in seen.items() if name != f"{RELAY}.hook"}
    sys.stdout.write(
        f"p99 { ({name: round(each * 1000, 1) for name, each in waits.items()}) } ms\n"
    )
    assert waits[f"{RELAY}.files"] < waits[f"{RELAY}.redis"]
    assert waits[RELAY] <= 1.2 * waits[f"{RELAY}.redis"]
    assert taken == list(range(1, EVENTS + 1))
    (file,) = (tmp_path / "out").glob("*.jsonl")
    lines = [json.loads(each) for each in file.read_text("utf-8").splitlines()]
    assert [int(each["sequence"]) for each in lines] == taken
    entries = streams_server.entries(f"groups:{TOPIC}:0")
    assert [entry for entry, _ in entries] == [f"1-{each}" for each in taken]
