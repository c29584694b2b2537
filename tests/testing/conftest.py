"""A log in memory for each test, without a server."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import MemoryConnection, MemoryDatabase

ORDERS = "shop/orders"


@pytest.fixture
def db() -> MemoryDatabase:
    """Empty, with a clock that stands still."""
    return MemoryDatabase()


@pytest.fixture
def connection(db: MemoryDatabase) -> MemoryConnection:
    """A connection to a log with one topic of two partitions, which "billing" reads."""
    opened = db.connect()
    penstock.create_topic(opened, ORDERS, 2, create_namespaces=True)
    penstock.subscribe(opened, "billing", [ORDERS])
    return opened
