"""What the tests of the doctor share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from penstock.doctor import Finding, Limits, doctor

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "shop/orders"

Connection = psycopg.Connection[tuple[Any, ...]]
Run = Callable[[str, str], str]

#: Every open transaction is a finding.
NOW = Limits(snapshot_seconds=0.0)


def only(found: list[Finding]) -> Finding:
    """The one finding that there is."""
    assert len(found) == 1, found
    return found[0]


def settled(url: str, as_wanted: Callable[[list[Finding]], bool]) -> list[Finding]:
    """What the doctor finds when the server's processes have read the changed file."""
    deadline = time.monotonic() + 30
    while not as_wanted(found := doctor(url)):
        assert time.monotonic() < deadline, found
    return found


def begin(stack: ExitStack, url: str, *statements: str, **options: Any) -> Connection:
    """A session that stays in its transaction."""
    connection = psycopg.connect(url, **options)
    stack.callback(connection.close)
    for each in statements:
        connection.execute(each.encode())
    return connection
