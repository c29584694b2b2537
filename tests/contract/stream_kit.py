"""What the contract tests of streams share.  The rest is in tests.kit.stream."""

from __future__ import annotations

from typing import Any

from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.memory_kit import MemoryContractDatabase
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease

PAST = "2000-01-01 00:00:00"

#: What to take out of a function, by dialect: function, old text, new text.
Guard = dict[str, tuple[str, str, str]]


def without(db: ContractDatabase, guard: Guard) -> None:
    """Make the mutant of the engine."""
    db.without_guard(*guard[dialect(db)])


def dialect(db: ContractDatabase) -> str:
    """Whose mutants the engine has."""
    return "mysql" if db.engine == "mariadb" else db.engine


def end_lease(db: ContractDatabase, consumer: str) -> None:
    """As if the lease time of a consumer had passed."""
    if isinstance(db, MemoryContractDatabase):
        db.end_lease(consumer)
        return
    db.run(
        "UPDATE penstock.consumers SET deadline = %(past)s WHERE id = %(consumer)s",
        {"past": PAST, "consumer": consumer},
    )


def acquired(db: ContractDatabase) -> int:
    """How often a lease was acquired."""
    if isinstance(db, MemoryContractDatabase):
        return db.acquired()
    ((found,),) = db.run(
        "SELECT COUNT(*) FROM penstock.lease_history AS h"
        " WHERE h.lease_epoch > 0 AND h.holder <> ''"
        " AND (SELECT 'acquired') = h." + _quoted(db, "change")
    )
    return int(found)


def taken_over(db: ContractDatabase, connection: Any) -> tuple[Membership, Lease]:
    """A consumer that was paused past its lease, whose partition another one holds now."""
    filled(connection)
    paused = member_with_lease(connection, "a")
    end_lease(db, "a")
    member_with_lease(connection, "b")
    return paused


def check_in_rounds(connection: Any, members: list[Membership], count: int = 2) -> None:
    """Check-ins of everybody in turn; what is to be released is released at once."""
    for _ in range(count):
        for member in members:
            held = stream.check_in(connection, member)
            asked = [lease for lease in held if lease.state == "RELEASING"]
            if asked:
                stream.release(connection, member, asked)


def join(connection: Any, count: int, first: int = 0) -> list[Membership]:
    """So many members."""
    return [
        stream.join(connection, SUBSCRIPTION, f"c{number:03}")
        for number in range(first, first + count)
    ]


def _quoted(db: ContractDatabase, name: str) -> str:
    return f'"{name}"' if db.engine == "postgres" else f"`{name}`"


#: The times that the protocol has stored.
_TIMES = {
    "consumers": ("joined_at", "heartbeat_at", "deadline"),
    "leases": ("acquired_at", "release_deadline"),
    "lease_history": ("at",),
    "positions": ("at",),
}


def pass_time(db: ContractDatabase, seconds: float) -> None:
    """The database's clock as the protocol sees it goes on: all that it has stored is older."""
    number = f"'{seconds}'" if db.engine == "postgres" else f"{seconds}"
    for table, columns in _TIMES.items():
        changes = ", ".join(f"{each} = {each} - INTERVAL {number} SECOND" for each in columns)
        db.run(f"UPDATE penstock.{table} SET {changes}")


def merge_six(db: ContractDatabase) -> None:
    """What clean makes of two chunks of three events: one, with the time of each event."""
    if db.engine == "postgres":
        db.run(
            "UPDATE penstock.chunks AS c SET event_count = 6, last_id = d.last_id,"
            " event_ids = c.event_ids || d.event_ids, sequenced_at = d.sequenced_at,"
            " sequenced_ats = array_fill(c.sequenced_at, '{3}')"
            " || array_fill(d.sequenced_at, '{3}')"
            " FROM penstock.chunks AS d WHERE c.first_sequence = 1 AND d.first_sequence = 4"
        )
    else:
        first, second = (
            f"REPEAT(UNHEX(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {each}.sequenced_at)),"
            " 16, '0')), 3)"
            for each in "cd"
        )
        # The times come first: MySQL's SET sees what stands left of it.
        db.run(
            "UPDATE penstock.chunks AS c JOIN penstock.chunks AS d ON d.partition_id ="
            f" c.partition_id AND d.first_sequence = 4 SET c.sequenced_ats = CONCAT({first},"
            f" {second}), c.event_ids = CONCAT(c.event_ids, d.event_ids), c.event_count = 6,"
            " c.last_id = d.last_id, c.sequenced_at = d.sequenced_at WHERE c.first_sequence = 1"
        )
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 4")
