"""The demo's handler: a projection of balances, written in one transaction with the position.

The stage can halt a consumer at two points, to kill or pause it exactly there: "before" its
transaction, and "inside" it, between the call that commits the position and COMMIT.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import penstock
from penstock.consumer.stream.consumer import Batch

DIRECTORY = "PENSTOCK_DEMO_DIRECTORY"
CONSUMER = "PENSTOCK_DEMO_CONSUMER"
MUTANT = "PENSTOCK_DEMO_MUTANT"
POLL_SECONDS = 0.01


def halt_file(directory: Path, consumer: str, point: str) -> Path:
    """While this file exists, the consumer halts at the point.  It then renames it to .halted."""
    return directory / f"{consumer}.{point}"


def project(batch: Batch) -> None:
    """Apply a batch to the projection, exactly once."""
    _halt("before")
    if os.environ.get(MUTANT) == "outside":
        # A common mistake: the effect commits by itself, the position a moment later.
        own = _own_connection()
        with own.transaction():
            _apply(own, batch)
        _halt("inside")
        return
    with batch.transaction() as connection:
        _apply(connection, batch)
        _halt("inside")


@cache
def _own_connection() -> Any:
    return penstock.connect()


def _apply(connection: Any, batch: Batch) -> None:
    connection.execute(
        "SELECT count(nextval('demo.deliveries')) FROM generate_series(1, %s)", (len(batch),)
    )
    told = [json.loads(event.payload) for event in batch]
    accounts = sorted({each["account"] for each in told})
    expected = dict.fromkeys(accounts, 0) | dict(
        connection.execute(
            "SELECT account, balance FROM demo.projection WHERE account = ANY(%s)", (accounts,)
        ).fetchall()
    )
    changes = {account: _Change() for account in accounts}
    for each in told:
        change = changes[each["account"]]
        change.delta += each["delta"]
        change.events += 1
        # The event holds the bank's balance. Both are equal only if the order of the key was kept.
        change.disorder += expected[each["account"]] + change.delta != each["balance"]
    _store(connection, batch, changes)


@dataclass(slots=True)
class _Change:
    delta: int = 0
    events: int = 0
    disorder: int = 0


def _store(connection: Any, batch: Batch, changes: dict[int, _Change]) -> None:
    connection.execute(
        """
        INSERT INTO demo.projection AS p (account, balance, events, disorder)
        SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
        ON CONFLICT (account) DO UPDATE
        SET balance = p.balance + EXCLUDED.balance, events = p.events + EXCLUDED.events,
            disorder = p.disorder + EXCLUDED.disorder
        """,
        (
            list(changes),
            [change.delta for change in changes.values()],
            [change.events for change in changes.values()],
            [change.disorder for change in changes.values()],
        ),
    )
    connection.execute(
        "INSERT INTO demo.handled SELECT id, clock_timestamp() FROM unnest(%s::uuid[]) AS id",
        ([event.event_id for event in batch],),
    )


def _halt(point: str) -> None:
    asked = halt_file(Path(os.environ[DIRECTORY]), os.environ[CONSUMER], point)
    if not asked.exists():
        return
    halted = asked.rename(asked.with_suffix(f".{point}-halted"))
    while halted.exists():
        time.sleep(POLL_SECONDS)
