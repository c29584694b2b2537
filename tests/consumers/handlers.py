"""Handlers for daemons under test.  They write what they do to a file that the test reads."""

from __future__ import annotations

import os
import time
from pathlib import Path

from penstock.consumer.consumer import Batch
from penstock.records import Event

JOURNAL = "PENSTOCK_TEST_JOURNAL"
GATE = "PENSTOCK_TEST_GATE"

NOT_A_FUNCTION = 7


def record(event: Event) -> None:
    """Note one event."""
    _note(f"{event.partition} {event.sequence} {event.payload.decode()}")


def ignore(event: Event) -> None:
    """Note nothing."""


def behind_a_gate(batch: Batch) -> None:
    """Note the batch, wait until the test makes the gate's file, note its end."""
    _note(f"begin {batch.lease.partition} {len(batch)}")
    gate = Path(os.environ[GATE])
    deadline = time.monotonic() + 60
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the test did not open the gate")
        time.sleep(0.01)
    _note(f"end {batch.lease.partition} {len(batch)}")


def _note(text: str) -> None:
    with Path(os.environ[JOURNAL]).open("a") as journal:
        journal.write(f"{text}\n")
