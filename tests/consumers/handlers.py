"""Handlers for daemons under test.  They write what they do to a file that the test reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

from penstock import database
from penstock.consumer.queue.delivery import QueueDelivery
from penstock.consumer.stream.consumer import Batch
from penstock.records import Event

JOURNAL = "PENSTOCK_TEST_JOURNAL"
GATE = "PENSTOCK_TEST_GATE"

NOT_A_FUNCTION = 7


def record(event: Event) -> None:
    """Note one event."""
    _note(f"{event.partition} {event.sequence} {event.payload.decode()}")


def ignore(event: Event) -> None:
    """Note nothing."""


def work_off(delivery: QueueDelivery) -> None:
    """Write a row in the transaction that finishes the event, and note it."""
    with delivery.transaction() as connection:
        number = {"number": int(delivery.payload)}
        database.execute(connection, "INSERT INTO effects VALUES (%(number)s)", number)
    _note(f"{delivery.payload.decode()} {delivery.deliveries}")


def work_behind_a_gate(delivery: QueueDelivery) -> None:
    """The same, once the test has made the gate's file."""
    _note(f"begin {delivery.payload.decode()}")
    _wait_for_the_gate()
    work_off(delivery)


def behind_a_gate(batch: Batch) -> None:
    """Note the batch, wait until the test makes the gate's file, note its end."""
    _note(f"begin {batch.lease.partition} {len(batch)}")
    _wait_for_the_gate()
    _note(f"end {batch.lease.partition} {len(batch)}")


def _wait_for_the_gate() -> None:
    gate = Path(os.environ[GATE])
    deadline = time.monotonic() + 60
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the test did not open the gate")
        time.sleep(0.01)


def _note(text: str) -> None:
    with Path(os.environ[JOURNAL]).open("a") as journal:
        journal.write(f"{text}\n")
