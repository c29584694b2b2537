"""Logs in small slices, and the steps of `penstock clean` one by one."""

from __future__ import annotations

from typing import Any

from ops.retention.storage_postgres import note_snapshots
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.kit.log import TOPIC, Connection, value

Row = tuple[Any, ...]


def many(connection: Connection, count: int, partition: int = 0, name: str = TOPIC) -> None:
    """Publish events whose payloads are their numbers from 1."""
    publish_batch(
        connection,
        [Message(name, str(n).encode(), partition=partition) for n in range(1, count + 1)],
    )


def move_low(connection: Connection, sequence: int, partition_id: int | None = None) -> None:
    """Drop events logically up to a sequence, as clean does it when nothing holds them back."""
    connection.execute(
        "UPDATE penstock.partitions SET low_sequence = %s"
        " WHERE %s::bigint IS NULL OR id = %s::bigint",
        (sequence + 1, partition_id, partition_id),
    )


def cut(connection: Connection, parent: str, size: int, count: int = 3) -> None:
    """Replace the slices of an empty table: small ones, and a large one after them."""
    names = connection.execute(
        "SELECT slice FROM penstock.slices WHERE parent = %s", (parent,)
    ).fetchall()
    with connection.transaction():
        rows = connection.execute(f"SELECT * FROM penstock.{parent}".encode()).fetchall()
        for (name,) in names:
            connection.execute(f"DROP TABLE penstock.{name}".encode())
        connection.execute("DELETE FROM penstock.slices WHERE parent = %s", (parent,))
        for _ in range(count):
            connection.execute("SELECT penstock.add_slice(%s, %s)", (parent, size))
        connection.execute("SELECT penstock.add_slice(%s, 10000000)", (parent,))
        for row in rows:
            places = ", ".join(["%s"] * len(row))
            connection.execute(f"INSERT INTO penstock.{parent} VALUES ({places})".encode(), row)


def next_slice(connection: Connection, parent: str) -> None:
    """Let the next number of a table go to its next slice."""
    connection.execute(
        "SELECT setval(format('penstock.%%s_id', s.parent)::regclass, min(s.last_id))"
        " FROM penstock.slices AS s WHERE s.parent = %s AND s.last_id >= %s GROUP BY s.parent",
        (parent, value(connection, f"SELECT last_value FROM penstock.{parent}_id")),
    )
    connection.execute("SELECT penstock.ensure_slices()")


def condemn(connection: Connection) -> None:
    """Record which slices are not needed any more, and how old the oldest snapshot is."""
    connection.execute("SELECT penstock.condemn_slices()")
    note_snapshots(connection)


def droppable(connection: Connection, parent: str = "events") -> list[str]:
    """The slices of a table that clean would drop now."""
    condemn(connection)
    rows = connection.execute(
        "SELECT slice FROM penstock.droppable_slices() WHERE parent = %s", (parent,)
    ).fetchall()
    return [row[0] for row in rows]


def unneeded(connection: Connection, parent: str = "events") -> list[str]:
    """The slices of a table that are not needed, even if an open snapshot may still read them."""
    rows = connection.execute(
        "SELECT slice FROM penstock.unneeded_slices() WHERE parent = %s", (parent,)
    ).fetchall()
    return [row[0] for row in rows]


def slices(connection: Connection, parent: str) -> list[str]:
    """The slices of a table, oldest first."""
    rows = connection.execute(
        "SELECT slice FROM penstock.slices WHERE parent = %s ORDER BY first_id", (parent,)
    ).fetchall()
    return [row[0] for row in rows]
