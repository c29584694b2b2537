"""For the tests of applications: a log in memory with a virtual clock, and assertions.

    db = MemoryDatabase()
    connection = db.connect()
    penstock.create_topic(connection, "shop/orders", create_namespaces=True)
    penstock.publish(connection, "shop/orders", b"...", key="Ada")
    assert_published(connection, "shop/orders", key="Ada")

The application calls the functions of Penstock that it calls in production.
"""

from __future__ import annotations

from penstock.database import dialects, sessions
from penstock.testing.assertions import (
    assert_dead_lettered,
    assert_handled,
    assert_nothing_published,
    assert_published,
    published,
)
from penstock.testing.clock import VirtualClock
from penstock.testing.connection import MemoryConnection
from penstock.testing.database import MemoryDatabase
from penstock.testing.dialect import Memory
from penstock.testing.session import MemoryWork
from penstock.testing.statements import NotInMemory
from penstock.testing.store import WaitsForever

__all__ = [
    "MemoryConnection",
    "MemoryDatabase",
    "NotInMemory",
    "VirtualClock",
    "WaitsForever",
    "assert_dead_lettered",
    "assert_handled",
    "assert_nothing_published",
    "assert_published",
    "published",
]

dialects.register(Memory(), driver="penstock.testing.connection.MemoryConnection")
sessions.register(Memory.name, MemoryWork())
