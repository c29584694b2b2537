"""A pass of the sequencer on MySQL and MariaDB, stopped at a statement; slices of its events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock import log
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import sql
from tests.kit.log import wait_until

GATE = "penstock test gate"
#: The bound of the last slice.
LAST_EVENT_ID = 256_000_000_000
WAIT = f"DO GET_LOCK('{GATE}', 20); DO RELEASE_LOCK('{GATE}'); "


@dataclass(slots=True)
class StoppedPass:
    """Its connection, and what it failed with."""

    connection: Any
    failures: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """The pass itself."""
        try:
            log.sequence(self.connection, 100)
        except Exception as error:
            self.failures.append(error)


@contextmanager
def stopped(
    db: MySQLDatabase, function: str, place: str, mutant: str | None = None
) -> Iterator[StoppedPass]:
    """A pass that waits in front of ``place``, or in what stands there instead.

    It goes on, or is killed, when the block ends.
    """
    db.without_guard(function, place, mutant or WAIT + place)
    holder, stopped_pass = db.connect(), StoppedPass(db.connect())
    sql(holder, f"DO GET_LOCK('{GATE}', 1)")
    thread = threading.Thread(target=stopped_pass.run)
    thread.start()
    wait_for_gate(db, stopped_pass.connection)
    yield stopped_pass
    sql(holder, f"DO RELEASE_LOCK('{GATE}')")
    thread.join(30)
    assert not thread.is_alive()


def wait_for_gate(db: MySQLDatabase, connection: Any) -> None:
    """Until a connection waits at the gate.  Before it, a statement may be in "System lock"."""
    waiting = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND ID = "
    number = connection.thread_id()
    wait_until(lambda: db.run(f"{waiting}{number}"), f"thread {number} waits at the gate")


def cut_events(db: MySQLDatabase, *rooms: int) -> None:
    """Other slices for this test: the blocks up to now and the first room, the next room, ..."""
    ((bound,),) = db.run(
        "SELECT 1 + GREATEST(s.settled_block, COALESCE(MAX(e.id), 0) DIV 256)"
        " FROM penstock.sequencer AS s LEFT JOIN penstock.events AS e ON TRUE"
        " GROUP BY s.settled_block"
    )
    slices = []
    for number, room in enumerate(rooms or (0,)):
        bound += room
        slices.append(f"PARTITION old{number or ''} VALUES LESS THAN ({bound * 256})")
    slices.append(f"PARTITION rest VALUES LESS THAN ({LAST_EVENT_ID})")
    db.run(f"ALTER TABLE penstock.events PARTITION BY RANGE (id) ({', '.join(slices)})")
