"""A relay, a stream and a queue read one topic; retention waits for the slowest of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.relay.relay import Relay
from ops.seal import seal
from ops.sinks.jsonl import JsonlSink
from penstock import database
from penstock.consumer.stream.consumer import Consumer
from penstock.records import Event
from penstock.subscriptions import queue, stream
from tests.contract.databases import ContractDatabase
from tests.contract.queue.test_workers import consumer_of
from tests.contract.stream_kit import without
from tests.kit.cleaning import clean_unread
from tests.kit.log import Connection
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC, filled, pass_time, receive

pytestmark = pytest.mark.mariadb_differs("rows that others have locked are passed over")

RELAY, STREAM = "relay", "reader"


def _clean(own: Connection) -> tuple[int, str]:
    """The low sequence after a clean, and what keeps the rest."""
    ((_, _, low, reason),) = clean_unread(own, TOPIC)
    return low, reason


def _three(own: Connection) -> None:
    """Ten events in two log epochs, and three readers that have seen nothing."""
    filled(own, 10)
    for each in (RELAY, STREAM):
        stream.subscribe(own, each, [TOPIC])
    seal(own, TOPIC, max_events=5)
    database.call(
        own, "set_retention", topic=TOPIC, minimum_age_seconds=0, copies=0, origin="hand",
        max_bytes=None, targets=[],
    )  # fmt: skip


def _held(subscription: str, position: int) -> tuple[int, str]:
    epoch = position // 5 + 1
    words = f'subscription "{subscription}" stands at {position}, log epoch {epoch} ends at'
    return 5 * (epoch - 1) + 1, f"{words} {5 * epoch}"


def _relay(db: ContractDatabase, folder: Path) -> int:
    return Relay(db.url, RELAY, JsonlSink(str(folder))).run_for(30).events


@proves("D9 of queues")
@pytest.mark.parametrize("slowest", [RELAY, STREAM, QUEUE])
def test_retention_waits_for_the_slowest_and_names_it(
    db: ContractDatabase, own: Connection, tmp_path: Path, slowest: str
) -> None:
    """Each gets every event, whoever else reads; one that holds an event is the slowest."""
    _three(own)
    seen: list[Event] = []
    done: list[int] = []
    readers = {
        RELAY: lambda: _relay(db, tmp_path),
        STREAM: lambda: Consumer(db.url, STREAM, handler=seen.append).run_until_idle(),
        QUEUE: lambda: consumer_of(db, lambda each: done.append(each.sequence)).run_until_idle(),
    }
    for name, read in readers.items():
        if name != slowest:
            assert read() == 10
    if slowest != QUEUE:
        _turn(own)
    assert _clean(own) == _held(slowest, 0)
    assert readers[slowest]() == 10
    _turn(own)
    assert _clean(own)[0] == 11
    assert (len(seen), len(done)) == (10, 10)


@proves("D9 of queues")
def test_an_event_in_flight_keeps_its_log_epoch(
    db: ContractDatabase, own: Connection, tmp_path: Path
) -> None:
    """The queue is the slowest as long as one event of it is handed out, and not when it waits."""
    _three(own)
    _relay(db, tmp_path)
    Consumer(db.url, STREAM, handler=lambda _: None).run_until_idle()
    held = receive(own, 10, visibility_seconds=1000)
    queue.acknowledge(own, QUEUE, [each.receipt for each in held if each.event.sequence != 7])
    _turn(own)
    assert _clean(own) == _held(QUEUE, 6)
    queue.reject(own, QUEUE, [held[6].receipt], delay_seconds=900)
    _turn(own)
    assert _clean(own)[0] == 11, "what waits for a retry is a copy"


def test_without_the_positions_unread_events_go(db: ContractDatabase, own: Connection) -> None:
    """Mutant: nobody is asked."""
    _three(own)
    without(
        db,
        {
            "postgres": (
                "retention_hold", "WHEN slowest.position < epoch.last_sequence", "WHEN false",
            ),
            "mysql": ("retention_hold", "WHEN lowest < last AND", "WHEN FALSE AND"),
        },
    )  # fmt: skip
    assert _clean(own)[0] == 11


def _turn(own: Connection) -> None:
    """Who receives moves the position."""
    pass_time(own, 1)
    assert receive(own) == []
