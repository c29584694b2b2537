"""How a check-in reads all leases of a subscription: each row once, whatever the statistics say.

The planner knows the tables as they were when they were last analysed: with few active partitions.
Then thousands become active in one survey.  By a nested loop the next check-in compared each lease
with each active partition: 57 s for 65,536 of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.subscriptions import stream
from tests.guards import plan_of, without_guard
from tests.kit.log import TOPIC, Connection, topic, value
from tests.kit.proof import proves

LEASES = 85_536
ACTIVE = 65_536
FEW = 3
WIDE = 1 << 20

GUARD = "SET enable_nestloop TO 'off'"
GIVEN: dict[str, dict[str, Any]] = {
    "find_share": {"consumer": "a", "topic_ids": None},
    "find_active": {"first_key": 0.0, "share": 1.0, "now": "2026-01-01T00:00:00Z"},
}


@pytest.fixture
def subscription(connection: Connection) -> int:
    """Few active partitions are known of, and many are there."""
    topic(connection)
    stream.subscribe(connection, "s", [TOPIC])
    subscription_id = int(value(connection, "SELECT id FROM penstock.subscriptions"))
    for table, first, end in (
        ("leases", 0, LEASES),
        ("active_partitions", 0, FEW),
        ("active_partitions", FEW, ACTIVE),
    ):
        connection.execute(
            f"INSERT INTO penstock.{table} (subscription_id, partition_id)"
            " SELECT %s, %s + n FROM generate_series(%s, %s - 1) AS n".encode(),
            (subscription_id, WIDE, first, end),
        )
        connection.execute("ANALYZE penstock.active_partitions" if end == FEW else "SELECT")
    connection.execute("SET enable_seqscan = off")
    return subscription_id


def _compared(connection: Connection, function: str, subscription_id: int) -> list[str]:
    """The conditions by which each partition is compared with each other one, and not looked up.

    A filter by the subscription alone is none: before 16 a merge of the partitions has it besides.
    """
    plan = plan_of(
        connection, function, run=False, subscription_id=subscription_id, **GIVEN[function]
    )
    filters = [each.get("Join Filter", "") for each in _all(plan)]
    return [each for each in filters if "partition_id = " in each]


def _all(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _all(child))]


@proves("R1", guard="PostgreSQL, enable_nestloop")
@pytest.mark.parametrize("function", GIVEN)
def test_each_lease_is_looked_at_once(
    connection: Connection, subscription: int, function: str
) -> None:
    """Guard: enable_nestloop. Without it each is compared with each."""
    if function == "find_active":  # All is known but what has just become active.
        connection.execute("DELETE FROM penstock.active_partitions")
        connection.execute(
            "INSERT INTO penstock.positions"
            " (subscription_id, partition_id, position, lease_epoch, reason, at)"
            " SELECT subscription_id, partition_id, 0, 0, 'start', now() FROM penstock.leases"
        )
        connection.execute(
            "INSERT INTO penstock.active_partitions"
            " SELECT subscription_id, partition_id FROM penstock.leases LIMIT 3"
        )
        connection.execute("VACUUM ANALYZE")
        connection.execute(
            "INSERT INTO penstock.active_partitions SELECT subscription_id, partition_id"
            " FROM penstock.leases OFFSET 20000 ON CONFLICT DO NOTHING"
        )
    assert _compared(connection, function, subscription) == []
    without_guard(connection, function, GUARD, "")
    found = _compared(connection, function, subscription)
    # What the planner takes for find_active hangs on its sample of the rows, and on the version.
    assert function == "find_active" or found
